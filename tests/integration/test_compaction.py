"""Compaction on a real server: before a run, when somebody asks, and whatever gets in its way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from typer.testing import CliRunner

from tests.conftest import Bench, Serve, texts
from tests.integration.stage import BOUND, until
from turnlane.agent import Agent, Compaction, CompactionState, Model, ScriptedModel, Summarized, SummaryContext
from turnlane.agent.models import Action, Fail, Say, ScriptedRequest, Stop, Think
from turnlane.client import Result, Turnlane
from turnlane.client.cli.app import build_app
from turnlane.records.compaction import CompactionResult
from turnlane.records.errors import NoCompactionError
from turnlane.records.events import RunOperationEvent
from turnlane.records.lane import LaneSettings
from turnlane.records.ledger import LedgerEvent
from turnlane.records.messages import Role, TextPart
from turnlane.records.runs import Failure, FailureClass, OperationKind, RunState, TerminalReason
from turnlane.records.usage import CostValue, Provenance, Usage, UsageValue
from turnlane.testing.races import Barrier

pytestmark = pytest.mark.server


def said(request: ScriptedRequest) -> str:
    """The last thing that the user said."""
    (part,) = request.prompt.messages[-1].parts
    assert isinstance(part, TextPart)
    return part.text


@dataclass
class Talk:
    """A conversation with an agent that compacts, what its model was asked, and a summariser that a test may hold."""

    bench: Bench
    serve: Serve
    conversation: str
    asked: list[ScriptedRequest] = field(default_factory=list)
    contexts: list[SummaryContext] = field(default_factory=list)
    gates: list[Barrier] = field(default_factory=list)
    error: Exception | None = None
    usage: Usage | None = None

    def __post_init__(self) -> None:
        self.client: Turnlane = self.bench.client()

    def script(self, request: ScriptedRequest) -> Sequence[Action]:
        """Answer what was said last."""
        self.asked.append(request)
        if said(request) == "fail":
            return [Fail(Failure(failure_class=FailureClass.INVALID_REQUEST))]
        if said(request) == "think":
            return [Think("hm"), Stop("length")]
        return [Say(f"answer to {said(request)}")]

    async def summarize(self, context: SummaryContext) -> Summarized:
        """Sum up the user's words, once the test's gate for this call, if there is one, opens."""
        self.contexts.append(context)
        if len(self.contexts) <= len(self.gates):
            await self.gates[len(self.contexts) - 1].wait()
        if self.error is not None:
            raise self.error
        goal = " ".join(message.text for message in context.messages if message.role is Role.USER)
        return Summarized({"goal": goal}, self.usage)

    async def start(self, *, settings: LaneSettings | None = None, model: Model | None = None, **options: Any) -> None:
        """Serve the agent; without a summariser of its own it is asked of this talk."""
        if not {"model", "summarize"} & set(options):
            options["summarize"] = self.summarize
        agent = Agent(name="actor", model=model or ScriptedModel(script=self.script), compaction=Compaction(**options))
        await self.serve(agent, settings=settings)

    async def turn(self, text: str) -> Result:
        """Say something and wait for the answer."""
        ticket = await self.client.submit(self.conversation, text)
        return await ticket.result(BOUND)

    async def turns(self, *said: str) -> None:
        """Say one thing after the other."""
        for text in said:
            await self.turn(text)

    async def messages(self, *, all: bool = False) -> list[tuple[str, str]]:
        """What the conversation holds, as (role, text)."""
        page = await self.client.messages(self.conversation, limit=1000, include_compacted=all)
        return texts(page.items)

    async def ledger(self, kind: str) -> list[LedgerEvent]:
        """The ledger's events of a kind."""
        return [event for event in (await self.bench.store.read_events(self.conversation)).items if event.kind == kind]

    @property
    def lane(self) -> WorkflowHandle[Any, Any]:
        """The Temporal handle of the lane."""
        return self.bench.temporal.get_workflow_handle(f"lane/{self.conversation}")


@pytest.fixture
def talk(bench: Bench, serve: Serve, conversation: str) -> Talk:
    return Talk(bench, serve, conversation)


def summary(text: str) -> tuple[str, str]:
    return ("summary", f"Summary of the earlier conversation:\n\nGoal: {text}")


def tokens(value: int) -> UsageValue:
    return UsageValue(value=value, provenance=Provenance.COMPUTED)


# --- before a run -------------------------------------------------------------------------------


