"""The act of the five policies: what each input does to the run in flight."""

from __future__ import annotations

from turnlane.client.cli.demo_acts import POLICIES
from turnlane.client.cli.demo_stage import Stage
from turnlane.client.cli.demo_story import (
    CITY,
    CITY_BEGUN,
    HOTEL,
    HOTEL_BOOKED,
    LIST,
    LIST_BEGUN,
    PASSPORT,
    SEAT,
    TRAIN,
    WEATHER,
    WEATHER_BEGUN,
    WEATHER_UNAWARE,
)
from turnlane.client.cli.demo_watch import Watch
from turnlane.client.ticket import Ticket
from turnlane.records.admissions import Policy
from turnlane.records.events import RunStateEvent
from turnlane.records.runs import RunState, TerminalReason


class PolicyAct:
    """One conversation in which every policy acts once, on a run that is known to be in flight."""

    def __init__(self, stage: Stage, watch: Watch) -> None:
        self._stage = stage
        self._facts = stage.facts
        self._watch = watch
        self._tickets: dict[str, Ticket] = {}

    async def play(self) -> None:
        """Queue and inject while a tool waits; interrupt, interrupt-next and supersede in mid-answer."""
        await self._queue_and_inject()
        await self._interrupt()
        await self._interrupt_next()
        await self._supersede()

    async def _queue_and_inject(self) -> None:
        train = await self._say(TRAIN, Policy.QUEUE)
        await self._stage.gate.reached.wait()
        city = await self._say(CITY, Policy.QUEUE)
        seat = await self._say(SEAT, Policy.INJECT)
        states = [line.state for line in await self._stage.client.runs(POLICIES)]
        waits = states == [RunState.RUNNING, RunState.QUEUED, RunState.QUEUED]
        self._facts.check("queue_waits", waits, "queue: the run in flight goes on, the input waits behind it")
        self._stage.gate.open()
        answer = await self._tickets[TRAIN].result(timeout=20)
        seated = answer.text.endswith(f"You added: {SEAT} Done.")
        self._facts.check("inject_joins", seated, "inject: the next step of the run in flight saw the input")
        absorbed = (await self._tickets[SEAT].result(timeout=20)).run_id
        self._facts.check("inject_absorbed", seat != train == absorbed, "inject: its own run was absorbed")
        await self._watch.until_said(city, CITY_BEGUN)
        self._facts.check("queue_runs_next", answer.reason is TerminalReason.SUCCESS, "queue: then it was its turn")

    async def _interrupt(self) -> None:
        weather = await self._say(WEATHER, Policy.INTERRUPT)
        city = await self._tickets[CITY].result(timeout=20)
        kept = (city.reason, city.text) == (TerminalReason.INTERRUPTED, CITY_BEGUN)
        self._facts.check("interrupt_ends_run", kept, "interrupt: the run ended interrupted and kept what it had said")
        await self._watch.until(lambda: self._watch.text(weather) in (WEATHER_BEGUN, WEATHER_UNAWARE))
        told = self._watch.text(weather) == WEATHER_BEGUN
        self._facts.check("interrupt_is_told", told, "interrupt: the next prompt shows the answer as cut short")

    async def _interrupt_next(self) -> None:
        await self._say(LIST, Policy.QUEUE)
        await self._say(PASSPORT, Policy.INTERRUPT_NEXT)
        weather = await self._tickets[WEATHER].result(timeout=20)
        stopped = weather.reason is TerminalReason.INTERRUPTED
        self._facts.check("interrupt_next_ends_run", stopped, "interrupt-next: the run in flight ended interrupted")
        await self._watch.until_said(await self._run_of(LIST), LIST_BEGUN)
        jumped = await self._order() == [TRAIN, CITY, WEATHER, PASSPORT, LIST]
        self._facts.check("interrupt_next_jumps", jumped, "interrupt-next: it ran before an input that came earlier")

    async def _supersede(self) -> None:
        await self._say(HOTEL, Policy.SUPERSEDE)
        gone = await self._tickets[LIST].result(timeout=20)
        ended = gone.reason is TerminalReason.SUPERSEDED
        self._facts.check("supersede_ends_run", ended, "supersede: the run in flight ended superseded")
        hotel = await self._tickets[HOTEL].result(timeout=20)
        withdrawn = hotel.text == HOTEL_BOOKED
        self._facts.check("supersede_withdraws", withdrawn, "supersede: no later prompt shows what it had said")
        await self._watch.until_ended(hotel.run_id)

    async def _say(self, text: str, policy: Policy) -> str:
        """Submit an input and return the id of the run it was assigned to."""
        self._facts.tell(f"{policy.value}:")
        ticket = await self._stage.client.submit(POLICIES, text, key=text, policy=policy)
        self._tickets[text] = ticket
        return (await ticket.admitted()).run_id

    async def _run_of(self, text: str) -> str:
        return (await self._tickets[text].admitted()).run_id

    async def _order(self) -> list[str]:
        """The inputs whose runs have started, in the order in which they did."""
        asked = {await self._run_of(text): text for text in self._tickets}
        return [asked[event.run_id] for event in self._watch.of(RunStateEvent) if event.state is RunState.RUNNING]


async def five_policies(stage: Stage) -> None:
    """Five inputs with five policies, and what each did to the run in flight."""
    async with stage.watch(POLICIES) as watch:
        await PolicyAct(stage, watch).play()
