"""`chat`: talk with an agent in the terminal, or through a pipe, while answers stream."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from collections.abc import Coroutine
from typing import Annotated, Any

import typer
from typer import Option

from turnlane.client.cli.chat_input import LineSource, open_lines
from turnlane.client.cli.output import error_record
from turnlane.client.cli.transcript import Transcript
from turnlane.client.cli.verbs import Session, as_turnlane_error, verb
from turnlane.client.client import Turnlane
from turnlane.client.ticket import Ticket
from turnlane.records.admissions import Policy
from turnlane.records.errors import InvalidInputError, RunNotFoundError
from turnlane.records.events import RunStateEvent, TerminalEvent
from turnlane.records.runs import RunState

HELP = """\
/policy NAME   what the next inputs do to the answer in flight: queue, inject, interrupt, interrupt-next, supersede
/queue         the runs that are active or wait
/cancel RUN    take a queued run out; the beginning of its id is enough
/interrupt     stop the answer in flight, as Ctrl-C does
/quit          leave; the conversation goes on, and `--conversation ID` takes it up again"""


def register(app: typer.Typer) -> None:
    """Add the verb of this module."""
    verb(app)(chat)


async def chat(
    session: Session,
    conversation_id: Annotated[str | None, Option("--conversation", help="Go on with this conversation.")] = None,
    agent: Annotated[str | None, Option(help="The agent of a new conversation.")] = None,
    policy: Annotated[Policy | None, Option(help="What an input does to the answer in flight.")] = None,
    reasoning: Annotated[bool, Option("--reasoning", help="Show what the model thinks, too.")] = False,
) -> None:
    """Talk with an agent. Type while it answers; Ctrl-C stops the answer, /quit the program, /help tells the rest."""
    conversation = conversation_id or f"chat-{uuid.uuid4().hex[:12]}"
    async with session.client() as client:
        talk = Chat(session, client, conversation, agent=agent, policy=policy, reasoning=reasoning)
        await talk.run()


class Chat:
    """One chat: reads lines, submits them, and shows what happens in the conversation."""

    def __init__(
        self,
        session: Session,
        client: Turnlane,
        conversation_id: str,
        *,
        agent: str | None = None,
        policy: Policy | None = None,
        reasoning: bool = False,
    ) -> None:
        self._out = session.out
        self._client = client
        self._conversation_id = conversation_id
        self._agent = agent
        self._policy = policy
        self._reasoning = reasoning
        self._lines: LineSource | None = None
        self._asked: set[str] = set()
        self._ended: set[str] = set()
        self._settled = asyncio.Event()
        self._jobs: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Talk until /quit or the end of the input. Of a pipe, every line is answered first."""
        loop = asyncio.get_running_loop()
        async with open_lines(self._out, self.interrupt) as self._lines:
            self._out = self._lines.out
            self._out.say(f"conversation {self._conversation_id}; /help tells what you can do", "dim")
            loop.add_signal_handler(signal.SIGINT, self.interrupt)
            # Settled before the first input, so that nothing of its answer is missed.
            here = await self._client.ledger_position(self._conversation_id, sys.maxsize)
            watching = asyncio.create_task(self._watch(here))
            talking = asyncio.create_task(self._talk(self._lines))
            try:
                await asyncio.wait({watching, talking}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                loop.remove_signal_handler(signal.SIGINT)
                await _cancel(watching, talking, *self._jobs)
        for task in (watching, talking):
            if not task.cancelled():
                task.result()

    def interrupt(self) -> None:
        """Stop the answer in flight, whoever asked for it. With none: end a pipe, or tell a person how to leave."""
        self._start(self._interrupt())

    async def _interrupt(self) -> None:
        if await self._client.stop(self._conversation_id):
            return
        if self._lines is not None and self._lines.is_pipe:
            self._lines.end()
        else:
            self._out.say("nothing to interrupt; /quit leaves", "dim")

    async def _watch(self, from_seq: int) -> None:
        transcript = Transcript(self._out, show_inputs=False, show_reasoning=self._reasoning)
        async for event in self._client.events(self._conversation_id, from_seq=from_seq):
            transcript.show(event)
            # An absorbed run has no answer of its own, and so no terminal event.
            if isinstance(event, TerminalEvent) or (
                isinstance(event, RunStateEvent) and event.state is RunState.SUPERSEDED
            ):
                self._ended.add(event.run_id)
                self._settled.set()

    async def _talk(self, lines: LineSource) -> None:
        while (line := await lines.next_line()) is not None:
            text = line.strip()
            if text == "/quit":
                break
            if text.startswith("/"):
                await self._try(self._command(*text.split(maxsplit=1)))
            elif text:
                await self._try(self._say(line))
        if lines.is_pipe:
            await self._until_answered()

    async def _until_answered(self) -> None:
        await asyncio.gather(*self._jobs)
        while self._asked - self._ended:
            self._settled.clear()
            await self._settled.wait()

    async def _say(self, text: str) -> None:
        ticket = await self._client.submit(self._conversation_id, text, agent=self._agent, policy=self._policy)
        if ticket.admission is None:
            self._out.say("[no worker answers; sent, and answered once one is there]", "yellow")
            self._start(self._note_admission(ticket))
            return
        self._asked.add(ticket.admission.run_id)
        if ticket.admission.run_state is RunState.QUEUED and self._asked - self._ended - {ticket.admission.run_id}:
            self._out.say(f"[queued as {ticket.admission.run_id}]", "dim")

    async def _note_admission(self, ticket: Ticket) -> None:
        self._asked.add((await ticket.admitted()).run_id)

    async def _command(self, name: str, argument: str = "") -> None:
        match name:
            case "/policy":
                self._choose_policy(argument)
            case "/queue":
                await self._tell_queue()
            case "/cancel":
                await self._client.cancel(self._conversation_id, await self._find_run(argument))
            case "/interrupt":
                self.interrupt()
            case _:
                self._out.say(HELP)

    def _choose_policy(self, name: str) -> None:
        if name and name not in list(Policy):
            raise InvalidInputError(f"a policy is one of {', '.join(Policy)}")
        self._policy = Policy(name) if name else self._policy
        self._out.say(f"policy: {self._policy.value if self._policy else 'the agent decides'}", "dim")

    async def _tell_queue(self) -> None:
        lines = await self._client.runs(self._conversation_id)
        for line in lines:
            self._out.say(f"{line.id}  {line.state.value}")
        if not lines:
            self._out.say("nothing is active or waits", "dim")

    async def _find_run(self, beginning: str) -> str:
        if not beginning:
            raise InvalidInputError("/cancel needs a run, or the beginning of its id; /queue lists them")
        lines = await self._client.runs(self._conversation_id)
        found = [line.id for line in lines if line.id.startswith(beginning)]
        if len(found) != 1:
            raise RunNotFoundError(f"{len(found)} active runs begin with {beginning!r}; /queue lists them")
        return found[0]

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        """Let something go on beside the chat; what goes wrong is told."""
        job = asyncio.create_task(self._try(work))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _try(self, work: Coroutine[Any, Any, object]) -> None:
        """Do what a line asks for. An error is told and ends nothing."""
        try:
            await work
        except Exception as cause:
            error = as_turnlane_error(cause)
            self._out.record(error_record(error))
            self._out.say(f"{error.message} ({error.code})", "red")


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
