"""Limits: ids, sizes and receipts are what the reference says, whichever way a call comes in."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from tests.conftest import Bench, Serve
from tests.integration.play import Play, current, open_play, run_id
from tests.integration.stage import BOUND, HeldStore
from turnlane.client import Turnlane
from turnlane.records.admissions import RecordIds
from turnlane.records.errors import InputTooLargeError, InvalidInputError
from turnlane.records.lane import LaneSettings
from turnlane.records.limits import Limits

pytestmark = pytest.mark.server

NO_IDS = ["", "a\nb", "a\x85b", "x" * 257, "a\ud83db"]
NO_ID_NAMES = ["empty", "newline", "C1 control", "257 characters", "lone surrogate"]
LARGEST_PAYLOAD = 128 * 1024


def _calls(client: Turnlane, conversation: str, run: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Every call that names a conversation."""
    return {
        "submit": lambda: client.submit(conversation, "hi"),
        "signal": lambda: client.submit(conversation, "hi", via="signal"),
        "large": lambda: client.submit(conversation, "x" * 100_000),
        "interrupt": lambda: client.interrupt(conversation, run),
        "stop": lambda: client.stop(conversation),
        "cancel": lambda: client.cancel(conversation, run),
        "abandon": lambda: client.abandon(conversation, run, expected_revision=0, stale_owner=True),
        "purge": lambda: client.purge(conversation),
        "snapshot": lambda: client.snapshot(conversation),
        "messages": lambda: client.messages(conversation),
        "runs": lambda: client.runs(conversation),
        "lane_runs": lambda: client.lane_runs(conversation),
        "run": lambda: client.run(conversation, run),
        "result": lambda: client.await_result(conversation, run),
        "events": lambda: anext(client.events(conversation)),
    }


NAME_A_RUN = ["interrupt", "cancel", "abandon", "run", "result"]


@pytest.mark.parametrize("bad", NO_IDS, ids=NO_ID_NAMES)
async def test_no_call_takes_a_conversation_id_that_cannot_be(bench: Bench, bad: str) -> None:
    for name, call in _calls(bench.client(), bad, "r").items():
        with pytest.raises(InvalidInputError) as caught:
            await call()
        assert (name, ["conversation_id"]) == (name, caught.value.details["fields"])


@pytest.mark.parametrize("bad", NO_IDS, ids=NO_ID_NAMES)
async def test_no_call_takes_a_run_id_that_cannot_be(bench: Bench, conversation: str, bad: str) -> None:
    calls = _calls(bench.client(), conversation, bad)
    for name in NAME_A_RUN:
        with pytest.raises(InvalidInputError, match="run_id"):
            await calls[name]()


@pytest.mark.parametrize("bad", NO_IDS, ids=NO_ID_NAMES)
async def test_a_key_that_cannot_be_is_refused_and_never_replaced(bench: Bench, conversation: str, bad: str) -> None:
    with pytest.raises(InvalidInputError, match="key"):
        await bench.client().submit(conversation, "hi", key=bad)


async def test_a_large_input_with_a_wrong_id_leaves_nothing_in_the_store(bench: Bench) -> None:
    held = HeldStore(bench.store, "put_blob")
    bench.store = held  # type: ignore[assignment]
    with pytest.raises(InvalidInputError):
        await bench.client().submit("a\nb", "x" * 100_000)

    assert not held.barrier.reached


@pytest.mark.parametrize("bad", NO_IDS[:4], ids=NO_ID_NAMES[:4])
async def test_a_raw_update_with_an_id_that_cannot_be_is_refused_without_quoting_it(
    bench: Bench, serve: Serve, conversation: str, bad: str
) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("submit", {"key": bad, "text": "MARK"}),
        ("submit", {"key": "k", "text": "MARK", "record_ids": {"run_id": bad}}),
        ("interrupt", {"run_id": bad, "more": "MARK"}),
        ("cancel", {"run_id": bad, "more": "MARK"}),
    ]
    for update, given in calls:
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await play.lane.execute_update(update, given)
        cause = caught.value.cause
        assert "MARK" not in str(cause) + str(cause.__cause__)
        assert isinstance(cause, ApplicationError)
        assert (InvalidInputError.code, True) == (cause.type, cause.non_retryable)
        place = "record_ids.run_id" if "record_ids" in given else "key" if "key" in given else "run_id"
        assert [place] == [field.split(": ")[0] for field in cause.details[0]["fields"]]

    assert ["A"] == await play.answered()


