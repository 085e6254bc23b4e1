"""How a step of a plan becomes an HTTP answer: a status, and a score of events, waits and cuts."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from turnlane.testing.fault_plan import (
    BadJson,
    ContentStep,
    CutAfter,
    DataOnly,
    Gate,
    HangUp,
    HttpError,
    PingsOnly,
    Silent,
    Slow,
    Step,
    StreamError,
    UsageMissing,
)
from turnlane.testing.wire import Asked, SseEvent, Wire


@dataclass(frozen=True)
class Pause:
    """Wait some seconds."""

    seconds: float


@dataclass(frozen=True)
class Hold:
    """Say that this point is reached, and wait until let go."""

    reached: asyncio.Event
    event: asyncio.Event


@dataclass(frozen=True)
class Cut:
    """End here: by closing the connection in mid-body, or `clean`, as if this were all."""

    clean: bool


@dataclass(frozen=True)
class Part:
    """The first bytes of an event."""

    data: bytes


Beat = SseEvent | Pause | Hold | Cut | Part
EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: `body` whole, or `score` beat by beat. No status means to hang up without one."""

    status: int | None = 200
    headers: Mapping[str, str] = field(default_factory=lambda: EVENT_STREAM)
    body: bytes | None = None
    score: Iterable[Beat] = ()
    hold: asyncio.Event | None = None


def answer_to(step: Step, wire: Wire, asked: Asked, *, with_usage: bool = True) -> Answer:
    """Return what a step answers to a request."""
    match step:
        case HttpError():
            return _http_error(step, wire)
        case HangUp():
            return Answer(status=None)
        case PingsOnly():
            return Answer(score=_pings(step, wire))
        case Silent():
            return replace(answer_to(step.before, wire, asked, with_usage=with_usage), hold=step.release)
        case UsageMissing():
            return answer_to(step.of, wire, asked, with_usage=False)
        case CutAfter() | Slow() | Gate() | BadJson() | StreamError() | DataOnly():
            inner = answer_to(step.of, wire, asked, with_usage=with_usage)
            return replace(inner, score=_disturbed(step, inner.score, wire, asked))
        case _:
            return Answer(score=_content(step, wire, asked, with_usage))


def json_answer(status: int, body: object, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer with a JSON body (a text stands as it is)."""
    encoded = body if isinstance(body, str) else json.dumps(body)
    return Answer(status, {"content-type": "application/json", **(headers or {})}, encoded.encode())


def _http_error(step: HttpError, wire: Wire) -> Answer:
    code = step.code or f"fault_{step.status}"
    body = wire.error_body(step.status, code, f"fault {step.status}") if step.body is None else step.body
    return json_answer(step.status, body, step.headers)


def _content(step: ContentStep, wire: Wire, asked: Asked, with_usage: bool) -> Iterator[Beat]:
    content = step.content()
    return iter(wire.events(content if with_usage else replace(content, usage=None), asked))


def _pings(step: PingsOnly, wire: Wire) -> Iterator[Beat]:
    return itertools.cycle((wire.ping(), Pause(step.every)))


def _disturbed(
    step: CutAfter | Slow | Gate | BadJson | StreamError | DataOnly, score: Iterable[Beat], wire: Wire, asked: Asked
) -> Iterator[Beat]:
    match step:
        case CutAfter(events=int(count)):
            return itertools.chain(_first(score, count), [Cut(step.clean)])
        case CutAfter(body_bytes=int(count)):
            return itertools.chain(_first_bytes(score, count), [Cut(step.clean)])
        case StreamError():
            failed = wire.failure(step.code, step.as_failed_response, asked)
            return itertools.chain(_first(score, step.after), [failed])
        case Slow():
            return _slowed(score, step.delay)
        case Gate():
            return _gated(score, step)
        case BadJson():
            return _broken(score, step.at)
        case DataOnly():
            return (replace(beat, name=None) if isinstance(beat, SseEvent) else beat for beat in score)
    raise AssertionError(step)


def _counted(score: Iterable[Beat]) -> Iterator[tuple[int, Beat]]:
    """Number the beats by the events before them."""
    count = 0
    for beat in score:
        yield count, beat
        count += isinstance(beat, SseEvent)


def _first(score: Iterable[Beat], events: int) -> Iterator[Beat]:
    for count, beat in _counted(score):
        if count >= events:
            return
        yield beat


def _first_bytes(score: Iterable[Beat], size: int) -> Iterator[Beat]:
    for beat in score:
        if size <= 0:
            return
        if not isinstance(beat, SseEvent):
            yield beat
            continue
        data = beat.encode()
        yield Part(data[:size])
        size -= len(data)


def _slowed(score: Iterable[Beat], delay: float) -> Iterator[Beat]:
    for beat in score:
        if isinstance(beat, SseEvent):
            yield Pause(delay)
        yield beat


def _gated(score: Iterable[Beat], gate: Gate) -> Iterator[Beat]:
    waiting = True
    for count, beat in _counted(score):
        if waiting and count >= gate.after:
            waiting = False
            yield Hold(gate.reached, gate.event)
        yield beat
    if waiting:
        yield Hold(gate.reached, gate.event)


def _broken(score: Iterable[Beat], at: int) -> Iterator[Beat]:
    for count, beat in _counted(score):
        if count == at and isinstance(beat, SseEvent):
            beat = replace(beat, data=beat.data[:-1])
        yield beat
