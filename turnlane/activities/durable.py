"""The journal of one durable tool body: what it recorded before, and what it records now.

Everything is recorded under the call's fence before the body is told of it. So a body that is entered again,
on whatever worker, is answered from its records and goes on where they end. What cannot go on now (a longer
sleep, an event that has not come) unwinds the body; the lane holds the wait.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from turnlane.agent.answered import answered
from turnlane.agent.durable import Body, EffectResult, EffectStatus, LeavesBody
from turnlane.agent.tools import ToolCancelled, ToolContext, ToolError
from turnlane.records.base import JsonObject, Name, RecordId
from turnlane.records.durable import (
    ANY_EVENT,
    PAYLOAD_BYTES,
    WAITS_AT_ONCE,
    DurableEntry,
    EntryKind,
    Suspension,
    event_key,
)
from turnlane.records.errors import TurnlaneError
from turnlane.records.ledger import LedgerKind
from turnlane.records.lossless import NotLosslessError, decode_lossless, encode_lossless
from turnlane.store.payloads import NewEvent

SHORT_SECONDS = 2.0
"""A sleep that has no more than this left is slept by the worker: to leave and come back costs more."""

_ID: TypeAdapter[str] = TypeAdapter(RecordId)
_EVENT: TypeAdapter[str] = TypeAdapter(Name)

_inside_step: ContextVar[bool] = ContextVar("turnlane_inside_step", default=False)

Key = tuple[EntryKind, str]


class EntryLog(Protocol):
    """Where a call's entries are kept."""

    async def load(self) -> Sequence[DurableEntry]:
        """Return what this call recorded so far."""
        ...

    async def record(self, entry: DurableEntry, event: NewEvent, instead_of: str | None = None) -> DurableEntry:
        """Record an entry and return the one that stands. Raises `StaleFenceError`."""
        ...

    async def find_delivery(self, key: str) -> DurableEntry | None:
        """Return the event that was delivered under a key."""
        ...


