"""The clock of the store's side."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time, as what is stored has it."""
    return datetime.now(UTC)
