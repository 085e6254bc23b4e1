"""Budgets in a run: a prompt is weighed before the first call, and cut the same way at each step."""

from __future__ import annotations

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import open_play
from tests.integration.prompt_stage import BUSY, by_words, ending, figures, requests, tell, words
from tests.integration.stage import BOUND, Stage
from turnlane.agent import (
    Agent,
    Compaction,
    ContextBudget,
    ConversationSummary,
    ModelDescriptor,
    ModelRegistry,
    PromptSection,
    ProviderCounter,
    SummaryContext,
    TextCounter,
    TokenCount,
)
from turnlane.agent.models import Say, ScriptedModel
from turnlane.records.messages import FilePart, TextPart
from turnlane.records.runs import Failure, FailureClass, TerminalReason

pytestmark = pytest.mark.server

# --- budgets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        (by_words(100, reserved_output=101), "OVERSIZED"),
        (by_words(100, reserved_output=101, oversize="refuse"), "OVERSIZED"),
        (by_words(100, reserved_output=101, oversize="select"), "OVERSIZED"),
        (by_words(20, reserved_output=10, tool_schemas=5, provider_overhead=4), "REQUIRES_COMPACTION"),
        (by_words(20, reserved_output=10, tool_schemas=5, provider_overhead=4, oversize="refuse"), "OVERSIZED"),
        (by_words(20, reserved_output=10, tool_schemas=5, provider_overhead=4, oversize="select"), "OVERSIZED"),
    ],
)
async def test_a_prompt_that_does_not_fit_is_never_sent(
    bench: Bench, serve: Serve, conversation: str, budget: ContextBudget, code: str
) -> None:
    play = await open_play(bench, serve, conversation, budget=budget)
    result = await (await play.submit("two words")).result(BOUND)

    assert (TerminalReason.CONTEXT_OVERFLOW, code) == ending(result)
    assert [] == play.stage.calls
    assert [] == await requests(play)


