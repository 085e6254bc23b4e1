"""The operator sink never keeps anybody waiting, and says what became of what it took."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from turnlane.activities.operator_sink import OperatorSink
from turnlane.records.operator_events import OperatorEvent, RunStarted, run_span, trace_id
from turnlane.records.runs import RunState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOON = 10.0
MARK = "xq7-never-to-be-seen-9"


def event(name: str) -> RunStarted:
    return RunStarted(
        event_id=name,
        conversation_id="c",
        run_id="r",
        trace_id=trace_id("c", "r"),
        span_id=run_span("c", "r"),
        state=RunState.RUNNING,
        emitted_at=NOW,
    )


class Listener:
    """A handler that hears ids. With `gate` it waits for it, at the first event."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.heard: list[str] = []
        self.entered = asyncio.Event()
        self._gate = gate

    async def __call__(self, told: OperatorEvent) -> None:
        self.entered.set()
        if self._gate is not None:
            await self._gate.wait()
        self.heard.append(told.event_id)


class Drops:
    """Hears what was dropped."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def __call__(self, told: OperatorEvent, reason: str) -> None:
        self.heard.append((told.event_id, reason))


def told(sink: OperatorSink, *names: str) -> None:
    for name in names:
        sink.emit(event(name))


async def entered(listener: Listener) -> None:
    async with asyncio.timeout(SOON):
        await listener.entered.wait()


async def test_events_are_handled_one_after_the_other_in_their_order() -> None:
    listener = Listener()
    sink = OperatorSink(listener)
    told(sink, *"abcde")

    assert await sink.flush(SOON)
    assert list("abcde") == listener.heard


async def test_a_handler_may_be_a_plain_function() -> None:
    heard: list[str] = []
    sink = OperatorSink(lambda given: heard.append(given.event_id))
    told(sink, "a")

    assert await sink.close(SOON)
    assert ["a"] == heard


async def test_what_is_over_capacity_is_dropped_and_told() -> None:
    gate, drops = asyncio.Event(), Drops()
    listener = Listener(gate)
    sink = OperatorSink(listener, capacity=2, on_drop=drops)
    told(sink, "held")
    await entered(listener)
    told(sink, "a", "b", "c")
    gate.set()

    assert await sink.flush(SOON)
    assert (["held", "a", "b"], [("c", "capacity")]) == (listener.heard, drops.heard)


async def test_what_was_dropped_may_be_told_again() -> None:
    gate = asyncio.Event()
    listener = Listener(gate)
    sink = OperatorSink(listener, capacity=1)
    told(sink, "held")
    await entered(listener)
    told(sink, "a", "b")
    gate.set()
    await sink.flush(SOON)
    told(sink, "b")

    assert await sink.flush(SOON)
    assert ["held", "a", "b"] == listener.heard


async def test_nothing_is_taken_after_the_end() -> None:
    listener, drops = Listener(), Drops()
    async with OperatorSink(listener, on_drop=drops) as sink:
        told(sink, "a")
    told(sink, "b", "a")

    assert (["a"], [("b", "closed")]) == (listener.heard, drops.heard)


@pytest.mark.parametrize(
    ("remembered", "heard"), [(10, "abc"), (2, "abca"), (0, "aabca")], ids=["all", "the last two", "none"]
)
async def test_an_id_is_told_once_as_long_as_it_is_remembered(remembered: int, heard: str) -> None:
    listener = Listener()
    sink = OperatorSink(listener, remembered=remembered)
    told(sink, *"aabca")

    assert await sink.flush(SOON)
    assert list(heard) == listener.heard


async def test_errors_of_a_handler_stop_nothing_and_are_logged_by_type(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[tuple[str, str]] = []

    def fail(given: OperatorEvent) -> None:
        raise LookupError(MARK)

    def on_error(given: OperatorEvent, error: Exception) -> None:
        failed.append((given.event_id, type(error).__name__))
        raise ValueError(MARK)

    sink = OperatorSink(fail, on_error=on_error)
    with caplog.at_level(logging.DEBUG):
        told(sink, "a", "b")
        was_handled = await sink.flush(SOON)

    assert (True, [("a", "LookupError"), ("b", "LookupError")]) == (was_handled, failed)
    assert "LookupError" in caplog.text and "ValueError" in caplog.text
    assert MARK not in caplog.text


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError(), ValueError(MARK)], ids=lambda e: str(e))
async def test_nothing_that_is_raised_where_an_event_is_dropped_gets_out(error: BaseException) -> None:
    def on_drop(given: OperatorEvent, reason: str) -> None:
        raise error

    sink = OperatorSink(Listener(), on_drop=on_drop)
    await sink.close(SOON)
    told(sink, "a")

    assert await sink.flush(SOON)


async def test_what_a_handler_tells_is_handled_behind_what_waits() -> None:
    heard: list[str] = []

    async def handle(given: OperatorEvent) -> None:
        heard.append(given.event_id)
        sink.emit(event(f"{given.event_id[0]}2"))

    sink = OperatorSink(handle)
    told(sink, "a", "b")

    assert await sink.flush(SOON)
    assert await sink.flush(SOON)
    assert ["a", "b", "a2", "b2"] == heard


async def test_whoever_hears_of_an_error_may_be_async() -> None:
    failed: list[str] = []

    async def fail(given: OperatorEvent) -> None:
        raise LookupError(MARK)

    async def on_error(given: OperatorEvent, error: Exception) -> None:
        failed.append(given.event_id)

    sink = OperatorSink(fail, on_error=on_error)
    told(sink, "a")

    assert await sink.flush(SOON)
    assert ["a"] == failed


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
async def test_a_handler_that_breaks_out_stops_nothing(error: type[BaseException]) -> None:
    heard: list[str] = []

    async def handle(given: OperatorEvent) -> None:
        heard.append(given.event_id)
        raise error

    sink = OperatorSink(handle)
    told(sink, "a", "b")

    assert await sink.flush(SOON)
    assert ["a", "b"] == heard


async def test_a_handler_that_hangs_holds_up_nobody_longer_than_they_want() -> None:
    listener, drops = Listener(asyncio.Event()), Drops()
    sink = OperatorSink(listener, on_drop=drops)
    told(sink, "held", "a")
    await entered(listener)

    async with asyncio.timeout(SOON):
        assert not await sink.flush(0.01)
        assert not await sink.close(0.01)
    assert ([("a", "closed")], []) == (drops.heard, listener.heard)
    assert await sink.close(SOON)


async def test_a_handler_that_hears_no_cancellation_is_left_behind() -> None:
    gate, entered_it = asyncio.Event(), asyncio.Event()

    async def deaf(given: OperatorEvent) -> None:
        entered_it.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    sink = OperatorSink(deaf)
    told(sink, "a")
    async with asyncio.timeout(SOON):
        await entered_it.wait()
        was_handled = await sink.close(0.01)
    gate.set()

    assert not was_handled


async def test_a_flush_waits_for_what_was_told_before_it_only() -> None:
    gate, late = asyncio.Event(), asyncio.Event()
    gate.set()
    heard: list[str] = []

    async def handle(given: OperatorEvent) -> None:
        await (late if given.event_id == "late" else gate).wait()
        heard.append(given.event_id)

    sink = OperatorSink(handle)
    told(sink, "a")
    flushing = asyncio.create_task(sink.flush(SOON))
    await asyncio.sleep(0)
    told(sink, "late")

    assert await flushing
    assert ["a"] == heard
    late.set()
    assert await sink.flush(SOON)


async def test_no_task_is_left_of_a_sink_that_has_nothing_to_do() -> None:
    before = asyncio.all_tasks()
    sink = OperatorSink(Listener())
    told(sink, "a")
    await sink.flush(SOON)

    assert set() == {task for task in asyncio.all_tasks() - before if not task.done()}


def test_what_is_told_outside_of_an_event_loop_waits_for_one() -> None:
    listener = Listener()
    sink = OperatorSink(listener)
    told(sink, "a")

    async def later() -> bool:
        return await sink.flush(SOON)

    assert asyncio.run(later())
    assert ["a"] == listener.heard


async def not_waited_for(given: OperatorEvent, reason: str) -> None:
    """An `on_drop` that nobody would wait for."""


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"handle": None}, TypeError),
        ({"handle": "print"}, TypeError),
        ({"capacity": 0}, ValueError),
        ({"capacity": 1.5}, TypeError),
        ({"capacity": True}, TypeError),
        ({"remembered": -1}, ValueError),
        ({"on_drop": 1}, TypeError),
        ({"on_drop": not_waited_for}, TypeError),
        ({"on_error": "log"}, TypeError),
    ],
)
def test_a_sink_that_cannot_work_is_not_made(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        OperatorSink(**{"handle": print, **options})