async def test_ids_of_256_characters_are_taken(bench: Bench, serve: Serve) -> None:
    play = await open_play(bench, serve, uuid.uuid4().hex * 8)
    play.stage.play()
    ticket = await play.submit("A", key="\N{SNOWMAN}" * 256)

    assert ["success"] == await play.reasons(ticket)
    assert run_id(ticket) == run_id(await play.submit("A", key="\N{SNOWMAN}" * 256))


@pytest.mark.parametrize("bad", [*NO_IDS[:4], 1], ids=[*NO_ID_NAMES[:4], "a number"])
async def test_a_lane_that_was_started_under_an_id_that_cannot_be_ends_and_says_why(
    bench: Bench, serve: Serve, bad: Any
) -> None:
    await open_play(bench, serve, "other")
    start = {"conversation_id": bad}
    lane = await bench.temporal.start_workflow(
        "ConversationLane", start, id=f"lane/{uuid.uuid4().hex}", task_queue=bench.task_queue
    )
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(lane.result(), BOUND)

    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert ("InvalidInputError", "does not fit: conversation_id") == (cause.type, cause.message)


async def test_what_is_large_is_measured_in_bytes(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    text = "\N{GRINNING FACE}" * 60_000
    ended = await (await play.submit(text, key="large")).result(BOUND)
    events = [event async for event in play.lane.fetch_history_events()]

    assert f"answer to {text}" == ended.text
    assert max(event.ByteSize() for event in events) < LARGEST_PAYLOAD
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await play.lane.execute_update("submit", {"key": "raw", "text": text})
    assert isinstance(caught.value.cause, ApplicationError)
    assert InputTooLargeError.code == caught.value.cause.type


async def test_no_payload_is_large_however_many_urgent_inputs_with_the_longest_ids_wait(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="finish_step")
    assert play.held is not None
    longest = "\N{GRINNING FACE}" * 253
    await play.submit("A")
    await play.stage.call(1)
    first = await current(play)
    names = [f"{number:02}" for number in range(60)]
    for name in names:
        ids = {field: f"{field[0]}{name}{longest}" for field in RecordIds.model_fields}
        await play.submit(name, "interrupt-next", key=f"k{name}{longest}", record_ids=RecordIds(**ids))
    await play.lane.terminate("a test loses it")
    play.stage.play()
    play.held.barrier.release()
    last = await play.submit("last")
    reasons = await play.reasons(last)
    sizes = [
        event.ByteSize()
        for history in (first, await current(play))
        async for event in bench.temporal.get_workflow_handle(
            f"lane/{conversation}", run_id=history
        ).fetch_history_events()
    ]

    assert (["success"], ["A", *names, "last"]) == (reasons, play.asked)
    assert max(sizes) < LARGEST_PAYLOAD


async def test_a_key_is_known_after_its_receipt_left_the_head_and_after_the_lane_closed(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    settings = LaneSettings(idle_close_seconds=1)
    play = await open_play(bench, serve, conversation, settings=settings, limits=Limits(recent_receipts=2))
    play.stage.play()
    first = await play.submit("A")
    await play.reasons(first, *[await play.submit(name) for name in "BCDE"])
    again = await play.submit("A")
    await asyncio.wait_for(play.lane.result(), BOUND)
    later = await play.submit("A")

    for resend in (again, later):
        assert resend.admission is not None
        assert (True, "completed") == (resend.admission.duplicate, resend.admission.run_state.value)
        assert run_id(first) == run_id(resend)
        assert "answer to A" == (await resend.result(BOUND)).text
    assert 5 == len(play.stage.calls)


async def test_an_admission_names_its_run_although_later_receipts_pushed_its_own_out(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, coalesce_pending=True, limits=Limits(recent_receipts=1))
    await play.submit("A")
    await play.stage.call(1)
    joined: list[Any] = await asyncio.gather(*[_submit(play, name) for name in "BCDE"])
    play.stage.play()

    assert 1 == len({run_id(ticket) for ticket in joined})
    assert ["success"] * 4 == await play.reasons(*joined)


async def _submit(play: Play, name: str) -> Any:
    return await play.submit(name)
