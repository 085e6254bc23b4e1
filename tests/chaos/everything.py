"""Agents that use every feature at random, for a soak that counts what they did.

What a run does follows from its id and its step alone, so that a step made again asks the same. What really
happened is written, a line each, to files in a folder: one for each kind of effect, `wait` for events that are
waited for, and `illegal` for prompts that some provider would refuse.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from turnlane.activities.prompt_check import check_prompt
from turnlane.activities.providers.anthropic_prompt import anthropic_request
from turnlane.activities.providers.base import ProviderRequest, StreamPart
from turnlane.activities.providers.openai_chat import chat_request
from turnlane.activities.providers.openai_responses import responses_request
from turnlane.activities.providers.scripted import ScriptedProvider
from turnlane.agent import (
    Agent,
    Answer,
    AnthropicModel,
    ApprovalQuestion,
    Approvals,
    Compaction,
    DeferredCatalog,
    OpenAIChatModel,
    OpenAIModel,
    PolicyContext,
    StopContext,
    SummaryContext,
    Tool,
    ToolContext,
    tool,
)
from turnlane.agent.models import Action, Call, Fail, Say, ScriptedModel, ScriptedRequest
from turnlane.records.admissions import Policy
from turnlane.records.lane import RetryFacts
from turnlane.records.messages import TextPart
from turnlane.records.prompt import Prompt, PromptFile, Speaker
from turnlane.records.runs import Failure, FailureClass
from turnlane.testing.rules_anthropic import check_messages
from turnlane.testing.rules_chat import check_chat
from turnlane.testing.rules_responses import check_responses
from turnlane.testing.wire import Asked, RequestRefused

LAST_WORD = "last"
"""The input to which every agent simply answers."""

SEED_VARIABLE = "TURNLANE_SOAK_SEED"
EVENT = "word"
SHORT, LONG = 0.01, 2.3
"""Seconds of sleep: in the worker, and in the lane."""

HEADERS = {"authorization": "Bearer k", "x-api-key": "k", "anthropic-version": "2023-06-01"}

Note = Callable[[str, str], None]


def note_in(folder: Path) -> Note:
    """What appends a line to a file of the folder, whole, whatever happens to the process afterwards."""

    def note(name: str, line: str) -> None:
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(handle, f"{line}\n".encode())
        finally:
            os.close(handle)

    return note


# --- what is said -------------------------------------------------------------------------------


def _dice(*place: object) -> Random:
    # For chaos that can be had again, not for secrets.
    return Random(":".join(map(str, (os.environ.get(SEED_VARIABLE, ""), *place))))


def script(request: ScriptedRequest) -> Sequence[Action]:
    """Fail, talk, or call some tools."""
    users = [message for message in request.prompt.messages if message.speaker is Speaker.USER]
    if users and any(isinstance(part, TextPart) and part.text == LAST_WORD for part in users[-1].parts):
        return [Say("the end")]
    dice = _dice(request.run_id, request.step, "calls")
    talk = Say("well then " * dice.randrange(1, 6), chunk=4, delay=0.005)
    if request.step > 3 or dice.random() < 0.3:
        return [talk]
    offered = [spec.name for spec in request.prompt.tools]
    weights = [_WEIGHTS.get(name, 1) for name in offered]
    return [talk, *(Call(name, _arguments(name)) for name in dice.choices(offered, weights, k=dice.randrange(1, 4)))]


_WEIGHTS = {"ship": 4, "send": 2, "charge": 2}
"""How often a tool is called, compared to the others."""


def _arguments(name: str) -> dict[str, Any]:
    return {"query": "what is there to do"} if name == "tool_search" else {}


def stumbling_script(request: ScriptedRequest) -> Sequence[Action]:
    """The same, but now and then the model fails: for a moment, for good, or because of a file."""
    dice = _dice(request.run_id, request.step, request.attempt, "failure")
    has_file = any(isinstance(part, PromptFile) for message in request.prompt.messages for part in message.parts)
    if has_file and dice.random() < 0.5:
        return [Fail(Failure(failure_class=FailureClass.FILE_REFUSED, status=400))]
    if dice.random() < 0.1:
        return [Say("I am"), Fail(Failure(failure_class=FailureClass.OVERLOADED, status=529, retryable=True))]
    if dice.random() < 0.05:
        return [Fail(Failure(failure_class=FailureClass.AUTHENTICATION, status=401))]
    return script(request)


class StrictProvider(ScriptedProvider):
    """Plays scripts, and writes down each prompt that a strict provider would refuse."""

    def __init__(self, note: Note) -> None:
        self._note = note

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        for fault in _faults(request.prompt):
            self._note("illegal", f"{request.run_id} {request.step} {fault}")
        async for part in super().stream(request):
            yield part


def _faults(prompt: Prompt) -> list[str]:
    found = [str(fault) for fault in check_prompt(prompt)]
    for check, body in (
        (check_messages, anthropic_request(AnthropicModel(name="m"), prompt) | {"stream": True}),
        (check_chat, chat_request(OpenAIChatModel(name="m"), prompt)),
        (check_responses, responses_request(OpenAIModel(name="m"), prompt)),
    ):
        try:
            check(Asked(1, HEADERS, body))
        except RequestRefused as error:
            found.append(f"{check.__name__}: {error}")
    return found


# --- what is done -------------------------------------------------------------------------------


def _tools(note: Note) -> list[Tool]:
    @tool
    def charge(ctx: ToolContext) -> str:
        """Have an effect that must not happen twice."""
        note("charge", ctx.idempotency_key)
        return "charged"

    @tool(read_only=True)
    def look() -> str:
        """Look."""
        return "seen"

    @tool(approval="user-approval")
    def pay(ctx: ToolContext) -> str:
        """Have an effect that somebody approves first."""
        note("pay", f"{ctx.run_id} {ctx.call_id}")
        return "paid"

    @tool(approval=_by_chance)
    def book(ctx: ToolContext) -> str:
        """Have an effect that the rules allow, forbid, or leave to somebody."""
        note("book", f"{ctx.run_id} {ctx.call_id}")
        return "booked"

    @tool(durable=True)
    async def ship(ctx: ToolContext) -> list[Any]:
        """Pack, wait a moment, hand over, wait for word, and sleep."""
        return await _ship(note, "ship", ctx)

    @tool(durable=True, approval="user-approval")
    async def send(ctx: ToolContext) -> list[Any]:
        """The same, once somebody approved."""
        note("send", f"{ctx.run_id} {ctx.call_id}")
        return await _ship(note, "send", ctx)

    return [charge, look, pay, book, ship, send]


def _by_chance(question: ApprovalQuestion) -> str:
    dice = _dice(question.run_id, question.call_id, "ruling")
    return dice.choice(["approved", "denied", "user-approval", "not-applicable"])


async def _ship(note: Note, name: str, ctx: ToolContext) -> list[Any]:
    dice = _dice(ctx.run_id, ctx.step_number, ctx.call_id)

    def hand_over() -> str:
        note(f"{name}-handed", ctx.idempotency_key)
        return "receipt"

    packed = await ctx.step("pack", lambda: "packed")
    await ctx.sleep(dice.choice([SHORT, SHORT, LONG]))
    handed = await ctx.effect("hand_over", run=hand_over, reconcile=lambda: None)
    if dice.random() < 0.5:
        return [packed, handed.status]
    note("wait", f"{ctx.conversation_id} {ctx.idempotency_key}")
    return [packed, handed.status, await ctx.wait_for(EVENT, ctx.idempotency_key)]


# --- the agents ---------------------------------------------------------------------------------


def _policy(context: PolicyContext) -> Policy:
    return _dice(context.input.key, "policy").choice(list(Policy))


def _enough(context: StopContext) -> bool:
    return len(context.steps) >= 2 and _dice(context.run_id, context.step_number, "stop").random() < 0.2


def _acceptable(answer: Answer) -> bool:
    return _dice(answer.run_id, "accept").random() > 0.05


async def _summarize(context: SummaryContext) -> dict[str, str]:
    return {"goal": f"{len(context.messages)} messages"}


def everything_agents(folder: Path) -> list[Agent]:
    """An agent with tools and one with a catalog of them; what they do is written to `folder`."""
    shared: dict[str, Any] = {
        "model": ScriptedModel(script=stumbling_script),
        "fallbacks": [ScriptedModel(script=script)],
        "retry": RetryFacts(max_tries=2, initial_seconds=0.02, max_seconds=0.1),
        "idle_timeout": None,
        "checkpoint_every": 2,
        "policy": _policy,
        "stop_when": {"enough": _enough},
        "accept": _acceptable,
        "compaction": Compaction(turns=4, summarize=_summarize),
    }
    tools = _tools(note_in(folder))
    return [
        Agent(name="clerk", tools=tools, coalesce_pending=True, **shared),
        Agent(
            name="librarian",
            catalog=DeferredCatalog(tools=tools, always_on=["charge", "pay"]),
            approvals=Approvals(expires_after=60.0),
            **shared,
        ),
    ]
