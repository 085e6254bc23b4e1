"""Logs: at any level, of anybody, they hold nothing that was said, and no key."""

from __future__ import annotations

import json
import logging

import pytest

from tests.integration.talks import KEY_NAME, WIRES, Talks
from turnlane.testing.fault_plan import HttpError, Pass, ToolCalls, ToolUse

pytestmark = pytest.mark.server

SAID = "xq7-said-in-confidence-9"
KEY = "sk-xq7-a-key-that-nobody-sees"


@pytest.mark.parametrize("wire", WIRES)
async def test_no_logger_tells_what_was_said_or_a_key_at_any_level(
    talks: Talks, wire: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(KEY_NAME, KEY)
    caplog.set_level(logging.DEBUG)
    for name in logging.root.manager.loggerDict:
        caplog.set_level(logging.DEBUG, logger=name)
    call = ToolUse("look", json.dumps({"at": f"{SAID} argument"}))
    talk = await talks.open(WIRES[wire], HttpError(503), ToolCalls([call]), Pass(f"{SAID} answer"))

    result = await talk.turn(f"{SAID} question")

    assert f"{SAID} answer" == result.text
    assert any(record.name.startswith("httpcore2") for record in caplog.records)
    told = {record.name for record in caplog.records if SAID in record.getMessage() or KEY in record.getMessage()}
    assert set() == told
    assert SAID not in caplog.text
    assert KEY not in caplog.text
