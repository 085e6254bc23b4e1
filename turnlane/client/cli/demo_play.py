"""The demo's play: five acts on a stack of its own, told as they happen and checked as they are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import typer

from turnlane.client.cli.demo_acts import killed_worker, read_back, streamed_turn
from turnlane.client.cli.demo_approval import approved_elsewhere
from turnlane.client.cli.demo_facts import Facts
from turnlane.client.cli.demo_output import Page
from turnlane.client.cli.demo_policies import five_policies
from turnlane.client.cli.demo_stage import Stage, open_stage
from turnlane.client.cli.verbs import Session

Act = Callable[[Stage], Awaitable[None]]

ACTS: tuple[tuple[str, str, Act], ...] = (
    ("turn", "A turn with a tool, as it streams", streamed_turn),
    ("policies", "Five policies: what an input does to the run in flight", five_policies),
    ("crash", "A worker is killed in mid-answer", killed_worker),
    ("approval", "A call that waits for approval, while its worker is replaced", approved_elsewhere),
    ("store", "The conversation, read back from the store with no worker alive", read_back),
)


async def play(session: Session) -> None:
    """Play all acts and tell what held. Leaves with exit code 1 if a claim did not."""
    page = Page(as_json=session.out.as_json)
    facts = Facts(page)
    page.say("Starting a Temporal server, a store, an event bus and a worker process.", "dim")
    async with open_stage(page, facts) as stage:
        for number, (name, title, act) in enumerate(ACTS, 1):
            page.say(f"\n{number}. {title}", "bold cyan")
            await _perform(stage, name, act)
    _tell(session, facts)
    if not facts.all_held:
        raise typer.Exit(1)


async def _perform(stage: Stage, name: str, act: Act) -> None:
    """Play one act; one that waits in vain is a claim that does not hold, and the next one is played."""
    try:
        await act(stage)
    except TimeoutError:
        stage.facts.check(f"{name}_in_time", False, "this act waited for something that did not come")


def _tell(session: Session, facts: Facts) -> None:
    failed = [name for name, held in facts.held.items() if not held]
    session.out.record({"ok": facts.all_held, "seconds": round(facts.seconds, 1), "facts": facts.held})
    ending = f"These did not hold: {', '.join(failed)}." if failed else "All of them held."
    session.out.say(f"\n{len(facts.held)} claims in {facts.seconds:.0f} s. {ending}", "bold")
