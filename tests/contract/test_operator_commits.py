"""What operators are told of a commit: once however often it is repeated, and also where it is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from tests.contract.conftest import Lane
from turnlane.activities.operator_sink import OperatorSink
from turnlane.activities.operator_telling import ToldCommits
from turnlane.records.errors import StoreIntegrityError, StoreUnavailableError, TurnlaneError
from turnlane.records.events import RunStateEvent, TerminalEvent
from turnlane.records.messages import TextPart
from turnlane.records.mutations import CommitOutcome
from turnlane.records.operator_events import OperatorEvent, RunStarted, RunTerminal
from turnlane.records.runs import RunState, RunView, TerminalReason
from turnlane.records.usage import Provenance, UsageValue
from turnlane.store.payloads import Committed
from turnlane.store.sql import SqlStore

THIRTY = UsageValue(value=30, provenance=Provenance.COMPUTED)


class Operator:
    """Tells a worker's commits to a list."""

    def __init__(self, store: SqlStore) -> None:
        self._heard: list[OperatorEvent] = []
        self._sink = OperatorSink(self._heard.append)
        self.commits = ToldCommits(store, self._sink)

    async def heard(self) -> list[OperatorEvent]:
        assert await self._sink.flush(10)
        return list(self._heard)

    async def end(self) -> RunTerminal:
        (event,) = [event for event in await self.heard() if isinstance(event, RunTerminal)]
        return event


async def answered(lane: Lane, key: str = "a") -> None:
    """A run whose one step cost thirty tokens, and that has not ended."""
    fence = await lane.begin_run(key)
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="yes"), usage=lane.reported(30))


async def test_a_repeated_commit_is_told_once_by_a_worker_and_the_same_by_every_one(lane: Lane) -> None:
    batch = lane.batch(lane.admit("a"), lane.start("run-a"), lane.settle("run-a"))
    first, second = Operator(lane.store), Operator(lane.store)
    for operator in (first, first, second):
        await operator.commits.commit(batch, lane.clock())

    assert ["run-a:started:2", "run-a:terminal:3"] == [event.event_id for event in await first.heard()]
    assert await first.heard() == await second.heard()


async def test_what_the_lane_is_answered_is_the_stores_own(lane: Lane) -> None:
    batch = lane.batch(lane.admit("a"), lane.start("run-a"))

    told = await Operator(lane.store).commits.commit(batch, lane.clock())

    assert told == await lane.store.commit(batch, lane.clock())


async def superseded(lane: Lane) -> None:
    await lane.store.open_lane(lane.conversation_id, "another", None)


async def diverged(lane: Lane) -> None:
    other = lane.note()
    await lane.apply(other)
    lane.seq -= 1


@pytest.mark.parametrize("how", [superseded, diverged], ids=lambda how: str(how.__name__))
async def test_an_end_that_is_refused_is_told_with_the_run_as_it_stands(
    lane: Lane, how: Callable[[Lane], Awaitable[None]]
) -> None:
    await answered(lane)
    await how(lane)
    batch = lane.batch(lane.settle("run-a"))
    operator = Operator(lane.store)
    committed = [await operator.commits.commit(batch, lane.clock()) for _ in range(2)]
    ended = await operator.end()

    assert {how.__name__} == {answer.reply.outcome.value for answer in committed}
    assert f"run-a:{batch.epoch}:terminal:{batch.mutations[0].seq}" == ended.event_id
    assert (RunState.RUNNING, TerminalReason.SUCCESS, THIRTY) == (ended.state, ended.reason, ended.usage.input_tokens)


async def test_an_end_that_another_one_came_before_is_told_as_theirs(lane: Lane) -> None:
    await answered(lane)
    rival = await lane.beside(lane.conversation_id).open("another")
    rival.seq = lane.seq
    await rival.apply(rival.settle("run-a", TerminalReason.INTERRUPTED))
    operator = Operator(lane.store)
    committed = await operator.commits.commit(lane.batch(lane.settle("run-a")), lane.clock())
    ended = await operator.end()

    assert CommitOutcome.SUPERSEDED is committed.reply.outcome
    assert (RunState.INTERRUPTED, TerminalReason.INTERRUPTED) == (ended.state, ended.reason)
    assert THIRTY == ended.usage.input_tokens


async def test_of_a_purged_run_nobody_knows_what_it_spent(lane: Lane) -> None:
    await lane.answer("a")
    await lane.apply(lane.purge())
    operator = Operator(lane.store)
    committed = await operator.commits.commit(lane.batch(lane.settle("run-a")), lane.clock())
    ended = await operator.end()

    assert CommitOutcome.PURGED is committed.reply.outcome
    assert (RunState.COMPLETED, None) == (ended.state, ended.usage.input_tokens.value)


async def test_a_run_that_ends_in_the_commit_that_erases_it_is_told(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))
    operator = Operator(lane.store)
    batch = lane.batch(lane.settle("run-a", TerminalReason.CANCELLED), lane.purge())
    committed = [await operator.commits.commit(batch, lane.clock()) for _ in range(2)]
    ended = await operator.end()

    assert [CommitOutcome.APPLIED] * 2 == [answer.reply.outcome for answer in committed]
    assert f"run-a:terminal:{committed[0].reply.results[0].version}" == ended.event_id
    assert (RunState.CANCELLED, None) == (ended.state, ended.usage.input_tokens.value)


