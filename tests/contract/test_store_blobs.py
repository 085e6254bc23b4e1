"""Inputs too large to travel: a blob is put aside, and let go when its input is stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from turnlane.records.errors import StoreIntegrityError

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def test_an_input_in_a_blob_is_stored_with_its_parts_and_the_blob_let_go(lane: Lane) -> None:
    data = json.dumps([{"type": "text", "text": "large"}]).encode()
    blob = await lane.store.put_blob(lane.conversation_id, data, "application/json", lane.clock())
    await lane.apply(lane.admit("a", message=lane.message("in-a", parts=()), blob=blob))
    messages = (await lane.store.load_snapshot(lane.conversation_id)).messages

    assert ["large"] == [message.text for message in messages]
    assert await lane.store.get_blob(lane.conversation_id, blob.id) is None


async def test_a_blob_put_twice_serves_two_inputs(lane: Lane) -> None:
    data = json.dumps([{"type": "text", "text": "large"}]).encode()
    await lane.store.put_blob(lane.conversation_id, data, "application/json", lane.clock())
    blob = await lane.store.put_blob(lane.conversation_id, data, "application/json", lane.clock())
    for key in ("a", "b"):
        await lane.apply(lane.admit(key, message=lane.message(f"in-{key}", parts=()), blob=blob))

    assert ["in-a", "in-b"] == await lane.said()
    assert await lane.store.get_blob(lane.conversation_id, blob.id) is None


@pytest.mark.parametrize("wrong", [{"id": "blob-none"}, {"digest": "0" * 32}])
async def test_a_blob_that_is_missing_or_another_is_an_integrity_error(lane: Lane, wrong: dict[str, str]) -> None:
    blob = await lane.store.put_blob(lane.conversation_id, b"[]", "application/json", lane.clock())

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.admit("a", blob=blob.model_copy(update=wrong)))
