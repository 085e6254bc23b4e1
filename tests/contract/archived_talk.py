"""A conversation with something of everything that an archive holds."""

from __future__ import annotations

from tests.contract.conftest import Lane
from turnlane.records.base import JsonObject
from turnlane.records.durable import Delivery
from turnlane.records.files import blob_id_of, blob_reference
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import (
    ControlReason,
    FilePart,
    ProviderPart,
    ReasoningPart,
    Role,
    TextPart,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
)
from turnlane.records.runs import TerminalReason
from turnlane.store.payloads import NewCall, Spill

ENVELOPE = {"provider": "anthropic", "data": {"signature": "s-1", "z": 1.5, "a": [None, True, "\U0001f600 \ufffd"]}}


async def talk(lane: Lane) -> None:
    """Ended runs of every kind: with tools, large output, an interrupt, absorption, an approval, a compaction."""
    await lane.apply(lane.seed("instructions", "seed-1", "seed-2"), lane.choose_model("small"))
    await _tool_turn(lane)
    await lane.apply(lane.compact("sum-1", "in-a", "out-a"))
    await _answer_with_absorption(lane)
    fence = await lane.begin_run("d", context={"user": "ann"})
    await lane.begin_step(fence)
    await lane.checkpoint(fence, TextPart(text="half an"), first_output=True)
    stop = lane.interrupt("run-d")
    await lane.apply(stop, lane.settle("run-d", TerminalReason.INTERRUPTED, control=ControlReason.RUN_INTERRUPTED))
    await _approved_call(lane)
    await lane.apply(lane.note(), lane.note("app/of-its-own"))
    # A no-op, which leaves no event: what a repeat of it is answered from travels as well.
    await lane.apply(lane.seed("instructions", "seed-1", "seed-2"))


async def _tool_turn(lane: Lane) -> None:
    file = await lane.store.put_blob(lane.conversation_id, b"%PDF", "application/pdf", lane.clock())
    said = (TextPart(text="look"), FilePart(media_type="application/pdf", reference=blob_reference(file.id)))
    fence = await lane.begin_run("a", message=lane.message("in-a", parts=said, metadata={"from": "ann"}))
    await lane.begin_step(fence)
    call = ToolCallPart(call_id="c-1", tool_name="look", input={"at": 1.25})
    thought = ReasoningPart.model_validate({"text": "hm", "provider": ENVELOPE})
    calls = (NewCall(slot=1, call_id="c-1", tool_name="look"),)
    await lane.finish_step(fence, thought, call, calls=calls, usage=lane.reported(100, 0.25))
    spill = Spill(data=b"the whole of it", media_type="text/plain")
    await lane.store.begin_call(fence, "out-a", 1, lane.clock())
    shown: JsonObject = {"truncated": True, "reference": blob_reference(blob_id_of(spill.data))}
    await lane.store.finish_call(fence, "out-a", 1, lane.result("c-1", shown), lane.clock(), spill=spill)
    last = lane.fence("run-a", step=1)
    await lane.begin_step(last)
    parts = (ProviderPart.model_validate({"envelope": ENVELOPE}), TextPart(text="seen"))
    await lane.finish_step(last, *parts, usage=lane.reported(20, 0.5))
    await lane.apply(lane.settle("run-a"))


async def _answer_with_absorption(lane: Lane) -> None:
    fence = await lane.begin_run("b")
    await lane.apply(lane.admit("c"))
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="both"), usage=lane.reported(7, 0.125))
    await lane.apply(lane.settle("run-b", absorbed=(("run-c", ("in-c",)),)))


async def _approved_call(lane: Lane) -> None:
    fence = await lane.begin_run("e")
    await lane.begin_step(fence)
    names = ("c-2", "c-3")
    parts = [ToolCallPart(call_id=name, tool_name="pay", input={}) for name in names]
    asked = [ToolApprovalRequestPart(approval_id=f"apr-{name}", call_id=name, signature="k.s") for name in names]
    calls = [
        NewCall(slot=slot, call_id=name, tool_name="pay", approval_id=f"apr-{name}")
        for slot, name in enumerate(names, 1)
    ]
    await lane.finish_step(fence, *parts, *asked, calls=calls, usage=lane.reported(3, 0.0625))
    await lane.apply(lane.settle("run-e", TerminalReason.PROVIDER_STOP))
    verdict = ToolApprovalResponsePart(approval_id="apr-c-2", approved=False, reason="too dear")
    message = lane.message("in-f", role=Role.TOOL, parts=(verdict,), metadata={"responder": "bob"})
    await lane.apply(lane.admit("tool-approval:apr-c-2", message=message, run_id="run-f", assistant_id="out-f"))
    await lane.apply(lane.start("run-f"), lane.settle("run-f", TerminalReason.PROVIDER_STOP, answers=True))


async def live_talk(lane: Lane) -> None:
    """The same, and then a run in flight, one that waits, and what nothing but the ledger has."""
    await talk(lane)
    fence = await lane.begin_run("g")
    await lane.begin_step(fence)
    await lane.checkpoint(fence, TextPart(text="and so"))
    await lane.apply(lane.admit("h"))
    await lane.store.deliver(lane.conversation_id, Delivery(event="paid", id="7", payload=[1, 2.5]), lane.clock())
    once: JsonObject = {"invocation": {"n": 1}}
    await lane.store.append_event(
        lane.conversation_id, LedgerKind.INVOCATION_STARTED, once, lane.clock(), key="once-and-no-more"
    )
