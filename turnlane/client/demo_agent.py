"""The agent of `turnlane dev` when none is named: small real tools, and the model the environment has a key for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from turnlane.activities.placeholders import WAITING_CALL
from turnlane.activities.prompt_writer import AWAITED_NOTE
from turnlane.agent import (
    Agent,
    AnthropicModel,
    Compaction,
    ConversationSummary,
    Model,
    OpenAIChatModel,
    OpenAIModel,
    ScriptedModel,
    SummaryContext,
)
from turnlane.agent.models import Action, Call, Say, ScriptedRequest
from turnlane.client.demo_tools import calculate, current_time, remind, save_note, wait_seconds, word_count
from turnlane.records.base import canonical_json
from turnlane.records.messages import Role, TextPart, ToolResultPart
from turnlane.records.prompt import PromptMessage, Speaker

INSTRUCTIONS = (
    "You are the demonstration agent of turnlane, durable conversations on Temporal. Answer briefly. "
    "Use your tools for arithmetic, the time, counting words, waiting, reminders and notes. A note is only written "
    "once the user approved it; a reminder may take long, and survives whatever happens to the machine."
)
LONGEST_QUESTION = 1000

_ARITHMETIC = re.compile(r"[-+(]*\d[\d\s.+\-*/%()]*[-+*/%][\d\s.+\-*/%()]*\d\)*")
_TIME = re.compile(r"\btime\b|\bdate\b|\bday is it\b", re.IGNORECASE)
_ZONE = re.compile(r"\b[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+\b")
_WAIT = re.compile(r"\bwait\b\D*(\d+(?:\.\d+)?)", re.IGNORECASE)
_REMIND = re.compile(
    r"\bremind\b.*?(\d+(?:\.\d+)?)\s*(second|minute|hour|day)s?\b(?:\s+(?:to|of|about))?\s*(.*)", re.I | re.S
)
_NOTE = re.compile(r"^(?:please\s+)?note(?:\s+down)?\b[\s:]*(.+)", re.IGNORECASE | re.DOTALL)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_COUNT = re.compile(r"\bcount\b.*?\bwords?\b(?:\s+(?:in|of))?:?\s*(.*)", re.IGNORECASE | re.DOTALL)


def offline_script(request: ScriptedRequest) -> list[Action]:
    """Play a model without one: call the tool that the last message asks for, tell what it gave, else echo."""
    messages = request.prompt.messages
    if not messages:
        return [Say("There is nothing to answer yet.")]
    last = messages[-1]
    text = "\n".join(part.text for part in last.parts if isinstance(part, TextPart)).strip()
    if last.speaker is not Speaker.USER or text == AWAITED_NOTE:
        # After an approval the result that was awaited stands with its call, which may be further up.
        return [Say(_told(_results(last) or _awaited(messages)), chunk=6, delay=0.02)]
    call = _wanted_call(text)
    return [Say("Let me see. ", chunk=6, delay=0.02), call] if call else [Say(_echo(text), chunk=6, delay=0.02)]


def _wanted_call(text: str) -> Call | None:
    text = text[:LONGEST_QUESTION]
    if found := _COUNT.search(text):
        return Call("word_count", {"text": found[1]})
    if found := _NOTE.search(text):
        return Call("save_note", {"text": found[1].strip()})
    if found := _REMIND.search(text):
        seconds = float(found[1]) * _SECONDS[found[2].lower()]
        return Call("remind", {"seconds": seconds, "about": found[3].strip() or "what you wanted"})
    if found := _WAIT.search(text):
        return Call("wait_seconds", {"seconds": float(found[1])})
    if found := _ARITHMETIC.search(text):
        return Call("calculate", {"expression": found[0].strip()})
    if _TIME.search(text):
        zone = _ZONE.search(text)
        return Call("current_time", {"time_zone": zone[0]} if zone else {})
    return None


def _results(message: PromptMessage) -> list[ToolResultPart]:
    """The results in a message; a call that still waits for approval has none."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    return [part for part in results if part.output != WAITING_CALL.output]


def _awaited(messages: Sequence[PromptMessage]) -> list[ToolResultPart]:
    """The latest result of the tool that waits for approval."""
    return [part for message in messages for part in _results(message) if part.tool_name == save_note.name][-1:]


def _told(results: Sequence[ToolResultPart]) -> str:
    told = [
        f"{part.tool_name}: {part.output if isinstance(part.output, str) else canonical_json(part.output)}"
        for part in results
    ]
    return "; ".join(told) or "The tool gave no result."


def _echo(text: str) -> str:
    return (
        f"You said: {text}\nI am an offline script, not a model. Ask me to calculate 6*7, for the time in "
        'Europe/Berlin, to count the words of something, or to wait 10 seconds; say "remind me in 20 seconds to '
        'stretch" (a durable tool) or "note: buy milk" (a tool that asks you first). Or start with OPENAI_API_KEY '
        "or ANTHROPIC_API_KEY set to talk to a model."
    )


async def offline_summary(context: SummaryContext) -> ConversationSummary:
    """Sum a conversation up without a model: what the user said, line by line."""
    earlier = context.previous.facts if isinstance(context.previous, ConversationSummary) else []
    said = [" ".join(message.text.split()) for message in context.messages if message.role is Role.USER]
    facts = [f"The user said: {text}" for text in said]
    return ConversationSummary(goal="To try turnlane out.", facts=[*earlier, *facts])


def choose_model(env: Mapping[str, str] = os.environ) -> Model:
    """Pick a model by what the environment has: an OpenAI-compatible server, OpenAI, Anthropic, else the script.

    `TURNLANE_MODEL` names another model of the provider chosen.
    """
    name = env.get("TURNLANE_MODEL")
    if env.get("OPENAI_BASE_URL"):
        key = "OPENAI_API_KEY" if env.get("OPENAI_API_KEY") else None
        return OpenAIChatModel(name=name or "default", base_url=env["OPENAI_BASE_URL"], api_key_env=key)
    if env.get("OPENAI_API_KEY"):
        return OpenAIModel(name=name or "gpt-5-mini")
    if env.get("ANTHROPIC_API_KEY"):
        return AnthropicModel(name=name or "claude-sonnet-4-5")
    return ScriptedModel(name="offline-script", script=offline_script)


def demo_agent(model: Model | None = None) -> Agent:
    """Make the demo agent, with the model the environment has a key for unless one is given."""
    chosen = model or choose_model()
    is_offline = isinstance(chosen, ScriptedModel)
    return Agent(
        name="demo",
        model=chosen,
        instructions=INSTRUCTIONS,
        tools=(current_time, calculate, word_count, wait_seconds, remind, save_note),
        # Without a threshold: only when somebody asks, with `/compact` or `turnlane compact`.
        compaction=Compaction(keep_recent_turns=2, summarize=offline_summary if is_offline else None),
    )
