"""Awaiting: the admission of an input that was sent as a signal, and the end of a run.

With a store the answer is read there, when the bus says that it may be there or after a while; without
one the lane is asked to say when it is so.
"""

from __future__ import annotations

import asyncio

from turnlane.client.lane_calls import LaneCalls, NoLane
from turnlane.client.ticket import Result, result_of_run, result_of_terminal
from turnlane.client.watching import (
    FIRST_POLL_SECONDS,
    LONGEST_POLL_SECONDS,
    QUIET_SECONDS,
    Listener,
    listening,
)
from turnlane.records.admissions import Admission
from turnlane.records.errors import (
    ConversationPurgedError,
    IdempotencyConflictError,
    RunNotFoundError,
    StoreRequiredError,
    TemporalUnavailableError,
    WorkersUnavailableError,
    error_for,
)
from turnlane.records.events import RunStateEvent, TerminalEvent
from turnlane.records.lane import WaitReply
from turnlane.records.ledger import LedgerKind
from turnlane.records.runs import RunView
from turnlane.store.bus import EventBus, Resync
from turnlane.store.protocol import Store

SHORTEST_STAY_SECONDS = 1.0
"""A lane that answers sooner, and not with the end, has no place for one more to stay, or is moving on."""

ASKING_SECONDS = 5.0
"""How long a lane is asked by query before the caller tries to stay again, which starts a lane that has ended: one
that was cancelled or terminated answers queries for ever, and no run ends in it."""