async def test_a_run_starts_with_a_summary_of_what_is_old(talk: Talk) -> None:
    await talk.start(turns=3)
    await talk.turns("A", "B", "C", "D")
    last = talk.asked[-1].prompt
    kept = [("user", "C"), ("assistant", "answer to C"), ("user", "D"), ("assistant", "answer to D")]
    heard = [part.text for told in last.messages for part in told.parts if isinstance(part, TextPart)]

    assert [summary("A B"), *kept] == await talk.messages()
    assert ((summary("A B")[1],), ["C", "answer to C", "D"]) == (last.system, heard)


async def test_what_was_compacted_stays_readable_with_the_summary_behind_it(talk: Talk) -> None:
    await talk.start(turns=2)
    await talk.turns("A", "B", "C")
    everything = await talk.messages(all=True)

    assert [("user", "A"), ("assistant", "answer to A"), summary("A"), ("user", "B")] == everything[:4]


async def test_a_conversation_below_the_threshold_is_left_alone(talk: Talk) -> None:
    await talk.start(turns=9)
    await talk.turns("A", "B", "C")

    assert ([], 6) == (talk.contexts, len(await talk.messages()))
    assert [] == await talk.ledger("compaction/finished")


async def test_a_long_conversation_is_compacted_again_and_again(talk: Talk) -> None:
    await talk.start(turns=3)
    await talk.turns(*(str(number) for number in range(1, 10)))
    previous = [getattr(context.previous, "goal", None) for context in talk.contexts]

    assert [None, "1 2", "3 4", "5 6"][: len(previous)] == previous
    assert 3 <= len(previous)
    assert 1 == [role for role, _ in await talk.messages()].count("summary")
    assert 18 + len(previous) == len(await talk.messages(all=True))


async def test_a_threshold_sees_the_conversation_as_the_run_finds_it(talk: Talk) -> None:
    states: list[CompactionState] = []

    def threshold(state: CompactionState) -> bool:
        states.append(state)
        return len(states) == 3

    await talk.start(threshold=threshold)
    await talk.turns("A", "B", "C", "D")

    assert [0, 1, 2, 2] == [state.turns for state in states]
    # The scripted model counts words: `A`, then `A`, `answer to A` and `B`; nobody counted since the summary but C's.
    assert [None, 1, 5] == [state.last_input_tokens for state in states[:3]]
    assert states[1].characters > 0


async def test_the_run_tells_of_its_compaction_and_pays_for_it(talk: Talk) -> None:
    talk.usage = Usage(input_tokens=UsageValue.reported(400), output_tokens=UsageValue.reported(40))
    await talk.start(turns=1)
    await talk.turns("A", "B")
    ticket = await talk.client.submit(talk.conversation, "C")
    operations = [
        (event.operation.kind, event.operation.phase.value)
        async for event in ticket.events()
        if isinstance(event, RunOperationEvent)
    ]
    result = await ticket.result(BOUND)
    (event,) = await talk.ledger("compaction/finished")

    compaction = [phase for kind, phase in operations if kind is OperationKind.COMPACTION]
    assert (["started", "completed"], OperationKind.COMPACTION) == (compaction, operations[0][0])
    assert result.usage is not None
    assert (tokens(400 + 12), tokens(40 + 3)) == (result.usage.input_tokens, result.usage.output_tokens)
    assert ("ready", result.run_id) == (event.payload["outcome"], event.payload["run_id"])


async def test_no_content_of_a_compaction_is_in_the_history(talk: Talk) -> None:
    await talk.start(turns=1)
    await talk.turns("walnut", "B", "C")
    assert summary("walnut") in await talk.messages()
    history = (await talk.lane.fetch_history()).to_json()

    assert "Summary of" not in history
    assert len(history) < 128 * 1024


async def test_the_usage_of_a_compaction_that_came_to_nothing_is_in_the_runs_total(talk: Talk) -> None:
    def threshold(state: CompactionState) -> bool:
        return state.turns >= 2 and not talk.contexts

    cost = CostValue(value=0.75, currency="USD", provenance=Provenance.PROVIDER_REPORTED)
    talk.usage = Usage(input_tokens=UsageValue.reported(400), output_tokens=UsageValue.reported(40), cost=cost)
    talk.gates = [Barrier("first", BOUND)]
    await talk.start(threshold=threshold)
    await talk.turns("A", "B")
    ticket = await talk.client.submit(talk.conversation, "C")
    await talk.gates[0].until_reached()
    later = await talk.client.submit(talk.conversation, "D")
    talk.gates[0].release()
    result = await ticket.result(BOUND)
    await later.result(BOUND)

    assert result.usage is not None
    assert (tokens(400 + 9), tokens(40 + 3)) == (result.usage.input_tokens, result.usage.output_tokens)
    assert 1 == len(talk.contexts)
    assert "summary" not in [role for role, _ in await talk.messages()]


