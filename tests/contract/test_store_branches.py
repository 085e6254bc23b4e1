"""Branches: a conversation that begins with what was said in another one, and shares nothing with it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.archived_talk import live_talk, talk
from turnlane.records.archives import Archive, ArchiveSource, Branched, BranchRequest, ConversationSource
from turnlane.records.errors import (
    BranchRefusedError,
    ConversationActiveError,
    ConversationExistsError,
    ConversationNotFoundError,
    ConversationPurgedError,
    IdempotencyConflictError,
    RunNotFoundError,
)
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import Role, TextPart, ToolApprovalRequestPart, ToolResultPart
from turnlane.records.spending import ConversationSpend
from turnlane.store.prefixes import prefix_of

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


# --- what is copied -----------------------------------------------------------------------------


async def test_a_branch_says_what_its_source_said_and_goes_its_own_way(lane: Lane) -> None:
    for turn in range(5):
        await lane.answer(f"t{turn}", text=f"answer {turn}")
    before = await exported(lane)

    copy = await branched(lane, through="run-t3")
    inherited = await texts(copy)
    copy.order = 5
    await copy.answer("again", text="another answer")

    said = [text for turn in range(4) for text in (f"question t{turn}", f"answer {turn}")]
    assert said == inherited
    assert [*said, "question again", "another answer"] == await texts(copy)
    assert before == await exported(lane)


async def test_nothing_of_the_source_is_named_in_the_copy_but_where_it_is_from(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)
    source = Archive.model_validate_json(await exported(lane))
    copy = json.loads(await exported(lane, "copy"))

    copy["events"].pop()
    told = json.dumps(copy)
    names = [lane.conversation_id, *(run.run.id for run in source.snapshot.runs)]
    # A seed's text is its id here.
    names += [message.id for message in source.snapshot.messages if not message.id.startswith("seed-")]
    names += [run.run.assistant_message_id for run in source.snapshot.runs]
    names += [event.event_id for event in source.events]
    names += ["apr-c-2", "apr-c-3"]
    assert [] == [name for name in names if f'"{name}"' in told]


async def test_what_is_read_of_the_copy_is_what_is_read_of_the_source(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)
    one, two = [Archive.model_validate_json(await exported(lane, name)) for name in (None, "copy")]

    def shape(archive: Archive) -> list[Any]:
        return [
            (message.role, message.status, message.position, message.place, message.compacted, message.metadata)
            for message in archive.snapshot.messages
        ]

    assert shape(one) == shape(two)
    assert [run.run.usage for run in one.snapshot.runs] == [run.run.usage for run in two.snapshot.runs]
    assert one.spills == two.spills
    assert "small" == two.snapshot.model
    assert [event.version for event in one.events] == [event.version for event in two.events][:-1]


async def test_thinking_and_provider_envelopes_are_copied_byte_for_byte(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)

    def kept(data: bytes) -> list[str]:
        parts = [
            part
            for message in Archive.model_validate_json(data).snapshot.messages
            for piece in message.segments
            for part in piece.parts or ()
            if part.type in ("reasoning", "provider")
        ]
        return [hashlib.sha256(part.model_dump_json().encode()).hexdigest() for part in parts]

    assert kept(await exported(lane)) == kept(await exported(lane, "copy"))
    assert 2 == len(kept(await exported(lane)))


async def test_the_answered_key_of_the_source_is_answered_in_the_copy(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)

    found = await lane.store.find_receipts("copy", ["a", "unknown"])
    opened = await lane.store.open_lane("copy", "lane-2", None)

    view = await lane.store.load_run("copy", found["a"].receipt.run_id)
    assert ["a"] == list(found)
    assert view is not None
    assert view.assistant is not None
    assert "seen" == view.assistant.text
    # An answer's key names its approval, and so has to follow it.
    assert 6 == len(opened.head.receipts)
    assert "tool-approval:apr-c-2" not in {receipt.key for receipt in opened.head.receipts}


async def test_watchers_are_told_the_copied_history(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)

    before, _ = await lane.store.events_since(lane.conversation_id, 0, limit=1000)
    after, seq = await lane.store.events_since("copy", 0, limit=1000)

    assert [event.type for event in before] == [event.type for event in after]
    assert seq == await lane.store.last_seq("copy")
    assert {"copy"} == {event.conversation_id for event in after}


# --- what is not --------------------------------------------------------------------------------


async def test_a_branch_has_no_power_of_its_source(lane: Lane) -> None:
    await live_talk(lane)
    copy = await branched(lane, through="run-f")
    archive = Archive.model_validate_json(await exported(copy))

    opened = await lane.store.open_lane("copy", "lane-2", None)
    requests = [
        part
        for message in archive.snapshot.messages
        for piece in message.segments
        for part in piece.parts or ()
        if isinstance(part, ToolApprovalRequestPart)
    ]
    runs = [run.run for run in archive.snapshot.runs]
    assert {(None, None)} == {(run.owner_id, run.fencing_token) for run in runs}
    assert [None, None] == [request.signature for request in requests]
    assert () == await lane.store.pending_approvals("copy")
    assert ((), ()) == (opened.head.approvals, opened.head.runs)
    assert ((), ()) == (archive.snapshot.entries, archive.snapshot.unchanged)
    assert 1 == len(await lane.store.pending_approvals(lane.conversation_id))


async def test_a_call_that_waits_for_approval_is_closed_in_the_copy_alone(lane: Lane) -> None:
    await talk(lane)
    copy = await branched(lane)

    async def outcomes(one: Lane) -> dict[str, Any]:
        messages = (await one.store.load_snapshot(one.conversation_id)).messages
        parts = [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]
        return {part.call_id: part.output["error"] for part in parts if isinstance(part.output, dict)}

    assert {"c-2": "DENIED"} == await outcomes(lane)
    assert {"c-2": "DENIED", "c-3": "LEFT_BEHIND"} == await outcomes(copy)


async def test_only_the_history_is_repeated_in_the_ledger_the_rest_is_observed(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)

    before = (await lane.store.read_events(lane.conversation_id)).items
    after = (await lane.store.read_events("copy")).items

    assert {LedgerKind.TRANSITION, LedgerKind.BRANCH_OBSERVATION, LedgerKind.BRANCHED} == {e.kind for e in after}
    for one, two in zip(before, after, strict=False):
        kind = two.payload["kind"] if two.kind == LedgerKind.BRANCH_OBSERVATION else two.kind
        assert (one.kind, one.seq, one.occurred_at) == (kind, two.seq, two.occurred_at)
    drafts = [e.payload["effect"]["assistant"] for e in after if e.payload.get("type") == "checkpoint"]  # type: ignore[index,call-overload]
    assert drafts
    assert all("sha256" not in draft and "source_sha256" in draft for draft in drafts)  # type: ignore[operator]


# --- where it is cut ----------------------------------------------------------------------------


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


# --- requests -----------------------------------------------------------------------------------


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


# --- spend --------------------------------------------------------------------------------------


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
