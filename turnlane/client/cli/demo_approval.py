"""The act of the approval: asked on one worker, answered when there is another, and run once."""

from __future__ import annotations

from turnlane.client.cli.demo_stage import Stage
from turnlane.client.cli.demo_story import DEPOSIT
from turnlane.records.errors import ApprovalDecidedError
from turnlane.records.runs import TerminalReason

APPROVAL = "demo-approval"


async def approved_elsewhere(stage: Stage) -> None:
    """A payment that waits for somebody's word; the worker that asked is gone when the word comes."""
    facts = stage.facts
    async with stage.watch(APPROVAL) as watch:
        asked = await (await stage.client.submit(APPROVAL, DEPOSIT, key="deposit")).result(timeout=20)
        await watch.until_ended(asked.run_id)
        pending = await stage.client.pending_approvals(APPROVAL)
        calls = [(question.tool_name, question.input) for question in pending]
        waits = asked.reason is TerminalReason.PROVIDER_STOP and calls == [("pay_deposit", {"amount": 50})]
        facts.check("approval_asked", waits, "the call waits for approval, and the run has ended")
        facts.check("nothing_ran_unasked", _payers(stage) == [], "nothing was paid so far")
        await stage.second.stop()
        await stage.serve(stage.third)
        facts.tell(f"worker {stage.second.pid} was stopped, {stage.third.pid} serves: the question is in the store")
        if not pending:
            return
        approval_id = pending[0].approval_id
        ticket = await stage.client.respond(APPROVAL, approval_id, True, responder="demo")
        answered = await ticket.result(timeout=20)
        await watch.until_ended(answered.run_id)
    facts.check("approval_acted_on", answered.text == "The answer is 50 paid.", "the answer goes on with the result")
    facts.check("approved_call_ran_once", _payers(stage) == [stage.third.pid], "the other worker made the call, once")
    await _answer_again(stage, approval_id)


async def _answer_again(stage: Stage, approval_id: str) -> None:
    again = await (await stage.client.respond(APPROVAL, approval_id, True, responder="demo")).admitted()
    stage.facts.check("answered_once", again.duplicate, "the same answer again is the same input")
    try:
        await stage.client.respond(APPROVAL, approval_id, False, responder="demo")
        stands = False
    except ApprovalDecidedError:
        stands = True
    stage.facts.check("decision_stands", stands and len(_payers(stage)) == 1, "a late no is told that it was a yes")


def _payers(stage: Stage) -> list[int]:
    """The process ids of the workers that paid, one for each time."""
    if not stage.payments.exists():
        return []
    return [int(line) for line in stage.payments.read_text(encoding="utf-8").splitlines()]
