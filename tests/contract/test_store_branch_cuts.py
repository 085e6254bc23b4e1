"""Where a branch is cut, and what of its source's spend it inherits there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.archived_talk import talk
from tests.contract.branching import branch, branched, exported, spend, texts
from turnlane.records.archives import Archive
from turnlane.records.errors import ConversationActiveError
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import Role, TextPart, ToolResultPart
from turnlane.store.prefixes import prefix_of

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


# --- where it is cut ------------------------------------------------------------------------------


async def test_a_cut_undoes_compactions_answers_and_models_that_came_later(lane: Lane) -> None:
    await talk(lane)
    await lane.apply(lane.choose_model("large"))
    await live_talk_ends(lane)

    early = await branched(lane, through="run-a", to="early")
    before_answer = await branched(lane, through="run-e", to="before-answer")

    assert ["seed-1", "seed-2", "look", "seen"] == await texts(early)
    assert "small" == await lane.store.load_model("early")
    results = [
        part.output["error"]  # type: ignore[index,call-overload]
        for message in (await lane.store.load_snapshot("before-answer")).messages
        for part in message.parts
        if isinstance(part, ToolResultPart)
    ]
    assert ["LEFT_BEHIND", "LEFT_BEHIND"] == results
    assert "in short" in await texts(before_answer)


async def live_talk_ends(lane: Lane) -> None:
    """A run in flight behind all that is cut."""
    fence = await lane.begin_run("late")
    await lane.begin_step(fence)


async def test_a_prefix_is_what_the_archive_was_at_that_moment(lane: Lane) -> None:
    """Every end of a run is a place to cut, and what is cut there says what was said there."""
    seen: dict[str, list[str]] = {}
    for turn in range(4):
        await lane.answer(f"t{turn}")
        if turn == 2:
            await lane.apply(lane.compact("sum-1", "in-t0", "out-t0"))
        seen[f"run-t{turn}"] = await texts(lane)
    archive = Archive.model_validate_json(await exported(lane))

    for turn, (run_id, said) in enumerate(seen.items()):
        prefix = prefix_of(archive, run_id)
        roles = [message.role for message in prefix.snapshot.messages if not message.compacted]
        expected = len(said) if turn != 2 else 6  # The compaction came behind the run's end.
        assert expected == len(roles)
        assert (Role.SUMMARY in roles) is (turn == 3)


async def test_a_branch_can_be_cut_again_where_its_source_could(lane: Lane) -> None:
    for turn in range(3):
        await lane.answer(f"t{turn}", text=f"answer {turn}")
    copy = await branched(lane)
    inherited = (await lane.store.find_receipts("copy", ["t0"]))["t0"].receipt.run_id
    copy.order = 3
    await copy.answer("own", text="its own")

    again = await branched(copy, through=inherited, to="copy-2")
    whole = await branched(copy, to="copy-3")

    assert ["question t0", "answer 0"] == await texts(again)
    assert await texts(copy) == await texts(whole)


async def test_a_run_that_has_not_ended_is_in_the_way_only_where_it_would_be_copied(lane: Lane) -> None:
    await lane.answer("a")
    fence = await lane.begin_run("b")
    await lane.apply(lane.admit("c"))
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="yes"))

    for through in (None, "run-b", "run-c"):
        with pytest.raises(ConversationActiveError) as refused:
            await branch(lane, through=through)
        assert refused.value.details["run_ids"]
    assert 0 == (await lane.store.load_snapshot("copy")).version
    assert "created" == (await branch(lane, through="run-a")).outcome
    await lane.apply(lane.settle("run-b"))
    with pytest.raises(ConversationActiveError) as queued:
        await branch(lane, through="run-b", to="other")
    assert ["run-c"] == queued.value.details["run_ids"]


async def test_an_absorbed_run_ends_where_its_absorber_does(lane: Lane) -> None:
    await talk(lane)

    by_absorbed = await branched(lane, through="run-c", to="one")
    by_absorber = await branched(lane, through="run-b", to="two")

    assert await texts(by_absorbed) == await texts(by_absorber)
    assert "both" == (await texts(by_absorbed))[-1]


# --- spend ----------------------------------------------------------------------------------------


async def test_every_provider_request_is_counted_once_however_often_it_is_copied(lane: Lane) -> None:
    """Four branches, each of the one before, and turns in each: what the copies carry counts nowhere again."""
    tokens, calls, current = 0, 0, lane
    for branches in range(5):
        for turn in range(3):
            fence = await current.begin_run(f"b{branches}-{turn}")
            for step in range(2):
                at = current.fence(fence.run_id, step=step)
                await current.begin_step(at)
                await current.finish_step(at, TextPart(text="yes"), usage=current.reported(100 + calls, 0.25))
                tokens, calls = tokens + 100 + calls, calls + 1
            await current.apply(current.settle(fence.run_id))
        own = await spend(current)
        assert (3, 1.5) == (own.runs, own.total.cost.value if own.total.cost else None)
        order = current.order
        if branches < 4:
            current = await branched(current, to=f"copy-{branches}")
            current.order = order

    names = [lane.conversation_id, *(f"copy-{branches}" for branches in range(4))]
    spent = [await lane.store.conversation_spend(name) for name in names]
    responses = [
        event
        for name in names
        for event in (await lane.store.read_events(name, limit=1000)).items
        if event.kind == LedgerKind.PROVIDER_RESPONSE
    ]

    assert (30, 30) == (calls, len(responses))
    assert tokens == sum(each.total.input_tokens.value or 0 for each in spent)
    assert [None, 3, 6, 9, 12] == [each.inherited.runs if each.inherited else None for each in spent]
    before = 0
    for each in spent:
        assert before == (each.inherited.total.input_tokens.value if each.inherited else 0)
        before += each.total.input_tokens.value or 0


async def test_what_was_inherited_is_what_was_spent_up_to_the_cut(lane: Lane) -> None:
    await talk(lane)
    whole = await spend(lane)
    await branch(lane, to="whole")
    await branch(lane, to="early", through="run-a")

    at_tip, early = [await lane.store.conversation_spend(name) for name in ("whole", "early")]

    assert at_tip.inherited is not None
    assert early.inherited is not None
    assert (whole.runs, whole.total, whole.costs) == (
        at_tip.inherited.runs,
        at_tip.inherited.total,
        at_tip.inherited.costs,
    )
    assert (1, 120) == (early.inherited.runs, early.inherited.total.input_tokens.value)
    assert (0, None) == (at_tip.runs, at_tip.total.input_tokens.value)
