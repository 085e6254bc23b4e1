"""The last write of an attempt: how it ended, stored also where the activity is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import logging

from turnlane.activities.auditing import Audit
from turnlane.activities.clock import utc_now
from turnlane.activities.evidence import keep_late_evidence
from turnlane.activities.failing import persist
from turnlane.activities.pulse import Cut, why_cut
from turnlane.records.errors import StaleFenceError, StoreIntegrityError
from turnlane.store.payloads import StepFinish, Written
from turnlane.store.protocol import Store

logger = logging.getLogger(__name__)

_LAST_WRITE_SECONDS: dict[Cut, float | None] = {Cut.ABORT: None, Cut.SHUTDOWN: 5.0, Cut.LOST: 0.0}
"""How many seconds the last write of an attempt may take once the activity is cancelled."""


class LastWrite:
    """Writes the end of one attempt of a step."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store = store
        self._audit = audit

    async def write(self, record: StepFinish) -> Written:
        """Store the end of the attempt, also when the activity is cancelled meanwhile: it has all there is to store.

        An abort waits for as long as the store is away, since the lane can end the run no sooner; a worker
        that shuts down gives it a moment, and then leaves the step to another.
        """
        write = asyncio.ensure_future(self._store_end(record))
        try:
            return await asyncio.shield(write)
        except asyncio.CancelledError:
            cut = await why_cut(self._store, record.fence)
        await asyncio.wait({write}, timeout=_LAST_WRITE_SECONDS[cut])
        if write.done():
            return write.result()
        write.cancel()
        raise asyncio.CancelledError

    async def _store_end(self, record: StepFinish) -> Written:
        receipt = await self._audit.close(record.operation.phase, record.usage)
        record = record.model_copy(update={"evidence": record.evidence | receipt})
        try:
            return await self._finish(record)
        except StaleFenceError:
            await persist(lambda: keep_late_evidence(self._store, record, utc_now()))
            raise

    async def _finish(self, record: StepFinish) -> Written:
        """Finish the step, and its run with it. An answer is not lost for an end that cannot be stored."""
        try:
            return await persist(lambda: self._store.finish_step(record, utc_now()))
        except StoreIntegrityError:
            if not record.settles:
                raise
            logger.error("run %s: its end cannot be stored with its last step", record.fence.run_id)
        record = record.model_copy(update={"settles": False})
        return await persist(lambda: self._store.finish_step(record, utc_now()))