class Broken:
    """A store whose commits fail, or that cannot be read."""

    def __init__(self, store: SqlStore, commits: TurnlaneError | None, reads: TurnlaneError | None) -> None:
        self._store = store
        self._commits = commits
        self._reads = reads

    async def commit(self, *given: object) -> Committed:
        if self._commits is not None:
            raise self._commits
        return await self._store.commit(*given)  # type: ignore[arg-type]

    async def load_run(self, *given: str) -> RunView | None:
        if self._reads is not None:
            raise self._reads
        return await self._store.load_run(*given)


GONE = StoreUnavailableError("the store is away")
WRONG = StoreIntegrityError("the records disagree")


async def test_a_commit_that_may_still_land_is_not_told(lane: Lane) -> None:
    await answered(lane)
    operator = Operator(Broken(lane.store, GONE, None))  # type: ignore[arg-type]

    with pytest.raises(StoreUnavailableError):
        await operator.commits.commit(lane.batch(lane.settle("run-a")), lane.clock())
    assert [] == await operator.heard()


async def test_a_commit_that_never_will_is_told_and_raises_what_it_raised(lane: Lane) -> None:
    await answered(lane)
    operator = Operator(Broken(lane.store, WRONG, None))  # type: ignore[arg-type]

    with pytest.raises(StoreIntegrityError):
        await operator.commits.commit(lane.batch(lane.settle("run-a")), lane.clock())
    assert (RunState.RUNNING, THIRTY) == ((ended := await operator.end()).state, ended.usage.input_tokens)


async def test_a_run_that_cannot_be_read_is_told_without_figures_and_the_commit_stands(lane: Lane) -> None:
    await answered(lane)
    await lane.apply(lane.admit("b"))
    operator = Operator(Broken(lane.store, None, GONE))  # type: ignore[arg-type]
    end = lane.settle("run-a", absorbed=[("run-b", ("in-b",))])
    committed = await operator.commits.commit(lane.batch(end), lane.clock())
    absorbed, ended = await operator.heard()

    assert isinstance(absorbed, RunTerminal) and isinstance(ended, RunTerminal)
    assert CommitOutcome.APPLIED is committed.reply.outcome
    assert ("run-b", TerminalReason.ABSORBED, None) == (
        absorbed.run_id,
        absorbed.reason,
        absorbed.usage.input_tokens.value,
    )
    assert ("run-a", THIRTY) == (ended.run_id, ended.usage.input_tokens)


async def test_a_run_tells_how_long_it_waited_worked_and_thought(lane: Lane) -> None:
    operator = Operator(lane.store)
    admission = lane.admit("a")
    lane.clock.now += timedelta(seconds=2)
    batch = lane.batch(admission, lane.start("run-a"))
    committed = await operator.commits.commit(batch, lane.clock())
    fence = lane.fence("run-a")
    await lane.begin_step(fence)
    lane.clock.now += timedelta(seconds=1)
    await lane.checkpoint(fence, TextPart(text="y"), first_output=True)
    lane.clock.now += timedelta(seconds=3)
    await lane.finish_step(fence, TextPart(text="yes"))
    settled = await operator.commits.commit(lane.batch(lane.settle("run-a")), lane.clock())
    started, ended = await operator.heard()

    assert isinstance(started, RunStarted) and isinstance(ended, RunTerminal)
    assert (2001, 1004, 4007) == (started.queue_wait_ms, ended.ttft_ms, ended.duration_ms)
    waits = [event.queue_wait_ms for event in committed.events if isinstance(event, RunStateEvent)]
    assert [None, 2001] == waits
    (terminal,) = [event for event in settled.events if isinstance(event, TerminalEvent)]
    assert terminal.metrics is not None
    assert (1004, 4007) == (terminal.metrics.ttft_ms, terminal.metrics.duration_ms)
    again, _ = await lane.store.events_since(lane.conversation_id, 0)
    assert [terminal] == [event for event in again if isinstance(event, TerminalEvent)]


async def test_a_run_that_is_taken_up_again_keeps_its_first_start_and_first_output(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.checkpoint(fence, TextPart(text="y"), first_output=True)
    await lane.apply(lane.requeue("run-a"), lane.start("run-a", resumes=True))
    lane.clock.now += timedelta(seconds=9)
    fence = lane.fence("run-a")
    await lane.begin_step(fence)
    await lane.checkpoint(fence, TextPart(text="z"), first_output=True)
    await lane.finish_step(fence, TextPart(text="zes"))
    operator = Operator(lane.store)
    await operator.commits.commit(lane.batch(lane.settle("run-a")), lane.clock())
    ended = await operator.end()

    assert ended.ttft_ms is not None and ended.duration_ms is not None
    assert ended.ttft_ms < 9000 < ended.duration_ms


async def test_a_clock_that_went_back_makes_no_negative_time(lane: Lane) -> None:
    admission = lane.admit("a")
    lane.clock.now -= timedelta(minutes=1)
    operator = Operator(lane.store)
    await operator.commits.commit(lane.batch(admission, lane.start("run-a")), lane.clock())
    (started,) = await operator.heard()

    assert isinstance(started, RunStarted) and 0 == started.queue_wait_ms
