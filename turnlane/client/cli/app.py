"""The application: all verbs, in the order people meet them."""

from __future__ import annotations

import typer

from turnlane.client.cli import approvals, archives, chat, control, demo, model, read, send, serve


def build_app() -> typer.Typer:
    """Make the application with every verb."""
    app = typer.Typer(
        help="Durable conversations with language-model agents, on Temporal.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for module in (serve, chat, send, read, approvals, control, model, archives, demo):
        module.register(app)
    return app
