"""Invocations: receipts of model calls that an application can show to an auditor.

An invocation is a completion or an agent run, and may take several attempts. Its receipts stand in the ledger
of its conversation; what was said is there as well, encrypted, and named by the receipts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from turnlane.records.base import Count, Json, Name, Record, RecordId, Text, Timestamp, derived_id
from turnlane.records.usage import Usage

MAX_TIMEOUT_MS = 3_600_000
MAX_MODELS = 8

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TraceParent(Record):
    """The trace that an invocation belongs to, and the invocation that caused it."""

    trace_id: RecordId
    invocation_id: RecordId | None = None


class InvocationTrace(Record):
    """What an invocation is for, in the application's own words."""

    operation_id: RecordId
    purpose: Name
    project: Name
    parent: TraceParent | None = None
    experiment: Name | None = None
    case: Name | None = None
    profile: Name | None = None


class Caller(Record):
    """On whose behalf an invocation is made, as the application's authorization says."""

    subject: RecordId


class CompletionSettings(Record):
    """How a completion is sampled. A protocol that has no `seed` is sent none."""

    max_output_tokens: Annotated[int, Field(gt=0)] | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, strict=False)] | None = None
    seed: int | None = None


class CompletionRequest(Record):
    """Ask models for one answer to one prompt: the first that answers, in the order given.

    `idempotency_key` makes a repeat the same operation; `timeout_ms` is the deadline of all attempts together.
    """

    conversation_id: RecordId
    idempotency_key: RecordId
    trace: InvocationTrace
    prompt: Annotated[Text, Field(min_length=1)]
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_MODELS, strict=False)]
    settings: CompletionSettings | None = None
    timeout_ms: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_MS)] = 60_000


class InvocationMode(StrEnum):
    """What kind of invocation it is."""

    COMPLETION = "completion"
    AGENT = "agent"


class InvocationStatus(StrEnum):
    """How an attempt or an invocation ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ExecutingProcess(Record):
    """The process that made a call."""

    instance_id: RecordId
    pid: int
    hostname: str


class _Receipt(Record):
    schema_version: Literal[1] = 1
    conversation_id: RecordId
    invocation_id: RecordId
    operation_id: RecordId | None
    run_id: RecordId | None = None


class RequestedModels(Record):
    """What a completion asked for; the digest is that of the whole request."""

    models: tuple[Name, ...]
    payload_sha256: Sha256


class RequestedRun(Record):
    """The run that an agent's invocation is."""

    run_id: RecordId


class InvocationStarted(_Receipt):
    """An invocation was admitted. The same key and fingerprint again is the same invocation."""

    type: Literal["invocation/started"] = "invocation/started"
    mode: InvocationMode
    trace: InvocationTrace
    caller: Caller
    executing_process: ExecutingProcess
    fingerprint: Sha256
    requested: RequestedModels | RequestedRun


class ModelIdentity(Record):
    """The model that was asked for: its key or name, and the provider that its description names."""

    model_id: str
    provider: str


class SentRequest(Record):
    """What was sent, and through which adapter; `artifact_id` names the encrypted payload."""

    model_id: str
    provider: str
    payload_sha256: Sha256
    artifact_id: RecordId
    tools: Count


class ProviderRequested(_Receipt):
    """An attempt is about to call its provider."""

    type: Literal["provider/request"] = "provider/request"
    attempt_id: RecordId
    step: Count
    requested: ModelIdentity
    executing_process: ExecutingProcess
    sent: SentRequest


class EffectiveIdentity(Record):
    """Who answered, by the answer's own word: what it does not say is null, never copied from the request."""

    provider: str | None = None
    model_id: str | None = None
    response_id: str | None = None


class ProviderResponded(_Receipt):
    """An attempt ended. `phase` is `transport-audit` where the call was refused before it was made."""

    type: Literal["provider/response"] = "provider/response"
    attempt_id: RecordId
    step: Count
    status: InvocationStatus
    effective: EffectiveIdentity
    usage: Usage
    artifact_id: RecordId | None = None
    payload_sha256: Sha256 | None = None
    phase: Literal["transport-audit"] | None = None


class FailureArtifact(Record):
    """Where the encrypted error of a failed invocation is."""

    artifact_id: RecordId
    payload_sha256: Sha256


class InvocationFinished(_Receipt):
    """An invocation ended. One that was admitted and has no such receipt is under way, or its process died."""

    type: Literal["invocation/finished"] = "invocation/finished"
    status: InvocationStatus
    failure: FailureArtifact | None = None


InvocationReceipt = Annotated[
    InvocationStarted | ProviderRequested | ProviderResponded | InvocationFinished, Field(discriminator="type")
]
RECEIPT_ADAPTER: TypeAdapter[InvocationReceipt] = TypeAdapter(InvocationReceipt)


class InvocationEntry(Record):
    """A receipt and where it stands in the ledger."""

    seq: int
    occurred_at: Timestamp
    receipt: InvocationReceipt


class InvocationPage(Record):
    """A page of receipts; `next_seq` is set when the ledger goes on, also after a page without any."""

    items: tuple[InvocationEntry, ...]
    next_seq: int | None = None


class SealedPayload(Record):
    """An encrypted payload: AES-256-GCM, bound to its conversation, invocation and artifact."""

    schema_version: Literal[1] = 1
    conversation_id: RecordId
    invocation_id: RecordId
    artifact_id: RecordId
    sha256: Sha256
    bytes: Count
    iv: str
    tag: str
    ciphertext: str


class OpenedPayload(Record):
    """A payload, decrypted."""

    artifact_id: RecordId
    sha256: Sha256
    value: Json


class InvocationAttempt(Record):
    """Which attempt of which invocation a call is made for."""

    conversation_id: RecordId
    invocation_id: RecordId
    attempt_id: RecordId
    trace: InvocationTrace
    run_id: RecordId | None = None
    step: int
    model_id: str
    provider: str


def run_invocation_id(conversation_id: str, run_id: str) -> str:
    """Return the id of the invocation that a run is: the same for every lane and worker that works on it."""
    return derived_id("inv", conversation_id, run_id)
