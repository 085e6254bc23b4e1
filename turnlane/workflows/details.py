"""What a person sees of a lane in the Temporal UI: state, run, step, queue and trouble. No content."""

from __future__ import annotations

from turnlane.records.lane import RunLine
from turnlane.workflows.core import LaneCore


def state_word(core: LaneCore) -> str:
    """One word for the state of a lane."""
    if core.head.purged:
        return "purged"
    if core.outage.is_on:
        return "waiting for the store"
    live = core.head.live
    if live is None:
        return "queued" if core.head.queued else "waiting for approval" if core.head.approvals else "idle"
    return live.state.value.replace("_", " ")


def details(core: LaneCore) -> str:
    """The current details of a lane, as Markdown."""
    head = core.head
    lines = [f"**{state_word(core)}**", "", f"- agent: `{head.agent or 'none yet'}`"]
    if head.model is not None:
        lines.append(f"- model: `{head.model}`")
    live = head.live
    if live is not None:
        step = core.progress.step + 1 if core.progress else 1
        lines.append(f"- active run: `{live.id}` ({live.state.value}), step {step}")
        if core.progress and core.progress.tries:
            lines.append(f"- retries of this step: {core.progress.tries}")
        if core.progress and core.progress.model and core.facts:
            lines.append(f"- on fallback {core.progress.model} of {len(core.facts.fallbacks)}")
        if core.progress and (core.progress.input_tokens or core.progress.output_tokens):
            lines.append(f"- tokens so far: {core.progress.input_tokens} in, {core.progress.output_tokens} out")
    lines.append(f"- queued runs: {len(head.queued)}")
    if head.approvals:
        lines.append(f"- waiting for approval: {len(head.approvals)}")
    if core.last_failure:
        lines.append(f"- last failure: `{core.last_failure}`")
    lines.append(f"- version {head.version}, epoch {core.epoch}")
    return "\n".join(lines)


def run_lines(core: LaneCore) -> list[RunLine]:
    """The active runs in queue order."""
    progress = core.progress
    return [
        RunLine(
            run_id=run.id,
            state=run.state,
            urgent=run.urgent,
            inputs=len(run.input_ids),
            revision=run.revision,
            step=progress.step if progress is not None and progress.run_id == run.id else None,
        )
        for run in core.head.runs
    ]
