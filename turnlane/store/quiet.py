"""Quiet logs: at DEBUG, SQLAlchemy writes out every row it reads and aiosqlite every parameter. Those are
conversations, and stay out of logs, whatever level an application sets."""

from __future__ import annotations

import logging
from typing import Any

ENGINE_NAME = "turnlane"
"""What our engines are called in logs, so that an application's own keep theirs."""


def quiet_engine() -> dict[str, Any]:
    """Return the options of an engine that logs its statements as any other, but no parameter and no row."""
    for name in (f"sqlalchemy.engine.Engine.{ENGINE_NAME}", "aiosqlite"):
        logging.getLogger(name).addFilter(_without_content)
    return {"hide_parameters": True, "logging_name": ENGINE_NAME}


def _without_content(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG
