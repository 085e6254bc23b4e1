"""The ledger: the append-only event log of a conversation."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from turnlane.records.base import JsonObject, Name, Record, RecordId, Timestamp

SPENT = "spent"
"""Under which name an event of its own tells what was spent without a run, so that it is counted with it."""


class LedgerKind(StrEnum):
    """The kinds this release writes. A reader refuses a kind it does not know unless it is ignorable."""

    TRANSITION = "runtime/transition"
    PROVIDER_REQUEST = "provider/request"
    PROVIDER_RESPONSE = "provider/response"
    PROVIDER_PAYLOAD = "provider/payload"
    INVOCATION_STARTED = "invocation/started"
    INVOCATION_FINISHED = "invocation/finished"
    RETRY_SCHEDULED = "retry/scheduled"
    RETRY_STARTED = "retry/started"
    COMPACTION_FINISHED = "compaction/finished"
    BUDGET_UNENFORCEABLE = "budget/unenforceable"
    CATALOG_SEARCH = "catalog/search"
    CATALOG_STEP = "catalog/step"
    ADMISSION_REFUSED = "admission/refused"
    APPROVAL_DECIDED = "approval/decided"
    APPROVAL_RESPONSE_REJECTED = "approval/response-rejected"
    DURABLE_STEP = "durability/step"
    DURABLE_PARK = "durability/park"
    DURABLE_EVENT = "durability/event"
    DURABLE_EFFECT = "durability/effect"
    BRANCHED = "runtime/branched"
    BRANCH_OBSERVATION = "runtime/branch-observation"


class LedgerEvent(Record):
    """One entry. `seq` is contiguous from 1 in its conversation; `version` is the version after it.

    A transition's payload is `{type, effect}`: the mutation with message contents replaced by
    `{id, status, sha256, parts, bytes}`, so content lives once, in the messages.
    """

    schema_version: Literal[1] = 1
    event_id: RecordId
    conversation_id: RecordId
    seq: Annotated[int, Field(ge=1)]
    version: Annotated[int, Field(ge=0)]
    kind: Name
    occurred_at: Timestamp
    payload: JsonObject
    ignorable: Literal[True] | None = None


def observed(kind: str, payload: JsonObject) -> tuple[str, JsonObject]:
    """What an event says; one that a branch only observes, what it said in the conversation that was copied."""
    if kind != LedgerKind.BRANCH_OBSERVATION:
        return kind, payload
    said = payload.get("payload")
    return str(payload.get("kind")), said if isinstance(said, dict) else {}


class LedgerPage(Record):
    """A page of the ledger; `next_seq` is set when more events match."""

    items: tuple[LedgerEvent, ...]
    next_seq: int | None = None
