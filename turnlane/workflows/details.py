"""What a person sees of a lane in the Temporal UI: state, run, step, queue, waits and trouble. No content."""

from __future__ import annotations

from datetime import datetime

from turnlane.records.durable import Suspension
from turnlane.records.lane import LaneHead, LaneRun, RunLine
from turnlane.workflows.core import LaneCore

SHOWN = 5
"""How many of a kind are told one by one."""


def state_word(core: LaneCore) -> str:
    """One word for the state of a lane."""
    if core.head.purged:
        return "purged"
    if core.outage.is_on:
        return "waiting for the store"
    live = core.head.live
    if live is not None:
        return live.state.value.replace("_", " ")
    if core.is_compacting:
        return "compacting"
    return "queued" if core.head.queued else "waiting for approval" if core.head.approvals else "idle"


def details(core: LaneCore) -> str:
    """The current details of a lane, as Markdown."""
    head = core.head
    return "\n".join(
        [
            f"**{state_word(core)}**",
            "",
            f"- agent: `{head.agent or 'none yet'}`",
            *([f"- model: `{head.model}`"] if head.model is not None else []),
            *(_run_lines(core, head.live) if head.live is not None else []),
            *(["- the older part is being summed up"] if core.is_compacting else []),
            *(_wait_line(name, wait) for name, wait in list(core.waits.values())[:SHOWN]),
            f"- queued runs: {len(head.queued)}",
            *_approval_lines(head),
            *([f"- last failure: `{core.last_failure}`"] if core.last_failure else []),
            f"- version {head.version}, epoch {core.epoch}",
        ]
    )


def _run_lines(core: LaneCore, live: LaneRun) -> list[str]:
    """The run in flight: its step, what it had to try again or leave to another model, and its tokens so far."""
    progress = core.progress_of(live)
    if progress is None:
        return [f"- active run: `{live.id}` ({live.state.value}), step 1"]
    lines = [f"- active run: `{live.id}` ({live.state.value}), step {max(progress.step, 0) + 1}"]
    if progress.tries:
        lines.append(f"- retries of this step: {progress.tries}")
    if progress.model and core.facts and progress.model <= len(core.facts.fallbacks):
        name = core.facts.fallbacks[progress.model - 1]
        lines.append(f"- fallback {progress.model} of {len(core.facts.fallbacks)} has taken over: `{name}`")
    if progress.without_files:
        lines.append("- files are told by their names: the provider refused one")
    if progress.input_tokens or progress.output_tokens:
        lines.append(f"- tokens so far: {progress.input_tokens} in, {progress.output_tokens} out")
    return lines


def _wait_line(tool_name: str, wait: Suspension) -> str:
    event = "for an event" if wait.waits_for else ""
    until = f"until {_moment(wait.resume_at)}" if wait.resume_at is not None else ""
    return f"- a call waits: `{tool_name}` {' or '.join(filter(None, (event, until)))}".rstrip()


def _approval_lines(head: LaneHead) -> list[str]:
    """How many approvals wait, and which were asked last."""
    if not head.approvals:
        return []
    latest = [
        f"  - `{asked.approval_id}`{f' until {_moment(asked.expires_at)}' if asked.expires_at else ''}"
        for asked in head.approvals[-SHOWN:]
    ]
    return [f"- waiting for approval: {len(head.approvals)}", *latest]


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


def run_lines(core: LaneCore) -> list[RunLine]:
    """The active runs in queue order."""
    return [
        RunLine(
            run_id=run.id,
            state=run.state,
            urgent=run.urgent,
            inputs=len(run.input_ids),
            revision=run.revision,
            step=progress.step if (progress := core.progress_of(run)) is not None else None,
        )
        for run in core.head.runs
    ]
