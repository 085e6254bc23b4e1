"""Judging whether a conversation is to be compacted: what is known of it, and what the agent makes of that."""

from __future__ import annotations

from turnlane.activities.asking import asked
from turnlane.activities.failing import persist
from turnlane.agent.agent import Agent
from turnlane.agent.compactable import CompactableHistory
from turnlane.agent.compaction import Compaction, CompactionState, Judged
from turnlane.agent.transcript import transcript
from turnlane.records.errors import ModelRefusedError
from turnlane.records.messages import Message, is_speakable
from turnlane.records.runs import Snapshot, TerminalReason
from turnlane.store.protocol import Store


async def judged(compaction: Compaction, state: CompactionState) -> Judged:
    """Whether any of the thresholds says so. Without one it is made when somebody asks, and then it is needed.

    Raises whatever the application's threshold raises.
    """
    if compaction.turns is not None and state.turns >= compaction.turns:
        return Judged(True)
    if compaction.tokens is not None and state.tokens >= compaction.tokens:
        return Judged(True)
    threshold = compaction.threshold
    if threshold is None:
        return Judged(compaction.turns is None and compaction.tokens is None)
    found = await asked(lambda: threshold(state))
    return found if isinstance(found, Judged) else Judged(bool(found))


async def state_of(
    store: Store, agent: Agent, conversation_id: str, snapshot: Snapshot, selected: CompactableHistory
) -> CompactionState:
    """Return what a threshold judges."""
    told = heard(agent, snapshot, (*selected.compactable, *selected.retained))
    leading = (selected.leading_summary,) if selected.leading_summary else ()
    return CompactionState(
        conversation_id=conversation_id,
        messages=snapshot.messages,
        turns=selected.turns,
        characters=len(transcript((*leading, *told))),
        last_input_tokens=await persist(lambda: store.last_input_tokens(conversation_id)),
        context_window=await _context_window(store, agent, conversation_id),
    )


async def _context_window(store: Store, agent: Agent, conversation_id: str) -> int | None:
    """The model's window: as the agent's budget says, else as the registry knows it."""
    if agent.budget is not None and agent.budget.context_window is not None:
        return agent.budget.context_window
    try:
        described = agent.described(await chosen_model(store, agent, conversation_id))
    except ModelRefusedError:
        return None
    return described.context_window if described is not None else None


async def chosen_model(store: Store, agent: Agent, conversation_id: str) -> str | None:
    """The key of the model that the conversation chose, where an agent has several."""
    if agent.models is None:
        return None
    return await persist(lambda: store.load_model(conversation_id))


def heard(agent: Agent, snapshot: Snapshot, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """What the model is told of the messages: no answer that is not evidence, no input that was taken back."""
    taken_back = {
        message_id
        for run in snapshot.runs
        if run.terminal_reason is TerminalReason.CANCELLED
        for message_id in run.input_message_ids
    }
    failed = agent.history.failed_assistant
    return tuple(
        message for message in messages if is_speakable(message.status, failed) and message.id not in taken_back
    )
