"""Commands: what the lane asks the reducer to decide, and the refusals it may get."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from turnlane.records.admissions import BlobRef, Policy
from turnlane.records.approvals import AskedApproval
from turnlane.records.base import JsonObject
from turnlane.records.lane import AbortReason, HeadReceipt
from turnlane.records.messages import ControlReason, Message
from turnlane.records.mutations import Absorption
from turnlane.records.runs import Failure, TerminalReason


@dataclass(frozen=True, kw_only=True)
class Accept:
    """Admit an input and assign it to a run.

    `known` is the receipt the store has under the key, when the head's own receipts are not all there
    are. `coalesce` lets the input join a run that waits, and lets later inputs join the one it creates.
    """

    key: str
    content_digest: str
    policy: Policy
    message: Message
    run_id: str
    assistant_message_id: str
    agent: str
    tenant: str | None = None
    context: JsonObject | None = None
    blob: BlobRef | None = None
    coalesce: bool = False
    known: HeadReceipt | None = None
    expected_version: int | None = None
    queued_runs: int = 1000
    recent_receipts: int = 512


@dataclass(frozen=True, kw_only=True)
class Acquire:
    """Let a queued run start. `resumes` keeps the steps it finished before its lane was lost."""

    run_id: str
    owner_id: str
    resumes: bool = False


@dataclass(frozen=True, kw_only=True)
class Interrupt:
    """Ask a running run to stop."""

    run_id: str
    reason: AbortReason = AbortReason.INTERRUPT
    expected_revision: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """End a run that has not started."""

    run_id: str
    expected_revision: int | None = None


@dataclass(frozen=True, kw_only=True)
class Recover:
    """Deal with a run whose executor is gone: back into the queue, or given up.

    A run that has started goes back only with `replay_safe`, the caller's statement that nothing will
    happen twice.
    """

    run_id: str
    action: Literal["requeue", "abandon"]
    replay_safe: bool = False
    expected_revision: int | None = None


@dataclass(frozen=True, kw_only=True)
class Settle:
    """End the live run, absorbing the queued runs whose inputs it answered; `asked` are approvals that stay open."""

    run_id: str
    token: int
    reason: TerminalReason
    policy_name: str | None = None
    control: ControlReason | None = None
    failure: Failure | None = None
    absorb: tuple[Absorption, ...] = ()
    asked: tuple[AskedApproval, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Compact:
    """Replace messages with a summary, at this version and no other. With `blob`, both are in it."""

    expected_version: int
    message_ids: tuple[str, ...]
    summary: Message
    blob: BlobRef | None = None


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Put unowned user messages before everything, once under a key."""

    seed_key: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class Purge:
    """Delete the conversation for ever."""

    expected_version: int | None = None


@dataclass(frozen=True, kw_only=True)
class SetModel:
    """Choose the model of the runs to come by its key, or the agent's own with None."""

    model: str | None


@dataclass(frozen=True, kw_only=True)
class Note:
    """Append a ledger event that changes nothing."""

    kind: str
    payload: JsonObject


Command = Accept | Acquire | Interrupt | Cancel | Recover | Settle | Compact | Seed | Purge | SetModel | Note


class RefusalCode(StrEnum):
    """Why a command was not applied. `invalid` is a mistake of the caller's code, the others are facts."""

    PURGED = "purged"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    BLOCKED = "blocked"
    ACTIVE = "active"
    KEY_CONFLICT = "key_conflict"
    ID_COLLISION = "id_collision"
    AGENT_MISMATCH = "agent_mismatch"
    QUEUE_FULL = "queue_full"
    UNSAFE = "unsafe"
    INVALID = "invalid"
    DECIDED = "decided"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A command that was not applied: nothing changed. Head version and run revision by name."""

    code: RefusalCode
    head_version: int
    run_revision: int | None = None
    run_ids: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """An input that was admitted before under the same key: the answer it got then."""

    receipt: HeadReceipt
