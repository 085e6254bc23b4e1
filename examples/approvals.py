"""Approvals: a call that waits for somebody's word, a run that ends meanwhile, and one that goes on with the answer.

Needs a Temporal server: TEMPORAL_ADDRESS, else 127.0.0.1:7233, where `./run dev` has one.
"""

from __future__ import annotations

import asyncio
import gc
import uuid

from turnlane.agent import Agent, ApprovalQuestion, Approvals, ScriptedModel, tool
from turnlane.agent.models import Action, Call, Say, ScriptedRequest
from turnlane.client import Turnlane
from turnlane.records.prompt import Speaker
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

QUEUE = "example-approvals"


@tool
def refund(order: str, amount: int) -> str:
    """Pay money back."""
    return f"{amount} paid back for {order}"


def large_ones(question: ApprovalQuestion) -> str:
    """Ask about large refunds, and let small ones pass."""
    amount = question.input["amount"] if isinstance(question.input, dict) else 0
    return "user-approval" if isinstance(amount, int) and amount > 100 else "approved"


def script(request: ScriptedRequest) -> list[Action]:
    """Play a model that refunds twice, and then tells what came of it."""
    last = request.prompt.messages[-1]
    if last.speaker is Speaker.TOOL:
        return [Say("; ".join(str(part.output) for part in last.parts if part.type == "tool-result"))]
    return [Call("refund", {"order": "A1", "amount": 5}), Call("refund", {"order": "B2", "amount": 500})]


async def main() -> None:
    """Ask, list what waits, approve it, and print the answer."""
    rules = Approvals(policy=large_ones, authorize=lambda response: response.responder == "ann")
    agent = Agent(name="support", model=ScriptedModel(script=script), tools=[refund], approvals=rules)
    store, bus = await open_store("approvals.db"), InProcessBus()
    client = await Turnlane.connect(store=store, bus=bus, task_queue=QUEUE)
    conversation = f"approvals-{uuid.uuid4().hex[:8]}"
    async with build_worker(client.temporal, store=store, agents=[agent], bus=bus, task_queue=QUEUE):
        asked = await (await client.submit(conversation, "Refund both orders.")).result(timeout=60)
        print(asked.reason.value)
        for approval in await client.pending_approvals(conversation):
            print("waits:", approval.tool_name, approval.input)
            ticket = await client.respond(conversation, approval.approval_id, True, responder="ann")
            print((await ticket.result(timeout=60)).text)
    await client.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
    gc.collect()
