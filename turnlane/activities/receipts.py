"""Receipts: how invocations are written into the ledger, each once, and read back from there."""

from __future__ import annotations

import os
import socket
import uuid
from typing import Any

from turnlane.activities.clock import utc_now
from turnlane.activities.sealing import PayloadSeal
from turnlane.records.base import JsonObject, canonical_json, derived_id
from turnlane.records.errors import IdempotencyConflictError, PayloadNotFoundError
from turnlane.records.invocations import (
    RECEIPT_ADAPTER,
    ExecutingProcess,
    InvocationEntry,
    InvocationPage,
    InvocationReceipt,
    InvocationStarted,
    OpenedPayload,
    SealedPayload,
)
from turnlane.records.ledger import SPENT, LedgerKind
from turnlane.records.usage import Usage
from turnlane.store.protocol import Store

RECEIPT = "invocation"
"""Under which name a receipt stands in the payload of its ledger event, beside what the event says anyway."""

RECEIPT_KINDS = (
    LedgerKind.INVOCATION_STARTED,
    LedgerKind.PROVIDER_REQUEST,
    LedgerKind.PROVIDER_RESPONSE,
    LedgerKind.INVOCATION_FINISHED,
)

THIS_PROCESS = ExecutingProcess(instance_id=uuid.uuid4().hex, pid=os.getpid(), hostname=socket.gethostname()[:255])


def as_payload(receipt: InvocationReceipt) -> JsonObject:
    """A receipt as its ledger event holds it."""
    return {RECEIPT: receipt.model_dump(mode="json", exclude_none=True)}


def as_receipt(payload: JsonObject) -> InvocationReceipt | None:
    """The receipt in a ledger event; None for an event of a call that nobody audited."""
    held = payload.get(RECEIPT)
    return None if held is None else RECEIPT_ADAPTER.validate_json(canonical_json(held))


class Receipts:
    """Writes and reads the receipts of one store."""

    def __init__(self, store: Store, seal: PayloadSeal) -> None:
        self._store = store
        self._seal = seal

    @property
    def evidence_bytes(self) -> int:
        """How many bytes of an answer are kept as evidence: half of what a payload may have."""
        return self._seal.max_bytes // 2

    async def admit(self, started: InvocationStarted, key: str) -> InvocationStarted:
        """Admit an invocation under a key, once; return the one that has the key now.

        Raises `IdempotencyConflictError` when that is another operation: its fingerprint differs.
        """
        once = derived_id("inv-key", started.mode.value, key)
        where, kind = started.conversation_id, LedgerKind.INVOCATION_STARTED
        event = await self._store.append_event(where, kind, as_payload(started), utc_now(), key=once)
        found = as_receipt(event.payload)
        if not isinstance(found, InvocationStarted) or found.fingerprint != started.fingerprint:
            raise IdempotencyConflictError("the key was used before, for another invocation", conversation_id=where)
        return found

    async def write(self, receipt: InvocationReceipt, key: str, spent: Usage | None = None) -> None:
        """Append a receipt, once under its key. What was `spent` is added to its conversation's total, once as well."""
        kind, payload = LedgerKind(receipt.type), as_payload(receipt)
        if spent is not None:
            payload[SPENT] = spent.model_dump(mode="json", exclude_none=True)
        await self._store.append_event(receipt.conversation_id, kind, payload, utc_now(), key=key)

    async def keep(self, place: tuple[str, str, str], value: Any) -> SealedPayload:
        """Encrypt a payload and append it, once under its artifact's id; what is there already stands."""
        sealed = self._seal.seal(place, value)
        payload: JsonObject = sealed.model_dump(mode="json")
        kind = LedgerKind.PROVIDER_PAYLOAD
        event = await self._store.append_event(sealed.conversation_id, kind, payload, utc_now(), key=sealed.artifact_id)
        return SealedPayload.model_validate(event.payload)

    async def read(self, conversation_id: str, from_seq: int | None, limit: int) -> InvocationPage:
        """Return the receipts among the next `limit` events of their kinds."""
        page = await self._store.read_events(conversation_id, from_seq=from_seq, limit=limit, kinds=RECEIPT_KINDS)
        found = ((event, as_receipt(event.payload)) for event in page.items)
        items = (
            InvocationEntry(seq=event.seq, occurred_at=event.occurred_at, receipt=receipt)
            for event, receipt in found
            if receipt is not None
        )
        return InvocationPage(items=tuple(items), next_seq=page.next_seq)

    async def open(self, conversation_id: str, artifact_id: str) -> OpenedPayload:
        """Decrypt a payload. Raises `PayloadNotFoundError` and `PayloadUnreadableError`."""
        event = await self._store.find_event(conversation_id, LedgerKind.PROVIDER_PAYLOAD, artifact_id)
        if event is None:
            raise PayloadNotFoundError("the conversation has no such payload", artifact_id=artifact_id)
        return self._seal.open(SealedPayload.model_validate(event.payload))
