"""The reducer under random commands, and a real store that must agree with it.

The machine with a store commits each mutation to it, and opens the lane again at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tests.unit.reducer_desk import CONVERSATION, NOW, summary
from tests.unit.reducer_machine import PICKS, ReducerMachine
from turnlane.records.admissions import Policy
from turnlane.records.commands import Compact
from turnlane.records.lane import LaneHead, LaneRun
from turnlane.records.mutations import CommitBatch, CommitOutcome, Mutation
from turnlane.store.sql import SqlStore, open_store

R = TypeVar("R")


class StoreMachine(ReducerMachine):
    """The same, with a store that takes every mutation, and lanes that are lost and opened again."""

    recent_receipts = 512

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store: SqlStore = self.wait(open_store(":memory:"))
        self.outbox: list[Mutation] = []
        self.incarnation = 1
        self.epoch = self.wait(self.store.open_lane(CONVERSATION, "lane-1", None)).epoch or 0

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        try:
            self.commit()
        finally:
            self.wait(self.store.close())
            self.loop.close()

    def decided(self, mutation: Mutation) -> None:
        self.outbox.append(mutation)

    # --- the store's side -----------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        """Commit what was decided, in one batch. The store says yes, and counts as the reducer did."""
        if not self.outbox:
            return
        batch = CommitBatch(conversation_id=CONVERSATION, epoch=self.epoch, mutations=tuple(self.outbox))
        reply = self.wait(self.store.commit(batch, NOW)).reply
        assert (CommitOutcome.APPLIED, len(self.outbox)) == (reply.outcome, len(reply.results))
        assert self.head.version == reply.results[-1].version
        self.outbox = []

    @rule()
    def commit_again(self) -> None:
        """A commit whose answer was lost is made again: it is answered as the first time."""
        repeated = list(self.outbox)
        self.commit()
        if repeated:
            batch = CommitBatch(conversation_id=CONVERSATION, epoch=self.epoch, mutations=tuple(repeated))
            reply = self.wait(self.store.commit(batch, NOW)).reply
            assert (CommitOutcome.APPLIED, self.head.version) == (reply.outcome, reply.results[-1].version)

    @rule()
    def lose_the_lane_and_open_it_again(self) -> None:
        """The head that the store gives back is the one that was lost, but for what does not survive."""
        self.commit()
        self.incarnation += 1
        opened = self.wait(self.store.open_lane(CONVERSATION, f"lane-{self.incarnation}", None))
        if self.head.purged:
            assert opened.head.purged
            return
        assert lasting(self.head) == lasting(opened.head)
        for lost, found in zip(self.head.runs, opened.head.runs, strict=True):
            self._check_offers(lost, found)
        assert opened.epoch is not None and not opened.more
        self.epoch, self.head, self.taken = opened.epoch, opened.head, ()

    def _check_offers(self, lost: LaneRun, found: LaneRun) -> None:
        """Nothing that was on offer is forgotten, and nothing is offered that was not injected."""
        injected = {
            booked.receipt.input_message_id
            for booked in self.book.values()
            if booked.receipt.policy == Policy.INJECT.value and booked.run_id == found.id
        }
        assert set(lost.offered) <= set(found.offered) <= injected

    @rule(skip=PICKS, count=st.integers(min_value=1, max_value=3))
    def compact_a_range(self, skip: int, count: int) -> None:
        self.commit()
        answers = {run.assistant_message_id for run in self.head.runs}
        ids = [item.id for item in self.wait(self.store.load_snapshot(CONVERSATION)).messages]
        chosen = tuple(ids[skip : skip + count])
        if chosen and not answers.intersection(chosen):
            written = summary(f"sum-{self.head.seq}")
            self.decide(Compact(expected_version=self.head.version, message_ids=chosen, summary=written))

    # --- rules that only the reducer's machine has ------------------------------------------------

    @precondition(lambda self: False)
    @rule(stale=st.booleans())
    def compact(self, stale: bool) -> None:
        """A range that may not be in the history is for the store to refuse, not for this machine."""

    @precondition(lambda self: False)
    @rule(by=st.integers(min_value=1, max_value=3))
    def hear_of_writes_by_activities(self, by: int) -> None:
        """No activity writes here."""

    # --- what is always true --------------------------------------------------------------------

    @invariant()
    def the_store_has_the_same_runs_in_the_same_order(self) -> None:
        if self.outbox or self.head.purged:
            return
        stored = self.wait(self.store.list_active_runs(CONVERSATION))
        expected = [(run.id, run.state, run.revision, run.token or None, run.input_ids) for run in self.head.runs]
        assert expected == [
            (run.id, run.state, run.revision, run.fencing_token, run.input_message_ids) for run in stored
        ]


def lasting(head: LaneHead) -> LaneHead:
    """A head without what a lost lane takes with it.

    `coalescable`: nothing joins a run of an earlier incarnation. `offered`: what a boundary took and
    never settled is offered again.
    """
    runs = tuple(run.model_copy(update={"coalescable": False, "offered": ()}) for run in head.runs)
    return head.model_copy(update={"runs": runs})


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


TestReducerMachine = ReducerMachine.TestCase
TestReducerMachine.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=SLOW, print_blob=True
)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25, stateful_step_count=50, deadline=None, suppress_health_check=SLOW, print_blob=True
)


def test_a_lane_opened_again_answers_for_an_absorbed_input_as_before() -> None:
    machine = StoreMachine()
    machine.begin_with_a_few_inputs([Policy.QUEUE], coalesce=False)
    machine.accept([Policy.INJECT], coalesce=False, tool=False)
    machine.succeed(boundary=True)
    machine.lose_the_lane_and_open_it_again()

    assert "run-k0" == machine.head.receipts[-1].run_id
    machine.teardown()


def test_a_run_put_back_has_nothing_on_offer_after_its_lane_was_opened_again() -> None:
    machine = StoreMachine()
    machine.begin_with_a_few_inputs([Policy.INJECT], coalesce=False)
    machine.lose_the_worker()
    machine.lose_the_lane_and_open_it_again()

    assert [("run-k0", ())] == [(run.id, run.offered) for run in machine.head.runs]
    machine.teardown()
