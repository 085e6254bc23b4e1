"""Haste: transactions that run on the caller's own thread, for which they must be brief.

Which are is known beforehand, but for those whose work grows with a conversation: they look, and refuse.
"""

from __future__ import annotations

from sqlalchemy import Connection

_HASTY = "turnlane_hasty"


class TakesLongError(Exception):
    """A transaction on a hasty connection takes too long for that; it is done over on another."""


def make_hasty(connection: Connection) -> None:
    """Let only brief transactions run on a connection."""
    connection.info[_HASTY] = True


def refuse_long(connection: Connection, is_long: bool) -> None:
    """Raise TakesLongError for what would take long on a connection that is only for brief transactions."""
    if is_long and _HASTY in connection.info:
        raise TakesLongError