class Journal:
    """What stands behind the durable methods of one try of one call's `ToolContext`.

    `ended` is why the call may not go on, once that was found out; `suspension` what its body waits for.
    """

    def __init__(self, log: EntryLog, context: ToolContext, clock: Callable[[], datetime]) -> None:
        self._log = log
        self._context = context
        self._clock = clock
        self._entries: dict[Key, str] | None = None
        self._loading = asyncio.Lock()
        self._under_way: dict[Key, asyncio.Task[str]] = {}
        self._callers: dict[Key, int] = {}
        self._busy = 0
        self._quiet = asyncio.Event()
        self._until: datetime | None = None
        self._keys: dict[str, None] = {}
        self.ended: TurnlaneError | None = None

    @property
    def suspension(self) -> Suspension | None:
        """What the body waits for, if it was left for that."""
        if self._until is None and not self._keys:
            return None
        keys = tuple(self._keys) if len(self._keys) <= WAITS_AT_ONCE else (ANY_EVENT,)
        return Suspension(resume_at=self._until, waits_for=keys, tried=self._context.attempt)

    async def close(self) -> None:
        """Stop what the body left behind."""
        left = list(self._under_way.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # --- steps ----------------------------------------------------------------------------------

    async def step(self, name: str, body: Body) -> Any:
        """See `ToolContext.step`."""
        key = (EntryKind.STEP, _checked(name))
        async with self._working():
            return _value(await self._once(key, lambda: self._run_step(key, body)))

    async def _run_step(self, key: Key, body: Body) -> str:
        found = await self._find(key)
        if found is not None:
            return found
        self._check_stop()
        with _nested():
            text = _encoded(await answered(body()), "STEP_NOT_JSON", "a step returned what is not lossless JSON")
        return await self._record(key, text, LedgerKind.DURABLE_STEP, {"bytes": len(text)})

    # --- waits ----------------------------------------------------------------------------------

    async def sleep(self, seconds: float, name: str | None) -> None:
        """See `ToolContext.sleep`."""
        if isinstance(seconds, bool) or not math.isfinite(seconds) or seconds < 0:
            raise ValueError("a sleep takes a finite number of seconds, 0 or more")
        _refuse_nested()
        key = (EntryKind.SLEEP, _checked(f"sleep:{seconds}" if name is None else name))
        async with self._working():
            until = await self._deadline(key, seconds)
            if self._left(until) <= SHORT_SECONDS:
                await asyncio.sleep(max(0.0, self._left(until)))
                return
        try:
            async with asyncio.timeout(self._left(until)):
                await self._until_quiet()
        except TimeoutError:
            return
        self._leave(until=until)

    async def _deadline(self, key: Key, seconds: float) -> datetime:
        text = await self._find(key)
        if text is None:
            self._check_stop()
            until = (self._clock() + timedelta(seconds=seconds)).isoformat()
            text = await self._record(key, encode_lossless(until), LedgerKind.DURABLE_PARK, {"until": until})
        try:
            return datetime.fromisoformat(_value(text))
        except (TypeError, ValueError):
            raise _unreadable() from None

    def _left(self, until: datetime) -> float:
        return (until - self._clock()).total_seconds()

    async def wait_for(self, event: str, event_id: str) -> Any:
        """See `ToolContext.wait_for`."""
        _refuse_nested()
        name = event_key(_checked(event, _EVENT), _checked(event_id))
        async with self._working():
            key = (EntryKind.PARK, name)
            if await self._find(key) is None:
                self._check_stop()
                told: JsonObject = {"event": event, "id": event_id}
                await self._record(key, encode_lossless([event, event_id]), LedgerKind.DURABLE_PARK, told)
            delivered = await self._log.find_delivery(name)
            if delivered is not None:
                return _value(delivered.entry)
        await self._until_quiet()
        self._leave(key=name)

    async def _until_quiet(self) -> None:
        """Let what goes on beside a wait come to its end, or to a wait of its own, before the body is left."""
        await asyncio.sleep(0)
        while self._busy:
            self._quiet.clear()
            await self._quiet.wait()

    def _leave(self, *, until: datetime | None = None, key: str | None = None) -> None:
        if until is not None:
            self._until = until if self._until is None else min(self._until, until)
        if key is not None:
            self._keys[key] = None
        raise LeavesBody

    # --- effects --------------------------------------------------------------------------------

    async def effect(self, name: str, run: Body, reconcile: Body, timeout: float) -> EffectResult:
        """See `ToolContext.effect`."""
        key = (EntryKind.EFFECT, _checked(name))
        async with self._working():
            text = await self._once(key, lambda: self._make_effect(key, run, reconcile, timeout))
        state, proof = _effect(text)
        return EffectResult(EffectStatus(state), proof)

    async def _make_effect(self, key: Key, run: Body, reconcile: Body, timeout: float) -> str:
        """Return the entry that says how the effect stands. One whose run began is never run again."""
        found = await self._find(key)
        if found is None:
            self._check_stop()
            # Nobody else's intent is the same text: whoever finds another one in its place asks instead of acts.
            intent = encode_lossless({"state": "intent", "by": uuid.uuid4().hex})
            found = await self._record(key, intent, LedgerKind.DURABLE_EFFECT, {"state": "intent"})
            if found == intent:
                return await self._accept(key, intent, await _proof_of(run, None))
        if _effect(found)[0] != "intent":
            return found
        proof = await _proof_of(reconcile, timeout)
        if proof is not None:
            return await self._accept(key, found, proof)
        uncertain = encode_lossless({"state": "uncertain"})
        return await self._record(key, uncertain, LedgerKind.DURABLE_EFFECT, {"state": "uncertain"}, instead_of=found)

    async def _accept(self, key: Key, intent: str, proof: Any) -> str:
        text = _encoded(proof, "EFFECT_UNRESOLVED", "the proof of an effect is not lossless JSON")
        if len(text) > PAYLOAD_BYTES:
            raise ToolError("EFFECT_UNRESOLVED", f"the proof of an effect is over {PAYLOAD_BYTES} bytes")
        accepted = encode_lossless({"state": "accepted", "proof": proof})
        told: JsonObject = {"state": "accepted", "bytes": len(text)}
        return await self._record(key, accepted, LedgerKind.DURABLE_EFFECT, told, instead_of=intent)

    # --- one execution of a name ----------------------------------------------------------------

    async def _once(self, key: Key, make: Callable[[], Awaitable[str]]) -> str:
        """Share one execution of a name among those who ask for it at once. It ends with the last of them."""
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.ensure_future(make())
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._done(key, done))
        self._callers[key] = self._callers.get(key, 0) + 1
        try:
            return await asyncio.shield(task)
        finally:
            self._callers[key] -= 1
            if self._callers[key] == 0 and not task.done():
                task.cancel()
                await asyncio.wait({task})

    def _done(self, key: Key, task: asyncio.Task[str]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled():
            task.exception()

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._quiet.set()

    # --- records --------------------------------------------------------------------------------

    async def _find(self, key: Key) -> str | None:
        async with self._loading:
            if self._entries is None:
                self._entries = {(entry.kind, entry.name): entry.entry for entry in await self._log.load()}
        return self._entries.get(key)

    async def _record(
        self, key: Key, text: str, kind: LedgerKind, told: JsonObject, *, instead_of: str | None = None
    ) -> str:
        """Record a text and return the one that stands. A call that may not write any more leaves its body."""
        named: JsonObject = {"run_id": self._context.run_id, "call_id": self._context.call_id, "name": key[1]}
        event = NewEvent(kind=kind, payload=named | told)
        try:
            entry = await self._log.record(DurableEntry(kind=key[0], name=key[1], entry=text), event, instead_of)
        except TurnlaneError as error:
            self.ended = error
            raise LeavesBody from None
        if self._entries is not None:
            self._entries[key] = entry.entry
        return entry.entry

    def _check_stop(self) -> None:
        if self._context.is_cancelled:
            raise ToolCancelled


def is_left(error: BaseException) -> bool:
    """Whether an exception, or one in a group of them, is a body being left."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(LeavesBody) is not None
    return isinstance(error, LeavesBody)


@contextmanager
def _nested() -> Iterator[None]:
    token = _inside_step.set(True)
    try:
        yield
    finally:
        _inside_step.reset(token)


def _refuse_nested() -> None:
    if _inside_step.get():
        raise ToolError("NESTED_WAIT", "a step cannot sleep or wait for an event: only the tool's own body can")


def _checked(name: str, kind: TypeAdapter[str] = _ID) -> str:
    try:
        return kind.validate_python(name, strict=True)
    except ValidationError:
        raise ValueError("a name is 1 to 256 characters (of an event, 128) and no control characters") from None


async def _proof_of(ask: Body, timeout: float | None) -> Any:
    """Return what `run` or `reconcile` says. Whatever it raises leaves open whether the effect happened."""
    try:
        with _nested():
            async with asyncio.timeout(timeout):
                return await answered(ask())
    except Exception:
        raise ToolError("EFFECT_UNRESOLVED", "whether the effect happened could not be found out") from None


def _encoded(value: Any, code: str, message: str) -> str:
    try:
        return encode_lossless(value)
    except NotLosslessError as error:
        raise ToolError(code, f"{message}: {error}") from None


def _value(text: str) -> Any:
    try:
        return decode_lossless(text)
    except ValueError:
        raise _unreadable() from None


def _effect(text: str) -> tuple[str, Any]:
    """How an effect stands, and its proof. What is not an effect's record is not taken for any state."""
    found = _value(text)
    state = found.get("state") if isinstance(found, dict) else None
    if state not in ("intent", "accepted", "uncertain"):
        raise _unreadable()
    return state, found.get("proof")


def _unreadable() -> ToolError:
    return ToolError("RECORD_UNREADABLE", "a record of this call cannot be read, so it does not go on")
