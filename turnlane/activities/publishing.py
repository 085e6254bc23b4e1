"""Publishing transient events: one publisher per attempt of an activity, counting from 1 without holes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from turnlane.records.base import Json, ProviderEnvelope
from turnlane.records.events import (
    AssistantDeltaEvent,
    AttemptResetEvent,
    Event,
    ReasoningDeltaEvent,
    ReasoningEndEvent,
    ReasoningStartEvent,
    ToolStatus,
    ToolStatusEvent,
    TransientEvent,
)
from turnlane.records.runs import Run
from turnlane.records.steps import Fence
from turnlane.store.bus import EventBus


class Publisher:
    """Tells the watchers of a conversation what one attempt does. Telling never fails a run."""

    def __init__(self, bus: EventBus, fence: Fence, source: str, attempt: int, clock: Callable[[], datetime]) -> None:
        self.epoch = f"{fence.publisher}:{source}:{attempt}"
        self._bus = bus
        self._fence = fence
        self._clock = clock
        self._sequence = 0

    def text(self, delta: str) -> None:
        """A piece of the answer."""
        self._tell(AssistantDeltaEvent(**self._common(), text_delta=delta))

    def reasoning_start(self) -> None:
        """Reasoning begins."""
        self._tell(ReasoningStartEvent(**self._common()))

    def reasoning(self, delta: str) -> None:
        """A piece of reasoning."""
        self._tell(ReasoningDeltaEvent(**self._common(), text_delta=delta))

    def reasoning_end(self, provider: ProviderEnvelope | None) -> None:
        """Reasoning ends."""
        self._tell(ReasoningEndEvent(**self._common(), provider=provider))

    def tool(
        self,
        status: ToolStatus,
        call_id: str,
        tool_name: str,
        *,
        given: Json = None,
        output: Json = None,
        until: datetime | None = None,
    ) -> None:
        """A tool call moved on."""
        event = ToolStatusEvent(
            **self._common(),
            call_id=call_id,
            tool_name=tool_name,
            status=status,
            input=given,
            output=output,
            until=until,
        )
        self._tell(event)

    def reset(self, attempt: int, withdrawn: str) -> None:
        """What an earlier attempt of this step told is withdrawn."""
        event = AttemptResetEvent(**self._common(), step=self._fence.step, attempt=attempt, withdrawn=withdrawn)
        self._tell(event)

    def _common(self) -> dict[str, Any]:
        return {
            "conversation_id": self._fence.conversation_id,
            "run_id": self._fence.run_id,
            "emitted_at": self._clock(),
            "epoch": self.epoch,
            "sequence": self._sequence + 1,
        }

    def _tell(self, event: TransientEvent) -> None:
        self._sequence += 1
        self._bus.publish(event)


def tell(bus: EventBus, events: Iterable[Event]) -> None:
    """Publish what a write to the store made known, once it is written."""
    for event in events:
        bus.publish(event)


def last_model_epoch(run: Run, fence: Fence) -> str | None:
    """The epoch of the attempt of this step that began last, if one did: what it told is withdrawn.

    Not simply the attempt before: one whose worker was lost before it began told nothing, and a lane that
    was opened again goes on under another token.
    """
    last = run.last_operation
    if last is None or last.step != fence.step or fence.attempt == 1:
        return None
    _, token, step, attempt = last.operation_id.rsplit(":", 3)
    return f"{fence.run_id}:{token}:{step}:model:{attempt}"
