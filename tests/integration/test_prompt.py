"""Prompts in a run: composed once, planted once, weighed before the first call, and cut the same way at each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.contract.conftest import Lane
from tests.integration.play import Play, look, open_play, run_id
from tests.integration.stage import BOUND, Stage
from turnlane.activities.seeding import SEED_KEY, seed_id
from turnlane.agent import (
    Agent,
    AnthropicModel,
    Compaction,
    ContextBudget,
    ConversationSummary,
    CountSource,
    ModelDescriptor,
    ModelRegistry,
    OpenAIModel,
    PromptCache,
    PromptSection,
    ProviderCounter,
    SectionContext,
    SummaryContext,
    SystemText,
    TextCounter,
    TokenCount,
)
from turnlane.agent.models import Say, ScriptedModel
from turnlane.client import Result
from turnlane.records.base import JsonObject
from turnlane.records.events import TerminalEvent
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import FilePart, TextPart
from turnlane.records.runs import Failure, FailureClass, TerminalReason
from turnlane.records.usage import UNAVAILABLE, stated
from turnlane.testing.fault_plan import HttpError, Pass, Step
from turnlane.testing.fault_server import FaultServer

KEY_NAME = "PROMPT_TEST_KEY"
BUSY = Failure(failure_class=FailureClass.OVERLOADED, retryable=True, retry_after_seconds=0.01)


def words(text: str) -> TokenCount:
    """One token a word."""
    return TokenCount(value=len(text.split()), source=CountSource.MEASURED)


def by_words(window: int, **options: Any) -> ContextBudget:
    """A budget that is counted in words; whatever is not given takes nothing."""
    given: dict[str, Any] = {"reserved_output": 0, "tool_schemas": 0, "counter": TextCounter(words)}
    return ContextBudget(context_window=window, **(given | options))


class Numbered:
    """A section that says how often it was rendered, and for what."""

    def __init__(self) -> None:
        self.seen: list[SectionContext] = []

    async def __call__(self, context: SectionContext) -> str:
        self.seen.append(context)
        return f"rendering {len(self.seen)}"


async def requests(play: Play) -> list[JsonObject]:
    """What the ledger has of the requests."""
    return [event.payload for event in await play.ledger() if event.kind == LedgerKind.PROVIDER_REQUEST]


async def figures(play: Play) -> Any:
    """The figures of the last request's budget."""
    return (await requests(play))[-1]["context"]


async def tell(play: Play, *names: str) -> list[str]:
    """Have these answered, one after the other; how that ended."""
    play.stage.play()
    return [reason for name in names for reason in await play.reasons(await play.submit(name))]


def ending(result: Result) -> tuple[TerminalReason, str | None]:
    return result.reason, None if result.failure is None else result.failure.code


# --- once for a run -----------------------------------------------------------------------------


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


# --- user instructions --------------------------------------------------------------------------


