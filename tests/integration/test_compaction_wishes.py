"""Compaction when somebody asks: who asks hears what came of it, and no run starts meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.conftest import Bench, Serve
from tests.integration.compacting import Talk, summary
from tests.integration.stage import BOUND, until
from turnlane.agent import Agent, CompactionState, ScriptedModel
from turnlane.client.cli.app import build_app
from turnlane.records.compaction import CompactionResult
from turnlane.records.errors import NoCompactionError
from turnlane.records.lane import LaneSettings
from turnlane.records.runs import RunState
from turnlane.records.usage import Usage, UsageValue

pytestmark = pytest.mark.server


# --- when somebody asks -------------------------------------------------------------------------


async def test_an_idle_conversation_is_compacted_at_once(talk: Talk) -> None:
    talk.usage = Usage(input_tokens=UsageValue.reported(5), output_tokens=UsageValue.reported(2))
    await talk.start()
    await talk.turns("A", "B", "C")
    reply = await talk.client.compact(talk.conversation)
    snapshot = await talk.client.snapshot(talk.conversation)
    (event,) = await talk.ledger("compaction/finished")

    assert (CompactionResult.APPLIED, 1, talk.usage) == (reply.outcome, reply.attempts, reply.usage)
    assert (snapshot.messages[0].id, snapshot.version) == (reply.summary_id, reply.version)
    assert [summary("A B"), ("user", "C"), ("assistant", "answer to C")] == await talk.messages()
    assert None is event.payload["run_id"]


async def test_a_lane_that_has_closed_is_opened_to_compact(talk: Talk) -> None:
    await talk.start(settings=LaneSettings(idle_close_seconds=1.0))
    await talk.turns("A", "B")

    async def closed() -> bool:
        return (await talk.lane.describe()).close_time is not None

    await until(closed)

    assert CompactionResult.APPLIED is (await talk.client.compact(talk.conversation)).outcome


@pytest.mark.parametrize(
    ("options", "force", "expected"),
    [
        ({"turns": 9}, False, CompactionResult.NOT_NEEDED),
        ({"turns": 9}, True, CompactionResult.APPLIED),
        ({"keep_recent_turns": 5}, False, CompactionResult.NOTHING),
        ({"keep_recent_turns": 5}, True, CompactionResult.NOTHING),
    ],
)
async def test_an_answer_says_what_came_of_it(
    talk: Talk, options: dict[str, Any], force: bool, expected: CompactionResult
) -> None:
    await talk.start(**options)
    await talk.turns("A", "B")
    reply = await talk.client.compact(talk.conversation, force=force)

    assert expected is reply.outcome


async def test_who_asks_hears_of_a_failure(talk: Talk) -> None:
    talk.error = RuntimeError("broken")
    await talk.start()
    await talk.turns("A", "B")
    reply = await talk.client.compact(talk.conversation)

    assert (CompactionResult.FAILED, "SUMMARIZE_FAILED") == (reply.outcome, reply.failure and reply.failure.code)
    assert 4 == len(await talk.messages())


async def test_an_agent_without_compaction_refuses(bench: Bench, serve: Serve, conversation: str) -> None:
    talk = Talk(bench, serve, conversation)
    await serve(Agent(name="actor", model=ScriptedModel(script=talk.script)))
    await talk.turn("A")

    with pytest.raises(NoCompactionError):
        await talk.client.compact(conversation)


async def test_an_unknown_conversation_has_nothing_to_compact(talk: Talk) -> None:
    await talk.start()

    with pytest.raises(NoCompactionError):
        await talk.client.compact(talk.conversation)


async def test_no_run_starts_while_a_wish_is_carried_out(talk: Talk) -> None:
    wish = await talk.held_in_a_wish(max_attempts=2)
    ticket = await talk.client.submit(talk.conversation, "C")
    assert ticket.admission is not None
    view = await talk.client.run(talk.conversation, ticket.admission.run_id)
    talk.gate.release()
    reply = await wish
    result = await ticket.result(BOUND)

    assert view is not None and RunState.QUEUED is view.run.state
    assert (CompactionResult.APPLIED, 2) == (reply.outcome, reply.attempts)
    assert ("answer to C", (summary("A")[1],)) == (result.text, talk.asked[-1].prompt.system)


async def test_a_wish_with_one_attempt_hears_of_the_conflict(talk: Talk) -> None:
    wish = await talk.held_in_a_wish(max_attempts=1)
    ticket = await talk.client.submit(talk.conversation, "C")
    talk.gate.release()
    reply = await wish
    await ticket.result(BOUND)

    assert CompactionResult.CONFLICT is reply.outcome
    assert 6 == len(await talk.messages())


async def test_many_who_ask_during_a_run_share_what_is_made_at_its_end(talk: Talk) -> None:
    release = asyncio.Event()

    async def threshold(state: CompactionState) -> bool:
        if state.turns == 2:
            await release.wait()
        return state.turns > 2

    await talk.start(threshold=threshold)
    await talk.turns("A", "B")
    ticket = await talk.client.submit(talk.conversation, "C")
    wishes = [asyncio.create_task(talk.client.compact(talk.conversation)) for _ in range(3)]

    async def waiting() -> bool:
        accepted = [event async for event in talk.lane.fetch_history_events()]
        return sum(event.HasField("workflow_execution_update_accepted_event_attributes") for event in accepted) >= 6

    await until(waiting)
    release.set()
    replies = await asyncio.gather(*wishes)
    await ticket.result(BOUND)

    assert {CompactionResult.APPLIED} == {reply.outcome for reply in replies}
    assert 1 == len({reply.summary_id for reply in replies})
    assert 1 == len(talk.contexts)
    assert [summary("A B"), ("user", "C"), ("assistant", "answer to C")] == await talk.messages()


async def test_who_asks_is_not_held_for_longer_than_a_wait(talk: Talk) -> None:
    wish = await talk.held_in_a_wish(settings=LaneSettings(wait_seconds=0.2))

    async def asked_again() -> bool:
        events = [event async for event in talk.lane.fetch_history_events()]
        return sum(event.HasField("workflow_execution_update_completed_event_attributes") for event in events) >= 3

    await until(asked_again)
    talk.gate.release()

    assert (CompactionResult.APPLIED, 1) == ((await wish).outcome, len(talk.contexts))


async def test_a_lane_that_is_cancelled_gives_a_wish_up(talk: Talk) -> None:
    wish = await talk.held_in_a_wish()
    await talk.lane.cancel()

    async def cancelled() -> bool:
        return bool(await talk.ledger("compaction/finished"))

    await until(cancelled)
    reply = await wish

    # The client asks the next lane, whose summariser is not held.
    assert (CompactionResult.APPLIED, 2) == (reply.outcome, len(talk.contexts))
    assert ["cancelled", "ready"] == [event.payload["outcome"] for event in await talk.ledger("compaction/finished")]


# --- the command line ---------------------------------------------------------------------------


async def run_verb(talk: Talk, *arguments: str) -> tuple[int, str]:
    """Run `turnlane compact` for the conversation: its exit code and what it printed."""
    where = ["--address", talk.bench.temporal.service_client.config.target_host, "--task-queue", talk.bench.task_queue]
    command = ["compact", talk.conversation, *arguments, *where]
    result = await asyncio.to_thread(CliRunner().invoke, build_app(), command)
    return result.exit_code, result.stdout


async def test_the_command_line_compacts_and_says_what_came_of_it(talk: Talk) -> None:
    await talk.start(turns=9)
    await talk.turns("A", "B")
    unneeded = await run_verb(talk)
    code, printed = await run_verb(talk, "--force", "--json")
    told = json.loads(printed)

    assert (0, f"not needed: {talk.conversation}\n") == unneeded
    assert (0, True, "applied", 1) == (code, told["ok"], told["outcome"], told["attempts"])
    assert summary("A") in await talk.messages()
