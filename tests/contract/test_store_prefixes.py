"""Prefixes: what is cut from a conversation later is what an archive of that moment held, whatever came behind it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.contract.conftest import Lane
from turnlane.records.approvals import CallOrigin
from turnlane.records.archives import Archive, BranchRequest, ConversationSource
from turnlane.records.errors import ConversationActiveError
from turnlane.records.messages import (
    ControlReason,
    Role,
    TextPart,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
)
from turnlane.records.runs import TerminalReason
from turnlane.store.archived import check
from turnlane.store.branching import make_copy
from turnlane.store.payloads import NewCall
from turnlane.store.prefixes import prefix_of
from turnlane.store.sql import open_store

AT = datetime(2026, 1, 3, tzinfo=UTC)


@dataclass
class Talker:
    """Says random things, and keeps an archive of each moment at which a run ended."""

    lane: Lane
    chance: random.Random
    count: int = 0
    open_approvals: list[str] = field(default_factory=list)
    moments: dict[str, Archive] = field(default_factory=dict)

    def key(self) -> str:
        self.count += 1
        return f"k{self.count}"

    async def archive(self) -> Archive:
        return Archive.model_validate_json(await self.lane.store.export_conversation(self.lane.conversation_id))

    async def settle(self, run_id: str, *reason: TerminalReason, **options: Any) -> None:
        await self.lane.apply(self.lane.settle(run_id, *reason, **options))
        self.moments[run_id] = await self.archive()

    async def step(self, key: str, step: int = 0, *, tools: int = 0, settles: bool = False) -> None:
        lane, fence = self.lane, self.lane.fence(f"run-{key}", step=step)
        names = [f"c-{key}-{step}-{place}" for place in range(tools)]
        usage = lane.reported(self.chance.randint(1, 99), 0.25) if self.chance.random() < 0.8 else None
        parts = [ToolCallPart(call_id=name, tool_name="look", input={}) for name in names]
        calls = [NewCall(slot=slot, call_id=name, tool_name="look") for slot, name in enumerate(names, 1)]
        await lane.begin_step(fence)
        await lane.finish_step(fence, TextPart(text=f"{key}-{step}"), *parts, calls=calls, usage=usage, settles=settles)
        for slot, name in enumerate(names, 1):
            await lane.store.begin_call(fence, f"out-{key}", slot, lane.clock())
            await lane.store.finish_call(fence, f"out-{key}", slot, lane.result(name), lane.clock())

    # --- turns ----------------------------------------------------------------------------------

    async def plain(self) -> None:
        key = self.key()
        await self.lane.begin_run(key)
        for step in range(self.chance.randint(0, 2)):
            await self.step(key, step, tools=self.chance.randint(1, 2))
        await self.step(key, 2)
        await self.settle(f"run-{key}")

    async def settled_by_its_step(self) -> None:
        key = self.key()
        await self.lane.begin_run(key)
        if self.chance.random() < 0.5:
            await self.step(key, tools=1)
        await self.step(key, 2, settles=True)
        self.moments[f"run-{key}"] = await self.archive()
        if self.chance.random() < 0.5:
            await self.lane.apply(self.lane.interrupt(f"run-{key}"))

    async def cut_short(self) -> None:
        key = self.key()
        fence = await self.lane.begin_run(key)
        await self.lane.begin_step(fence)
        await self.lane.checkpoint(fence, TextPart(text="half"))
        await self.lane.apply(self.lane.interrupt(f"run-{key}"))
        await self.settle(f"run-{key}", TerminalReason.INTERRUPTED, control=ControlReason.RUN_INTERRUPTED)

    async def absorbing(self) -> None:
        key, other, third = self.key(), self.key(), self.key()
        await self.lane.begin_run(key)
        await self.lane.apply(self.lane.admit(other))
        await self.lane.apply(self.lane.admit(third, into=f"run-{other}"))
        await self.step(key)
        await self.settle(f"run-{key}", absorbed=((f"run-{other}", (f"in-{other}", f"in-{third}")),))

    async def queued(self) -> None:
        key, waiting = self.key(), self.key()
        await self.lane.begin_run(key)
        await self.lane.apply(self.lane.admit(waiting))
        await self.step(key)
        await self.settle(f"run-{key}")
        await self.settle(f"run-{waiting}", TerminalReason.CANCELLED)

    async def asking(self) -> None:
        key, lane = self.key(), self.lane
        fence = await lane.begin_run(key)
        await lane.begin_step(fence)
        names = [f"a-{key}-{place}" for place in range(self.chance.randint(1, 3))]
        parts = [ToolCallPart(call_id=name, tool_name="pay", input={}) for name in names]
        asked = [ToolApprovalRequestPart(approval_id=f"apr-{name}", call_id=name, signature="s") for name in names]
        calls = [
            NewCall(slot=slot, call_id=name, tool_name="pay", approval_id=f"apr-{name}")
            for slot, name in enumerate(names, 1)
        ]
        await lane.finish_step(fence, *parts, *asked, calls=calls)
        await self.settle(fence.run_id, TerminalReason.PROVIDER_STOP)
        self.open_approvals += [f"apr-{name}" for name in names]

    async def answering(self) -> None:
        if not self.open_approvals:
            return
        approval, lane, key = self.open_approvals.pop(0), self.lane, self.key()
        verdict = ToolApprovalResponsePart(approval_id=approval, approved=self.chance.random() < 0.5)
        message = lane.message(f"in-{key}", role=Role.TOOL, parts=(verdict,))
        admitted = lane.admit(
            f"tool-approval:{approval}", message=message, run_id=f"run-{key}", assistant_id=f"out-{key}"
        )
        await lane.apply(admitted, lane.start(f"run-{key}"))
        if verdict.approved:
            await self._run_call(key, approval)
        await self.settle(f"run-{key}", TerminalReason.PROVIDER_STOP, answers=True)

    async def _run_call(self, key: str, approval: str) -> None:
        lane, fence = self.lane, self.lane.fence(f"run-{key}", step=-1, attempt=0)
        found = (await lane.store.find_approvals(lane.conversation_id, [approval]))[approval]
        origin = CallOrigin(run_id=found.run_id, message_id=found.message_id, step=found.step)
        out = f"out-{key}"
        await lane.store.begin_call(fence, out, found.slot, lane.clock(), origin=origin)
        result = lane.result(found.call_id).model_copy(update={"tool_name": "pay"})
        await lane.store.finish_call(fence, out, found.slot, result, lane.clock(), origin=origin)

    # --- what is not a turn ---------------------------------------------------------------------

    async def compacting(self) -> None:
        said = (await self.lane.store.load_snapshot(self.lane.conversation_id)).messages
        if len(said) > 4:
            count = self.chance.randint(2, len(said) - 2)
            await self.lane.apply(self.lane.compact(f"sum-{self.key()}", *(message.id for message in said[:count])))

    async def seeding(self) -> None:
        key = self.key()
        await self.lane.apply(self.lane.seed(key, f"seed-{key}-1", f"seed-{key}-2"))

    async def choosing(self) -> None:
        await self.lane.apply(self.lane.choose_model(self.chance.choice(["large", "small", None])))

    def acts(self) -> list[Callable[[], Awaitable[None]]]:
        """What may be said or done; none of it leaves a run behind."""
        return [
            self.plain, self.settled_by_its_step, self.cut_short, self.absorbing, self.queued, self.asking,
            self.asking, self.answering,
            self.answering, self.compacting, self.seeding, self.choosing,
        ]  # fmt: skip

    async def talk(self, turns: int) -> None:
        """Say so many things."""
        acts = self.acts()
        for _ in range(turns):
            await self.chance.choice(acts)()


@pytest.fixture(params=range(8))
async def talker(request: pytest.FixtureRequest) -> AsyncIterator[Talker]:
    store = await open_store(":memory:")
    yield Talker(await Lane(store).open(), random.Random(request.param))
    await store.close()


def told(archive: Archive) -> Any:
    """All of an archive but when its records were last touched."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(item) for name, item in value.items() if name != "updated_at"}
        return [without(item) for item in value] if isinstance(value, list) else value

    return without(archive.model_dump(mode="json"))


