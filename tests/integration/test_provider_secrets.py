"""What no provider, log or store is to have: keys, and what a provider echoes."""

from __future__ import annotations

import logging

import pytest

from tests.conftest import Bench
from tests.integration.faulty_turns import TWICE
from tests.integration.talks import KEY_NAME, Talks
from turnlane.agent.models import Model
from turnlane.records.runs import TerminalReason
from turnlane.testing.fault_plan import HttpError, Pass, Step, StreamError

pytestmark = pytest.mark.server

SECRET = "sk-xq7-never-to-be-seen-9"
SPOKEN = "xq8-said-by-the-user-only"


@pytest.mark.parametrize(
    "fault",
    [
        HttpError(401, body={"error": {"message": f"{SPOKEN} {SECRET}", "code": SECRET, "type": SPOKEN}}),
        HttpError(400, body={"error": {"message": SECRET, "type": "invalid_request_error"}}),
        StreamError(SECRET, after=1),
    ],
    ids=["401", "400", "in the stream"],
)
async def test_what_a_provider_echoes_is_neither_stored_nor_logged_nor_shown(
    talks: Talks,
    bench: Bench,
    kind: type[Model],
    fault: Step,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(KEY_NAME, SECRET)
    talk = await talks.open(kind, fault, agent={"retry": TWICE})

    result = await talk.turn(SPOKEN)

    history = await bench.temporal.get_workflow_handle(f"lane/{talk.conversation}").fetch_history()
    events = (await bench.store.read_events(talk.conversation)).items
    snapshot = await bench.store.load_snapshot(talk.conversation)
    shown = [
        repr(result),
        caplog.text,
        snapshot.model_dump_json(),
        *(event.model_dump_json() for event in events),
        *(str(event) for event in history.events),
    ]
    assert TerminalReason.PROVIDER_FAILURE is result.reason
    assert [] == [text for text in shown if SECRET in text]
    assert SPOKEN not in caplog.text
    assert [] == [event.kind for event in events if SPOKEN in event.model_dump_json()]


@pytest.mark.parametrize("key", ["sk-1\r\nx-injected: yes", "sk-1\nsk-2", "sk-é"])
async def test_a_key_that_is_no_header_reaches_nobody(
    talks: Talks,
    kind: type[Model],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(KEY_NAME, key)
    talk = await talks.open(kind, Pass("never"))

    result = await talk.turn()

    assert result.failure is not None
    assert ("invalid_key_characters", []) == (result.failure.code, talk.bodies)
    assert key not in caplog.text + repr(result)
