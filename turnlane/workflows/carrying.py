"""What a lane takes along on continue-as-new: its head, within a size."""

from __future__ import annotations

from turnlane.records.base import Payload
from turnlane.records.lane import LaneHead
from turnlane.records.limits import KIB

CARRIED_BYTES = 112 * KIB
"""How much a lane takes along in all."""


def room_beside(*others: Payload | None) -> int:
    """How many bytes are left for a head beside what else is taken along."""
    return CARRIED_BYTES - sum(len(other.model_dump_json().encode()) for other in others if other is not None)


def within(head: LaneHead, limit: int) -> LaneHead | None:
    """The head within `limit` bytes of JSON, older receipts left to the store; None if its runs alone are too many."""
    receipts = head.receipts
    while True:
        candidate = head.model_copy(
            update={
                "receipts": receipts,
                "receipts_complete": head.receipts_complete and len(receipts) == len(head.receipts),
            }
        )
        if len(candidate.model_dump_json().encode()) <= limit:
            return candidate
        if not receipts:
            return None
        receipts = receipts[len(receipts) // 2 + 1 :]
