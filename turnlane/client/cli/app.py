"""The application: all verbs, in the order people meet them."""

from __future__ import annotations

import importlib
import importlib.util

import typer

from turnlane.client.cli import chat, control, read, send, serve

DEMO = "turnlane.client.cli.demo"


def build_app() -> typer.Typer:
    """Make the application with every verb that this installation has."""
    app = typer.Typer(
        help="Durable conversations with language-model agents, on Temporal.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for module in (serve, chat, send, read, control):
        module.register(app)
    if importlib.util.find_spec(DEMO) is not None:
        importlib.import_module(DEMO).register(app)
    return app
