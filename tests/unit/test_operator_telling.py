"""What operators are told of an attempt, whatever its provider answered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from turnlane.activities.evidence import NOTHING
from turnlane.activities.operator_sink import OperatorSink
from turnlane.activities.operator_telling import tell_attempt
from turnlane.activities.progress import Account, Progress
from turnlane.agent.models import OpenAIChatModel
from turnlane.records.operator_events import OperatorEvent, ProviderIdentity, StepFinished
from turnlane.records.runs import Operation, OperationKind, OperationPhase
from turnlane.records.steps import Fence
from turnlane.records.usage import Usage

FENCE = Fence(conversation_id="c", run_id="r", epoch=1, token=1, step=0, attempt=1)
ENDED = Operation(
    operation_id="r:1:0:1",
    kind=OperationKind.MODEL_REQUEST,
    phase=OperationPhase.COMPLETED,
    step=0,
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
    finished_at=datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
)


@pytest.mark.parametrize(("response_id", "told"), [("r-1", "r-1"), (7, "7"), ("a\x00", "a\ufffd"), ("", None)])
async def test_an_id_that_keeps_to_no_protocol_is_told_as_well_as_can_be(response_id: Any, told: str | None) -> None:
    events: list[OperatorEvent] = []
    progress = Progress(response_id=response_id, is_asked=True)
    async with OperatorSink(events.append) as sink:
        tell_attempt(sink, FENCE, OpenAIChatModel(name="m"), ENDED, progress, Account(NOTHING, Usage()))

    (event,) = events
    assert isinstance(event, StepFinished)
    expected = None if told is None else ProviderIdentity(id=told, provider="openai-chat")
    assert (expected, 1000) == (event.response, event.duration_ms)