async def test_user_instructions_are_said_once_and_never_rewritten(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    texts = iter(["I am Ada.", "I am Bob."])
    user = PromptSection(name="who", role="user", render=lambda context: next(texts))
    play = await open_play(bench, serve, conversation, prompt=[user])
    await tell(play, "A", "B")

    assert [("user", "I am Ada."), ("user", "A")] == play.stage.calls[0].heard
    assert ("user", "I am Ada.") == play.stage.calls[1].heard[0]
    assert "I am Bob." not in str(play.stage.calls[1].heard)
    assert ("user", "I am Ada.") == (await play.said())[0]


async def test_user_instructions_come_before_what_was_said_already(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    stage = Stage()
    async with bench.worker(stage.agent(), providers=stage.providers):
        stage.play()
        await (await bench.client().submit(conversation, "A")).result(BOUND)
    play = await open_play(
        bench, serve, conversation, prompt=[PromptSection(name="u", role="user", render="I am Ada.")]
    )
    await tell(play, "B")

    expected = [("user", "I am Ada."), ("user", "A"), ("assistant", "answer to A"), ("user", "B")]
    assert expected == play.stage.calls[0].heard
    assert ["I am Ada.", "A", "B"] == await play.answered()


async def test_user_instructions_planted_before_a_retry_are_there_once(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    user = PromptSection(name="who", role="user", render="I am Ada.")
    play = await open_play(bench, serve, conversation, prompt=[user])
    ticket = await play.submit("A")
    (await play.stage.call(1)).fail(BUSY)
    (await play.stage.call(2)).answer("Hello.")
    await play.reasons(ticket)

    assert [[("user", "I am Ada."), ("user", "A")]] * 2 == [call.heard for call in play.stage.calls]


async def imported(bench: Bench, conversation: str, count: int) -> None:
    """Have the first messages of a seed in the store, as an import of another history leaves them."""
    lane = await Lane(bench.store, conversation).open()
    await lane.apply(lane.seed("imported", *(seed_id(conversation, SEED_KEY, index) for index in range(count))))


USERS = [PromptSection(name=f"u-{text}", role="user", render=text) for text in ("I am Ada.", "I like rain.")]


async def test_user_instructions_that_were_imported_in_part_are_refused(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    await imported(bench, conversation, 1)
    play = await open_play(bench, serve, conversation, prompt=USERS)
    result = await (await play.submit("A")).result(BOUND)

    assert (TerminalReason.RUNTIME_FAILURE, "STORE_INTEGRITY") == ending(result)
    assert [] == play.stage.calls
    assert not await bench.store.is_seeded(conversation, SEED_KEY)


async def test_user_instructions_that_were_imported_whole_are_heard_as_imported(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    await imported(bench, conversation, 2)
    play = await open_play(bench, serve, conversation, prompt=USERS)
    await tell(play, "A")

    ids = [("user", seed_id(conversation, SEED_KEY, index)) for index in range(2)]
    assert [*ids, ("user", "A")] == play.stage.calls[0].heard
    assert await bench.store.is_seeded(conversation, SEED_KEY)


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


# --- counting with the provider, and its cache --------------------------------------------------


def request_words(body: Mapping[str, Any]) -> int:
    """The words of everything that a request to count says: a server's way of counting."""
    blocks = [*body.get("system", ()), *(block for message in body["messages"] for block in message["content"])]
    schemas = [tool["description"] for tool in body.get("tools", ())]
    return sum(len(text.split()) for text in [*(block["text"] for block in blocks), *schemas])


async def ask(
    bench: Bench, serve: Serve, conversation: str, model: AnthropicModel | OpenAIModel, **options: Any
) -> tuple[Result, Any]:
    """One turn with a model; the result, and the figures of its budget if the ledger has any."""
    await serve(Agent(name="asked", model=model, **options))
    result = await (await bench.client().submit(conversation, "two words")).result(BOUND)
    events = (await bench.store.read_events(conversation)).items
    sent = [event.payload for event in events if event.kind == LedgerKind.PROVIDER_REQUEST]
    return result, sent[-1].get("context") if sent else None


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key for providers on the loopback."""
    monkeypatch.setenv(KEY_NAME, "sk-prompt-test")


PASS: Sequence[Step] = [Pass("ok")]


@pytest.mark.usefixtures("key")
async def test_anthropic_counts_instructions_tools_and_history(bench: Bench, serve: Serve, conversation: str) -> None:
    async with FaultServer(PASS, counts=request_words) as server:
        model = AnthropicModel(name="m", base_url=server.anthropic_url, api_key_env=KEY_NAME, max_output_tokens=50)
        budget = ContextBudget(context_window=100, counter=ProviderCounter())
        result, counted = await ask(
            bench, serve, conversation, model, budget=budget, instructions="Be kind.", tools=[look]
        )

        assert TerminalReason.SUCCESS is result.reason
        expected = {"decision": "fits", "instructions": 2, "tool_schemas": 1, "history": 2, "available_history": 47}
        assert expected == {name: counted[name] for name in expected}
        assert 4 == len(server.counted)
        assert [] == server.refusals


@pytest.mark.usefixtures("key")
async def test_what_anthropic_counts_as_too_much_is_not_sent(bench: Bench, serve: Serve, conversation: str) -> None:
    async with FaultServer(PASS, counts=lambda body: 101) as server:
        model = AnthropicModel(name="m", base_url=server.anthropic_url, api_key_env=KEY_NAME)
        budget = ContextBudget(context_window=100, reserved_output=0, counter=ProviderCounter(), oversize="refuse")
        result, _ = await ask(bench, serve, conversation, model, budget=budget)

        assert (TerminalReason.CONTEXT_OVERFLOW, "OVERSIZED") == ending(result)
        assert [] == server.requests


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("said", [3.5, -1, None, "7", True, HttpError(529), HttpError(400)], ids=str)
async def test_a_count_that_is_none_leaves_the_run_alone(
    bench: Bench, serve: Serve, conversation: str, said: object
) -> None:
    async with FaultServer(PASS, counts=lambda body: said) as server:
        model = AnthropicModel(name="m", base_url=server.anthropic_url, api_key_env=KEY_NAME)
        budget = ContextBudget(context_window=1, reserved_output=0, counter=ProviderCounter())
        result, counted = await ask(bench, serve, conversation, model, budget=budget, instructions="Be kind.")

        assert TerminalReason.SUCCESS is result.reason
        assert ("unavailable", None, None) == (counted["decision"], counted["instructions"], counted["history"])


@pytest.mark.usefixtures("key")
async def test_cache_marks_reach_the_providers(bench: Bench, serve: Serve, conversation: str) -> None:
    sections = [PromptSection(name="a", render="Be kind."), PromptSection(name="b", render="Now.", stability="dynamic")]
    async with FaultServer(PASS) as server:
        anthropic = AnthropicModel(name="m", base_url=server.anthropic_url, api_key_env=KEY_NAME)
        openai = OpenAIModel(name="m", base_url=server.openai_url, api_key_env=KEY_NAME)
        agents = [
            Agent(name=f"cached-{number}", model=model, prompt=sections, cache=PromptCache())
            for number, model in enumerate((anthropic, openai))
        ]
        await serve(*agents)
        for number, agent in enumerate(agents):
            ticket = await bench.client().submit(f"{conversation}-{number}", "hi", agent=agent.name)
            assert TerminalReason.SUCCESS is (await ticket.result(BOUND)).reason
        first, second = (request.body for request in server.requests)

    mark = {"cache_control": {"type": "ephemeral"}}
    assert [{"type": "text", "text": "Be kind.", **mark}, {"type": "text", "text": "Now."}] == first["system"]
    assert mark["cache_control"] == first["cache_control"]
    assert "Be kind.\n\nNow." == second["instructions"]
    assert second["prompt_cache_key"].startswith("cache-")
