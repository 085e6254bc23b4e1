"""Workers that are killed, stopped or frozen in the middle of a turn, and what is left to count."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from tests.chaos.conftest import PATIENCE, House, Witness
from tests.chaos.worker_process import HOLD
from tests.integration.stage import until
from turnlane.records.base import JsonObject
from turnlane.records.compaction import CompactionResult
from turnlane.records.events import AssistantDeltaEvent, AttemptResetEvent, RunStateEvent
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import Role, TextPart
from turnlane.records.operator_events import (
    OPERATOR_EVENT_ADAPTER,
    OperatorEvent,
    RunStarted,
    RunTerminal,
    StepFinished,
)
from turnlane.records.runs import OperationPhase, RunState, TerminalReason
from turnlane.records.usage import UNAVAILABLE_COST, Provenance, Usage, UsageValue

pytestmark = pytest.mark.chaos


def computed(value: int) -> UsageValue:
    return UsageValue(value=value, provenance=Provenance.COMPUTED)


async def test_a_worker_killed_in_mid_stream_costs_one_attempt_and_no_word_of_the_answer(
    house: House, conversation: str
) -> None:
    victim = await house.worker()
    ticket = await house.client().submit(conversation, "stream")
    admission = await ticket.admitted()
    witness = Witness(ticket)
    await witness.until_told("assistant-delta", 3)
    survivor = await house.worker()

    await victim.kill()
    result = await ticket.result(timeout=30)

    assert (TerminalReason.SUCCESS, "the answer") == (result.reason, result.text)
    assert [(victim.pid, 0, 1), (survivor.pid, 0, 2)] == house.attempts(admission.run_id)
    assert result.usage is not None
    assert (computed(1), computed(2)) == (result.usage.input_tokens, result.usage.output_tokens)
    assert UNAVAILABLE_COST == result.usage.cost
    _assert_withdrawn_before_the_answer(await witness.finished())
    started, step, ended = await _told_operators(house, 3)
    assert (RunStarted, StepFinished, RunTerminal) == (type(started), type(step), type(ended))
    assert isinstance(step, StepFinished) and isinstance(ended, RunTerminal)
    assert (2, result.usage) == (step.attempt, ended.usage)


async def _told_operators(house: House, number: int) -> list[OperatorEvent]:
    """What operators were told, once it is so much; no id twice."""

    async def told() -> bool:
        return len(house.lines("operator")) >= number

    await until(told, PATIENCE)
    events = [OPERATOR_EVENT_ADAPTER.validate_json(line) for line in house.lines("operator")]
    assert len(events) == len({event.event_id for event in events})
    return events


def _assert_withdrawn_before_the_answer(events: Sequence[object]) -> None:
    (reset,) = [event for event in events if isinstance(event, AttemptResetEvent)]
    deltas = [event for event in events if isinstance(event, AssistantDeltaEvent)]
    before = [event.epoch for event in deltas if events.index(event) < events.index(reset)]
    after = [event.text_delta for event in deltas if events.index(event) > events.index(reset)]
    assert 2 == reset.attempt
    assert {reset.withdrawn} == set(before)
    assert "the answer" == "".join(after)


async def test_a_finished_tool_call_is_not_made_again_when_the_worker_dies_before_the_next(
    house: House, conversation: str
) -> None:
    victim = await house.worker()
    ticket = await house.client().submit(conversation, "between")
    admission = await ticket.admitted()
    await house.until_attempted(admission.run_id, (victim.pid, 1, 1))
    survivor = await house.worker()

    await victim.kill()
    result = await ticket.result(timeout=30)

    assert (TerminalReason.SUCCESS, "charged twice") == (result.reason, result.text)
    assert 2 == len(set(house.lines("charge"))) == len(house.lines("charge"))
    expected = [(victim.pid, 0, 1), (victim.pid, 1, 1), (survivor.pid, 1, 2), (survivor.pid, 2, 1)]
    assert expected == house.attempts(admission.run_id)


async def test_a_call_whose_worker_died_is_made_again_only_if_it_is_read_only(house: House, conversation: str) -> None:
    victim = await house.worker()
    ticket = await house.client().submit(conversation, "tools")
    await house.until_written("charge", "look")
    await house.worker()

    await victim.kill()
    result = await ticket.result(timeout=30)

    assert TerminalReason.SUCCESS is result.reason
    charged, seen = json.loads(result.text)
    assert "OUTCOME_UNKNOWN" == charged["error"]
    assert "seen" == seen
    assert 1 == len(house.lines("charge"))
    assert (2, 1) == (len(house.lines("look")), len(set(house.lines("look"))))


async def test_what_finished_steps_spent_outlives_their_worker_and_is_counted_once(
    house: House, conversation: str
) -> None:
    victim = await house.worker()
    ticket = await house.client().submit(conversation, "tools")
    admission = await ticket.admitted()
    await house.until_written("charge", "look")
    (response,) = await house.responses(conversation)

    await victim.kill()
    running = await house.store.load_run(conversation, admission.run_id)
    await house.worker()
    result = await ticket.result(timeout=30)
    responses = await house.responses(conversation)

    assert running is not None and running.run.usage is not None
    assert (RunState.RUNNING, False) == (running.run.state, running.run.usage.partial)
    assert spent(response) == tokens(running.run.usage)
    assert [(0, 1), (1, 1)] == [(said["step"], said["attempt"]) for said in responses]
    assert result.usage is not None and not result.usage.partial
    assert tuple(map(sum, zip(*map(spent, responses), strict=True))) == tokens(result.usage)


def spent(response: JsonObject) -> tuple[int, int]:
    """What a model call took in and gave out, as its provider told."""
    return tokens(Usage.model_validate_json(json.dumps(response["usage"])))


def tokens(usage: Usage) -> tuple[int, int]:
    """Both counts of usage that is known."""
    assert usage.input_tokens.value is not None and usage.output_tokens.value is not None
    return usage.input_tokens.value, usage.output_tokens.value


async def test_a_durable_body_whose_worker_died_goes_on_where_its_records_end(house: House, conversation: str) -> None:
    victim = await house.worker()
    ticket = await house.client().submit(conversation, "durable")
    await house.until_written("hand_over")
    survivor = await house.worker()

    await victim.kill()
    result = await ticket.result(timeout=30)

    assert [["pack", "uncertain", "post"]] == json.loads(result.text)
    assert ([str(victim.pid)], [str(survivor.pid)]) == (house.lines("pack"), house.lines("post"))
    assert 1 == len(house.lines("hand_over"))


async def test_a_worker_killed_in_a_compaction_costs_an_attempt_and_no_message(house: House, conversation: str) -> None:
    victim = await house.worker()
    client = house.client()
    for _ in range(2):
        ticket = await client.submit(conversation, "soak")
        await ticket.result(timeout=30)
    wish = asyncio.create_task(client.compact(conversation))
    await house.until_written("summary")
    survivor = await house.worker()

    await victim.kill()
    reply = await asyncio.wait_for(wish, 60)
    active = (await client.messages(conversation)).items
    everything = (await client.messages(conversation, include_compacted=True)).items

    assert (CompactionResult.APPLIED, 1) == (reply.outcome, reply.attempts)
    assert [str(victim.pid), str(survivor.pid)] == house.lines("summary")
    assert [Role.SUMMARY, Role.USER, Role.ASSISTANT] == [message.role for message in active]
    assert 5 == len(everything)


async def test_a_worker_that_is_asked_to_stop_in_mid_answer_hands_the_run_on(house: House, conversation: str) -> None:
    leaving = await house.worker()
    ticket = await house.client().submit(conversation, "stream")
    admission = await ticket.admitted()
    witness = Witness(ticket)
    await witness.until_told("assistant-delta", 3)
    staying = await house.worker()

    exit_code = await leaving.stop()
    result = await ticket.result(timeout=30)

    assert 0 == exit_code
    assert (TerminalReason.SUCCESS, "the answer") == (result.reason, result.text)
    assert [(leaving.pid, 0, 1), (staying.pid, 0, 2)] == house.attempts(admission.run_id)
    states = [event.state for event in await witness.finished() if isinstance(event, RunStateEvent)]
    assert [RunState.QUEUED, RunState.RUNNING] == states


async def test_a_worker_that_wakes_up_after_it_was_given_up_writes_nothing(house: House, conversation: str) -> None:
    # Each poll of the sleeper's that is still open may be handed an attempt, which is lost by its heartbeat.
    house.settings = {"heartbeat_seconds": 3.0}
    (house.folder / HOLD).touch()
    sleeper = await house.worker()
    ticket = await house.client().submit(conversation, "stream")
    admission = await ticket.admitted()
    witness = Witness(ticket)
    await witness.until_told("assistant-delta", 10)
    successor = await house.worker()

    await house.freeze(sleeper, conversation)
    await witness.until_told("attempt-reset")
    reset = _reset_of(witness)
    written = await house.ledger(conversation)
    heard = _deltas_of(witness, 1)
    sleeper.thaw()
    await witness.until(lambda: _deltas_of(witness, 1) > heard)
    assert 0 == await sleeper.stop()
    untouched = await house.ledger(conversation)
    (house.folder / HOLD).unlink()
    result = await ticket.result(timeout=30)

    # The server may hand the next attempt to the sleeper, whose poll is still open: then a later one speaks.
    assert (0, True) == (reset.step, reset.withdrawn.endswith(":model:1"))
    assert written == untouched
    assert TerminalReason.SUCCESS is result.reason
    assert result.message is not None
    assert (TextPart(text="the answer"),) == result.message.parts
    assert [sleeper.pid, successor.pid] == [pid for pid, _, _ in house.attempts(admission.run_id)]
    answers = [event for event in await house.ledger(conversation) if event.kind == LedgerKind.PROVIDER_RESPONSE]
    assert [reset.attempt] == [event.payload["attempt"] for event in answers]
    # What the sleeper's attempt came to stands nowhere else, and was spent all the same.
    steps = [event for event in await _told_operators(house, 4) if isinstance(event, StepFinished)]
    phases = {(1, OperationPhase.CANCELLED), (reset.attempt, OperationPhase.COMPLETED)}
    assert phases <= {(step.attempt, step.phase) for step in steps}
    await witness.leave()


def _reset_of(witness: Witness) -> AttemptResetEvent:
    (reset,) = [event for event in witness.events if isinstance(event, AttemptResetEvent)]
    return reset


def _deltas_of(witness: Witness, attempt: int) -> int:
    deltas = [event for event in witness.events if isinstance(event, AssistantDeltaEvent)]
    return sum(1 for event in deltas if event.epoch.endswith(f":model:{attempt}"))


@pytest.mark.parametrize("loses_lane", [False, True], ids=["worker", "worker and lane"])
async def test_an_approved_call_whose_worker_died_is_not_made_again_and_its_approval_is_used_up(
    house: House, conversation: str, loses_lane: bool
) -> None:
    victim = await house.worker()
    client = house.client()
    await (await client.submit(conversation, "approval")).result(timeout=30)
    (waiting,) = await client.pending_approvals(conversation)
    ticket = await client.respond(conversation, waiting.approval_id, True)
    await house.until_written("pay")

    await victim.kill()
    if loses_lane:
        await house.temporal.get_workflow_handle(f"lane/{conversation}").terminate()
    await house.worker()
    if loses_lane:
        await client.respond(conversation, waiting.approval_id, True)
    result = await ticket.result(timeout=30)

    (told,) = json.loads(result.text)
    assert (TerminalReason.SUCCESS, "OUTCOME_UNKNOWN") == (result.reason, told["error"])
    assert (1, ()) == (len(house.lines("pay")), await client.pending_approvals(conversation))