# --- conflicts ----------------------------------------------------------------------------------


async def test_an_input_that_comes_meanwhile_makes_a_fresh_summary_of_a_fresh_look(talk: Talk) -> None:
    talk.gates = [Barrier("first", BOUND)]
    await talk.start(turns=2, max_attempts=2)
    await talk.turns("A", "B")
    first = await talk.client.submit(talk.conversation, "C")
    await talk.gates[0].until_reached()
    second = await talk.client.submit(talk.conversation, "D")
    talk.gates[0].release()
    await first.result(BOUND)
    await second.result(BOUND)

    assert [1, 2] == [event.payload["attempt"] for event in await talk.ledger("compaction/finished")][:2]
    assert (summary("A")[1],) == talk.asked[2].prompt.system


async def test_a_single_attempt_that_meets_a_conflict_changes_nothing(talk: Talk) -> None:
    talk.gates = [Barrier("first", BOUND)]
    await talk.start(turns=2, max_attempts=1)
    await talk.turns("A", "B")
    first = await talk.client.submit(talk.conversation, "C")
    await talk.gates[0].until_reached()
    second = await talk.client.submit(talk.conversation, "D")
    talk.gates[0].release()
    result = await first.result(BOUND)

    assert (TerminalReason.SUCCESS, ()) == (result.reason, talk.asked[2].prompt.system)
    assert TerminalReason.SUCCESS is (await second.result(BOUND)).reason


# --- failures and aborts ------------------------------------------------------------------------


async def test_a_compaction_that_fails_costs_no_answer(talk: Talk) -> None:
    talk.error = RuntimeError("the summariser is broken")
    await talk.start(turns=1)
    await talk.turns("A", "B")
    result = await talk.turn("C")
    events = await talk.ledger("compaction/finished")

    assert (TerminalReason.SUCCESS, "answer to C") == (result.reason, result.text)
    assert {"SUMMARIZE_FAILED"} == {event.payload["failure"]["code"] for event in events}  # type: ignore[index,call-overload]
    assert () == talk.asked[-1].prompt.system


async def test_a_threshold_that_fails_costs_no_answer(talk: Talk) -> None:
    def threshold(state: CompactionState) -> bool:
        raise RuntimeError("broken")

    await talk.start(threshold=threshold)

    assert "answer to A" == (await talk.turn("A")).text


async def test_an_interrupt_stops_a_compaction_at_once(talk: Talk) -> None:
    talk.gates = [Barrier("never", BOUND)]
    await talk.start(turns=1)
    await talk.turns("A", "B")
    ticket = await talk.client.submit(talk.conversation, "C")
    await talk.gates[0].until_reached()
    await talk.client.interrupt(talk.conversation)
    result = await ticket.result(BOUND)
    (event,) = await talk.ledger("compaction/finished")

    assert TerminalReason.INTERRUPTED is result.reason
    assert "cancelled" == event.payload["outcome"]
    assert result.run is not None and result.run.last_operation is not None
    assert (OperationKind.COMPACTION, "cancelled") == (
        result.run.last_operation.kind,
        result.run.last_operation.phase.value,
    )
    assert "summary" not in [role for role, _ in await talk.messages()]


