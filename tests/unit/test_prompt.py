"""Prompt sections: what is joined, what is counted, and what the figures decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from turnlane.agent import (
    ContextDecision,
    CountSource,
    Instructions,
    PromptBudget,
    PromptSection,
    SectionContext,
    SystemText,
    TokenCount,
    compose_prompt,
)
from turnlane.agent.context import decide_context
from turnlane.records.tokens import UNKNOWN_COUNT, add_counts

FITS, OVERSIZED = ContextDecision.FITS, ContextDecision.OVERSIZED
COMPACT, UNAVAILABLE = ContextDecision.REQUIRES_COMPACTION, ContextDecision.UNAVAILABLE


def section(name: str, text: str, tokens: int | None = None, **options: Any) -> PromptSection:
    """A section that always says this, and is this large."""
    estimate = None if tokens is None else lambda said: tokens
    return PromptSection(name=name, render=text, estimate_tokens=estimate, **options)


def measured(value: int) -> TokenCount:
    return TokenCount(value=value, source=CountSource.MEASURED)


def budget(window: int, reserved: int = 0, history: int | None = 0, **options: Any) -> PromptBudget:
    known = UNKNOWN_COUNT if history is None else measured(history)
    return PromptBudget(context_window=window, reserved_output=reserved, history=known, **options)


async def test_system_sections_are_joined_by_one_blank_line_and_empty_ones_count() -> None:
    composed = await compose_prompt([section("a", "Be kind."), section("b", ""), section("c", "Be brief.")])

    assert (SystemText(text="Be kind.\n\n\n\nBe brief."),) == composed.instructions
    assert ["a", "b", "c"] == [each.name for each in composed.sections]


async def test_user_sections_stand_apart_in_their_order_without_the_blank_ones() -> None:
    sections = [
        section("u1", "I am Ada.", role="user"),
        section("s", "Be kind."),
        section("u2", " \n", role="user"),
        section("u3", "I like rain.", role="user"),
    ]

    composed = await compose_prompt(sections)

    assert ("I am Ada.", "I like rain.") == composed.user_instructions
    assert (SystemText(text="Be kind."),) == composed.instructions
    assert ["u1", "s", "u2", "u3"] == [each.name for each in composed.sections]


async def test_sections_are_rendered_one_after_the_other_for_what_they_are_told() -> None:
    seen: list[tuple[str, str]] = []

    def plain(context: SectionContext) -> str:
        seen.append(("plain", context.event))
        return f"for {context.conversation_id}"

    async def awaited(context: SectionContext) -> str:
        seen.append(("awaited", context.run_id))
        return "and later"

    context = SectionContext(conversation_id="c", run_id="r", event="session.started")
    composed = await compose_prompt(
        [PromptSection(name="one", render=plain), PromptSection(name="two", render=awaited)], context
    )

    assert [("plain", "session.started"), ("awaited", "r")] == seen
    assert "for c\n\nand later" == composed.instructions[0].text


def test_a_prompt_composed_alone_is_that_of_a_turn() -> None:
    assert "turn.started" == SectionContext().event


def test_an_event_that_there_is_not_is_refused() -> None:
    event: Any = "turn.finished"
    with pytest.raises(ValueError, match=r"session\.started"):
        SectionContext(event=event)


@pytest.mark.parametrize("wrong", [{"name": ""}, {"stability": "sometimes"}, {"role": "assistant"}])
def test_a_section_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="section"):
        PromptSection(**({"name": "a", "render": "x"} | wrong))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("short", [SystemText(text="short")]),
        (
            SystemText(text="one", options={"anthropic": {"k": 1}}),
            [SystemText(text="one", options={"anthropic": {"k": 1}})],
        ),
        (["a", SystemText(text="b")], [SystemText(text="a"), SystemText(text="b")]),
    ],
)
async def test_instructions_may_be_adapted(given: Any, expected: Sequence[SystemText]) -> None:
    heard: list[Instructions] = []

    async def adapt(instructions: Instructions) -> Any:
        heard.append(instructions)
        return given

    composed = await compose_prompt([section("a", "A"), section("b", "B")], adapt_instructions=adapt)

    assert list(expected) == list(composed.instructions)
    assert "A\n\nB" == heard[0].text
    assert ["a", "b"] == [each.name for each in heard[0].sections]


async def test_a_section_that_says_no_text_is_a_type_error() -> None:
    render: Any = lambda context: 7  # noqa: E731
    with pytest.raises(TypeError):
        await compose_prompt([PromptSection(name="a", render=render)])


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([], TokenCount(value=0, source=CountSource.COMPUTED)),
        ([measured(3), measured(4)], TokenCount(value=7, source=CountSource.COMPUTED)),
        (
            [measured(3), TokenCount(value=4, source=CountSource.ESTIMATED)],
            TokenCount(value=7, source=CountSource.ESTIMATED),
        ),
        ([measured(3), UNKNOWN_COUNT], UNKNOWN_COUNT),
        ([measured(3), TokenCount(value=4, source=CountSource.UNAVAILABLE)], UNKNOWN_COUNT),
        ([TokenCount(source=CountSource.MEASURED)], UNKNOWN_COUNT),
    ],
)
def test_counts_are_added_as_far_as_they_are_known(counts: list[TokenCount], expected: TokenCount) -> None:
    assert expected == add_counts(counts)


async def test_a_section_counts_itself_before_the_fallback_does() -> None:
    async def words(text: str) -> TokenCount:
        return measured(len(text.split()))

    composed = await compose_prompt(
        [section("own", "one two three", 100), section("s", "one two"), section("u", "a b c", role="user")],
        estimate=words,
    )

    assert TokenCount(value=102, source=CountSource.ESTIMATED) == composed.instruction_tokens
    assert TokenCount(value=3, source=CountSource.COMPUTED) == composed.user_instruction_tokens


async def test_what_nobody_counts_is_unknown() -> None:
    composed = await compose_prompt([section("s", "one two")], budget=budget(100))

    assert UNKNOWN_COUNT == composed.instruction_tokens
    assert composed.available_history_tokens is None
    assert UNAVAILABLE is composed.decision


@pytest.mark.parametrize(("wrong", "error"), [(3.5, TypeError), (True, TypeError), ("3", TypeError), (-1, ValueError)])
async def test_an_estimate_that_is_no_count_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        await compose_prompt([PromptSection(name="a", render="x", estimate_tokens=lambda text: wrong)])


@pytest.mark.parametrize(
    ("given", "available", "decision"),
    [
        (budget(100, 101), -1, OVERSIZED),
        (budget(100, 101, oversize="refuse"), -1, OVERSIZED),
        (budget(0), 0, FITS),
        (budget(100, 10, 90), 90, FITS),
        (budget(100, 10, 91), 90, COMPACT),
        (budget(100, 10, 91, oversize="refuse"), 90, OVERSIZED),
        (budget(100, 10, None), 90, UNAVAILABLE),
        (budget(100, 10, 0, tool_schemas=UNKNOWN_COUNT), None, UNAVAILABLE),
        (budget(100, 10, 0, attachments=UNKNOWN_COUNT), None, UNAVAILABLE),
        (budget(100, 10, 0, provider_overhead=UNKNOWN_COUNT), None, UNAVAILABLE),
    ],
)
async def test_the_figures_decide(given: PromptBudget, available: int | None, decision: ContextDecision) -> None:
    composed = await compose_prompt([], budget=given)

    assert (available, decision) == (composed.available_history_tokens, composed.decision)


async def test_everything_that_is_taken_is_taken_off_the_window() -> None:
    given = budget(100, 10, 91, tool_schemas=5, attachments=0, provider_overhead=5)

    composed = await compose_prompt([section("a", "x", 20)], budget=given)

    assert (60, COMPACT) == (composed.available_history_tokens, composed.decision)


async def test_without_a_budget_nothing_is_decided() -> None:
    composed = await compose_prompt([section("a", "x", 20)])

    assert (None, UNAVAILABLE) == (composed.available_history_tokens, composed.decision)


@pytest.mark.parametrize(
    ("tokens", "history", "inserted", "available", "decision"),
    [
        (30, 60, True, 60, FITS),
        (30, 61, True, 60, COMPACT),
        (30, 61, False, 90, FITS),
        (91, 0, True, -1, OVERSIZED),
        (None, 0, True, None, UNAVAILABLE),
        (None, 0, False, 90, FITS),
    ],
)
async def test_user_instructions_take_room_in_the_turn_that_plants_them(
    tokens: int | None, history: int, inserted: bool, available: int | None, decision: ContextDecision
) -> None:
    composed = await compose_prompt([section("u", "I am Ada.", tokens, role="user")], budget=budget(100, 10, history))

    final = composed.finalize_seed(inserted)

    assert (90, available, decision) == (
        composed.available_history_tokens,
        final.available_history_tokens,
        final.decision,
    )


async def test_user_instructions_of_an_unknown_budget_stay_unknown() -> None:
    composed = await compose_prompt([section("s", "x"), section("u", "y", 3, role="user")], budget=budget(100))

    assert UNAVAILABLE is composed.finalize_seed(True).decision


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"context_window": 1.5}, TypeError),
        ({"context_window": "100"}, TypeError),
        ({"reserved_output": True}, TypeError),
        ({"reserved_output": -1}, ValueError),
        ({"oversize": "select"}, ValueError),
    ],
)
def test_a_budget_is_whole_numbers(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        PromptBudget(**({"context_window": 100, "reserved_output": 1} | wrong))


def test_a_negative_rest_is_too_little_for_an_empty_history() -> None:
    assert OVERSIZED is decide_context(-1, measured(0), compacts=True)
