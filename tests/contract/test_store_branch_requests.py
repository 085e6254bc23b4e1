"""Requests for branches: each is made once, and what cannot be made is refused before anything is written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.contract.archived_talk import talk
from tests.contract.branching import Json, branch, exported, texts, wish
from turnlane.records.errors import (
    BranchRefusedError,
    ConversationExistsError,
    ConversationNotFoundError,
    ConversationPurgedError,
    IdempotencyConflictError,
    RunNotFoundError,
)

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def test_the_same_request_again_is_a_duplicate_whatever_happened_since(lane: Lane) -> None:
    await lane.answer("a")
    first = await branch(lane)
    copy = await lane.beside("copy").open()
    copy.order = 1
    await copy.answer("own")
    await lane.answer("b")

    moved_on = await branch(lane)
    await lane.apply(lane.purge())
    purged = await branch(lane)

    assert ("created", "duplicate", "duplicate") == (first.outcome, moved_on.outcome, purged.outcome)
    assert first.receipt == moved_on.receipt == purged.receipt
    assert (1, lane.conversation_id) == (
        len([run for run in (await lane.store.list_runs("copy"))[0] if run.execution_sequence == 2]),
        first.receipt.source_conversation_id,
    )


async def test_another_request_under_the_key_and_another_key_for_the_copy_are_refused(lane: Lane) -> None:
    await lane.answer("a")
    await lane.answer("b")
    await branch(lane)
    before = await exported(lane, "copy")

    with pytest.raises(IdempotencyConflictError):
        await branch(lane, through="run-a")
    with pytest.raises(IdempotencyConflictError):
        await branch(lane, data=await exported(lane))
    with pytest.raises(ConversationExistsError):
        await branch(lane, key="branch-2")
    with pytest.raises(ConversationExistsError):
        await branch(lane, to=lane.conversation_id)
    assert before == await exported(lane, "copy")


async def test_the_same_request_at_once_makes_one_branch(lane: Lane) -> None:
    await talk(lane)

    done = await asyncio.gather(*(branch(lane) for _ in range(4)))

    assert 1 == sum(each.outcome == "created" for each in done)
    assert 1 == len({each.receipt.created_at for each in done})


async def test_what_is_not_there_cannot_be_branched(lane: Lane) -> None:
    await lane.answer("a", tenant="acme")

    with pytest.raises(RunNotFoundError):
        await branch(lane, through="run-of-nobody")
    with pytest.raises(ConversationNotFoundError) as unheard:
        await lane.store.branch_conversation(wish(lane.beside("x")), lane.clock())
    with pytest.raises(ConversationNotFoundError) as hidden:
        await lane.store.branch_conversation(wish(lane), lane.clock(), tenant="evil")
    assert unheard.value.message == hidden.value.message
    assert "created" == (await lane.store.branch_conversation(wish(lane), lane.clock(), tenant="acme")).outcome


async def test_a_purged_conversation_is_neither_source_nor_destination(lane: Lane) -> None:
    await lane.answer("a")
    gone = await lane.beside("gone").open()
    await gone.answer("a")
    await gone.apply(gone.purge())

    for source, to in ((lane, "gone"), (gone, "copy")):
        with pytest.raises(ConversationPurgedError):
            await branch(source, to=to)


async def test_an_archive_is_branched_like_the_conversation_that_it_holds(lane: Lane) -> None:
    await talk(lane)
    data = await exported(lane)

    one = await branch(lane, to="one", through="run-b")
    two = await branch(lane, to="two", data=data, through="run-b")

    assert one.receipt.source_digest == two.receipt.source_digest
    assert ("conversation", "archive") == (one.receipt.source_kind, two.receipt.source_kind)
    assert await texts(lane.beside("one")) == await texts(lane.beside("two"))


@pytest.mark.parametrize(
    ("metadata", "is_refused"),
    [
        ({"reply_to": "run-" + "0" * 24}, False),
        ({"note": "in-a"}, False),
        ({"message_id": "in-a"}, True),
        ({"deep": [{"runId": "run-a"}]}, True),
        ({"anywhere": "in-" + "a" * 24}, True),
    ],
)
async def test_data_of_the_application_that_names_the_source_is_not_copied(
    lane: Lane, metadata: Json, is_refused: bool
) -> None:
    await lane.answer("m", message=lane.message("in-" + "a" * 24))
    await lane.answer("a", message=lane.message("in-a", metadata=metadata))

    if not is_refused:
        assert "created" == (await branch(lane)).outcome
        return
    with pytest.raises(BranchRefusedError) as refused:
        await branch(lane)
    assert "opaque-reference" == refused.value.details["reason"]
    assert 0 == (await lane.store.load_snapshot("copy")).version
