"""A conversation and its branches, by hand, for the tests of branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnlane.records.archives import ArchiveSource, Branched, BranchRequest, ConversationSource
from turnlane.records.spending import ConversationSpend

if TYPE_CHECKING:
    from tests.contract.conftest import Lane

Json = dict[str, Any]


def wish(
    lane: Lane, *, through: str | None = None, key: str = "branch-1", to: str = "copy", data: bytes | None = None
) -> BranchRequest:
    source: ArchiveSource | ConversationSource = (
        ConversationSource(conversation_id=lane.conversation_id, through_run_id=through)
        if data is None
        else ArchiveSource(data=data, through_run_id=through)
    )
    return BranchRequest(request_key=key, destination_conversation_id=to, source=source)


async def branch(lane: Lane, **options: Any) -> Branched:
    return await lane.store.branch_conversation(wish(lane, **options), lane.clock())


async def branched(lane: Lane, **options: Any) -> Lane:
    """A lane of a branch, opened."""
    done = await branch(lane, **options)
    assert "created" == done.outcome
    return await lane.beside(done.receipt.destination_conversation_id).open()


async def exported(lane: Lane, conversation_id: str | None = None) -> bytes:
    return await lane.store.export_conversation(conversation_id or lane.conversation_id)


async def texts(lane: Lane) -> list[str]:
    return [message.text for message in (await lane.store.load_snapshot(lane.conversation_id)).messages]


async def spend(lane: Lane) -> ConversationSpend:
    return await lane.store.conversation_spend(lane.conversation_id)