async def test_a_worker_that_goes_away_in_a_compaction_leaves_it_to_another(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    talk = Talk(bench, serve, conversation, gates=[Barrier("lost", BOUND)])
    agent = Agent(
        name="actor",
        model=ScriptedModel(script=talk.script),
        compaction=Compaction(turns=2, summarize=talk.summarize),
    )
    async with bench.worker(agent, graceful_seconds=0.1):
        await talk.turns("A", "B")
        ticket = await talk.client.submit(conversation, "C")
        await talk.gates[0].until_reached()
    await serve(agent)
    result = await ticket.result(BOUND)

    assert "answer to C" == result.text
    assert (2, (summary("A")[1],)) == (len(talk.contexts), talk.asked[-1].prompt.system)
    assert result.usage is not None
    assert Provenance.COMPUTED is result.usage.input_tokens.provenance


async def test_a_cut_off_answer_and_a_compaction_leave_the_conversation_going(talk: Talk) -> None:
    await talk.start(turns=2)
    await talk.turn("A")
    cut = await talk.turn("think")
    after = await talk.turn("B")

    assert (TerminalReason.PROVIDER_STOP, TerminalReason.SUCCESS) == (cut.reason, after.reason)
    assert "answer to B" == after.text


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
    talk.gates = [Barrier("first", BOUND)]
    await talk.start(max_attempts=2)
    await talk.turns("A", "B")
    wish = asyncio.create_task(talk.client.compact(talk.conversation))
    await talk.gates[0].until_reached()
    ticket = await talk.client.submit(talk.conversation, "C")
    assert ticket.admission is not None
    view = await talk.client.run(talk.conversation, ticket.admission.run_id)
    talk.gates[0].release()
    reply = await wish
    result = await ticket.result(BOUND)

    assert view is not None and RunState.QUEUED is view.run.state
    assert (CompactionResult.APPLIED, 2) == (reply.outcome, reply.attempts)
    assert ("answer to C", (summary("A")[1],)) == (result.text, talk.asked[-1].prompt.system)


async def test_a_wish_with_one_attempt_hears_of_the_conflict(talk: Talk) -> None:
    talk.gates = [Barrier("first", BOUND)]
    await talk.start(max_attempts=1)
    await talk.turns("A", "B")
    wish = asyncio.create_task(talk.client.compact(talk.conversation))
    await talk.gates[0].until_reached()
    ticket = await talk.client.submit(talk.conversation, "C")
    talk.gates[0].release()
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
    talk.gates = [Barrier("slow", BOUND)]
    await talk.start(settings=LaneSettings(wait_seconds=0.2))
    await talk.turns("A", "B")
    wish = asyncio.create_task(talk.client.compact(talk.conversation))
    await talk.gates[0].until_reached()

    async def asked_again() -> bool:
        events = [event async for event in talk.lane.fetch_history_events()]
        return sum(event.HasField("workflow_execution_update_completed_event_attributes") for event in events) >= 3

    await until(asked_again)
    talk.gates[0].release()

    assert (CompactionResult.APPLIED, 1) == ((await wish).outcome, len(talk.contexts))


async def test_a_lane_that_is_cancelled_gives_a_wish_up(talk: Talk) -> None:
    talk.gates = [Barrier("never", BOUND)]
    await talk.start()
    await talk.turns("A", "B")
    wish = asyncio.create_task(talk.client.compact(talk.conversation))
    await talk.gates[0].until_reached()
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


# --- what turns a run may have ------------------------------------------------------------------


async def test_a_turn_that_failed_is_compacted_unheard(talk: Talk) -> None:
    await talk.start()
    await talk.turn("A")
    broken = await talk.turn("fail")
    await talk.turn("B")
    await talk.client.compact(talk.conversation)
    (context,) = talk.contexts

    assert TerminalReason.PROVIDER_FAILURE is broken.reason
    assert ["A", "answer to A", "fail"] == [message.text for message in context.messages]
    assert ["summary", "user", "assistant"] == [role for role, _ in await talk.messages()]


async def test_what_was_taken_back_is_not_summed_up(talk: Talk) -> None:
    talk.gates = [Barrier("first", BOUND)]
    await talk.start()
    await talk.turns("A", "B")
    wish = asyncio.create_task(talk.client.compact(talk.conversation))
    await talk.gates[0].until_reached()
    ticket = await talk.client.submit(talk.conversation, "never mind")
    assert ticket.admission is not None
    await talk.client.cancel(talk.conversation, ticket.admission.run_id)
    talk.gates[0].release()
    await wish
    await talk.turn("C")
    await talk.client.compact(talk.conversation)

    heard = [message.text for context in talk.contexts for message in context.messages]
    assert "never mind" not in heard
    assert "B" in heard


async def test_a_resend_of_what_was_compacted_is_answered_as_ever(talk: Talk) -> None:
    await talk.start()
    first = await talk.client.submit(talk.conversation, "A", key="k")
    answered = await first.result(BOUND)
    await talk.turn("B")
    await talk.client.compact(talk.conversation)
    again = await talk.client.submit(talk.conversation, "A", key="k")
    result = await again.result(BOUND)

    assert again.admission is not None and again.admission.duplicate
    assert (answered.run_id, answered.text) == (result.run_id, result.text)


async def test_a_purge_during_a_compaction_leaves_nothing(talk: Talk) -> None:
    talk.gates = [Barrier("first", BOUND)]
    await talk.start()
    await talk.turns("A", "B")
    wish = asyncio.create_task(talk.client.compact(talk.conversation))
    await talk.gates[0].until_reached()
    await talk.client.purge(talk.conversation)
    reply = await wish

    assert CompactionResult.CANCELLED is reply.outcome
    assert [] == await talk.messages(all=True)
