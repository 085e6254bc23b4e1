"""What callers do to a turn: policies, wishes, signals, and inputs that are refused."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.integration.play import at_rest
from tests.integration.stage import BOUND
from tests.replay.recipes import ADD, HOLD_THEN_ANSWER, add, answered_together, ended, slow, turn
from tests.replay.studio import Studio, agent, by_step
from turnlane.agent import PolicyContext
from turnlane.agent.models import Say
from turnlane.records.admissions import Policy
from turnlane.records.errors import AgentMismatchError, IdempotencyConflictError, RunConflictError
from turnlane.records.runs import TerminalReason
from turnlane.testing.races import Barrier

# --- what policies do ---------------------------------------------------------------------------


@turn
async def interrupt(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        second = await client.submit(studio.name, "two")
        await studio.until_speaking()
        await client.interrupt(studio.name)
        await ended(first, TerminalReason.INTERRUPTED)
        await ended(second)


@turn
async def stop_by_signal(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        await studio.until_speaking()
        await studio.lane.signal("stop")
        await ended(first, TerminalReason.INTERRUPTED)


@turn
async def interrupt_by_input(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        await studio.until_speaking()
        second = await client.submit(studio.name, "two", policy=Policy.INTERRUPT)
        await ended(first, TerminalReason.INTERRUPTED)
        await ended(second)


@turn
async def behind_the_end(studio: Studio) -> None:
    """Inputs that come as soon as the answer before is there: often in the task in which the lane hears of that."""
    async with studio.serving(agent(by_step([ADD, ADD], [Say("3.")]), tools=[add])) as client:
        for word in ("one", "two", "three", "four", "five", "six"):
            await ended(await client.submit(studio.name, word))
        await at_rest(studio.lane)


@turn
async def late_interrupt(studio: Studio) -> None:
    """Wishes about a run that its last step has ended, before the lane hears of that."""
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        studio.store.late = late = Barrier("late", BOUND)
        first = await client.submit(studio.name, "one")
        await late.until_reached()
        with suppress(RunConflictError):
            await client.interrupt(studio.name)
        await studio.lane.signal("stop")
        second = await client.submit(studio.name, "two", policy=Policy.SUPERSEDE)
        late.release()
        await ended(first)
        await ended(second)
        await at_rest(studio.lane)


@turn
async def shutdown_between_runs(studio: Studio) -> None:
    """A lane that is cancelled while its run goes on and others wait, and its next life."""
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        second = await client.submit(studio.name, "two")
        await studio.until_speaking()
        await studio.remember()
        await studio.lane.cancel()
        await ended(first, TerminalReason.SHUTDOWN)
        third = await client.submit(studio.name, "three")
        await ended(second)
        await ended(third)
        await at_rest(studio.lane)


@turn
async def interrupt_in_a_tool(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()])) as client:
        first = await client.submit(studio.name, "one")
        await studio.held.until_reached()
        await client.interrupt(studio.name)
        await ended(first, TerminalReason.INTERRUPTED)


@turn
async def interrupt_next(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        second = await client.submit(studio.name, "two")
        await studio.until_speaking()
        urgent = await client.submit(studio.name, "three", policy=Policy.INTERRUPT_NEXT)
        await ended(first, TerminalReason.INTERRUPTED)
        await ended(urgent)
        await ended(second)


@turn
async def supersede(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        await studio.until_speaking()
        second = await client.submit(studio.name, "two", policy=Policy.SUPERSEDE)
        await ended(first, TerminalReason.SUPERSEDED)
        await ended(second)


@turn
async def inject(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()])) as client:
        first = await client.submit(studio.name, "one")
        await studio.held.until_reached()
        injected = await client.submit(studio.name, "two", key="two", policy=Policy.INJECT)
        studio.held.release()
        await ended(first)
        await ended(injected)
        await answered_together(first, injected)
        await answered_together(first, await client.submit(studio.name, "two", key="two"))


@turn
async def coalesced(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()], coalesce_pending=True)) as client:
        first = await client.submit(studio.name, "one")
        await studio.held.until_reached()
        joined = [await client.submit(studio.name, text) for text in ("two", "three")]
        studio.held.release()
        for ticket in (first, *joined):
            await ended(ticket)
        await answered_together(*joined)


@turn
async def chosen_policy(studio: Studio) -> None:
    def choose(asked: PolicyContext) -> Policy:
        return Policy.INJECT if asked.has_live_run else Policy.QUEUE

    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()], policy=choose)) as client:
        first = await client.submit(studio.name, "one")
        await studio.held.until_reached()
        second = await client.submit(studio.name, "two")
        studio.held.release()
        await ended(first)
        await answered_together(first, second)


# --- what callers do ----------------------------------------------------------------------------


@turn
async def cancel(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()])) as client:
        first = await client.submit(studio.name, "one")
        second = await client.submit(studio.name, "two")
        await studio.held.until_reached()
        await client.cancel(studio.name, (await second.admitted()).run_id)
        studio.held.release()
        await ended(first)
        await ended(second, TerminalReason.CANCELLED)


@turn
async def abandon(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()])) as client:
        first = await client.submit(studio.name, "one")
        await studio.held.until_reached()
        run_id = (await first.admitted()).run_id
        view = await studio.whole_store.load_run(studio.name, run_id)
        revision = 0 if view is None else view.run.revision
        await client.abandon(studio.name, run_id, expected_revision=revision, stale_owner=True)
        await ended(first, TerminalReason.ABANDONED)


@turn
async def wait_and_stay(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()])):
        alone, other = studio.client(store=False), studio.client(store=False)
        first = await alone.submit(studio.name, "one")
        await studio.held.until_reached()
        waiting = asyncio.create_task(other.await_result(studio.name, (await first.admitted()).run_id))
        second = await other.submit(studio.name, "two")
        studio.held.release()
        await waiting
        await ended(first)
        await ended(second)
        await alone.close()
        await other.close()


@turn
async def signal_start(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        await ended(await client.submit(studio.name, "one", via="signal"))
        await ended(await client.submit(studio.name, "two", via="signal"))


@turn
async def large_input(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Long.")]))) as client:
        await ended(await client.submit(studio.name, "word " * 20_000))


@turn
async def refused(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        await ended(await client.submit(studio.name, "one", key="k"))
        with suppress(IdempotencyConflictError):
            await client.submit(studio.name, "another", key="k")
        with suppress(AgentMismatchError):
            await client.submit(studio.name, "two", agent="somebody-else")
        with suppress(RunConflictError):
            await client.interrupt(studio.name)
        with suppress(IdempotencyConflictError):
            await (await client.submit(studio.name, "a third", key="k", via="signal")).result(timeout=1.0)
        await ended(await client.submit(studio.name, "one", key="k"))


@turn
async def purge(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        await ended(await client.submit(studio.name, "one"))
        await client.purge(studio.name)
        await studio.lane.result()


@turn
async def shutdown(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        await client.submit(studio.name, "two")
        await studio.until_speaking()
        await studio.lane.cancel()
        await ended(first, TerminalReason.SHUTDOWN)
