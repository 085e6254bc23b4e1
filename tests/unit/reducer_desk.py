"""A lane head on a desk: commands go in, and the head after each stays. For the tests of the reducer."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from turnlane.records.admissions import Policy
from turnlane.records.commands import Accept, Acquire, Command, Duplicate, Interrupt, Recover, Refusal, Settle
from turnlane.records.lane import LaneHead, LaneRun, ids_for_key
from turnlane.records.messages import Message, MessageStatus, Role, TextPart
from turnlane.records.mutations import Absorption
from turnlane.records.runs import TerminalReason
from turnlane.workflows.decisions import Transition
from turnlane.workflows.reducer import reduce

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
CONVERSATION = "c"


def message(message_id: str, **changes: Any) -> Message:
    """A committed user message of the conversation, with `changes`."""
    fields: dict[str, Any] = {
        "id": message_id,
        "conversation_id": CONVERSATION,
        "role": Role.USER,
        "status": MessageStatus.COMMITTED,
        "parts": (TextPart(text="hello"),),
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Message(**(fields | changes))


def summary(message_id: str, **changes: Any) -> Message:
    """A committed summary of the conversation."""
    return message(message_id, **({"role": Role.SUMMARY} | changes))


def accept(key: str, **changes: Any) -> Accept:
    """Accept an input under `key`: its ids are in-KEY, run-KEY and out-KEY, its content is known by its key."""
    fields: dict[str, Any] = {
        "key": key,
        "content_digest": f"digest-{key}",
        "policy": Policy.QUEUE,
        "message": message(f"in-{key}"),
        "run_id": f"run-{key}",
        "assistant_message_id": f"out-{key}",
        "agent": "helper",
    }
    return Accept(**(fields | changes))


def derived(key: str, **changes: Any) -> Accept:
    """Accept an input under the ids that follow from its key."""
    ids = ids_for_key(CONVERSATION, key)
    named = {
        "message": message(ids.input_message_id),
        "run_id": ids.run_id,
        "assistant_message_id": ids.assistant_message_id,
    }
    return accept(key, **(named | changes))


def claim(run_id: str, *input_ids: str) -> Absorption:
    """The claim that a run answered these inputs of another one."""
    return Absorption(run_id=run_id, input_ids=input_ids)


@dataclass
class Desk:
    """One head, and what commands make of it."""

    head: LaneHead = field(default_factory=lambda: LaneHead(conversation_id=CONVERSATION))

    def do(self, command: Command) -> Transition:
        """Apply a command that must be applied."""
        decision = reduce(self.head, command, NOW)
        assert isinstance(decision, Transition), decision
        self.head = decision.head
        return decision

    def refused(self, command: Command) -> Refusal:
        """Have a command refused that must be."""
        decision = reduce(self.head, command, NOW)
        assert isinstance(decision, Refusal), decision
        return decision

    def repeated(self, command: Accept) -> Duplicate:
        """Have an input recognised that was admitted before."""
        decision = reduce(self.head, command, NOW)
        assert isinstance(decision, Duplicate), decision
        return decision

    def admit(self, *keys: str, **changes: Any) -> None:
        """Admit an input under each key."""
        for key in keys:
            self.do(accept(key, **changes))

    def start(self, key: str, **changes: Any) -> Transition:
        """Let the run of a key start."""
        return self.do(Acquire(run_id=f"run-{key}", owner_id="w", **changes))

    def interrupt(self, key: str, **changes: Any) -> Transition:
        """Ask the run of a key to stop."""
        return self.do(Interrupt(run_id=f"run-{key}", **changes))

    def requeue(self, key: str, **changes: Any) -> Transition:
        """Put the run of a key back, with the word that it is safe."""
        return self.do(Recover(run_id=f"run-{key}", action="requeue", replay_safe=True, **changes))

    def settlement(self, key: str, reason: TerminalReason = TerminalReason.SUCCESS, **changes: Any) -> Settle:
        """End the run of a key under the token it has."""
        run = self.run(key)
        fields: dict[str, Any] = {"token": run.token, "reason": reason}
        return Settle(run_id=run.id, **(fields | changes))

    def settle(self, key: str, reason: TerminalReason = TerminalReason.SUCCESS, **changes: Any) -> Transition:
        """End the run of a key."""
        return self.do(self.settlement(key, reason, **changes))

    def run(self, key: str) -> LaneRun:
        """The active run of a key."""
        run = self.head.run(f"run-{key}")
        assert run is not None
        return run

    @property
    def order(self) -> list[str]:
        """The keys whose runs are active, in the order of the queue."""
        return [run.id.removeprefix("run-") for run in self.head.runs]
