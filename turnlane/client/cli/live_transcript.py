"""A transcript of what happens now: besides the events, what the ledger says about model calls that failed."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from turnlane.client.cli.output import Output
from turnlane.client.cli.transcript import Transcript
from turnlane.client.client import Turnlane
from turnlane.client.watching import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS
from turnlane.records.errors import RetryableError
from turnlane.records.events import Event, RunOperationEvent, TerminalEvent
from turnlane.records.ledger import LedgerKind
from turnlane.records.runs import OperationKind, OperationPhase

PATIENCE = 5.0
"""For how many seconds the ledger is asked what follows a failed call. The run's end says so as well."""


class LiveTranscript:
    """Prints the events of one conversation while the context is open, and which try or model follows a failure.

    Whether a failed call is tried again the lane decides a moment after its failure is told, and no event says so
    before the next try: the ledger does.
    """

    def __init__(
        self,
        out: Output,
        client: Turnlane,
        conversation_id: str,
        *,
        show_inputs: bool = True,
        show_reasoning: bool = False,
    ) -> None:
        self._transcript = Transcript(out, show_inputs=show_inputs, show_reasoning=show_reasoning)
        self._is_for_people = not out.as_json
        self._client = client
        self._conversation_id = conversation_id
        self._failed: dict[str, RunOperationEvent] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> LiveTranscript:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._looking.values():
            task.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)

    async def show(self, event: Event) -> None:
        """Print one event, behind what the ledger says by then of a call that failed before it."""
        failed = self._failed.get(event.run_id)
        if failed is not None and _is_decided_by(event):
            await self._leave(failed)
        self._transcript.show(event)
        if isinstance(event, RunOperationEvent) and self._is_for_people and _has_failed(event):
            self._failed[event.run_id] = event
            self._looking[event.run_id] = asyncio.create_task(self._look(event))

    async def _leave(self, failed: RunOperationEvent) -> None:
        """Look a last time for what follows a failed call: it is decided by now."""
        self._looking.pop(failed.run_id).cancel()
        del self._failed[failed.run_id]
        with contextlib.suppress(RetryableError):
            await self._tell_what_follows(failed)

    async def _look(self, failed: RunOperationEvent) -> None:
        wait = FIRST_POLL_SECONDS
        try:
            async with asyncio.timeout(PATIENCE):
                while not await self._tell_what_follows(failed):
                    await asyncio.sleep(wait)
                    wait = min(wait * 2, LONGEST_POLL_SECONDS)
        except (TimeoutError, RetryableError):
            # Nothing follows, or the store does not answer: how the run ends is told by its last event.
            return
        del self._failed[failed.run_id], self._looking[failed.run_id]

    async def _tell_what_follows(self, failed: RunOperationEvent) -> bool:
        """Print what the ledger says of a failed call; False if it says nothing yet."""
        start = await self._client.ledger_position(self._conversation_id, failed.snapshot_version)
        kinds = (LedgerKind.RETRY_SCHEDULED.value,)
        page = await self._client.ledger(self._conversation_id, from_seq=start + 1, limit=100, kinds=kinds)
        entry = next((entry for entry in page.items if entry.payload.get("run_id") == failed.run_id), None)
        if entry is not None:
            self._transcript.retry(entry.payload)
        return entry is not None


def _is_decided_by(event: Event) -> bool:
    """Whether it is decided by an event what follows the failed call before it: the next call, or the end."""
    return isinstance(event, TerminalEvent) or (
        isinstance(event, RunOperationEvent)
        and event.operation.kind is OperationKind.MODEL_REQUEST
        and event.operation.phase is OperationPhase.STARTED
    )


def _has_failed(event: RunOperationEvent) -> bool:
    operation = event.operation
    return operation.kind is OperationKind.MODEL_REQUEST and operation.phase is OperationPhase.FAILED
