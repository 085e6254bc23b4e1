"""The demo's agent: a scripted model that knows its lines, and three small tools.

What it says depends on what it is shown, so its answers prove what stood in the prompt. An answer that
is to be cut off says its beginning and then falls silent until somebody stops it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from turnlane.activities.projection import INTERRUPTED_MARKER
from turnlane.agent import Agent, ScriptedModel, Tool, tool
from turnlane.agent.models import Action, Call, Pause, Say, ScriptedRequest
from turnlane.client.cli.demo_gate import pass_gate
from turnlane.records.messages import TextPart, ToolResultPart
from turnlane.records.prompt import Prompt, PromptMessage, Speaker

SUM = "What is 6 times 7?"
TRAIN = "When does the train leave?"
SEAT = "Please reserve a window seat."
CITY = "Tell me about the city."
WEATHER = "Never mind. How will the weather be?"
LIST = "Write a packing list."
PASSPORT = "First: is my passport still good?"
HOTEL = "Forget the list and book the hotel."
TALE = "Tell me a tale."
DEPOSIT = "Pay the deposit of 50, please."

CITY_BEGUN = "The city began as a harbour, and its oldest street "
WEATHER_BEGUN = "I see that I was cut short. The forecast says: "
WEATHER_UNAWARE = "The forecast says: "
LIST_BEGUN = "Packing list: one umbrella, two pairs of "
TALE_BEGUN = "Once upon a time a worker died in the middle of a"
TALE_WHOLE = TALE_BEGUN + " sentence, and another one told the tale again from its first word to its last."
HOTEL_BOOKED = "Booked. I was shown no packing list."
HOTEL_CONFUSED = "Booked. What is this packing list about?"

SILENCE = Pause(600)


@tool(read_only=True)
def multiply(a: int, b: int) -> int:
    """The product of two numbers."""
    return a * b


def colleague(gate: int) -> Tool:
    """Make the tool that answers once the gate on this port is open."""

    @tool(read_only=True)
    async def ask_colleague(question: str) -> str:
        """Ask somebody who knows, and wait for the answer."""
        await pass_gate(gate)
        return "9:40"

    return ask_colleague


def till(payments: Path) -> Tool:
    """Make the tool that pays, once somebody approved it: a line with the worker's process id in a file."""

    @tool(approval="user-approval")
    def pay_deposit(amount: int) -> str:
        """Pay the deposit."""
        with payments.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        return f"{amount} paid"

    return pay_deposit


def story_agent(gate: int, payments: Path) -> Agent:
    """Make the agent of the demo."""
    return Agent(
        name="demo",
        model=ScriptedModel(name="demo-script", script=script),
        tools=(multiply, colleague(gate), till(payments)),
        checkpoint_every=4,
        idle_timeout=None,
    )


def script(request: ScriptedRequest) -> Sequence[Action]:
    """Play one step: the opening of the question asked last, or what the tools said."""
    if request.step or request.prompt.messages[-1].speaker is Speaker.TOOL:
        return [_said(_conclusion(request.prompt))]
    question = _text(request.prompt.messages[-1])
    return _OPENINGS[question](request)


def _said(text: str) -> Say:
    return Say(text, chunk=4, delay=0.01)


def _conclusion(prompt: Prompt) -> str:
    """Tell the last tool result, and what the user added behind it."""
    results = max(place for place, message in enumerate(prompt.messages) if message.speaker is Speaker.TOOL)
    told = [str(part.output) for part in prompt.messages[results].parts if isinstance(part, ToolResultPart)]
    added = [_text(message) for message in prompt.messages[results + 1 :] if message.speaker is Speaker.USER]
    return " ".join([f"The answer is {', '.join(told)}.", *(f"You added: {text} Done." for text in added)])


def _text(message: PromptMessage) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def _was_told(prompt: Prompt, text: str) -> bool:
    """Whether an earlier answer in the prompt has this text."""
    return any(text in _text(message) for message in prompt.messages if message.speaker is Speaker.ASSISTANT)


def _weather(request: ScriptedRequest) -> Sequence[Action]:
    knows = _was_told(request.prompt, INTERRUPTED_MARKER)
    return [_said(WEATHER_BEGUN if knows else WEATHER_UNAWARE), SILENCE]


def _hotel(request: ScriptedRequest) -> Sequence[Action]:
    return [_said(HOTEL_CONFUSED if _was_told(request.prompt, LIST_BEGUN) else HOTEL_BOOKED)]


def _tale(request: ScriptedRequest) -> Sequence[Action]:
    return [_said(TALE_BEGUN), SILENCE] if request.attempt == 1 else [_said(TALE_WHOLE)]


_OPENINGS: dict[str, Callable[[ScriptedRequest], Sequence[Action]]] = {
    SUM: lambda _: [_said("Let me multiply. "), Call("multiply", {"a": 6, "b": 7})],
    TRAIN: lambda _: [_said("Let me ask. "), Call("ask_colleague", {"question": TRAIN})],
    CITY: lambda _: [_said(CITY_BEGUN), SILENCE],
    WEATHER: _weather,
    LIST: lambda _: [_said(LIST_BEGUN), SILENCE],
    PASSPORT: lambda _: [_said("It is good until next year.")],
    HOTEL: _hotel,
    TALE: _tale,
    DEPOSIT: lambda _: [_said("I have to ask first. "), Call("pay_deposit", {"amount": 50})],
}
