"""The reducer under random commands, sense and nonsense.

The machine keeps its own book of what was admitted and how it ended, and compares after every command.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.reducer_desk import CONVERSATION, NOW, accept, message, summary
from turnlane.records.admissions import Policy
from turnlane.records.commands import (
    Accept,
    Acquire,
    Cancel,
    Command,
    Compact,
    Duplicate,
    Interrupt,
    Note,
    Purge,
    Recover,
    Refusal,
    RefusalCode,
    Seed,
    Settle,
)
from turnlane.records.lane import AbortReason, HeadReceipt, LaneHead, LaneRun
from turnlane.records.messages import Role, ToolApprovalResponsePart
from turnlane.records.mutations import Absorption, Mutation, MutationKind, SettleRun
from turnlane.records.runs import RunState, TerminalReason
from turnlane.workflows.decisions import Decision, Transition
from turnlane.workflows.offers import absorptions, observe, take_offers
from turnlane.workflows.reducer import reduce

KEYS = st.sampled_from([f"k{number}" for number in range(12)])
POLICIES = st.sampled_from([*Policy, Policy.INJECT, Policy.INJECT])
PICKS = st.integers(min_value=0, max_value=5)
RARELY = st.integers(min_value=0, max_value=5).map(lambda number: number == 0)
RECENT = 4
QUEUED = 6


@dataclass
class Booked:
    """An input as the book has it: the run that answers for it, and what its receipt must say."""

    run_id: str
    receipt: HeadReceipt


class ReducerMachine(RuleBasedStateMachine):
    """Random commands on one head, and a book that knows what must be true."""

    recent_receipts = RECENT

    def __init__(self) -> None:
        super().__init__()
        self.head = LaneHead(conversation_id=CONVERSATION)
        self.book: dict[str, Booked] = {}
        self.ends: dict[str, TerminalReason] = {}
        self.taken: tuple[tuple[str, str], ...] = ()
        self.used: set[str] = set()
        self.seeds = 0

    # --- deciding -------------------------------------------------------------------------------

    def decide(self, command: Command) -> Decision:
        """Ask the reducer, hold its answer against the rules, and book it."""
        before = self.head.model_copy()
        decision = reduce(self.head, command, NOW)
        assert before == self.head
        if isinstance(decision, Transition):
            assert not self._is_outdated(before, command)
            self._check_counters(before, decision)
            self.head = decision.head
            self._write_down(before, command, decision)
            self.decided(decision.mutation)
        elif isinstance(decision, Refusal):
            assert before.version == decision.head_version
            assert (decision.code is RefusalCode.PURGED) is before.purged
        return decision

    def decided(self, mutation: Mutation) -> None:
        """Called for each mutation, in order."""

    def _is_outdated(self, before: LaneHead, command: Command) -> bool:
        """Whether a command speaks of another version of the conversation, or another revision of its run."""
        version = getattr(command, "expected_version", None)
        revision = getattr(command, "expected_revision", None)
        run = before.run(getattr(command, "run_id", ""))
        return version not in (None, before.version) or (run is not None and revision not in (None, run.revision))

    def _check_counters(self, before: LaneHead, made: Transition) -> None:
        moved = 0 if made.mutation.kind is MutationKind.NOTE else 1
        assert (before.seq + 1, before.seq + 1) == (made.head.seq, made.mutation.seq)
        assert before.version + moved == made.head.version
        for run in made.head.runs:
            was = before.run(run.id)
            touched = 1 if run.id == made.run_id else 0
            assert run.revision == (0 if was is None else was.revision + touched)

    def _write_down(self, before: LaneHead, command: Command, made: Transition) -> None:
        effect = made.mutation.effect
        if isinstance(command, Accept):
            self._write_admission(command, made)
        elif isinstance(command, Acquire):
            self._check_turn(before, command.run_id)
        elif isinstance(effect, SettleRun):
            self._write_end(before, effect)

    def _write_admission(self, command: Accept, made: Transition) -> None:
        run = self.head.run(made.run_id or "")
        assert run is not None and run.input_ids[-1] == command.message.id
        assert command.key not in self.book
        self.used |= {run.id, run.assistant_message_id, command.message.id}
        receipt = HeadReceipt(
            command.key,
            command.content_digest,
            command.policy.value,
            made.head.version,
            command.message.id,
            run.id,
            run.assistant_message_id,
        )
        self.book[command.key] = Booked(run.id, receipt)

    def _check_turn(self, before: LaneHead, run_id: str) -> None:
        """A run starts when nothing is live, nothing urgent is passed, and nobody of its own class is overtaken."""
        run = before.run(run_id)
        assert run is not None and before.live is None
        for other in before.queued:
            passed_over = (other.started, other.urgent) > (run.started, run.urgent)
            overtaken = (other.started, other.urgent) == (run.started, run.urgent) and other.order < run.order
            assert not passed_over and not overtaken

    def _write_end(self, before: LaneHead, effect: SettleRun) -> None:
        ended = before.run(effect.run_id)
        assert ended is not None and effect.run_id not in self.ends
        self.ends[effect.run_id] = effect.reason
        for entry in effect.absorbed:
            other = before.run(entry.run_id)
            assert other is not None and other.state is RunState.QUEUED
            assert other.input_ids == entry.input_ids
            self.ends[entry.run_id] = TerminalReason.ABSORBED
            self._move(entry, ended)

    def _move(self, entry: Absorption, run: LaneRun) -> None:
        for booked in self.book.values():
            if booked.run_id == entry.run_id:
                assert booked.receipt.input_message_id in entry.input_ids
                booked.run_id = run.id
                booked.receipt = booked.receipt._replace(run_id=run.id, assistant_message_id=run.assistant_message_id)

    @property
    def live(self) -> LaneRun:
        """The live run, where a rule needs one."""
        live = self.head.live
        assert live is not None
        return live

    # --- picking --------------------------------------------------------------------------------

    def run_id(self, pick: int) -> str:
        """An active run, an ended one, or nobody."""
        names = [run.id for run in self.head.runs] * 2 + list(self.ends)[-2:] + ["run-nobody"]
        return names[pick % len(names)]

    def revision(self, run_id: str, off: bool) -> int | None:
        run = self.head.run(run_id)
        return None if run is None else run.revision + (1 if off else 0)

    def known(self, key: str) -> HeadReceipt | None:
        """What the lane would have looked up in the store."""
        booked = self.book.get(key)
        forgotten = not self.head.receipts_complete and self.head.receipt(key) is None
        return booked.receipt if booked is not None and forgotten else None

    # --- inputs ---------------------------------------------------------------------------------

    @initialize(policies=st.lists(POLICIES, min_size=1, max_size=4), coalesce=st.booleans())
    def begin_with_a_few_inputs(self, policies: list[Policy], coalesce: bool) -> None:
        self.accept(policies, coalesce, tool=False)
        self.start_the_first(resumes=False)

    @rule(policies=st.lists(POLICIES, min_size=1, max_size=3), coalesce=st.booleans(), tool=RARELY)
    def accept(self, policies: list[Policy], coalesce: bool, tool: bool) -> None:
        for policy in policies:
            key = f"k{len(self.book)}"
            answer = ToolApprovalResponsePart(approval_id=f"apr-{key}", approved=True)
            given = message(f"in-{key}", role=Role.TOOL, parts=(answer,)) if tool else message(f"in-{key}")
            self._accept(accept(key, policy=policy, coalesce=coalesce, message=given))

    @rule(key=KEYS, other=KEYS, policy=POLICIES, wrong=st.integers(min_value=0, max_value=9))
    def accept_a_resend_or_something_wrong(self, key: str, other: str, policy: Policy, wrong: int) -> None:
        changes: list[dict[str, Any]] = [
            {"agent": "another"},
            {"tenant": "another"},
            {"content_digest": "another"},
            {"run_id": f"run-{other}"},
            {"assistant_message_id": f"out-{other}"},
            {"message": message(f"in-{other}")},
            {"expected_version": self.head.version - 1},
        ]
        self._accept(accept(key, policy=policy, **(changes[wrong] if wrong < len(changes) else {})))

    def _accept(self, command: Accept) -> None:
        command = replace(
            command, known=self.known(command.key), queued_runs=QUEUED, recent_receipts=self.recent_receipts
        )
        if self.head.agent is None and (command.agent, command.tenant) != ("helper", None):
            return
        booked = self.book.get(command.key)
        if booked is None and self.is_taken_elsewhere(command):
            return
        decision = self.decide(command)
        if self.head.purged:
            return
        if booked is not None and command.content_digest == booked.receipt.digest:
            assert isinstance(decision, Duplicate)
            assert booked.receipt == decision.receipt
        elif booked is not None:
            is_answer = command.message.role is Role.TOOL
            expected = RefusalCode.DECIDED if is_answer else RefusalCode.KEY_CONFLICT
            assert isinstance(decision, Refusal) and expected is decision.code

    def is_taken_elsewhere(self, command: Accept) -> bool:
        """Whether an id is one that an ended run has: the lane asks its store that, before the reducer."""
        active: set[str] = set()
        for run in self.head.runs:
            active |= {run.id, run.assistant_message_id, *run.input_ids}
        return bool((self.used - active) & {command.message.id, command.run_id, command.assistant_message_id})

    # --- runs -----------------------------------------------------------------------------------

    @precondition(lambda self: self.head.live is None and self.head.queued)
    @rule(resumes=st.booleans())
    def start_the_first(self, resumes: bool) -> None:
        decision = self.decide(Acquire(run_id=self.head.queued[0].id, owner_id="w", resumes=resumes))
        assert isinstance(decision, Transition)

    @precondition(lambda self: self.head.live is not None)
    @rule(reason=st.sampled_from(list(AbortReason)), off=RARELY)
    def interrupt(self, reason: AbortReason, off: bool) -> None:
        live = self.live
        expected = live.revision + (1 if off else 0)
        self.decide(Interrupt(run_id=live.id, reason=reason, expected_revision=expected))

    @precondition(lambda self: self.head.live is not None)
    @rule()
    def lose_the_worker(self) -> None:
        self.decide(Recover(run_id=self.live.id, action="requeue", replay_safe=True))

    @rule(pick=PICKS, what=st.integers(min_value=0, max_value=5), off=RARELY)
    def ask_something_of_any_run(self, pick: int, what: int, off: bool) -> None:
        run_id = self.run_id(pick)
        revision = self.revision(run_id, off)
        commands: list[Command] = [
            Acquire(run_id=run_id, owner_id="w"),
            Interrupt(run_id=run_id, expected_revision=revision),
            Cancel(run_id=run_id, expected_revision=revision),
            Recover(run_id=run_id, action="requeue", expected_revision=revision),
            Recover(run_id=run_id, action="abandon", expected_revision=revision),
            Settle(run_id=run_id, token=1, reason=TerminalReason.INTERRUPTED),
        ]
        decision = self.decide(commands[what])
        if run_id in self.ends and not self.head.purged and isinstance(decision, Refusal):
            assert decision.code is RefusalCode.NOT_FOUND

    @precondition(lambda self: self.head.live is not None)
    @rule()
    def take(self) -> None:
        """A boundary of the live run takes what is offered."""
        self.head, taken = take_offers(self.head, self.live.id)
        self.taken += taken

    @precondition(lambda self: self.head.live is not None)
    @rule(reason=st.sampled_from(list(TerminalReason)), stale=RARELY, named=st.booleans())
    def settle(self, reason: TerminalReason, stale: bool, named: bool) -> None:
        name = "max-steps" if named else None
        token = self.live.token - (1 if stale else 0)
        self._settle(Settle(run_id=self.live.id, token=token, reason=reason, policy_name=name))

    @precondition(lambda self: self.head.live is not None)
    @rule(boundary=st.booleans())
    def succeed(self, boundary: bool) -> None:
        if boundary:
            self.take()
        live = self.live
        absorb = absorptions(self.head, self.taken)
        self._settle(Settle(run_id=live.id, token=live.token, reason=TerminalReason.SUCCESS, absorb=absorb))
        assert live.id in self.ends
        assert all(self.ends[entry.run_id] is TerminalReason.ABSORBED for entry in absorb)

    @precondition(lambda self: self.head.live is not None)
    @rule(picks=st.lists(PICKS, min_size=1, max_size=3), inputs=st.lists(KEYS, min_size=1, max_size=2))
    def succeed_with_claims_out_of_the_air(self, picks: list[int], inputs: list[str]) -> None:
        ids = tuple(f"in-{key}" for key in inputs)
        claims = tuple(Absorption(run_id=self.run_id(pick), input_ids=ids) for pick in picks)
        self._settle(Settle(run_id=self.live.id, token=self.live.token, reason=TerminalReason.SUCCESS, absorb=claims))

    def _settle(self, command: Settle) -> None:
        if isinstance(self.decide(command), Transition):
            self.taken = ()

    # --- the conversation -----------------------------------------------------------------------

    @rule(seed=st.booleans())
    def write_beside_the_runs(self, seed: bool) -> None:
        if seed:
            self.seeds += 1
            name = f"seed-{self.seeds}"
            self.decide(Seed(seed_key=name, messages=(message(f"{name}-a"), message(f"{name}-b"))))
        else:
            self.decide(Note(kind="retry/started", payload={"attempt": 2}))

    @rule(stale=st.booleans())
    def compact(self, stale: bool) -> None:
        version = self.head.version - (1 if stale else 0)
        self.decide(Compact(expected_version=version, message_ids=("in-k0",), summary=summary("sum")))

    @precondition(lambda self: self.head.seq > 15 and not self.head.purged)
    @rule(really=RARELY)
    def purge(self, really: bool) -> None:
        if really:
            active = tuple(run.id for run in self.head.runs)
            decision = self.decide(Purge())
            assert not active or (isinstance(decision, Refusal) and decision.run_ids == active)

    @precondition(lambda self: self.head.live is not None)
    @rule(by=st.integers(min_value=1, max_value=3))
    def hear_of_writes_by_activities(self, by: int) -> None:
        live = self.live
        self.head = observe(self.head, self.head.version + by, {live.id: live.revision + by})

    # --- what is always true --------------------------------------------------------------------

    @invariant()
    def at_most_one_run_is_live(self) -> None:
        assert sum(run.state.is_live for run in self.head.runs) <= 1

    @invariant()
    def only_active_runs_stand_in_the_head_each_once(self) -> None:
        names = [run.id for run in self.head.runs]
        assert len(set(names)) == len(names)
        assert all(run.state.is_active for run in self.head.runs)
        assert not self.ends.keys() & set(names)

    @invariant()
    def the_queue_is_in_order(self) -> None:
        ranks = [(not run.started, not run.urgent, run.order) for run in self.head.runs]
        assert sorted(ranks) == ranks
        assert len({run.order for run in self.head.runs}) == len(ranks)
        assert all(run.state is RunState.QUEUED for run in self.head.runs[1:])

    @invariant()
    def every_admitted_input_waits_in_one_run_or_has_an_end(self) -> None:
        if self.head.purged:
            return
        waiting = [name for run in self.head.runs for name in run.input_ids]
        assert len(set(waiting)) == len(waiting)
        for booked in self.book.values():
            held_by = [run.id for run in self.head.runs if booked.receipt.input_message_id in run.input_ids]
            assert held_by == ([] if booked.run_id in self.ends else [booked.run_id])

    @invariant()
    def receipts_are_bounded(self) -> None:
        assert len(self.head.receipts) <= self.recent_receipts
        assert not self.head.receipts_complete or self.head.purged or len(self.head.receipts) == len(self.book)

    @invariant()
    def the_head_remembers_each_admission_as_the_book_does(self) -> None:
        assert [self.book[receipt.key].receipt for receipt in self.head.receipts] == list(self.head.receipts)

    @invariant()
    def tokens_and_offers_make_sense(self) -> None:
        for run in self.head.runs:
            assert set(run.offered) <= set(run.input_ids)
            assert not (run.started and (run.offered or run.coalescable))
            assert run.started is (run.token > 0)
            assert (run.abort is not None) is (run.state is RunState.INTERRUPT_REQUESTED)