async def test_a_prefix_is_what_was_there_at_the_end_of_its_run(talker: Talker) -> None:
    await talker.talk(30)
    last = await talker.archive()

    compared = 0
    for run_id, moment in talker.moments.items():
        try:
            then = prefix_of(moment, run_id)
        except ConversationActiveError:
            with pytest.raises(ConversationActiveError):
                prefix_of(last, run_id)
            continue
        assert told(then) == told(prefix_of(last, run_id)), run_id
        compared += 1
    assert compared > 5


async def test_every_prefix_makes_a_copy_that_agrees_with_itself_and_can_be_cut_again(talker: Talker) -> None:
    await talker.talk(25)
    last = await talker.archive()

    for run_id in talker.moments:
        request = BranchRequest(
            request_key="b",
            destination_conversation_id="copy",
            source=ConversationSource(conversation_id=last.conversation_id, through_run_id=run_id),
        )
        try:
            copied = make_copy(request, last, AT)
        except ConversationActiveError:
            continue
        again = prefix_of(copied.archive)
        check(again)
        assert len(copied.archive.events) == copied.receipt.source_seq + 1
        assert copied.archive.snapshot.inherited == again.snapshot.spent == prefix_of(last, run_id).snapshot.spent
        assert all(piece.parts is not None for each in again.snapshot.messages for piece in each.segments)
