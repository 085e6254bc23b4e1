"""Compaction: what is asked for, what one attempt came to, and what a summary replaces."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from turnlane.records.admissions import BlobRef
from turnlane.records.base import JsonObject, Name, Payload, RecordId
from turnlane.records.lane import AgentFacts
from turnlane.records.messages import Part
from turnlane.records.runs import Failure
from turnlane.records.steps import Fence
from turnlane.records.usage import Usage


class CompactionResult(StrEnum):
    """What became of a compaction.

    `not_needed`: the threshold said so. `nothing`: no turn is old enough, or an open one stands before all
    others. `conflict`: the conversation moved on during every attempt. Only `applied` changed anything.
    """

    APPLIED = "applied"
    NOT_NEEDED = "not_needed"
    NOTHING = "nothing"
    CONFLICT = "conflict"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CompactRequest(Payload):
    """Ask for a compaction. `force` compacts whatever the threshold says.

    `number` is that of an earlier reply which said `again`: the same wish is asked after once more.
    """

    force: bool = False
    number: int | None = None


class CompactReply(Payload):
    """What a compaction came to. With `again` it is still to come: ask once more under `number`.

    `usage` is what all its attempts spent, `attempts` how many there were.
    """

    outcome: CompactionResult | None = None
    attempts: int = 0
    version: int = 0
    summary_id: RecordId | None = None
    usage: Usage | None = None
    failure: Failure | None = None
    again: bool = False
    number: int | None = None


class CompactAttempt(Payload):
    """Make one attempt at a compaction: on behalf of a run, under its fence, or of none."""

    agent: Name
    conversation_id: RecordId
    summary_id: RecordId
    attempt: Annotated[int, Field(ge=1)]
    fence: Fence | None = None
    assistant_message_id: RecordId | None = None
    force: bool = False
    facts_digest: str | None = None


class AttemptEnd(StrEnum):
    """How an attempt ended. `ready`: a summary is in the blob. `stale`: its run had moved on."""

    READY = "ready"
    NOT_NEEDED = "not_needed"
    NOTHING = "nothing"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STALE = "stale"


class CompactOutcome(Payload):
    """What one attempt came to. What was said is in the blob, a `CompactedRange`."""

    end: AttemptEnd
    blob: BlobRef | None = None
    replaced: int = 0
    usage: Usage | None = None
    failure: Failure | None = None
    facts: AgentFacts | None = None


class CompactedRange(Payload):
    """The content of a compaction: which messages it replaces, in order, and the summary in their place."""

    message_ids: Annotated[tuple[RecordId, ...], Field(min_length=1)]
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    metadata: JsonObject | None = None
