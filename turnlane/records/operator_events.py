"""Operator events: what whoever runs turnlane is told of runs. Facts and figures, never what was said.

They are a channel of their own, beside the delivery events that a conversation's watchers get. Their ids follow
from what they tell of, so a repeat has the same one; so do the ids of traces and spans, in the sizes of W3C's trace
context: a run is a trace and its own root span, and each attempt of a step is a span below it.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from turnlane.records.base import Count, Name, Record, RecordId, Text, Timestamp, canonical_json
from turnlane.records.runs import Failure, OperationPhase, RunState, TerminalReason
from turnlane.records.usage import Usage

TraceId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
SpanId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class _OperatorEvent(Record):
    schema_version: Literal[1] = 1
    event_id: Annotated[str, Field(min_length=1)]
    conversation_id: RecordId
    run_id: RecordId
    trace_id: TraceId
    span_id: SpanId
    parent_span_id: SpanId | None = None
    state: RunState
    emitted_at: Timestamp


class RunStarted(_OperatorEvent):
    """A run was acquired: `<run>:started:<version>`. One that is taken up again after a lost lane starts again.

    `queue_wait_ms` is the time since its admission.
    """

    type: Literal["run-started"] = "run-started"
    queue_wait_ms: Count | None = None


class ProviderIdentity(Record):
    """The id under which a provider knows its response, and who that provider was if it is known."""

    id: Annotated[Text, Field(min_length=1)]
    provider: Text | None = None


class StepFinished(_OperatorEvent):
    """An attempt of a step ended that its provider answered, or may bill: `<run>:<token>:<step>:<attempt>:step`.

    `usage` is this attempt's own figure, each with where it comes from; `phase` is how the attempt ended. Times
    count from the attempt's begin, with its preparation; `ttft_ms` is that of the first output. `state` is the
    run's as the attempt knew it, `model_id` the model that was asked.
    """

    type: Literal["step-finished"] = "step-finished"
    step: Count
    attempt: Annotated[int, Field(ge=1)]
    phase: OperationPhase
    model_id: Text
    usage: Usage
    response: ProviderIdentity | None = None
    duration_ms: Count
    ttft_ms: Count | None = None


class RunTerminal(_OperatorEvent):
    """A run ended, `<run>:terminal:<version>`; or a lane decided that it should, and its store refused the decision,
    `<run>:<epoch>:terminal:<seq>`. Then `state` and `reason` are those of the store, where it has an end of the run.

    `usage` is all that the run has spent by then, whoever worked on it: of several, the latest counts, and none are
    added. Times count from when the run was first acquired.
    """

    type: Literal["run-terminal"] = "run-terminal"
    reason: TerminalReason
    policy_name: Name | None = None
    failure: Failure | None = None
    usage: Usage
    duration_ms: Count | None = None
    ttft_ms: Count | None = None


OperatorEvent = Annotated[RunStarted | StepFinished | RunTerminal, Field(discriminator="type")]
OPERATOR_EVENT_ADAPTER: TypeAdapter[OperatorEvent] = TypeAdapter(OperatorEvent)


def trace_id(conversation_id: str, run_id: str) -> str:
    """Return the trace of a run: the same for everybody who works on it."""
    return _derived("trace", conversation_id, run_id)[:32]


def run_span(conversation_id: str, run_id: str) -> str:
    """Return the span of a run, which is the root of its trace."""
    return _derived("run", conversation_id, run_id)[:16]


def step_span(conversation_id: str, event_id: str) -> str:
    """Return the span of an attempt of a step, by the event that tells of it."""
    return _derived("step", conversation_id, event_id)[:16]


def _derived(*parts: str) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()
