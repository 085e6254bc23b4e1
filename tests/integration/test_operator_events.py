"""Operators are told of runs that start and end, and of what each attempt cost, whoever wins; and of nothing said."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.looping import MARK
from tests.integration.play import Play, anything, open_play, run_id
from tests.integration.stage import BOUND, Stage, until
from tests.integration.talks import Talks
from turnlane.activities.operator_sink import OperatorSink
from turnlane.agent import AnthropicModel, OpenAIChatModel
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.events import TerminalEvent
from turnlane.records.messages import ControlReason
from turnlane.records.mutations import CommitBatch, Mutation, MutationKind, SettleRun
from turnlane.records.operator_events import OperatorEvent, RunStarted, RunTerminal, StepFinished
from turnlane.records.runs import Failure, FailureClass, OperationPhase, RunState, TerminalReason
from turnlane.records.usage import Provenance, Usage
from turnlane.store.payloads import Committed, StepFinish, Written
from turnlane.store.sql import SqlStore
from turnlane.testing.fault_plan import CutAfter, Figures, Gate, HttpError, Pass, Step, ToolCalls, ToolUse

pytestmark = pytest.mark.server

UNSAID = (None, Provenance.UNAVAILABLE)


class Operator:
    """Who is told; `sink` is for a worker."""

    def __init__(self) -> None:
        self._heard: list[OperatorEvent] = []
        self.sink = OperatorSink(self._heard.append)

    async def heard(self) -> list[OperatorEvent]:
        """All that was told so far, in order."""
        assert await self.sink.flush(BOUND)
        return list(self._heard)

    async def steps(self) -> list[StepFinished]:
        return [event for event in await self.heard() if isinstance(event, StepFinished)]

    async def ends(self) -> list[RunTerminal]:
        return [event for event in await self.heard() if isinstance(event, RunTerminal)]


@pytest.fixture
def operator() -> Operator:
    return Operator()


def names(events: list[OperatorEvent]) -> list[str]:
    return [event.type for event in events]


def cost(usage: Usage) -> tuple[float | None, Provenance]:
    assert usage.cost is not None
    return usage.cost.value, usage.cost.provenance


def tokens(usage: Usage) -> tuple[int | None, Provenance]:
    return usage.input_tokens.value, usage.input_tokens.provenance


# --- what is told -------------------------------------------------------------------------------


async def test_a_plain_turn_is_told_with_its_figures_and_nothing_that_was_said(
    talks: Talks, bench: Bench, operator: Operator
) -> None:
    talks.sink = operator.sink
    talk = await talks.open(OpenAIChatModel, Pass(MARK, usage=Figures(input_tokens=30, output_tokens=5)))
    result = await talk.turn(f"{MARK} {MARK}")
    view = await bench.store.load_run(talk.conversation, result.run_id)
    started, step, ended = heard = await operator.heard()

    assert view is not None and view.run.execution_sequence is not None
    assert ["run-started", "step-finished", "run-terminal"] == names(heard)
    assert {(talk.conversation, result.run_id, 1)} == {(e.conversation_id, e.run_id, e.schema_version) for e in heard}
    assert [
        f"{result.run_id}:started:{view.run.execution_sequence}",
        f"{result.run_id}:1:0:1:step",
        f"{result.run_id}:terminal:{view.snapshot_version}",
    ] == [event.event_id for event in heard]
    assert isinstance(started, RunStarted) and isinstance(step, StepFinished) and isinstance(ended, RunTerminal)
    assert 1 == len({event.trace_id for event in heard})
    assert (started.span_id, started.span_id, None) == (ended.span_id, step.parent_span_id, ended.parent_span_id)
    assert started.span_id != step.span_id
    assert (RunState.RUNNING, RunState.RUNNING, RunState.COMPLETED) == (started.state, step.state, ended.state)
    assert started.queue_wait_ms is not None
    assert (0, 1, OperationPhase.COMPLETED, "test-model") == (step.step, step.attempt, step.phase, step.model_id)
    assert (30, Provenance.PROVIDER_REPORTED) == tokens(step.usage)
    assert step.response is not None and step.response.id
    assert step.ttft_ms is not None and step.ttft_ms <= step.duration_ms
    assert (TerminalReason.SUCCESS, None, None) == (ended.reason, ended.policy_name, ended.failure)
    assert ((30, Provenance.COMPUTED), result.usage) == (tokens(ended.usage), ended.usage)
    assert ended.ttft_ms is not None and ended.duration_ms is not None
    assert MARK not in "".join(event.model_dump_json() for event in heard)


async def test_steps_are_told_as_reported_and_the_run_as_their_computed_sum(talks: Talks, operator: Operator) -> None:
    talks.sink = operator.sink
    look = [ToolUse("look", {"at": "it"})]
    plan: list[Step] = [
        ToolCalls(look, usage=Figures(input_tokens=1000, cost=0.5)),
        ToolCalls(look, usage=Figures(input_tokens=2000, cost=1.0)),
        Pass("done", usage=Figures(input_tokens=3000, cost=1.5)),
    ]
    talk = await talks.open(OpenAIChatModel, *plan, provider_name="openrouter")
    await talk.turn()
    steps, (ended,) = await operator.steps(), await operator.ends()

    reported = Provenance.PROVIDER_REPORTED
    assert [(0.5, reported), (1.0, reported), (1.5, reported)] == [cost(step.usage) for step in steps]
    assert [(1000, reported), (2000, reported), (3000, reported)] == [tokens(step.usage) for step in steps]
    assert [0, 1, 2] == [step.step for step in steps]
    assert ((3.0, Provenance.COMPUTED), (6000, Provenance.COMPUTED)) == (cost(ended.usage), tokens(ended.usage))
    assert ended.usage.cost is not None and "USD" == ended.usage.cost.currency


async def test_a_fallback_is_told_by_its_name_and_what_was_refused_before_it_costs_nothing(
    talks: Talks, operator: Operator
) -> None:
    talks.sink = operator.sink
    cut = CutAfter(events=3, of=Pass("lost", usage=Figures(input_tokens=1200)))
    plan: list[Step] = [cut, HttpError(401), Pass("kept", usage=Figures(input_tokens=1300))]
    talk = await talks.open(AnthropicModel, *plan, fallback=AnthropicModel)
    result = await talk.turn()
    first, last = await operator.steps()
    (ended,) = await operator.ends()

    assert "kept" == result.text
    assert ("test-model", 1, OperationPhase.FAILED) == (first.model_id, first.attempt, first.phase)
    assert ("second-model", 3, OperationPhase.COMPLETED) == (last.model_id, last.attempt, last.phase)
    assert (1200, True) == (first.usage.input_tokens.value, first.usage.partial)
    assert ((2500, Provenance.COMPUTED), True) == (tokens(ended.usage), ended.usage.partial)


async def test_an_interrupted_answer_is_told_with_what_is_known_of_its_cost(talks: Talks, operator: Operator) -> None:
    talks.sink = operator.sink
    gate = Gate(of=Pass("never whole", chunks=40, usage=Figures(input_tokens=1200)), after=4)
    talk = await talks.open(AnthropicModel, gate)
    ticket = await talk.submit("hi")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    await talk.client.interrupt(talk.conversation)
    await ticket.result(BOUND)
    gate.event.set()
    (step,), (ended,) = await operator.steps(), await operator.ends()

    assert (OperationPhase.CANCELLED, RunState.INTERRUPT_REQUESTED) == (step.phase, step.state)
    assert (1200, True) == (step.usage.input_tokens.value, step.usage.partial)
    assert (TerminalReason.INTERRUPTED, RunState.INTERRUPTED) == (ended.reason, ended.state)
    assert ((1200, Provenance.COMPUTED), True) == (tokens(ended.usage), ended.usage.partial)


async def test_a_failed_run_is_told_by_its_code(talks: Talks, operator: Operator) -> None:
    talks.sink = operator.sink
    talk = await talks.open(OpenAIChatModel, HttpError(401, body={"error": {"message": MARK, "code": "bad_key"}}))
    await talk.turn()
    heard = await operator.heard()
    (ended,) = await operator.ends()

    assert ["run-started", "run-terminal"] == names(heard)
    assert (TerminalReason.PROVIDER_FAILURE, RunState.FAILED) == (ended.reason, ended.state)
    assert ended.failure is not None and FailureClass.AUTHENTICATION is ended.failure.failure_class
    assert [UNSAID, UNSAID] == [tokens(ended.usage), cost(ended.usage)]
    assert MARK not in ended.model_dump_json()


# --- runs that nobody worked on -----------------------------------------------------------------


async def cancelled(play: Play) -> None:
    await play.client.cancel(play.conversation, run_id(await play.submit("B")))


async def abandoned(play: Play) -> None:
    b = await play.submit("B")
    revision = (await play.run(b)).revision
    await play.client.abandon(play.conversation, run_id(b), expected_revision=revision, stale_owner=True)


@pytest.mark.parametrize("end", [cancelled, abandoned], ids=lambda end: str(end.__name__))
async def test_a_run_that_ends_in_the_queue_is_told_once_without_a_start(
    bench: Bench, serve: Serve, conversation: str, operator: Operator, end: Callable[[Play], Awaitable[None]]
) -> None:
    play = await open_play(bench, serve, conversation, sink=operator.sink)
    a = await play.submit("A")
    await play.stage.call(1)
    await end(play)
    (ended,) = await operator.ends()
    play.stage.play()
    await play.reasons(a)

    assert (end.__name__, end.__name__) == (ended.state.value, ended.reason.value)
    assert (None, None, UNSAID, UNSAID) == (ended.duration_ms, ended.ttft_ms, tokens(ended.usage), cost(ended.usage))
    started = [event.run_id for event in await operator.heard() if isinstance(event, RunStarted)]
    assert ([run_id(a)], 2) == (started, len(await operator.ends()))


async def test_a_run_that_another_answered_is_told_as_absorbed(
    bench: Bench, serve: Serve, conversation: str, operator: Operator
) -> None:
    play = await open_play(bench, serve, conversation, sink=operator.sink)
    a = await play.submit("A")
    first = await play.stage.call(1)
    b = await play.submit("B", "inject")
    first.use(("c1", "look", "{}"))
    await play.stage.call(2)
    play.stage.play()
    await play.reasons(a, b)

    assert {(run_id(a), TerminalReason.SUCCESS), (run_id(b), TerminalReason.ABSORBED)} == {
        (ended.run_id, ended.reason) for ended in await operator.ends()
    }
    assert [(run_id(a), 0), (run_id(a), 1)] == [(step.run_id, step.step) for step in await operator.steps()]


# --- ends that the store refuses ----------------------------------------------------------------


class Rival:
    """A store in which another incarnation of the lane ends the run, just before the first one would."""

    def __init__(self, store: SqlStore, reason: TerminalReason = TerminalReason.INTERRUPTED) -> None:
        self.epoch = 0
        self.refused: list[CommitBatch] = []
        self._store = store
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
        ends = [mutation for mutation in batch.mutations if mutation.kind is MutationKind.TERMINAL]
        if ends and not self.epoch:
            self.refused.append(batch)
            await self._end(batch, ends[0], now)
        return await self._store.commit(batch, now)

    async def _end(self, batch: CommitBatch, mutation: Mutation, now: datetime) -> None:
        opened = await self._store.open_lane(batch.conversation_id, "a rival", None)
        assert opened.epoch is not None and mutation.run_id is not None
        self.epoch = opened.epoch
        control = ControlReason.RUN_INTERRUPTED
        effect = SettleRun(run_id=mutation.run_id, reason=self._reason, control=control)
        theirs = mutation.model_copy(update={"seq": opened.head.seq + 1, "effect": effect})
        await self._store.commit(batch.model_copy(update={"epoch": opened.epoch, "mutations": (theirs,)}), now)


async def told_ends(play: Play) -> list[TerminalEvent]:
    """The terminal events that the ledger has for watchers."""
    events, _ = await play.store.events_since(play.conversation, 0, limit=1000)
    return [event for event in events if isinstance(event, TerminalEvent)]


async def test_who_comes_second_to_the_end_tells_what_it_spent_and_goes_by_the_first(
    bench: Bench, serve: Serve, conversation: str, operator: Operator
) -> None:
    store, rival = bench.store, Rival(bench.store)
    bench.store = rival  # type: ignore[assignment]
    play = await open_play(bench, serve, conversation, sink=operator.sink, accept=anything)
    bench.store = play.store = store
    play.client = bench.client()
    async with bench.bus.subscribe(conversation) as delivered:
        a = await play.submit("A")
        (await play.stage.call(1)).answer("Yes.")
        result = await a.result(BOUND)
        b = await play.submit("B")
        play.stage.play()
        await play.reasons(b)
        published = []
        async with asyncio.timeout(BOUND):
            async for event in delivered:
                if isinstance(event, TerminalEvent):
                    published.append(event.run_id)
                    break

    ours, theirs = rival.refused[0], [end for end in await told_ends(play) if end.run_id == run_id(a)]
    (ended,) = [end for end in await operator.ends() if end.run_id == run_id(a)]
    (step,) = [step for step in await operator.steps() if step.run_id == run_id(a)]
    assert (TerminalReason.INTERRUPTED, 1) == (result.reason, len(theirs))
    assert [run_id(b)] == published
    seq = next(mutation.seq for mutation in ours.mutations if mutation.kind is MutationKind.TERMINAL)
    assert (f"{run_id(a)}:{ours.epoch}:terminal:{seq}", theirs[0].event_id) == (ended.event_id, theirs[0].event_id)
    assert ended.event_id != theirs[0].event_id
    assert (TerminalReason.INTERRUPTED, RunState.INTERRUPTED) == (ended.reason, ended.state)
    assert (OperationPhase.COMPLETED, result.usage) == (step.phase, ended.usage)


class Failing:
    """A store that refuses for good to end a run: with its last step always, by its lane once."""

    def __init__(self, store: SqlStore) -> None:
        self.failed = self.unsettled = 0
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def finish_step(self, finish: StepFinish, now: datetime) -> Written:
        if finish.settles:
            self.unsettled += 1
            raise StoreIntegrityError("the records disagree")
        return await self._store.finish_step(finish, now)

    async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
        if not self.failed and any(mutation.kind is MutationKind.TERMINAL for mutation in batch.mutations):
            self.failed += 1
            raise StoreIntegrityError("the records disagree")
        return await self._store.commit(batch, now)


async def test_an_end_that_cannot_be_stored_is_told_with_what_was_spent_and_the_run_as_it_stands(
    bench: Bench, talks: Talks, operator: Operator
) -> None:
    talks.sink, store = operator.sink, bench.store
    bench.store = failing = Failing(store)  # type: ignore[assignment]
    talk = await talks.open(OpenAIChatModel, Pass("Yes.", usage=Figures(input_tokens=30)))
    bench.store = store
    ticket = await bench.client().submit(talk.conversation, "hi")
    result = await ticket.result(BOUND)
    refused, ended = await operator.ends()

    # The lane opens again, finds the answer complete, and ends the run with it.
    assert (1, 1, TerminalReason.SUCCESS) == (failing.failed, len(talk.bodies), result.reason)
    assert 1 == failing.unsettled
    assert (RunState.RUNNING, TerminalReason.SUCCESS) == (refused.state, refused.reason)
    assert f"{result.run_id}:1:terminal:" in refused.event_id
    assert (RunState.COMPLETED, f"{result.run_id}:terminal:") == (ended.state, ended.event_id.rstrip("0123456789"))
    assert [(30, Provenance.COMPUTED)] * 2 == [tokens(refused.usage), tokens(ended.usage)]
    assert 1 == len(await operator.steps())


# --- who else is at work ------------------------------------------------------------------------


async def test_a_step_that_moves_to_another_worker_is_told_by_both_and_nothing_is_told_twice(
    talks: Talks, operator: Operator
) -> None:
    talks.sink = operator.sink
    gate = Gate(of=Pass("lost", chunks=40, usage=Figures(input_tokens=1200)), after=4)
    talk = await talks.open(AnthropicModel, gate, Pass("kept", usage=Figures(input_tokens=1300)))
    ticket = await talk.submit("hi")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    async with talks.another_worker():
        result = await ticket.result(BOUND)
    gate.event.set()
    heard = await operator.heard()
    first, second = await operator.steps()

    assert ("kept", {1}) == (result.text, set(Counter(event.event_id for event in heard).values()))
    assert (OperationPhase.CANCELLED, 1200, True) == (
        first.phase,
        first.usage.input_tokens.value,
        first.usage.partial,
    )
    assert (OperationPhase.COMPLETED, 2) == (second.phase, second.attempt)
    assert 1 == len(await operator.ends())


async def test_an_answer_whose_run_was_taken_over_is_told_all_the_same(
    bench: Bench, serve: Serve, conversation: str, operator: Operator
) -> None:
    play = await open_play(bench, serve, conversation, hold="finish_step", sink=operator.sink)
    a = await play.submit("A")
    (await play.stage.call(1)).answer("mine")
    await play.barrier.until_reached()
    await play.lane.terminate("another lane takes over")
    await play.submit("B")
    await play.stage.call(2)
    play.barrier.release()
    play.stage.play()
    await play.reasons(a)

    async def told() -> bool:
        return len([step for step in await operator.steps() if step.run_id == run_id(a)]) == 2

    await until(told)
    steps = {step.event_id: step.phase for step in await operator.steps() if step.run_id == run_id(a)}
    assert {f"{run_id(a)}:1:0:1:step", f"{run_id(a)}:2:0:2:step"} == set(steps)
    assert {OperationPhase.COMPLETED} == set(steps.values())
    assert ("assistant", "mine") not in await play.said()
    (ended,) = [end for end in await operator.ends() if end.run_id == run_id(a)]
    assert ended.usage.partial


async def test_a_handler_that_hangs_changes_no_turn(bench: Bench, serve: Serve, conversation: str) -> None:
    entered, dropped = asyncio.Event(), list[str]()

    async def hang(event: OperatorEvent) -> None:
        entered.set()
        await asyncio.Event().wait()

    sink = OperatorSink(hang, capacity=1, on_drop=lambda event, reason: dropped.append(event.type))
    play = await open_play(bench, serve, conversation, sink=sink)
    play.stage.play()

    assert ["success"] == await play.reasons(await play.submit("A"))
    assert entered.is_set()
    assert (False, ["run-terminal", "step-finished"]) == (await sink.close(0.01), dropped)


class Counting:
    """A store that counts its calls."""

    def __init__(self, store: SqlStore) -> None:
        self.calls: Counter[str] = Counter()
        self._store = store

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._store, name)


async def test_a_plain_turn_asks_the_store_no_more_for_it(
    bench: Bench, serve: Serve, conversation: str, operator: Operator
) -> None:
    store = bench.store
    counts = []
    for sink in (None, operator.sink):
        bench.store = counting = Counting(store)  # type: ignore[assignment]
        bench.task_queue += "x"
        play = await open_play(bench, serve, f"{conversation}-{bench.task_queue[-2:]}", sink=sink)
        bench.store = store
        play.client = bench.client()
        play.stage.play()
        await play.reasons(await play.submit("A"))
        counts.append({name: number for name, number in counting.calls.items() if name != "commit"})

    assert counts[0] == counts[1]
    assert 3 == len(await operator.heard())


def test_failures_have_no_place_for_what_was_said() -> None:
    assert not {"message", "text", "cause"} & set(Failure.model_fields)


async def test_a_worker_takes_nothing_but_a_sink(bench: Bench) -> None:
    with pytest.raises(TypeError):
        bench.worker(Stage().agent(), operator_events=print)
