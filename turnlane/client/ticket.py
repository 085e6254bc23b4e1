"""The ticket: what a submit gives back, and through which its answer is awaited and watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnlane.records.admissions import Admission, Input, Terminal
from turnlane.records.events import Event, RunStateEvent, TerminalEvent
from turnlane.records.messages import Message
from turnlane.records.runs import Failure, Run, RunState, TerminalReason
from turnlane.records.usage import Usage

if TYPE_CHECKING:
    from turnlane.client.client import Turnlane


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended. `run` and `message` need a store; a client without one has the control facts.

    For an input that another run absorbed, this is the result of that run.
    """

    conversation_id: str
    run_id: str
    state: RunState
    reason: TerminalReason
    snapshot_version: int
    run: Run | None = None
    message: Message | None = None
    policy_name: str | None = None
    failure: Failure | None = None
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """The text of the answer; empty without a store."""
        return self.message.text if self.message is not None else ""


def result_of_run(run: Run, message: Message | None, snapshot_version: int) -> Result | None:
    """The result of a run, if it has ended: as a read of the store, or the event of its end, gives it."""
    if run.terminal_reason is None:
        return None
    return Result(
        conversation_id=run.conversation_id,
        run_id=run.id,
        state=run.state,
        reason=run.terminal_reason,
        snapshot_version=snapshot_version,
        run=run,
        message=message,
        policy_name=run.terminal_policy_name,
        failure=run.failure,
        usage=run.usage,
    )


def result_of_terminal(terminal: Terminal) -> Result:
    """The result as a lane tells it."""
    return Result(
        conversation_id=terminal.conversation_id,
        run_id=terminal.run_id,
        state=terminal.state,
        reason=terminal.reason,
        snapshot_version=terminal.snapshot_version,
        policy_name=terminal.policy_name,
        failure=terminal.failure,
        usage=terminal.usage,
    )


class Ticket:
    """One submitted input. Ignoring any part of a ticket is fine."""

    def __init__(
        self,
        client: Turnlane,
        conversation_id: str,
        given: Input,
        admission: Admission | None,
        staying: asyncio.Task[Terminal | None] | None = None,
        sent_after: int = 0,
    ) -> None:
        self.conversation_id = conversation_id
        self.key = given.key
        self._client = client
        self._admission = admission
        self._tenant = given.tenant
        self._content_digest = given.content_digest
        self._staying = staying
        self._sent_after = sent_after

    @property
    def admission(self) -> Admission | None:
        """The admission: what the conversation durably promised. None for an input that was signalled and
        that no worker has taken yet; `admitted()` waits for it."""
        return self._admission

    async def admitted(self, timeout: float | None = None) -> Admission:
        """Wait for the admission. Raises the refusal if the input was refused, TimeoutError after `timeout` seconds."""
        if self._admission is None:
            async with asyncio.timeout(timeout):
                self._admission = await self._client.await_admission(
                    self.conversation_id, self.key, self._content_digest, after_seq=self._sent_after
                )
        return self._admission

    async def result(self, timeout: float | None = None) -> Result:
        """Wait until the input is answered, however its run ends. Raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            admission = await self.admitted()
            if self._staying is not None:
                terminal = await asyncio.shield(self._staying)
                if terminal is not None:
                    return result_of_terminal(terminal)
            return await self._client.await_result(self.conversation_id, admission.run_id, tenant=self._tenant)

    async def events(self) -> AsyncIterator[Event]:
        """The delivery events of this input's run, from its admission to its terminal.

        Durable events that happened before are told first. An input that another run absorbed is followed
        into that run. Needs a store.
        """
        admission = await self.admitted()
        followed = admission.run_id
        version = admission.snapshot_version
        async for event in self._client.events_from_version(self.conversation_id, version, tenant=self._tenant):
            if event.run_id == followed:
                yield event
                if isinstance(event, TerminalEvent):
                    return
                if isinstance(event, RunStateEvent) and not event.state.is_active:
                    absorber = await self._client.absorber_of(self.conversation_id, followed)
                    if absorber is None and event.state is not RunState.CANCELLED:
                        return
                    followed = absorber or followed
