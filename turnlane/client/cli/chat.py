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

from turnlane.agent.files import Upload
from turnlane.client.cli.chat_commands import Commands
from turnlane.client.cli.chat_input import LineSource, open_lines
from turnlane.client.cli.live_transcript import LiveTranscript
from turnlane.client.cli.output import error_record
from turnlane.client.cli.send import with_files
from turnlane.client.cli.verbs import Session, as_turnlane_error, verb
from turnlane.client.client import Turnlane
from turnlane.client.ticket import Ticket
from turnlane.records.admissions import Policy
from turnlane.records.events import RunStateEvent, TerminalEvent
from turnlane.records.runs import RunState


def register(app: typer.Typer) -> None:
    """Add the verb of this module."""
    verb(app)(chat)


async def chat(
    session: Session,
    conversation_id: Annotated[str | None, Option("--conversation", help="Go on with this conversation.")] = None,
    agent: Annotated[str | None, Option(help="The agent of a new conversation.")] = None,
    policy: Annotated[Policy | None, Option(help="What an input does to the answer in flight.")] = None,
    reasoning: Annotated[bool, Option("--reasoning", help="Show what the model thinks, too.")] = False,
    responder: Annotated[str | None, Option(help="Who answers approvals, for the agent to judge.")] = None,
) -> None:
    """Talk with an agent. Type while it answers; Ctrl-C stops the answer, /quit the program, /help tells the rest."""
    conversation = conversation_id or f"chat-{uuid.uuid4().hex[:12]}"
    async with session.client() as client:
        talk = Chat(session, client, conversation, agent, policy, reasoning=reasoning, responder=responder)
        await talk.run()


class Chat:
    """One chat: reads lines, submits them, and shows what happens in the conversation."""

    def __init__(
        self,
        session: Session,
        client: Turnlane,
        conversation_id: str,
        agent: str | None = None,
        policy: Policy | None = None,
        *,
        reasoning: bool = False,
        responder: str | None = None,
    ) -> None:
        self.out = session.out
        self.client = client
        self.conversation_id = conversation_id
        self.agent = agent
        self.policy = policy
        self.responder = responder
        self.files: list[Upload] = []
        self._reasoning = reasoning
        self._command = Commands(self)
        self._lines: LineSource | None = None
        self._asked: set[str] = set()
        self._ended: set[str] = set()
        self._settled = asyncio.Event()
        self._jobs: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Talk until /quit or the end of the input. Of a pipe, every line is answered first."""
        loop = asyncio.get_running_loop()
        async with open_lines(self.out, self.interrupt) as self._lines:
            self.out = self._lines.out
            self.out.say(f"conversation {self.conversation_id}; /help tells what you can do", "dim")
            loop.add_signal_handler(signal.SIGINT, self.interrupt)
            await self._tell_what_waits()
            # Settled before the first input, so that nothing of its answer is missed.
            here = await self.client.ledger_position(self.conversation_id, sys.maxsize)
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
        self.start(self._interrupt())

    async def _interrupt(self) -> None:
        if await self.client.stop(self.conversation_id):
            return
        if self._lines is not None and self.is_piped:
            self._lines.end()
        else:
            self.out.say("nothing to interrupt; /quit leaves", "dim")

    @property
    def is_piped(self) -> bool:
        """Whether the lines come through a pipe."""
        return self._lines is not None and self._lines.is_pipe

    async def _watch(self, from_seq: int) -> None:
        transcript = LiveTranscript(
            self.out, self.client, self.conversation_id, show_inputs=False, show_reasoning=self._reasoning
        )
        async with transcript:
            async for event in self.client.events(self.conversation_id, from_seq=from_seq):
                await transcript.show(event)
                # An absorbed run has no answer of its own, and so no terminal event.
                if isinstance(event, TerminalEvent) or (
                    isinstance(event, RunStateEvent) and event.state is RunState.SUPERSEDED
                ):
                    self._ended.add(event.run_id)
                    self._settled.set()

    async def _tell_what_waits(self) -> None:
        waiting = len(await self.client.pending_approvals(self.conversation_id))
        if waiting:
            self.out.say(f"waiting for approval: {waiting}; /approvals lists them", "yellow")

    async def _talk(self, lines: LineSource) -> None:
        while (line := await lines.next_line()) is not None:
            text = line.strip()
            if text == "/quit":
                break
            if text.startswith("/"):
                await self._try(self._command(text))
            elif text:
                await self._try(self._say(line))
        if lines.is_pipe:
            await self.until_answered()

    async def until_answered(self) -> None:
        """Wait until everything that was sent is answered."""
        await asyncio.gather(*self._jobs)
        while self._asked - self._ended:
            self._settled.clear()
            await self._settled.wait()

    async def _say(self, text: str) -> None:
        ticket = await self.client.submit(
            self.conversation_id, with_files(text, self.files), agent=self.agent, policy=self.policy
        )
        self.files.clear()
        self.note(ticket)

    def note(self, ticket: Ticket, what: str = "") -> None:
        """Remember what was sent, so that a pipe waits for its answer, and say so if that takes time."""
        if ticket.admission is None:
            self.out.say(f"[{what or 'sent'}: no worker answers; acts once one is there]", "yellow")
            self.start(self._note_admission(ticket))
            return
        self._asked.add(ticket.admission.run_id)
        if ticket.admission.run_state is RunState.QUEUED and self._asked - self._ended - {ticket.admission.run_id}:
            self.out.say(f"[queued as {ticket.admission.run_id}]", "dim")

    async def _note_admission(self, ticket: Ticket) -> None:
        self._asked.add((await ticket.admitted()).run_id)

    def start(self, work: Coroutine[Any, Any, object]) -> None:
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
            self.out.record(error_record(error))
            self.out.say(f"{error.message} ({error.code})", "red")


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
