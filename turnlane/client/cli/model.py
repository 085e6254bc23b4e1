"""`model`: which model a conversation chose, and choosing another."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from turnlane.client.cli.send import ConversationId
from turnlane.client.cli.verbs import Session, verb
from turnlane.records.errors import InvalidInputError


def register(app: typer.Typer) -> None:
    """Add the verb of this module."""
    verb(app)(model)


async def model(
    session: Session,
    conversation_id: ConversationId,
    key: Annotated[str | None, Argument(metavar="KEY", help="The key of a model of the agent.")] = None,
    own: Annotated[bool, Option("--own", help="Go back to the agent's own model.")] = False,
    agent: Annotated[str | None, Option(help="Whose key it is, for a conversation that has no agent yet.")] = None,
) -> None:
    """Show the model that a conversation chose, or choose one for its next answers."""
    if key is not None and own:
        raise InvalidInputError("name a model or say --own, not both", fields=["key"])
    if key is None and not own:
        async with session.client() as client:
            _shown(session, conversation_id, await client.chosen_model(conversation_id))
        return
    async with session.lane_client() as client:
        await client.choose_model(conversation_id, key, agent=agent)
    _shown(session, conversation_id, key)


def _shown(session: Session, conversation_id: str, key: str | None) -> None:
    session.out.record({"ok": True, "conversation_id": conversation_id, "model": key})
    shown = key or "the agent's own model"
    session.out.say(f"{conversation_id}: {shown}")
