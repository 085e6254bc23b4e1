"""Archives that were changed anywhere: one is refused as invalid, or what it becomes can be read and continued."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.archived_talk import live_talk
from tests.contract.conftest import Lane
from turnlane.records.archives import BranchRequest, ConversationSource
from turnlane.records.errors import ArchiveInvalidError, CallerError
from turnlane.store.sql import SqlStore, open_store

CHANGES = 60

INSTEAD: list[Any] = [
    None, 0, -1, 2**70, 1.5, True, "", "x" * 300, "in-a", "run-b", "\ud800", "2026-01-01T00:00:00Z", [], ["a"], {},
    {"id": "in-b"},
]  # fmt: skip
"""What stands in place of something: of every type, too large, and names of other records."""

Path = tuple[str | int, ...]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a JSON value but the whole."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(archive: Any, path: Path, chance: random.Random) -> bytes:
    """The archive with something else in a place, or nothing."""
    made = copy.deepcopy(archive)
    inside = made
    for key in path[:-1]:
        inside = inside[key]
    if chance.random() < 0.2:
        del inside[path[-1]]
    else:
        inside[path[-1]] = chance.choice(INSTEAD)
    return json.dumps(made).encode()


async def archive_of_talk() -> tuple[Any, Lane]:
    store = await open_store(":memory:")
    lane = await Lane(store, "c-1").open()
    await live_talk(lane)
    archive = json.loads(await store.export_conversation("c-1"))
    await store.close()
    return archive, lane


async def used(store: SqlStore, lane: Lane) -> None:
    """Read a conversation in every way, take it over, and branch it; a branch may be refused."""
    await store.load_snapshot("c-1")
    await store.list_messages("c-1", include_compacted=True)
    await store.events_since("c-1", 0, limit=1000)
    await store.pending_approvals("c-1")
    await store.open_lane("c-1", "lane-2", None)
    source = ConversationSource(conversation_id="c-1", through_run_id="run-f")
    request = BranchRequest(request_key="b", destination_conversation_id="copy", source=source)
    try:
        await store.branch_conversation(request, lane.clock())
    except CallerError as error:
        assert error.code in ("ARCHIVE_INVALID", "BRANCH_REFUSED", "CONVERSATION_ACTIVE", "CONVERSATION_NOT_FOUND")


@pytest.mark.parametrize("seed", range(4))
async def test_a_changed_archive_is_invalid_or_a_conversation(seed: int) -> None:
    archive, lane = await archive_of_talk()
    chance = random.Random(seed)
    everywhere = list(places(archive))
    refused = 0
    for path in chance.sample(everywhere, CHANGES):
        data = changed(archive, path, chance)
        store = await open_store(":memory:")
        try:
            await store.import_conversation(data, lane.clock())
            await used(store, lane)
        except ArchiveInvalidError:
            refused += 1
            assert "c-1" not in [line.conversation_id for line in (await store.list_conversations()).items]
        finally:
            await store.close()

    assert 0 < refused < CHANGES
