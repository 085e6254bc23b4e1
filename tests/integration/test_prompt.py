"""Prompts in a run: composed once for all of its steps, retries and workers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import open_play, run_id
from tests.integration.prompt_stage import BUSY, by_words, tell
from tests.integration.stage import BOUND, Stage
from turnlane.agent import PromptSection, SectionContext, SystemText, TextCounter
from turnlane.records.events import TerminalEvent
from turnlane.records.runs import TerminalReason
from turnlane.records.usage import UNAVAILABLE, stated

pytestmark = pytest.mark.server


class Numbered:
    """A section that says how often it was rendered, and for what."""

    def __init__(self) -> None:
        self.seen: list[SectionContext] = []

    async def __call__(self, context: SectionContext) -> str:
        self.seen.append(context)
        return f"rendering {len(self.seen)}"


async def test_a_prompt_is_composed_once_for_all_steps_and_retries(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    section = Numbered()
    play = await open_play(bench, serve, conversation, prompt=[PromptSection(name="n", render=section)])
    ticket = await play.submit("A")
    (await play.stage.call(1)).fail(BUSY)
    (await play.stage.call(2)).use(("c1", "look", "{}"))
    (await play.stage.call(3)).answer("Seen.")
    await play.reasons(ticket)
    await tell(play, "B")

    assert [("rendering 1",)] * 3 + [("rendering 2",)] == [call.request.prompt.system for call in play.stage.calls]
    assert 2 == len(section.seen)


async def test_another_worker_goes_on_with_what_was_composed(bench: Bench, serve: Serve, conversation: str) -> None:
    first, second = Stage(), Stage()
    one, two = (PromptSection(name="n", render=text) for text in ("the first", "the second"))
    async with bench.worker(first.agent(prompt=[one]), providers=first.providers, graceful_seconds=0.1):
        ticket = await bench.client().submit(conversation, "A")
        await first.call(1)
    await serve(second.agent(prompt=[two]), providers=second.providers)
    call = await second.call(1)
    call.answer("Done.")
    result = await ticket.result(BOUND)

    assert (TerminalReason.SUCCESS, "Done.") == (result.reason, result.text)
    assert ("the first",) == call.request.prompt.system


async def test_a_section_is_told_which_conversation_and_run_it_is_for(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    section = Numbered()
    play = await open_play(bench, serve, conversation, prompt=[PromptSection(name="n", render=section)])
    play.stage.play()
    options: dict[str, Any] = {"context": {"language": "de"}, "metadata": {"topic": "rain"}}
    tickets = [await play.submit(name, **options) for name in ("A", "B")]
    await play.reasons(*tickets)

    assert ["session.started", "turn.started"] == [seen.event for seen in section.seen]
    assert [run_id(ticket) for ticket in tickets] == [seen.run_id for seen in section.seen]
    expected = {(conversation, "de", "rain")}
    assert expected == {
        (seen.conversation_id, (seen.context or {})["language"], (seen.metadata or {})["topic"])
        for seen in section.seen
    }


async def test_sections_stand_behind_the_instructions(bench: Bench, serve: Serve, conversation: str) -> None:
    sections = [PromptSection(name="a", render="Be brief."), PromptSection(name="b", render="Be true.")]
    play = await open_play(bench, serve, conversation, instructions="Be kind.", prompt=sections)
    await tell(play, "A")

    assert ("Be kind.\n\nBe brief.\n\nBe true.",) == play.stage.calls[0].request.prompt.system


async def test_adapted_instructions_are_sent_as_they_are(bench: Bench, serve: Serve, conversation: str) -> None:
    adapted = (SystemText(text="Be kind.", options={"anthropic": {"x": 1}}), "And brief.", " ")
    play = await open_play(bench, serve, conversation, adapt_instructions=lambda given: adapted)
    await tell(play, "A")

    assert adapted[:2] == play.stage.calls[0].request.prompt.system


def _broken(*_: object) -> Any:
    raise KeyError("secret words")


def _fraction(text: str) -> Any:
    return 3.5


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"prompt": [PromptSection(name="n", render=_broken)]}, "PROMPT_FAILED"),
        ({"prompt": [PromptSection(name="n", render="x", estimate_tokens=_broken)]}, "PROMPT_FAILED"),
        ({"prompt": [PromptSection(name="n", render="x", estimate_tokens=_fraction)]}, "PROMPT_FAILED"),
        ({"instructions": "x", "adapt_instructions": _broken}, "PROMPT_FAILED"),
        ({"budget": by_words(9, counter=TextCounter(_broken))}, "TOKEN_COUNT_FAILED"),
        ({"budget": by_words(9, counter=TextCounter(_fraction))}, "TOKEN_COUNT_FAILED"),
    ],
)
async def test_what_the_application_does_wrong_fails_the_run_before_any_call(
    bench: Bench,
    serve: Serve,
    conversation: str,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    code: str,
) -> None:
    play = await open_play(bench, serve, conversation, **options)
    ticket = await play.submit("A")
    (end,) = [event async for event in ticket.events() if isinstance(event, TerminalEvent)]

    assert (TerminalReason.RUNTIME_FAILURE, code) == (end.reason, end.failure and end.failure.code)
    assert end.metrics is not None and end.metrics.partial
    assert stated(None) == end.metrics.usage and UNAVAILABLE == end.metrics.usage.input_tokens
    assert [] == play.stage.calls
    assert "secret words" not in caplog.text


async def test_a_waiting_input_is_not_in_the_prompt_of_the_run_before_it(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="load_history")
    assert play.held is not None
    first = await play.submit("A")
    await play.held.barrier.until_reached()
    second = await play.submit("B")
    play.held.barrier.release()
    play.stage.play()
    await play.reasons(first, second)

    assert [("user", "A")] == play.stage.calls[0].heard
    assert [("user", "A"), ("assistant", "answer to A"), ("user", "B")] == play.stage.calls[1].heard
