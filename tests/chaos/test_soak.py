"""A soak: conversations go on while workers are killed at random moments, and then everything is counted."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.chaos.conftest import House
from tests.integration.stage import until
from turnlane.client import Ticket, Turnlane
from turnlane.records.admissions import Admission, Policy
from turnlane.records.runs import Run, TerminalReason

pytestmark = pytest.mark.chaos

SOAK_SECONDS = 15.0
SETTLE_SECONDS = 60.0
CONVERSATIONS = 4
SEED = int(os.environ.get("TURNLANE_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)


@dataclass
class Soak:
    """Random inputs into some conversations, and the tickets they gave."""

    house: House
    client: Turnlane
    conversations: list[str]
    dice: random.Random
    tickets: list[Ticket] = field(default_factory=list)

    async def speak(self, conversation: str) -> None:
        """Submit inputs of every policy at random moments, some of them twice, until cancelled."""
        said = 0
        while True:
            said += self.dice.random() > 0.2
            policy = self.dice.choice(list(Policy))
            self.tickets.append(await self.client.submit(conversation, "soak", policy=policy, key=f"k{said}"))
            await asyncio.sleep(self.dice.uniform(0.0, 0.6))

    async def kill(self) -> None:
        """Kill a worker at random moments and start another in its place, until cancelled."""
        while True:
            await asyncio.sleep(self.dice.uniform(0.5, 3.0))
            victim = self.dice.choice([worker for worker in self.house.workers if worker.is_alive])
            replacing = asyncio.create_task(self.house.worker())
            await victim.kill()
            await replacing


@pytest.mark.timeout(240)
async def test_nothing_is_lost_or_done_twice_while_workers_die(house: House, conversation: str) -> None:
    conversations = [f"{conversation}-{number}" for number in range(CONVERSATIONS)]
    soak = Soak(house, house.client(answer_seconds=3.0), conversations, random.Random(SEED))
    await asyncio.gather(house.worker(), house.worker())

    await _for_a_while(soak)
    await _settled(soak)
    admissions = [await ticket.admitted(SETTLE_SECONDS) for ticket in soak.tickets]
    results = [await ticket.result(SETTLE_SECONDS) for ticket in soak.tickets]

    charges = Counter(house.lines("charge"))
    print(f"soak seed {SEED}: {len(results)} inputs, {len(house.workers)} workers, {charges.total()} charges")
    assert [] == [key for key, count in charges.items() if count > 1]
    for name in conversations:
        runs = await house.runs(name)
        _assert_each_input_is_answered_once(runs, [item for item in admissions if item.conversation_id == name])
        await house.assert_the_ledger_adds_up(name)


async def _for_a_while(soak: Soak) -> None:
    tasks = {asyncio.create_task(soak.speak(name)) for name in soak.conversations}
    done, running = await asyncio.wait({*tasks, asyncio.create_task(soak.kill())}, timeout=SOAK_SECONDS)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for task in done:
        task.result()


async def _settled(soak: Soak) -> None:
    """Return once no conversation has an active run: what waits is answered without another word."""
    async with asyncio.timeout(SETTLE_SECONDS):
        for name in soak.conversations:
            await until(partial(_rests, soak.client, name), SETTLE_SECONDS, pause=0.1)


async def _rests(client: Turnlane, conversation: str) -> bool:
    return not await client.runs(conversation)


def _assert_each_input_is_answered_once(runs: list[Run], admissions: list[Admission]) -> None:
    """Every input belongs to one run that has ended, and to no other.

    There may be one more than was admitted to a caller: the one whose submit was under way at the end.
    """
    answering = [run for run in runs if run.terminal_reason is not TerminalReason.ABSORBED]
    answered = Counter(name for run in answering for name in run.input_message_ids)
    assert {1} == set(answered.values())
    assert {admission.input_message_id for admission in admissions} <= answered.keys()
    assert len({admission.input_message_id for admission in admissions}) >= len(answered) - 1
    wanted = {TerminalReason.SUCCESS, TerminalReason.INTERRUPTED, TerminalReason.SUPERSEDED}
    assert {run.terminal_reason for run in answering} <= wanted