class Awaiting:
    """Waits on behalf of a client."""

    def __init__(self, lanes: LaneCalls, store: Store | None, bus: EventBus | None) -> None:
        self._lanes = lanes
        self._store = store
        self._bus = bus

    @property
    def _reads(self) -> Store:
        if self._store is None:
            raise StoreRequiredError("this client has no store")
        return self._store

    async def admission(self, conversation_id: str, key: str, content_digest: str, after_seq: int = 0) -> Admission:
        """Wait until an input that was sent as a signal is admitted. Raises its refusal, one after `after_seq`."""
        wait, seen = FIRST_POLL_SECONDS, after_seq
        while True:
            if self._store is None:
                admission = await self._ask_lane(conversation_id, key, content_digest)
            else:
                admission = await self._look_up(conversation_id, key, content_digest)
            if admission is not None:
                return admission
            if self._store is not None:
                seen = await self._raise_refusal(conversation_id, key, seen)
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, LONGEST_POLL_SECONDS)

    async def _ask_lane(self, conversation_id: str, key: str, content_digest: str) -> Admission | None:
        try:
            found = await self._lanes.query_admission(conversation_id, key)
        except (NoLane, WorkersUnavailableError):
            return None
        if found.admission is not None and found.content_digest not in (None, content_digest):
            raise IdempotencyConflictError("the key was used before, for other content")
        if found.admission is None and found.refusal is not None:
            raise error_for(found.refusal, "the input was refused")
        return found.admission

    async def _look_up(self, conversation_id: str, key: str, content_digest: str) -> Admission | None:
        stored = (await self._reads.find_receipts(conversation_id, [key])).get(key)
        if stored is None:
            return None
        if stored.receipt.content_digest != content_digest:
            raise IdempotencyConflictError("the key was used before, for other content")
        view = await self._settled_view(conversation_id, stored.receipt.run_id, None)
        return Admission(
            conversation_id=conversation_id,
            idempotency_key=key,
            input_message_id=stored.receipt.input_message_id,
            run_id=view.run.id,
            assistant_message_id=view.run.assistant_message_id,
            run_state=view.run.state,
            policy=stored.receipt.policy,
            snapshot_version=stored.version,
        )

    async def _raise_refusal(self, conversation_id: str, key: str, seen: int) -> int:
        """Raise the refusal of a signalled input, if the lane wrote one down after `seen`; else what is seen now."""
        if await self._reads.is_purged(conversation_id):
            raise ConversationPurgedError("the conversation was purged")
        while True:
            page = await self._reads.read_events(conversation_id, from_seq=seen + 1)
            for event in page.items:
                if event.kind == LedgerKind.ADMISSION_REFUSED and event.payload.get("key") == key:
                    raise error_for(str(event.payload.get("code")), "the input was refused")
            seen = page.items[-1].seq if page.items else seen
            if page.next_seq is None:
                return seen

    async def result(self, conversation_id: str, run_id: str, tenant: str | None) -> Result:
        """Wait until a run has ended. Follows an absorbed run to the one that absorbed it."""
        if self._store is None:
            return await self._result_by_waiting(conversation_id, run_id)
        if self._bus is None:
            return await self._result_by_polling(conversation_id, run_id, tenant)
        async with self._bus.subscribe(conversation_id) as news, listening(news) as listener:
            while not listener.has_ended:
                if tenant is not None or not await self._reads.is_active(conversation_id, run_id):
                    result = await self._settled_result(conversation_id, run_id, tenant)
                    if result is not None:
                        return result
                ended = await _until_it_may_be_over(listener, run_id)
                if ended is not None:
                    return ended
        return await self._result_by_polling(conversation_id, run_id, tenant)

    async def _result_by_polling(self, conversation_id: str, run_id: str, tenant: str | None) -> Result:
        wait = FIRST_POLL_SECONDS
        while True:
            result = await self._settled_result(conversation_id, run_id, tenant)
            if result is not None:
                return result
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, LONGEST_POLL_SECONDS)

    async def _result_by_waiting(self, conversation_id: str, run_id: str) -> Result:
        """Stay with the lane until the run has ended; a lane where too many stay is asked by query."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            reply = await self._lanes.wait(conversation_id, run_id)
            if (reply is None or reply.terminal is None) and loop.time() - started < SHORTEST_STAY_SECONDS:
                reply = await self._end_by_query(conversation_id, run_id)
            if reply is not None and reply.terminal is not None:
                return result_of_terminal(reply.terminal)

    async def _end_by_query(self, conversation_id: str, run_id: str) -> WaitReply | None:
        """Poll until the run is not active; None when there is no lane to ask, or nothing changes for long."""
        wait = FIRST_POLL_SECONDS
        loop = asyncio.get_running_loop()
        patience_ends = loop.time() + ASKING_SECONDS
        while loop.time() < patience_ends:
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_POLL_SECONDS)
            try:
                reply = await self._lanes.query_end(conversation_id, run_id)
            except (NoLane, WorkersUnavailableError, TemporalUnavailableError):
                return None
            if not reply.again:
                return reply
        return None

    async def _settled_result(self, conversation_id: str, run_id: str, tenant: str | None) -> Result | None:
        view = await self._settled_view(conversation_id, run_id, tenant)
        return result_of_run(view.run, view.assistant, view.snapshot_version)

    async def _settled_view(self, conversation_id: str, run_id: str, tenant: str | None) -> RunView:
        view = await self._reads.load_run(conversation_id, run_id, tenant=tenant)
        if view is not None and view.run.absorbed_into_run_id is not None:
            view = await self._reads.load_run(conversation_id, view.run.absorbed_into_run_id, tenant=tenant)
        if view is None:
            raise RunNotFoundError("the conversation has no such run")
        return view


async def _until_it_may_be_over(listener: Listener, run_id: str) -> Result | None:
    """Wait for news of a run's end, and return the result if it is all there.

    None means that the store must be asked: the run was absorbed, news was lost, or there was none for a while.
    """
    while True:
        item = await listener.hear(QUIET_SECONDS)
        if item is None or isinstance(item, Resync):
            return None
        if isinstance(item, TerminalEvent) and item.run_id == run_id and item.run is not None:
            return result_of_run(item.run, item.message, item.snapshot_version)
        if isinstance(item, RunStateEvent) and item.run_id == run_id and not item.state.is_active:
            return None
