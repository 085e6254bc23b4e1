"""`demo`: a story on a stack of its own, told as it happens and checked as it is told."""

from __future__ import annotations

import typer

from turnlane.client.cli.verbs import Session, verb


def register(app: typer.Typer) -> None:
    """Add the verb of this module."""
    verb(app)(demo)


async def demo(session: Session) -> None:
    """Play a story on a stack of its own, offline, and check every claim it makes. Takes less than a minute."""
    # Imported here: only this verb needs the whole stack, and it takes long to load.
    from turnlane.client.cli.demo_play import play

    await play(session)
