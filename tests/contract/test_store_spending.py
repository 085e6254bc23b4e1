"""What a conversation spent: every attempt once, whatever is repeated, and what nobody knows is counted too."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tests.contract.conftest import Lane
from turnlane.records.base import JsonObject
from turnlane.records.messages import TextPart
from turnlane.records.runs import TerminalReason
from turnlane.records.spending import ConversationSpend
from turnlane.records.usage import Usage
from turnlane.store.sql import SqlStore


async def spend(lane: Lane) -> ConversationSpend:
    return await lane.store.conversation_spend(lane.conversation_id)


async def answered(lane: Lane, key: str, usage: Usage | None) -> None:
    fence = await lane.begin_run(key)
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="yes"), usage=usage)
    await lane.apply(lane.settle(f"run-{key}"))


def figures(spent: ConversationSpend) -> tuple[int, int, int | None, float | None]:
    """Entries, entries whose cost nobody knows, input tokens, cost."""
    cost = spent.total.cost.value if spent.total.cost else None
    return spent.runs, spent.missing, spent.total.input_tokens.value, cost


async def test_the_total_is_the_sum_of_the_runs_that_ended(lane: Lane) -> None:
    await answered(lane, "a", lane.reported(100, 0.1))
    await answered(lane, "b", lane.reported(30, 0.2))

    assert (2, 0, 130, 0.3) == figures(await spend(lane))


async def test_a_run_whose_cost_is_unknown_is_counted_as_missing(lane: Lane) -> None:
    await answered(lane, "a", lane.reported(100, 0.1))
    await answered(lane, "b", lane.reported(821_452))

    spent = await spend(lane)

    assert (2, 1, 821_552, None) == figures(spent)
    assert [("USD", 0.1)] == [(cost.currency, cost.value) for cost in spent.costs]


async def test_a_run_that_called_nobody_is_not_counted(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))
    await lane.apply(lane.settle("run-a", TerminalReason.CANCELLED))

    assert (0, 0, None, None) == figures(await spend(lane))


async def test_the_end_of_a_run_told_again_is_not_counted_again(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    for _ in range(2):
        await lane.finish_step(fence, TextPart(text="yes"), usage=lane.reported(100, 0.1))
    settled = lane.settle("run-a")
    for _ in range(2):
        await lane.apply(settled)

    assert (1, 0, 100, 0.1) == figures(await spend(lane))


async def test_attempts_that_failed_and_were_lost_are_spend_all_the_same(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, usage=lane.reported(2_087_845, 1.0), keep_parts=False)
    await lane.begin_step(fence.model_copy(update={"attempt": 2}))
    await lane.finish_step(fence.model_copy(update={"attempt": 2}), usage=lane.reported(3_615_952, 2.0))
    before = await spend(lane)
    await lane.begin_step(fence.model_copy(update={"step": 1}))
    await lane.apply(lane.settle("run-a", TerminalReason.PROVIDER_FAILURE))

    assert before.active is not None
    assert 5_703_797 == before.active.input_tokens.value
    assert (1, 1, 5_703_797, None) == figures(await spend(lane))


async def test_the_run_in_flight_stands_apart_until_it_ends(lane: Lane) -> None:
    await answered(lane, "a", lane.reported(100, 0.1))
    fence = await lane.begin_run("b")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="yes"), usage=lane.reported(7, 0.5))

    spent = await spend(lane)

    assert (1, 0, 100, 0.1) == figures(spent)
    assert spent.active is not None
    assert ("run-b", 7) == (spent.active_run_id, spent.active.input_tokens.value)


async def test_what_a_lost_lane_spent_on_a_run_is_added_to_by_the_next(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="yes"), usage=lane.reported(100, 0.1))
    await lane.apply(lane.requeue("run-a"), lane.start("run-a", resumes=True))
    waiting = await spend(lane)
    again = lane.fence("run-a", step=1)
    await lane.begin_step(again)
    await lane.finish_step(again, TextPart(text="yes"), usage=lane.reported(50, 0.2))
    await lane.apply(lane.settle("run-a"))

    assert waiting.active is not None
    assert 100 == waiting.active.input_tokens.value
    assert (1, 0, 150, 0.3) == figures(await spend(lane))


async def test_copies_of_messages_carry_no_spend(lane: Lane) -> None:
    await lane.apply(lane.seed("copied", "old-1", "old-2"))
    await answered(lane, "a", lane.reported(100, 0.1))

    assert (1, 0, 100, 0.1) == figures(await spend(lane))


async def test_a_conversation_from_before_totals_were_kept_is_summed_once(lane: Lane) -> None:
    await answered(lane, "a", lane.reported(100, 0.1))
    await answered(lane, "b", lane.reported(30))
    await forget_total(lane.store, lane.conversation_id)
    summed = await spend(lane)
    await answered(lane, "c", lane.reported(7, 0.5))

    assert (2, 1, 130, None) == figures(summed)
    assert (3, 1, 137, None) == figures(await spend(lane))


async def forget_total(store: SqlStore, conversation_id: str) -> None:
    """Make a conversation one that an earlier release wrote."""

    def forget(connection: Connection) -> None:
        statement = text("UPDATE turnlane_conversation SET spent = NULL WHERE id = :id")
        connection.execute(statement, {"id": conversation_id})

    await store._database.write(forget)


async def test_another_tenants_conversation_spent_nothing_that_is_told(lane: Lane) -> None:
    await answered(lane, "a", lane.reported(100, 0.1))

    told = await lane.store.conversation_spend(lane.conversation_id, tenant="other")

    assert (0, 0, None, None) == figures(told)


async def test_a_call_that_was_refused_before_it_was_answered_costs_nothing(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, usage=None, keep_parts=False, unbilled=True)
    await lane.begin_step(fence.model_copy(update={"attempt": 2}))
    await lane.finish_step(fence.model_copy(update={"attempt": 2}), usage=lane.reported(100, 0.1))
    await lane.apply(lane.settle("run-a"))

    spent = await spend(lane)

    assert (1, 0, 100, 0.1) == figures(spent)
    assert not spent.total.partial


async def test_a_compaction_without_a_run_is_counted_once(lane: Lane) -> None:
    await answered(lane, "a", lane.reported(100, 0.1))
    evidence: JsonObject = {"run_id": None, "usage": lane.reported(40, 0.5).model_dump(mode="json", exclude_none=True)}
    for _ in range(2):
        await lane.store.append_event(lane.conversation_id, "compaction/finished", evidence, lane.clock(), "once")

    assert (2, 0, 140, 0.6) == figures(await spend(lane))


async def test_a_completion_is_counted_once_and_also_where_there_is_no_conversation_yet(lane: Lane) -> None:
    told: JsonObject = {"spent": lane.reported(40, 0.5).model_dump(mode="json", exclude_none=True)}
    for where in (lane.conversation_id, "nobodys"):
        for _ in range(2):
            await lane.store.append_event(where, "provider/response", told, lane.clock(), "once")
    await answered(lane, "a", lane.reported(100, 0.1))

    assert (2, 0, 140, 0.6) == figures(await spend(lane))
    assert (1, 0, 40, 0.5) == figures(await lane.store.conversation_spend("nobodys"))
    assert (0, 0, None, None) == figures(await lane.store.conversation_spend("nobodys", tenant="acme"))


async def test_what_was_cut_is_told_from_what_has_no_price(lane: Lane) -> None:
    await answered(lane, "a", lane.reported(100, 0.1))
    fence = await lane.begin_run("b")
    await lane.begin_step(fence)
    await lane.apply(lane.settle("run-b", TerminalReason.INTERRUPTED))
    cut = await spend(lane)
    await answered(lane, "c", lane.reported(7))
    unpriced = await spend(lane)

    assert (1, 0) == (cut.missing, cut.unpriced)
    assert (2, 1) == (unpriced.missing, unpriced.unpriced)
    assert [0.1] == [cost.value for cost in unpriced.costs]


async def test_what_a_run_spent_before_an_attempt_was_lost_stays_known(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="yes"), usage=lane.reported(100, 0.1))
    await lane.begin_step(fence.model_copy(update={"step": 1}))
    await lane.apply(lane.settle("run-a", TerminalReason.INTERRUPTED))
    spent = await spend(lane)

    assert (1, 1, 100, None) == figures(spent)
    assert ([0.1], 0) == ([cost.value for cost in spent.costs], spent.unpriced)


async def test_an_event_is_found_by_its_key_and_read_by_its_kind(lane: Lane) -> None:
    await answered(lane, "a", lane.reported(100))
    for key in ("one", "two", "one"):
        await lane.store.append_event(lane.conversation_id, "retry/started", {"key": key}, lane.clock(), key)

    found = await lane.store.find_event(lane.conversation_id, "retry/started", "two")
    page = await lane.store.read_events(lane.conversation_id, kinds=["retry/started"], limit=1)
    rest = await lane.store.read_events(lane.conversation_id, kinds=["retry/started"], from_seq=page.next_seq)

    assert found is not None
    assert {"key": "two"} == found.payload
    assert [{"key": "one"}, {"key": "two"}] == [event.payload for event in (*page.items, *rest.items)]
    assert await lane.store.find_event(lane.conversation_id, "retry/started", "three") is None
