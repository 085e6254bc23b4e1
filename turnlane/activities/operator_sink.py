"""The operator sink: where a worker tells its operator of runs, without ever waiting for whoever listens.

Telling is at most once and may be dropped under load, so figures that must not be lost are read from the store:
`spend`, the ledger, or the run itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Self

from turnlane.activities.asking import asked
from turnlane.agent.given import whole_number
from turnlane.records.operator_events import OperatorEvent

logger = logging.getLogger(__name__)

DropReason = Literal["capacity", "closed"]
Handle = Callable[[OperatorEvent], Awaitable[Any] | Any]
OnDrop = Callable[[OperatorEvent, DropReason], Any]
OnError = Callable[[OperatorEvent, Exception], Awaitable[Any] | Any]

_FLUSH_SECONDS = 5.0
_FAREWELL_SECONDS = 0.1
"""How long a handler that is cancelled has to end before it is left behind."""


class OperatorSink:
    """Hands operator events to `handle`, one after the other, in the order in which they were told.

    At most `capacity` events wait; more are dropped, as is what is told after `close`, and `on_drop` hears of each. An
    event whose id is among the last `remembered` that were taken is the same again, and left out; 0 takes all.
    `handle` and `on_error` may be async. What they raise is logged by its type and stops nothing; `on_error` gets the
    event and the error. A `handle` that is not async runs in the event loop and should be quick.

    A sink belongs to one event loop. Several workers may share it, and none of them closes it:

        async with OperatorSink(handle) as sink:
            await run_worker(..., operator_events=sink)
    """

    def __init__(
        self,
        handle: Handle,
        *,
        capacity: int = 1000,
        on_drop: OnDrop | None = None,
        on_error: OnError | None = None,
        remembered: int = 10_000,
    ) -> None:
        """Raises TypeError and ValueError for what cannot work."""
        for name, given in (("handle", handle), ("on_drop", on_drop), ("on_error", on_error)):
            if not callable(given) and (given is not None or name == "handle"):
                raise TypeError(f"{name} is a function")
        if inspect.iscoroutinefunction(on_drop):
            raise TypeError("on_drop is not async: nobody waits for it")
        self._handle = handle
        self._on_drop = on_drop
        self._on_error = on_error
        self._capacity = whole_number("capacity", capacity, least=1)
        self._remembered = whole_number("remembered", remembered)
        self._seen: dict[str, None] = {}
        self._queue: deque[OperatorEvent | asyncio.Future[None]] = deque()
        self._waiting = 0
        self._is_closed = False
        self._drain: asyncio.Task[None] | None = None

    def emit(self, event: OperatorEvent) -> None:
        """Take an event to be handled, or drop it. Never waits and never raises."""
        if event.event_id in self._seen:
            return
        if self._is_closed:
            self._dropped(event, "closed")
        elif self._waiting >= self._capacity:
            self._dropped(event, "capacity")
        else:
            self._remember(event.event_id)
            self._waiting += 1
            self._queue.append(event)
            self._start()

    async def flush(self, seconds: float = _FLUSH_SECONDS) -> bool:
        """Wait until all that was taken by now is handled. False when it was not within `seconds`."""
        if not self._queue and not self._is_busy:
            return True
        mark: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(mark)
        self._start()
        await asyncio.wait({mark}, timeout=seconds)
        return mark.done() and not mark.cancelled()

    async def close(self, seconds: float = _FLUSH_SECONDS) -> bool:
        """Take no more, and wait like `flush`; then what still waits is dropped. Repeated, it says the same."""
        self._is_closed = True
        was_handled = await self.flush(seconds)
        if not was_handled:
            await self._cut()
        return was_handled

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _is_busy(self) -> bool:
        return self._drain is not None and not self._drain.done()

    def _remember(self, event_id: str) -> None:
        self._seen[event_id] = None
        if len(self._seen) > self._remembered:
            del self._seen[next(iter(self._seen))]

    def _dropped(self, event: OperatorEvent, reason: DropReason) -> None:
        if self._on_drop is None:
            return
        try:
            self._on_drop(event, reason)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            logger.error("on_drop of an operator sink failed with %s", type(error).__name__)

    def _start(self) -> None:
        """Have a task that drains. It ends with the queue, so that none is left where nobody closes the sink."""
        if self._is_busy or not self._queue:
            return
        # Outside of an event loop what was taken waits for the next that comes inside of one.
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            self._drain = loop.create_task(self._drained(), name="turnlane-operator-sink")

    async def _drained(self) -> None:
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, asyncio.Future):
                _settle(item)
            else:
                self._waiting -= 1
                await self._handled(item)

    async def _handled(self, event: OperatorEvent) -> None:
        try:
            await asked(lambda: self._handle(event), None)
        except Exception as error:
            logger.error("the handler of operator events failed with %s", type(error).__name__)
            await self._told(event, error)

    async def _told(self, event: OperatorEvent, failed: Exception) -> None:
        on_error = self._on_error
        if on_error is None:
            return
        try:
            await asked(lambda: on_error(event, failed), None)
        except Exception as error:
            logger.error("on_error of an operator sink failed with %s", type(error).__name__)

    async def _cut(self) -> None:
        """Give up what waits, and the handler that hangs."""
        given_up, self._waiting = list(self._queue), 0
        self._queue.clear()
        for item in given_up:
            if isinstance(item, asyncio.Future):
                item.cancel()
            else:
                self._dropped(item, "closed")
        if self._drain is not None:
            self._drain.cancel()
            await asyncio.wait({self._drain}, timeout=_FAREWELL_SECONDS)


def _settle(mark: asyncio.Future[None]) -> None:
    if not mark.done():
        mark.set_result(None)
