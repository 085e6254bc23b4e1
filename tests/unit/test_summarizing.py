"""Summarising by a model that has little room, or gives no answer that fits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.unit.recorded import text, user
from turnlane.activities.providers.base import Finish, ProviderFailure, ProviderRequest, StreamPart, TextDelta
from turnlane.activities.summarizing import SHORTEST_PIECE, ModelSummarizer
from turnlane.agent import Compaction, ConversationSummary, OpenAIModel, SummaryContext
from turnlane.agent.pricing import PriceList
from turnlane.records.messages import TextPart
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import FinishReason

TOO_LONG = ProviderFailure(Failure(failure_class=FailureClass.CONTEXT_OVERFLOW, status=400))


class Reader:
    """A provider that answers as `reads` does, and keeps what it was given to read."""

    def __init__(self, reads: Callable[[str], str]) -> None:
        self.read: list[str] = []
        self._reads = reads

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        (part,) = request.prompt.messages[0].parts
        assert isinstance(part, TextPart)
        said = part.text.split("<conversation>\n")[1].split("\n</conversation>")[0]
        answer = self._reads(said)
        self.read.append(said)
        yield TextDelta(answer)
        yield Finish(FinishReason.STOP)

    async def aclose(self) -> None:
        """Nothing is open."""


def room_for(characters: int) -> Callable[[str], str]:
    def read(said: str) -> str:
        if len(said) > characters:
            raise TOO_LONG
        return '{"goal": "g"}'

    return read


def summarizer(reader: Reader, words: str, characters: int = 200_000) -> ModelSummarizer:
    message = user("u-1").message.model_copy(update={"parts": (text(words),)})
    context = SummaryContext(conversation_id="c", run_id=None, messages=(message,))
    compaction = Compaction(turns=1, characters_per_call=characters)
    return ModelSummarizer(compaction, reader, OpenAIModel(name="m"), PriceList({}), context, 1)


async def test_a_message_longer_than_a_call_may_be_goes_in_several() -> None:
    reader = Reader(room_for(5_000))
    words = "".join(f"{number:06}" for number in range(2_000))

    summary = await summarizer(reader, words, characters=4_000).summarize()

    assert ConversationSummary(goal="g") == summary
    assert f"User:\n{words}" == "".join(said.removeprefix("User, continued:\n") for said in reader.read)


async def test_a_piece_that_the_model_has_no_room_for_goes_in_halves_in_order() -> None:
    reader = Reader(room_for(3_000))
    words = "".join(f"{number:06}" for number in range(2_000))

    await summarizer(reader, words).summarize()

    assert f"User:\n{words}" == "".join(reader.read)
    assert max(map(len, reader.read)) <= 3_000


async def test_a_model_that_has_no_room_at_all_is_given_up() -> None:
    reader = Reader(room_for(SHORTEST_PIECE // 2))

    with pytest.raises(ProviderFailure) as failed:
        await summarizer(reader, "x" * 10_000).summarize()

    assert FailureClass.CONTEXT_OVERFLOW is failed.value.failure.failure_class


async def test_a_summary_that_never_fits_its_schema_is_given_up_after_one_more_try() -> None:
    reader = Reader(lambda said: "no summary")

    with pytest.raises(ProviderFailure) as failed:
        await summarizer(reader, "hi").summarize()

    assert (2, "SUMMARY_DOES_NOT_FIT") == (len(reader.read), failed.value.failure.code)
