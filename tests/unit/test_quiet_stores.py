"""No store logs what it keeps."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import make_url, text

from turnlane.store.database import AsyncDatabase

SAID = "xq7-said-in-confidence-9"


async def test_a_database_with_an_async_driver_logs_statements_and_no_content(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("sqlalchemy", "aiosqlite"):
        caplog.set_level(logging.DEBUG, logger=name)
    database = AsyncDatabase(make_url("sqlite+aiosqlite:///:memory:"), 1.0)

    found = await database.read(lambda connection: connection.execute(text("SELECT :said"), {"said": SAID}).scalar())
    await database.close()

    assert SAID == found
    assert "SELECT" in caplog.text
    assert SAID not in caplog.text
