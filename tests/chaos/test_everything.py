"""A soak of everything at once: agents that use every feature, people who do anything, workers and lanes that die.

Then everything is counted. `TURNLANE_SOAK_SEED` has the same dice thrown again, though not the same moments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import pytest
from temporalio.service import RPCError

from tests.chaos.conftest import House
from tests.chaos.everything import EVENT, LAST_WORD, SEED_VARIABLE
from tests.integration.stage import until
from turnlane.agent import Upload
from turnlane.client import Result, Ticket, Turnlane
from turnlane.records.admissions import Policy
from turnlane.records.approvals import ApprovalState
from turnlane.records.errors import CallerError, RetryableError
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import Message, TextPart, ToolApprovalRequestPart, ToolCallPart, ToolResultPart
from turnlane.records.runs import Run, TerminalReason

pytestmark = pytest.mark.chaos

SOAK_SECONDS = 20.0
SETTLE_SECONDS = 60.0
AGENTS = ("clerk", "librarian", "clerk", "librarian")
SETTINGS = {"events_between_runs": 60, "events_between_steps": 90, "idle_close_seconds": 1.0, "wait_seconds": 2.0}
UNWANTED = {TerminalReason.RUNTIME_FAILURE, TerminalReason.STORAGE_CONFLICT, TerminalReason.CONTEXT_OVERFLOW}
EFFECTS = ("charge", "pay", "book", "ship-handed", "send-handed")
GATED = ("pay", "book", "send")


Said = tuple[str | list[TextPart | Upload], Policy | None]


@dataclass
class People:
    """Those who talk to one conversation: what they sent, and how they answered what was asked."""

    house: House
    client: Turnlane
    conversation: str
    agent: str
    dice: random.Random
    sent: dict[str, Said] = field(default_factory=dict)
    tickets: list[Ticket] = field(default_factory=list)
    decided: dict[str, bool] = field(default_factory=dict)
    said: int = 0

    async def live(self) -> None:
        """Do anything at random moments, until cancelled."""
        deeds: list[tuple[Callable[[], Awaitable[object]], int]] = [
            (self.speak, 10),
            (self.show, 1),
            (self.stop, 2),
            (self.cancel, 1),
            (self.abandon, 1),
            (self.compact, 1),
            (self.decide, 5),
            (self.deliver, 3),
        ]
        while True:
            deed = self.dice.choices([deed for deed, _ in deeds], [weight for _, weight in deeds])[0]
            with contextlib.suppress(CallerError, RetryableError):
                await deed()
            await asyncio.sleep(self.dice.uniform(0.0, 0.5))

    async def speak(self) -> None:
        """Say something, or the same again, by update or signal."""
        self.said += self.dice.random() > 0.15
        key = f"k{self.said}"
        said = self.sent.setdefault(key, (f"say {self.said}", self.dice.choice([None, *Policy])))
        via: Literal["update", "signal"] = "signal" if self.dice.random() < 0.3 else "update"
        await self.send(key, said, via)

    async def send(self, key: str, said: Said, via: Literal["update", "signal"] = "update") -> Ticket:
        """Send an input under its key."""
        content, policy = said
        ticket = await self.client.submit(self.conversation, content, agent=self.agent, key=key, policy=policy, via=via)
        self.tickets.append(ticket)
        return ticket

    async def show(self) -> None:
        """Send a file along."""
        self.said += 1
        upload = Upload(data=b"words", media_type="text/plain", filename=f"note-{self.said}.txt")
        key = f"k{self.said}"
        self.sent[key] = ([TextPart(text="look"), upload], None)
        await self.send(key, self.sent[key])

    async def stop(self) -> None:
        """Stop whatever runs."""
        await self.client.stop(self.conversation)

    async def cancel(self) -> None:
        """Take back what waits last."""
        runs = await self.client.runs(self.conversation)
        if len(runs) > 1:
            await self.client.cancel(self.conversation, runs[-1].id)

    async def abandon(self) -> None:
        """Give up whatever comes first."""
        for run in (await self.client.runs(self.conversation))[:1]:
            await self.client.abandon(self.conversation, run.id, expected_revision=run.revision, stale_owner=True)

    async def compact(self) -> None:
        """Ask for a summary."""
        await asyncio.wait_for(self.client.compact(self.conversation, force=True), SETTLE_SECONDS)

    async def decide(self) -> None:
        """Answer something that was asked, one way, and often the other way as well."""
        waiting = await self.client.pending_approvals(self.conversation)
        if not waiting:
            return
        approval = self.dice.choice(waiting)
        answers = [self._answer(approval.approval_id, self.dice.random() < 0.7)]
        if self.dice.random() < 0.3:
            answers.append(self._answer(approval.approval_id, self.dice.random() < 0.5))
        await asyncio.gather(*answers)

    async def _answer(self, approval_id: str, approved: bool) -> None:
        with contextlib.suppress(CallerError):
            ticket = await self.client.respond(self.conversation, approval_id, approved)
            await ticket.admitted(SETTLE_SECONDS)
            assert approved is self.decided.setdefault(approval_id, approved)
            self.tickets.append(ticket)

    async def deliver(self, everything: bool = False) -> None:
        """Bring some of the words that are waited for, or all of them."""
        for line in self.house.lines("wait"):
            conversation, event_id = line.split()
            if conversation == self.conversation and (everything or self.dice.random() < 0.3):
                await self.client.deliver(conversation, EVENT, event_id, "word")

    async def insist(self) -> None:
        """Send everything once more. What was admitted is known; what only a terminated lane had is admitted now."""
        known = {ticket.key: ticket.admission for ticket in self.tickets if ticket.admission is not None}
        self.tickets = [ticket for ticket in self.tickets if ticket.admission is not None]
        for key, said in self.sent.items():
            ticket = await self.send(key, said)
            # What went as a signal, because no worker was quick enough, is looked up: nobody can tell whose it was.
            is_answered = ticket.admission is not None
            again, before = await ticket.admitted(SETTLE_SECONDS), known.get(key)
            assert before is None or before.input_message_id == again.input_message_id
            assert before is None or again.duplicate or not is_answered

    async def settle(self) -> None:
        """Return once nothing is active any more. What is waited for comes; what was asked stays unanswered."""
        await until(self._rests, SETTLE_SECONDS, pause=0.1)

    async def _rests(self) -> bool:
        if not await self.client.runs(self.conversation):
            return True
        with contextlib.suppress(RetryableError):
            await self.deliver(everything=True)
        return False


@dataclass
class Soak:
    """The people, and what befalls them."""

    house: House
    people: list[People]
    dice: random.Random

    async def kill(self) -> None:
        """End workers, gently or not, and start others in their place, until cancelled."""
        while True:
            await asyncio.sleep(self.dice.uniform(1.0, 4.0))
            victim = self.dice.choice([worker for worker in self.house.workers if worker.is_alive])
            replacing = asyncio.create_task(self.house.worker())
            await (victim.kill() if self.dice.random() < 0.6 else victim.stop())
            await replacing

    async def lose(self) -> None:
        """Lose lanes, until cancelled."""
        while True:
            await asyncio.sleep(self.dice.uniform(0.5, 2.5))
            lane = f"lane/{self.dice.choice(self.people).conversation}"
            with contextlib.suppress(RPCError):
                await self.house.temporal.get_workflow_handle(lane).terminate("the soak loses it")

    async def run(self) -> None:
        """Let all that happen for a while, and then come to rest."""
        deeds = [*(each.live() for each in self.people), self.kill(), self.lose()]
        tasks = {asyncio.create_task(deed) for deed in deeds}
        done, running = await asyncio.wait(tasks, timeout=SOAK_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in done:
            task.result()


@pytest.mark.timeout(240)
async def test_nothing_is_lost_or_done_twice_whatever_comes_together(
    house: House, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = os.environ.get(SEED_VARIABLE) or str(random.SystemRandom().randrange(1, 2**32))
    monkeypatch.setenv(SEED_VARIABLE, seed)
    print(f"seed {seed}")
    house.cast, house.settings = "everything", SETTINGS
    dice, client = random.Random(seed), house.client(answer_seconds=3.0)
    people = [
        People(house, client, f"{conversation}-{number}", agent, random.Random(f"{seed}:{number}"))
        for number, agent in enumerate(AGENTS)
    ]
    await asyncio.gather(house.worker(), house.worker())

    await Soak(house, people, dice).run()
    async with asyncio.timeout(SETTLE_SECONDS):
        await asyncio.gather(*(each.insist() for each in people))
        await asyncio.gather(*(each.settle() for each in people))
    ends = [await _last_word(each) for each in people]

    await _tell(house, people)
    assert {"the end"} == {end.text for end in ends}
    _assert_effects_are_made_once(house)
    for each in people:
        await _assert_it_adds_up(each)
    assert [] == house.lines("illegal")


async def _tell(house: House, people: list[People]) -> None:
    """Print what happened, so that a soak in which nothing did is seen."""
    runs = [run for each in people for run in await house.runs(each.conversation)]
    events = [event for each in people for event in await house.ledger(each.conversation)]
    print(Counter(run.terminal_reason.value for run in runs if run.terminal_reason is not None))
    print(Counter(event.payload.get("type") if event.kind == LedgerKind.TRANSITION else event.kind for event in events))
    print({path.name: len(house.lines(path.name)) for path in house.folder.iterdir() if path.suffix == ""})
    print(f"{len(house.workers)} workers, {sum(len(each.decided) for each in people)} approvals decided")


async def _last_word(people: People) -> Result:
    """What a conversation answers to a plain input, whatever it went through."""
    ticket = await people.client.submit(people.conversation, LAST_WORD, agent=people.agent, policy=Policy.QUEUE)
    return await ticket.result(SETTLE_SECONDS)


def _assert_effects_are_made_once(house: House) -> None:
    made = Counter((name, line) for name in EFFECTS for line in house.lines(name))
    assert [] == [effect for effect, count in made.items() if count > 1]


async def _assert_it_adds_up(people: People) -> None:
    house, name = people.house, people.conversation
    runs = await house.runs(name)
    messages = await _messages(people)
    await _assert_each_input_is_answered_once(people, runs)
    await _assert_each_call_has_one_result(people, messages)
    await _assert_nothing_is_done_against_the_answer(people, messages)
    await house.assert_the_ledger_adds_up(name)


async def _assert_each_input_is_answered_once(people: People, runs: list[Run]) -> None:
    """Every input belongs to one run that has ended, and to no other; none of them for a fault of ours."""
    admissions = [await ticket.admitted(SETTLE_SECONDS) for ticket in people.tickets]
    answering = [run for run in runs if run.terminal_reason is not TerminalReason.ABSORBED]
    answered = Counter(name for run in answering for name in run.input_message_ids)
    assert {1} == set(answered.values())
    assert {admission.input_message_id for admission in admissions} <= answered.keys()
    faults = [(run.id, run.terminal_reason, run.failure) for run in answering if run.terminal_reason in UNWANTED]
    assert [] == faults


async def _assert_each_call_has_one_result(people: People, messages: Iterable[Message]) -> None:
    """Each call has its result, those that still wait for somebody's word apart."""
    waiting = await people.client.pending_approvals(people.conversation)
    owed: Counter[tuple[str, str]] = Counter()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                owed[message.id, part.call_id] += 1
            elif isinstance(part, ToolResultPart):
                owed[message.id, part.call_id] -= 1
    open_calls = {place: count for place, count in owed.items() if count}
    assert {(approval.message_id, approval.call_id): 1 for approval in waiting} == open_calls


async def _assert_nothing_is_done_against_the_answer(people: People, messages: Iterable[Message]) -> None:
    """The store decided each approval as its first answer did, and nothing else was let run."""
    ids = [
        part.approval_id for message in messages for part in message.parts if isinstance(part, ToolApprovalRequestPart)
    ]
    approvals = await people.house.store.find_approvals(people.conversation, ids)
    stored = {name: approvals[name].state is ApprovalState.APPROVED for name in people.decided}
    assert people.decided == stored
    held = {f"{each.run_id} {each.call_id}" for each in approvals.values() if each.state is not ApprovalState.APPROVED}
    assert [] == [line for name in GATED for line in people.house.lines(name) if line in held]


async def _messages(people: People) -> list[Message]:
    """Every message of a conversation, compacted ones included."""
    found: list[Message] = []
    cursor: str | None = None
    while True:
        page = await people.client.messages(people.conversation, cursor=cursor, include_compacted=True)
        found.extend(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return found
