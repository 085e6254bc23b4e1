"""What a lane takes along on continue-as-new: its head, within a size."""

from __future__ import annotations

from turnlane.records.lane import LaneHead


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