async def test_everything_that_takes_room_is_taken_off_before_the_history_is_weighed(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    section = PromptSection(name="s", render="short", estimate_tokens=lambda text: 20)
    budget = by_words(100, reserved_output=10, tool_schemas=5, attachments=0, provider_overhead=5)
    play = await open_play(bench, serve, conversation, prompt=[section], budget=budget)
    oversized = await (await play.submit("too " * 91, key="long")).result(BOUND)

    assert (TerminalReason.CONTEXT_OVERFLOW, "REQUIRES_COMPACTION") == ending(oversized)
    assert [] == play.stage.calls


async def test_a_prompt_that_just_fits_is_sent_with_its_figures(bench: Bench, serve: Serve, conversation: str) -> None:
    budget = by_words(20, reserved_output=10, tool_schemas=5, provider_overhead=1)
    play = await open_play(bench, serve, conversation, instructions="Be kind.", budget=budget)
    reasons = await tell(play, "two words")

    assert ["success"] == reasons
    assert {
        "decision": "fits",
        "context_window": 20,
        "reserved_output": 10,
        "available_history": 2,
        "instructions": 2,
        "user_instructions": 0,
        "tool_schemas": 5,
        "attachments": 0,
        "provider_overhead": 1,
        "history": 2,
    } == await figures(play)


@pytest.mark.parametrize(
    "budget",
    [
        ContextBudget(context_window=1, reserved_output=0),
        ContextBudget(counter=TextCounter(words), reserved_output=0),
        ContextBudget(counter=TextCounter(words), context_window=1),
        by_words(1, tool_schemas=TokenCount()),
        by_words(1, counter=ProviderCounter()),
    ],
    ids=["no-counter", "no-window", "no-output", "no-schemas", "a-provider-that-cannot-count"],
)
async def test_where_a_figure_is_unknown_the_call_is_made(
    bench: Bench, serve: Serve, conversation: str, budget: ContextBudget
) -> None:
    play = await open_play(bench, serve, conversation, budget=budget)
    reasons = await tell(play, "two words")

    assert ["success"] == reasons
    assert "unavailable" == (await figures(play))["decision"]


async def test_files_that_nobody_counts_leave_the_budget_undecided(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, budget=by_words(1))
    play.stage.play()
    file = FilePart(media_type="image/png", reference="https://example.com/a.png")
    ticket = await play.client.submit(conversation, [TextPart(text="Look."), file], key="A")

    assert ["success"] == await play.reasons(ticket)
    assert ("unavailable", None) == ((await figures(play))["decision"], (await figures(play))["attachments"])


async def test_the_window_is_that_of_the_models_descriptor(bench: Bench, serve: Serve, conversation: str) -> None:
    stage = Stage()
    model = ScriptedModel(script=lambda request: [Say("never")], max_output_tokens=7)
    models = ModelRegistry({"small": ModelDescriptor(model=model, context_window=8)})
    budget = ContextBudget(counter=TextCounter(words))
    await serve(
        Agent(name="actor", model="small", models=models, budget=budget, idle_timeout=None), providers=stage.providers
    )
    fits = await bench.client().submit(conversation, "one")
    (await stage.call(1)).answer("x")
    result = await fits.result(BOUND)
    oversized = await (await bench.client().submit(conversation, "two words")).result(BOUND)

    assert TerminalReason.SUCCESS is result.reason
    assert (TerminalReason.CONTEXT_OVERFLOW, "REQUIRES_COMPACTION") == ending(oversized)


async def test_planted_user_instructions_take_room_in_their_first_turn(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    user = PromptSection(name="who", role="user", render="I am Ada.")
    play = await open_play(bench, serve, conversation, prompt=[user], budget=by_words(5))
    reasons = await tell(play, "two words")
    first = await figures(play)

    assert ["success"] == reasons
    assert (3, 2, 2) == (first["user_instructions"], first["available_history"], first["history"])
    assert ["context_overflow"] == await tell(play, "B")


# --- selection ----------------------------------------------------------------------------------


async def test_the_oldest_turns_are_left_out_until_the_rest_fits(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, budget=by_words(10, oversize="select"))
    reasons = await tell(play, "A", "B", "C", "D")

    assert ["success"] * 4 == reasons
    heard = play.stage.calls[-1].heard
    assert [("user", name) for name in ("B", "C", "D")] == [said for said in heard if said[0] == "user"]
    last = await figures(play)
    assert ("fits", 9, 2, 5) == (last["decision"], last["history"], last["removed"], last["kept"])
    assert 8 == len(await play.messages())


async def test_a_summary_takes_room_and_user_instructions_that_it_replaced_do_not_come_back(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    async def summarize(context: SummaryContext) -> ConversationSummary:
        return ConversationSummary(goal="five words of a goal")

    play = await open_play(
        bench,
        serve,
        conversation,
        prompt=[PromptSection(name="who", role="user", render="I am Ada.")],
        compaction=Compaction(turns=2, summarize=summarize, render=lambda summary: "five words of a summary"),
        budget=by_words(12, oversize="select"),
    )
    await tell(play, "A", "B", "C")
    compacted = await figures(play)
    await tell(play, "D")

    assert ("fits", 10) == (compacted["decision"], compacted["history"])
    assert [("user", "B"), ("assistant", "answer to B"), ("user", "C")] == play.stage.calls[2].heard
    assert [("user", "C"), ("assistant", "answer to C"), ("user", "D")] == play.stage.calls[3].heard
    assert all("I am Ada." not in str(call.heard) for call in play.stage.calls[2:])


async def test_what_was_left_out_stays_out_at_every_step_of_the_run(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, budget=by_words(6, oversize="select"))
    await tell(play, "A", "B")
    play.stage.hold()
    ticket = await play.submit("C")
    (await play.stage.call(3)).use(("c1", "look", "{}"))
    (await play.stage.call(4)).fail(BUSY)
    (await play.stage.call(5)).answer("Seen.")
    await play.reasons(ticket)

    expected = [("user", "B"), ("assistant", "answer to B"), ("user", "C")]
    third, fourth, fifth = (call.heard for call in play.stage.calls[2:])
    assert expected == third
    assert [*expected, ("assistant", "c1"), ("tool", "c1")] == fourth == fifth


async def test_the_turn_that_is_kept_is_never_cut_in_two(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, budget=by_words(4, oversize="select", keep_recent_turns=1))
    await tell(play, "A")
    result = await (await play.submit("B")).result(BOUND)

    assert (TerminalReason.CONTEXT_OVERFLOW, "OVERSIZED") == ending(result)
    assert 1 == len(play.stage.calls)


async def test_without_turns_to_keep_only_the_question_is_left(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, budget=by_words(4, oversize="select", keep_recent_turns=0))
    await tell(play, "A", "B")

    assert [("user", "B")] == play.stage.calls[-1].heard


async def test_answers_that_failed_reserve_no_budget(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, budget=by_words(4, oversize="refuse"))
    for number, name in enumerate(("A", "B", "C"), 1):
        ticket = await play.submit(name)
        call = await play.stage.call(number)
        call.say("ten words that nobody will ever hear again, truly")
        call.fail(Failure(failure_class=FailureClass.AUTHENTICATION))
        await play.reasons(ticket)

    assert ["success"] == await tell(play, "D")
    assert [("user", name) for name in ("A", "B", "C", "D")] == play.stage.calls[-1].heard
