"""The scripted provider: plays a `ScriptedModel`'s script as if a model had said it, offline and repeatably."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence

from turnlane.activities.providers.base import (
    Finish,
    ProviderFailure,
    ProviderRequest,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    StreamPart,
    TextDelta,
    ToolArguments,
    ToolCall,
)
from turnlane.agent.models import Action, Call, Fail, Pause, Say, ScriptedModel, ScriptedRequest, Stop, Think
from turnlane.records.messages import ToolCallPart, ToolResultPart
from turnlane.records.prompt import Prompt, PromptFile
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import FinishReason
from turnlane.records.usage import Usage, UsageValue, cut_short


class ScriptedProvider:
    """Plays scripts. Nothing is shared between calls."""

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        """Play the script's actions for this step and attempt, then finish.

        A script that raises, or stops for a reason that does not exist, fails the call as `application`.
        """
        actions = _actions(request)
        performance = _Performance(request)
        yield ResponseStarted(response_id=performance.response_id, usage=cut_short(performance.usage))
        for action in actions:
            async for part in performance.play(action):
                yield part
            if isinstance(action, Stop):
                break
        yield performance.finish()

    async def aclose(self) -> None:
        """Nothing is open."""


class _Performance:
    """One playing of a script: what it said so far, and what that counts as."""

    def __init__(self, request: ProviderRequest) -> None:
        self.response_id = f"scripted_{request.run_id}_{request.step}_{request.attempt}"
        self._model = request.model.name
        self._step = request.step
        self._words_in = _prompt_words(request.prompt)
        self._words_out = 0
        self._calls = 0
        self._stop: FinishReason | None = None

    @property
    def usage(self) -> Usage:
        """The words that went in and came out, told as a provider would tell tokens."""
        return Usage(
            input_tokens=UsageValue.reported(self._words_in), output_tokens=UsageValue.reported(self._words_out)
        )

    def finish(self) -> Finish:
        """End the stream for the reason the script gave, or the one its actions imply."""
        reason = self._stop or (FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP)
        return Finish(
            reason, raw_reason=reason.value, usage=self.usage, response_id=self.response_id, model=self._model
        )

    async def play(self, action: Action) -> AsyncIterator[StreamPart]:
        """Yield the stream parts of one action, with the silences it asks for."""
        if isinstance(action, Say):
            async for piece in self._pieces(action):
                yield TextDelta(piece)
        elif isinstance(action, Think):
            yield ReasoningStart()
            async for piece in self._pieces(action):
                yield ReasoningDelta(piece)
            yield ReasoningEnd()
        elif isinstance(action, Call):
            for part in self._call(action):
                yield part
        elif isinstance(action, Pause):
            await asyncio.sleep(action.seconds)
        elif isinstance(action, Fail):
            raise ProviderFailure(action.failure, self.usage)
        else:
            self._stop = _finish_reason(action)

    async def _pieces(self, action: Say | Think) -> AsyncIterator[str]:
        self._words_out += len(action.text.split())
        for start in range(0, len(action.text), max(action.chunk, 1)):
            if action.delay:
                await asyncio.sleep(action.delay)
            yield action.text[start : start + max(action.chunk, 1)]

    def _call(self, action: Call) -> Iterator[StreamPart]:
        arguments = action.arguments if isinstance(action.arguments, str) else json.dumps(action.arguments)
        call_id = action.call_id or f"call_{self._step}_{self._calls}"
        self._calls += 1
        self._words_out += 1 + len(arguments.split())
        yield ToolArguments(size=len(arguments))
        yield ToolCall(call_id=call_id, name=action.tool, arguments=arguments)


def _actions(request: ProviderRequest) -> Sequence[Action]:
    model = request.model
    if not isinstance(model, ScriptedModel):
        raise _script_failure("not_a_script")
    asked = ScriptedRequest(request.prompt, request.conversation_id, request.run_id, request.step, request.attempt)
    try:
        return tuple(model.script(asked))
    except Exception as error:
        raise _script_failure("script_raised") from error


def _finish_reason(action: Stop) -> FinishReason:
    try:
        return FinishReason(action.reason)
    except ValueError as error:
        raise _script_failure("unknown_finish_reason") from error


def _script_failure(code: str) -> ProviderFailure:
    return ProviderFailure(Failure(failure_class=FailureClass.APPLICATION, code=code, provider="scripted"))


def _prompt_words(prompt: Prompt) -> int:
    texts = [given.text for given in prompt.system_texts]
    for message in prompt.messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                texts.append(f"{part.tool_name} {json.dumps(part.input)}")
            elif isinstance(part, ToolResultPart):
                texts.append(json.dumps(part.output))
            elif not isinstance(part, PromptFile):
                texts.append(part.text)
    return sum(len(text.split()) for text in texts)
