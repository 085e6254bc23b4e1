"""The acts of the demo: each shows one thing, and checks it."""

from __future__ import annotations

from turnlane.client.cli.demo_stage import Stage
from turnlane.client.cli.demo_story import SUM, TALE, TALE_BEGUN, TALE_WHOLE
from turnlane.records.events import AssistantDeltaEvent, AttemptResetEvent, ToolStatus, ToolStatusEvent
from turnlane.records.runs import TerminalReason
from turnlane.store.sql import open_store

TURN, POLICIES, CRASH = "demo-turn", "demo-policies", "demo-crash"
KILLED = -9


async def streamed_turn(stage: Stage) -> None:
    """A turn with a tool, as it streams; and the same key sent again."""
    check = stage.facts.check
    async with stage.watch(TURN) as watch:
        ticket = await stage.client.submit(TURN, SUM, key="sum")
        admission = await ticket.admitted()
        await watch.until_ended(admission.run_id)
        result = await ticket.result(timeout=10)
        again = await (await stage.client.submit(TURN, SUM, key="sum")).admitted()
    deltas = [event for event in watch.of(AssistantDeltaEvent) if event.run_id == admission.run_id]
    statuses = [event.status for event in watch.of(ToolStatusEvent)]
    check("answer_streamed", len(deltas) > 2, f"the answer came in {len(deltas)} pieces")
    check("tool_ran", statuses == [ToolStatus.STARTED, ToolStatus.COMPLETED], "the tool ran once, seen from outside")
    check("answer_uses_tool", result.text.endswith("The answer is 42."), "the stored answer has the tool's result")
    repeated = again.duplicate and again.run_id == admission.run_id
    check("resend_answered_once", repeated, "the same key sent again is the same input: no second run")


async def killed_worker(stage: Stage) -> None:
    """SIGKILL for the worker in the middle of an answer."""
    facts = stage.facts
    async with stage.watch(CRASH) as watch:
        ticket = await stage.client.submit(CRASH, TALE, key="tale")
        run_id = (await ticket.admitted()).run_id
        await watch.until_said(run_id, TALE_BEGUN)
        await stage.serve(stage.second)
        code = await stage.first.kill()
        facts.tell(f"worker {stage.first.pid} was killed: noticed within 8 s, then {stage.second.pid} takes over")
        facts.check("worker_killed", code == KILLED, "the first worker died by SIGKILL")
        await watch.until(lambda: bool(watch.of(AttemptResetEvent)))
        await watch.until_ended(run_id)
        result = await ticket.result(timeout=10)
    resets = [(event.step, event.attempt) for event in watch.of(AttemptResetEvent)]
    shown = watch.text_after(watch.of(AttemptResetEvent)[0])
    facts.check("half_answer_withdrawn", shown == "", "whoever watched was told to drop the half sentence")
    facts.check("one_attempt_lost", resets == [(0, 2)], "the crash cost one attempt of one step")
    facts.check("run_survived", result.reason is TerminalReason.SUCCESS, "the run finished on the second worker")
    facts.check("answer_told_once", result.text == TALE_WHOLE, "the stored answer is whole, and told once")


async def read_back(stage: Stage) -> None:
    """Read the conversation of the policies with no worker alive: the store alone knows all of it."""
    facts = stage.facts
    await stage.stop_workers()
    store = await open_store(str(stage.stack.config.store))
    try:
        snapshot = await store.load_snapshot(POLICIES)
        ledger = await store.read_events(POLICIES)
    finally:
        await store.close()
    stage.out.table(
        ("role", "status", "text"),
        ((message.role.value, message.status.value, message.text) for message in snapshot.messages),
    )
    active = [run.id for run in snapshot.runs if run.state.is_active]
    facts.check("nothing_left_over", not active, f"all {len(snapshot.runs)} runs have ended")
    inputs = sorted(message.id for message in snapshot.messages if message.role.value == "user")
    answered = sorted(
        name
        for run in snapshot.runs
        if run.terminal_reason is not TerminalReason.ABSORBED
        for name in run.input_message_ids
    )
    facts.check("each_input_once", inputs == answered, f"each of {len(inputs)} inputs belongs to exactly one answer")
    seqs = [event.seq for event in ledger.items]
    facts.check(
        "ledger_without_holes", seqs == list(range(1, len(seqs) + 1)), f"the ledger has {len(seqs)} entries, no hole"
    )
