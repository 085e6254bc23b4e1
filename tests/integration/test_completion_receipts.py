"""Receipts of completions: every attempt leaves them, and no receipt takes an answer away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.integration.completing import DONE, KEY, KEY_NAME, TRACE, FailingStore, allow, asked, chat, receipts, spoken
from turnlane.activities.invocations import ModelInvocations
from turnlane.activities.providers.base import TextDelta
from turnlane.agent import AnthropicModel, ModelDescriptor, ModelRegistry, Prices
from turnlane.agent.tool_context import Cancellation
from turnlane.records.errors import PayloadNotFoundError, PayloadUnreadableError, StoreUnavailableError
from turnlane.records.invocations import InvocationFinished, InvocationStarted, ProviderRequested, ProviderResponded
from turnlane.store.sql import SqlStore
from turnlane.testing.fault_plan import CutAfter, Figures, HttpError, Pass, Step, UsageMissing
from turnlane.testing.fault_server import FaultServer


async def test_a_completion_leaves_a_receipt_of_each_part_of_it(store: SqlStore) -> None:
    prices = Prices(input="2", output="4", cache_read="1")
    async with FaultServer([Pass("Tides", usage=Figures(input_tokens=100, output_tokens=10))]) as server:
        described = ModelDescriptor(model=chat(server, "test-model"), context_window=1000, prices=prices)
        models = ModelRegistry({"one": described})
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models=models)
        completion = await invocations.complete(asked())
        await invocations.aclose()
        model_name = json.loads(json.dumps(server.requests[0].body))["model"]

    started, requested, responded, finished = await receipts(invocations)

    assert ("succeeded", "Tides", None) == (completion.outcome, completion.text, completion.receipt_error)
    assert isinstance(started, InvocationStarted)
    assert ("ada", TRACE) == (started.caller.subject, started.trace)
    assert isinstance(requested, ProviderRequested)
    assert (model_name, "openai-chat", 0) == (requested.sent.model_id, requested.sent.provider, requested.sent.tools)
    assert isinstance(responded, ProviderResponded)
    assert ("succeeded", 100, 0.00024) == (
        responded.status,
        responded.usage.input_tokens.value,
        responded.usage.cost and responded.usage.cost.value,
    )
    assert isinstance(finished, InvocationFinished)
    assert {completion.invocation_id} == {
        receipt.invocation_id for receipt in (started, requested, responded, finished)
    }


async def test_usage_told_before_a_cut_is_in_the_receipt(store: SqlStore) -> None:
    async with FaultServer([CutAfter(events=1, of=Pass(usage=Figures(input_tokens=1200)))]) as server:
        model = AnthropicModel(name="claude-x", base_url=server.anthropic_url, api_key_env=KEY_NAME)
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models={"one": model})
        completion = await invocations.complete(asked())
        await invocations.aclose()

    (responded,) = [told for told in await receipts(invocations) if isinstance(told, ProviderResponded)]

    assert "failed" == completion.outcome
    assert (1200, True) == (responded.usage.input_tokens.value, responded.usage.partial)


@pytest.mark.parametrize("kind", ["invocation/finished", "provider/response"])
async def test_a_receipt_that_fails_after_the_answer_takes_nothing_away(store: SqlStore, kind: str) -> None:
    _, invocations = spoken(FailingStore(store, kind), TextDelta("Tides"), DONE)

    completion = await invocations.complete(asked())

    assert ("succeeded", "Tides") == (completion.outcome, completion.text)
    assert isinstance(completion.receipt_error, StoreUnavailableError)


@pytest.mark.parametrize("kind", ["provider/payload", "provider/request"])
async def test_a_receipt_that_fails_before_the_call_prevents_it(store: SqlStore, kind: str) -> None:
    provider, invocations = spoken(FailingStore(store, kind), TextDelta("Tides"), DONE)

    completion = await invocations.complete(asked(models=["one", "two"]))

    assert ("failed", []) == (completion.outcome, provider.attempts)


async def test_evidence_over_half_the_limit_is_cut_and_the_answer_is_not(store: SqlStore) -> None:
    words = [TextDelta("x" * 100) for _ in range(50)]
    _, invocations = spoken(store, *words, DONE, max_payload_bytes=2048)

    completion = await invocations.complete(asked())

    (responded,) = [told for told in await receipts(invocations) if isinstance(told, ProviderResponded)]
    kept = (await invocations.read_payload("c", responded.artifact_id or "")).value
    assert "x" * 5000 == completion.text
    assert isinstance(kept, dict)
    truncated, parts = kept["truncated"], kept["parts"]
    assert isinstance(truncated, dict)
    assert isinstance(parts, list)
    assert (51, 64) == (truncated["parts"], len(str(truncated["sha256"])))
    assert 0 < len(parts) < 51


async def test_what_was_said_is_in_the_payloads_and_nowhere_else(store: SqlStore) -> None:
    _, invocations = spoken(store, TextDelta("MARKER answer"), DONE)
    await invocations.complete(asked(prompt="MARKER prompt"))
    requested, responded = [
        told for told in await receipts(invocations) if isinstance(told, ProviderRequested | ProviderResponded)
    ]
    assert isinstance(requested, ProviderRequested)
    assert isinstance(responded, ProviderResponded)

    sent = await invocations.read_payload("c", requested.sent.artifact_id)
    heard = await invocations.read_payload("c", responded.artifact_id or "")

    events = (await store.read_events("c")).items
    assert "MARKER" not in "".join(event.model_dump_json() for event in events)
    assert (requested.sent.payload_sha256, responded.payload_sha256) == (sent.sha256, heard.sha256)
    assert "MARKER prompt" in json.dumps(sent.value)
    assert "MARKER answer" in json.dumps(heard.value)


async def test_another_key_reads_receipts_and_opens_nothing(store: SqlStore) -> None:
    _, invocations = spoken(store, TextDelta("Tides"), DONE)
    _, others = spoken(store, TextDelta("Tides"), DONE, payload_key=bytes(32))
    await invocations.complete(asked())
    told = await receipts(others)
    requested = next(receipt for receipt in told if isinstance(receipt, ProviderRequested))

    with pytest.raises(PayloadUnreadableError):
        await others.read_payload("c", requested.sent.artifact_id)
    with pytest.raises(PayloadNotFoundError):
        await others.read_payload("c", "unknown")
    assert 4 == len(told)


async def test_receipts_are_read_in_pages(store: SqlStore) -> None:
    _, invocations = spoken(store, TextDelta("Tides"), DONE)
    for key in "ab":
        await invocations.complete(asked(key))

    seen: list[int] = []
    seq: int | None = 1
    pages = 0
    while seq is not None:
        page = await invocations.read("c", from_seq=seq, limit=3)
        seen += [entry.seq for entry in page.items]
        seq, pages = page.next_seq, pages + 1

    assert (8, 3, sorted(seen)) == (len(seen), pages, seen)


async def test_what_completions_spent_is_in_the_conversations_total(store: SqlStore) -> None:
    counted = Pass("a", usage=Figures(input_tokens=1000, output_tokens=0))
    plan: list[Step] = [HttpError(429), counted, UsageMissing(Pass("b"))]
    dear = {"gpt-x": Prices(input="1000", output="1000")}
    async with FaultServer(plan) as server:
        models = {"one": chat(server), "two": chat(server)}
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models=models, prices=dear)
        first = await invocations.complete(asked(models=["one", "two"]))
        again = await invocations.complete(asked(models=["one", "two"]))
        priced = await store.conversation_spend("c")
        await invocations.complete(asked("other"))
        await invocations.aclose()
    total = await store.conversation_spend("c")

    assert ("succeeded", "duplicate") == (first.outcome, again.outcome)
    assert (1, 0, [1.0]) == (priced.runs, priced.missing, [cost.value for cost in priced.costs])
    assert (2, 1, 1, [1.0]) == (total.runs, total.missing, total.unpriced, [cost.value for cost in total.costs])


async def test_time_that_is_up_while_the_receipt_is_written_takes_no_answer_away(store: SqlStore) -> None:
    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def append_event(self, conversation_id: str, kind: str, payload: Any, now: Any, key: Any = None) -> Any:
            if kind == "provider/response":
                writing.set()
                await written.wait()
            return await store.append_event(conversation_id, kind, payload, now, key)

    writing, written = asyncio.Event(), asyncio.Event()
    _, invocations = spoken(Slow(), TextDelta("Tides"), DONE)
    signal = Cancellation()
    work = asyncio.ensure_future(invocations.complete(asked(), signal=signal))
    async with asyncio.timeout(30):
        await writing.wait()
        signal.set()
        while not any(task.cancelling() for task in asyncio.all_tasks()):  # noqa: ASYNC110 (a task tells nobody)
            await asyncio.sleep(0)
        written.set()
        completion = await work

    assert ("succeeded", "Tides", None) == (completion.outcome, completion.text, completion.receipt_error)
    assert ["invocation/started", "provider/request", "provider/response", "invocation/finished"] == [
        receipt.type for receipt in await receipts(invocations)
    ]


async def test_a_conversation_of_completions_only_is_no_conversation_yet(store: SqlStore) -> None:
    _, invocations = spoken(store, TextDelta("Tides"), DONE)
    await invocations.complete(asked())

    opened = await store.open_lane("c", "lane-1", None)

    assert (0, 1) == ((await store.load_snapshot("c")).version, opened.epoch)
    assert 4 == len(await receipts(invocations))
