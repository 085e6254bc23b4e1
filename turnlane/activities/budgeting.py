"""The budget of a run: whether its prompt fits the model's context, and what is left out so that it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile

from turnlane.activities.clock import utc_now
from turnlane.activities.counting import Counting
from turnlane.agent.context import ContextBudget, PromptBudget, decide_context
from turnlane.agent.models import Model
from turnlane.agent.prompt import ComposedPrompt
from turnlane.agent.selection import Selection, SelectionOutcome, SelectionReason, cut_history, select_history
from turnlane.agent.tokens import as_count, part_texts
from turnlane.records.messages import FailedAssistant, Message, Role, is_speakable
from turnlane.records.prompt import Prompt
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.tokens import CountSource, TokenCount
from turnlane.records.turns import ContextFigures, HistoryCut, PreparedTurn
from turnlane.store.payloads import HistoryMessage

ROUNDS = 8
"""How often a cut is made anew because what it left was still too long: the shares it goes by are estimates."""

Render = Callable[[Collection[str]], Awaitable[Prompt]]
"""Makes the prompt anew without the messages of these ids."""


class OversizedPromptError(Exception):
    """The prompt of a run does not fit its model: the provider is not called. `failure` says why, in codes."""

    def __init__(self, figures: ContextFigures) -> None:
        code = figures.decision.value.upper().replace("-", "_")
        super().__init__(code)
        self.failure = Failure(failure_class=FailureClass.CONTEXT_OVERFLOW, code=code)


@dataclass(frozen=True, kw_only=True)
class Weighing:
    """What is weighed: the composed instructions, the messages of the history, and the prompt made of both.

    The first `planted` of the messages are user instructions that this run plants, and the first `own` of the
    system texts its instructions: what is behind them is carried by the history (a summary, say) and counts with it.
    """

    composed: ComposedPrompt
    records: Sequence[Message]
    prompt: Prompt
    planted: int = 0
    own: int = 0
    failed_assistant: FailedAssistant = "omit"

    def history(self, prompt: Prompt, planted: int = 0) -> Prompt:
        """What of a prompt is the history, without the messages that are planted."""
        return Prompt(system=prompt.system[self.own :], messages=prompt.messages[planted:])


class Budgeting:
    """Decides for one run of an agent with a budget."""

    def __init__(self, budget: ContextBudget, model: Model, counting: Counting, *, window: int | None) -> None:
        """`window` is how much the model takes."""
        self._budget = budget
        self._counting = counting
        self._window = window
        self._output = budget.reserved_output if budget.reserved_output is not None else model.max_output_tokens

    async def decide(self, weighing: Weighing, render: Render) -> tuple[ContextFigures, Prompt]:
        """Return the figures and the prompt to send. Figures that are not `may_be_sent` forbid the call."""
        history = await self._counting.history(weighing.history(weighing.prompt, weighing.planted))
        before = weighing.composed.weighed(await self._prompt_budget(weighing.prompt, history))
        figures = _figures(before.finalize_seed(weighing.planted > 0), history)
        free = before.available_history_tokens
        if self._budget.oversize != "select" or figures.may_be_sent or free is None or free < 0:
            return figures, weighing.prompt
        whole = history
        if weighing.planted:
            whole = await self._counting.history(weighing.history(weighing.prompt))
        return await self._selected(weighing, render, figures, free, whole)

    async def _selected(
        self, weighing: Weighing, render: Render, figures: ContextFigures, free: int, whole: TokenCount
    ) -> tuple[ContextFigures, Prompt]:
        """Leave turns out by their shares of the whole, and count what is left, until it fits or nothing may go."""
        estimate, target, prompt = _shares(weighing.records, whole, weighing.failed_assistant), free, weighing.prompt
        for _ in range(ROUNDS):
            selection = select_history(
                weighing.records,
                available_tokens=max(0, target),
                keep_recent_turns=self._budget.keep_recent_turns,
                failed_assistant=weighing.failed_assistant,
                now=utc_now(),
                estimate_message=lambda message: estimate[message.id],
            )
            prompt = await render(_evicted(selection))
            left = await self._counting.history(weighing.history(prompt))
            figures = _after_cut(figures, selection, free, left)
            if figures.may_be_sent or selection.outcome is SelectionOutcome.OVERSIZED or left.known is None:
                break
            target -= left.known - free
        return figures, prompt

    async def _prompt_budget(self, prompt: Prompt, history: TokenCount) -> PromptBudget | None:
        if self._window is None or self._output is None:
            return None
        return PromptBudget(
            context_window=self._window,
            reserved_output=self._output,
            tool_schemas=await self._counting.tools(prompt.tools),
            attachments=self._counting.attachments(prompt.messages),
            provider_overhead=self._budget.provider_overhead,
            history=history,
            oversize="compact" if self._budget.oversize == "compact" else "refuse",
        )


def _figures(composed: ComposedPrompt, history: TokenCount) -> ContextFigures:
    """State everything that the decision followed from."""
    budget = composed.budget
    figures = ContextFigures(
        decision=composed.decision,
        instructions=composed.instruction_tokens,
        user_instructions=composed.user_instruction_tokens,
        history=history,
        available_history=composed.available_history_tokens,
    )
    if budget is None:
        return figures
    taken = {
        "context_window": budget.context_window,
        "reserved_output": budget.reserved_output,
        "tool_schemas": as_count(budget.tool_schemas),
        "attachments": as_count(budget.attachments),
        "provider_overhead": as_count(budget.provider_overhead),
    }
    return figures.model_copy(update=taken)


def _after_cut(figures: ContextFigures, selection: Selection, free: int, left: TokenCount) -> ContextFigures:
    """The figures once turns were left out: the history is then counted with the user instructions in it."""
    evicted = _evicted(selection)
    if not evicted:
        return figures
    last = evicted[-1]
    cut = HistoryCut(last_id=last, kept=len(selection.messages), removed=len(evicted), spared=_spared(selection, last))
    decision = decide_context(free, left, compacts=False)
    return figures.model_copy(update={"decision": decision, "history": left, "available_history": free, "cut": cut})


def _evicted(selection: Selection) -> tuple[str, ...]:
    reasons = ((decision.message_id, decision.reason) for decision in selection.decisions)
    return tuple(name for name, reason in reasons if reason is SelectionReason.OLDEST_ELIGIBLE_TURN)


def _spared(selection: Selection, last_id: str) -> tuple[str, ...]:
    """What stayed of turns that are open, older than the last message that went."""
    before = takewhile(lambda decision: decision.message_id != last_id, selection.decisions)
    open_turn = SelectionReason.PROTECTED_INCOMPLETE_TURN
    return tuple(decision.message_id for decision in before if decision.reason is open_turn)


def _shares(records: Sequence[Message], whole: TokenCount, failed_assistant: FailedAssistant) -> dict[str, TokenCount]:
    """Each record's share of the counted whole, by the length of its text: one count for all instead of many.

    The shares add up to the whole; what no model hears has none of it.
    """
    lengths = {record.id: _length(record, failed_assistant) for record in records}
    per_character = (whole.known or 0) / max(1, sum(lengths.values()))
    ends = [round(end * per_character) for end in accumulate(lengths.values(), initial=0)]
    return {
        name: TokenCount(value=end - start, source=CountSource.ESTIMATED)
        for name, (start, end) in zip(lengths, pairwise(ends), strict=True)
    }


def _length(record: Message, failed_assistant: FailedAssistant) -> int:
    if record.role is Role.ASSISTANT and not is_speakable(record.status, failed_assistant):
        return 0
    return sum(len(text) for part in record.parts for text in part_texts(part))


def uncut(turn: PreparedTurn, history: Sequence[HistoryMessage]) -> Sequence[HistoryMessage]:
    """Return what of a history the run's cut leaves: the same at each of its steps."""
    if turn.context is None or turn.context.cut is None:
        return history
    cut = turn.context.cut
    removed = cut_history([item.message for item in history], cut.last_id, cut.spared)
    return [item for item in history if item.message.id not in removed]
