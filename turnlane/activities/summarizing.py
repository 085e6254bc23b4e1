"""Summarising by a model: a stretch of conversation goes to a model, and an instance of the schema comes back.

A long stretch goes in pieces, each with the summary so far; a piece that the model has no room for, in halves. An
answer that does not fit the schema is told what is wrong with it, and given one more try.
"""

from __future__ import annotations

import json
from collections import deque

from pydantic import BaseModel, ValidationError

from turnlane.activities.providers.base import Finish, Provider, ProviderFailure, ProviderRequest, TextDelta, closing
from turnlane.agent.compaction import Compaction, SummaryContext
from turnlane.agent.models import Model
from turnlane.agent.pricing import PriceList, unreported, with_cost
from turnlane.agent.transcript import transcripts
from turnlane.records.base import canonical_json, clean_text
from turnlane.records.messages import TextPart
from turnlane.records.prompt import Prompt, PromptMessage, Speaker
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import FinishReason
from turnlane.records.usage import Usage, add_usage

TRIES = 2
SHORTEST_PIECE = 1000
"""How many characters a model must be able to take beside its instructions and the summary so far."""

NO_RUN = "compaction"
"""What stands for the run in a model call that no run waits for."""


class ModelSummarizer:
    """Makes one summary. `usage` is what its calls spent so far, also when it fails or is cancelled."""

    def __init__(
        self,
        compaction: Compaction,
        provider: Provider,
        model: Model,
        prices: PriceList,
        context: SummaryContext,
        attempt: int,
    ) -> None:
        self.usage: Usage | None = None
        self.model = model
        self._compaction = compaction
        self._provider = provider
        self._prices = prices
        self._has_begun = False
        self._context = context
        self._attempt = attempt

    async def summarize(self) -> BaseModel:
        """Return the summary. Raises `ProviderFailure`, of class `malformed_response` if no answer fits the schema."""
        earlier = _earlier(self._context)
        summary: BaseModel | None = None
        pieces = deque(transcripts(self._context.messages, self._compaction.characters_per_call))
        while pieces:
            piece = pieces.popleft()
            try:
                summary = await self._summarize_piece(piece, earlier)
            except ProviderFailure as error:
                if not _may_be_halved(piece, error.failure):
                    raise
                half = len(piece) // 2
                pieces.extendleft((piece[half:], piece[:half]))
                continue
            earlier = canonical_json(summary.model_dump(mode="json"))
        if summary is None:
            raise ProviderFailure(Failure(failure_class=FailureClass.APPLICATION, code="NOTHING_TO_SUMMARIZE"))
        return summary

    async def _summarize_piece(self, piece: str, earlier: str | None) -> BaseModel:
        messages = [_user(_request(piece, earlier))]
        for _ in range(TRIES):
            answer = await self._ask(messages)
            try:
                return self._compaction.schema.model_validate_json(_json_of(answer))
            except ValidationError as error:
                said = answer if answer.strip() else "(nothing)"
                messages += [
                    PromptMessage(speaker=Speaker.ASSISTANT, parts=(TextPart(text=said),)),
                    _user(_repair(error)),
                ]
        raise ProviderFailure(Failure(failure_class=FailureClass.MALFORMED_RESPONSE, code="SUMMARY_DOES_NOT_FIT"))

    async def _ask(self, messages: list[PromptMessage]) -> str:
        schema = json.dumps(self._compaction.schema.model_json_schema())
        form = f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{schema}"
        request = ProviderRequest(
            model=self.model,
            prompt=Prompt(system=(self._compaction.instructions, form), messages=tuple(messages)),
            conversation_id=self._context.conversation_id,
            run_id=self._context.run_id or NO_RUN,
            step=0,
            attempt=self._attempt,
        )
        asked_for = self._prices.of(self.model.name, None)
        spent: Usage | None = unreported(asked_for)
        try:
            text, finish = await self._read(request)
            prices = self._prices.of(self.model.name, finish.model)
            spent = with_cost(finish.usage, prices) or unreported(prices, is_whole=True)
        except ProviderFailure as error:
            # What was refused outright was not billed; any other call that nobody reported on makes the sum a floor.
            is_refused = error.failure.status is not None and not self._has_begun
            spent = with_cost(error.usage, asked_for) or (None if is_refused else unreported(asked_for))
            raise
        finally:
            self.usage = add_usage(self.usage, spent)
        if finish.reason in (FinishReason.LENGTH, FinishReason.PAUSED):
            raise ProviderFailure(Failure(failure_class=FailureClass.MALFORMED_RESPONSE, code="SUMMARY_CUT_OFF"))
        return text

    async def _read(self, request: ProviderRequest) -> tuple[str, Finish]:
        said: list[str] = []
        self._has_begun = False
        async with closing(self._provider.stream(request)) as parts:
            async for part in parts:
                self._has_begun = True
                if isinstance(part, TextDelta):
                    said.append(part.text)
                elif isinstance(part, Finish):
                    return clean_text("".join(said)), part
        raise ProviderFailure(Failure(failure_class=FailureClass.STREAM_CUT, retryable=True))


def _may_be_halved(piece: str, failure: Failure) -> bool:
    """Whether the model may take less than this: how many tokens a character is, only the model knows."""
    return failure.failure_class is FailureClass.CONTEXT_OVERFLOW and len(piece) >= 2 * SHORTEST_PIECE


def _earlier(context: SummaryContext) -> str | None:
    if context.previous is not None:
        return canonical_json(context.previous.model_dump(mode="json"))
    return context.previous_text


def _user(text: str) -> PromptMessage:
    return PromptMessage(speaker=Speaker.USER, parts=(TextPart(text=text),))


def _request(piece: str, earlier: str | None) -> str:
    begun = f"<earlier-summary>\n{earlier}\n</earlier-summary>\n\n" if earlier else ""
    return f"{begun}<conversation>\n{piece}\n</conversation>\n\nSummarise the conversation as the JSON object."


def _json_of(answer: str) -> str:
    """The JSON object in an answer, whatever a model puts around it."""
    start, end = answer.find("{"), answer.rfind("}")
    return answer[start : end + 1] if 0 <= start < end else answer


def _repair(error: ValidationError) -> str:
    faults = "; ".join(
        f"{'.'.join(map(str, item['loc'])) or 'the answer'}: {item['msg']}"
        for item in error.errors(include_input=False, include_url=False)[:20]
    )
    return f"That does not fit the schema: {faults}. Answer again with the JSON object alone."
