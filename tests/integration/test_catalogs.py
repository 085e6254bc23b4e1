"""Deferred catalogs in a run: what each step offers, what a search changes, and what becomes of other calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import Play, open_play
from tests.integration.stage import BOUND, ModelCall
from turnlane.agent import Agent, OpenAIChatModel, Tool, tool
from turnlane.agent.catalog import DeferredCatalog, PinQuestion, Surface, SurfaceQuestion
from turnlane.agent.step_input import StepInput, StepOverrides
from turnlane.agent.tool_search import Activation, SearchTool
from turnlane.records.base import JsonObject
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ToolCallPart, ToolOutcome, ToolResultPart
from turnlane.records.runs import FailureClass, TerminalReason
from turnlane.testing.fault_plan import Pass, Step, ToolCalls, ToolUse
from turnlane.testing.fault_server import FaultServer

pytestmark = pytest.mark.server

SEARCH = "tool_search"


class Workshop:
    """Forty operations, and which of them were run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.tools = [self._operation(number) for number in range(40)]

    def _operation(self, number: int) -> Tool:
        name = f"operation_{number}"

        def body(amount: int = 0) -> str:
            self.ran.append(name)
            return f"did {name} with {amount}"

        return tool(name=name, description=f"Does the work of number {number}.")(body)

    def catalog(self, **options: Any) -> DeferredCatalog:
        """A catalog of the operations, the first always on."""
        return DeferredCatalog(**{"tools": self.tools, "always_on": ["operation_0"], **options})


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


def offered(call: ModelCall) -> list[str]:
    """The tools that a model call advertises."""
    return [spec.name for spec in call.request.prompt.tools]


def searched(*queries: str) -> list[tuple[str, str, str]]:
    """Calls of the search, with these queries."""
    return [(f"s{number}", SEARCH, json.dumps({"query": query})) for number, query in enumerate(queries)]


async def steps(play: Play, *said: list[tuple[str, str, str]]) -> list[list[str]]:
    """Play steps that make these calls, and a last one that answers; what each advertised."""
    ticket = await play.submit("A")
    for number, calls in enumerate(said, 1):
        (await play.stage.call(number)).use(*calls)
    (await play.stage.call(len(said) + 1)).answer("Done.")
    assert ["success"] == await play.reasons(ticket)
    return [offered(call) for call in play.stage.calls]


async def parts(play: Play) -> list[ToolCallPart | ToolResultPart]:
    """The calls and results of the conversation, in order."""
    said = (part for message in await play.messages() for part in message.parts)
    return [part for part in said if isinstance(part, ToolCallPart | ToolResultPart)]


async def test_a_tool_that_was_found_is_on_offer_in_the_next_step(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    play = await open_play(bench, serve, conversation, tools=(), catalog=workshop.catalog())
    found = await steps(play, searched("operation_37"), [("c", "operation_37", '{"amount": 3}')])
    called = [part.tool_name for part in await parts(play) if isinstance(part, ToolCallPart)]

    base = [SEARCH, "operation_0"]
    assert [base, [*base, "operation_37"], [*base, "operation_37"]] == found
    assert ([SEARCH, "operation_37"], ["operation_37"]) == (called, workshop.ran)


async def test_a_call_of_a_tool_that_is_not_on_offer_becomes_a_search_for_it(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    play = await open_play(bench, serve, conversation, tools=(), catalog=workshop.catalog())
    found = await steps(play, [("c", "operation_5", '{"amount": 1}')], [("d", "operation_5", '{"amount": 2}')])
    call, result, *_ = await parts(play)

    assert isinstance(call, ToolCallPart)
    assert isinstance(result, ToolResultPart)
    assert ("c", SEARCH, {"query": "operation_5", "reason": "inactive_call"}) == (
        call.call_id,
        call.tool_name,
        call.input,
    )
    assert isinstance(result.output, dict)
    assert ("c", ToolOutcome.SUCCESS, "SEARCH_REQUIRED") == (result.call_id, result.outcome, result.output["status"])
    assert ([SEARCH, "operation_0", "operation_5"], ["operation_5"]) == (found[1], workshop.ran)
    assert "with 2" in str((await parts(play))[-1])


async def test_a_call_of_a_tool_that_nobody_has_is_an_error(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    play = await open_play(bench, serve, conversation, tools=(), catalog=workshop.catalog())
    await steps(play, [("c", "operation_99", "{}")])
    _, result = await parts(play)

    assert isinstance(result, ToolResultPart)
    assert isinstance(result.output, dict)
    assert (ToolOutcome.ERROR, "UNKNOWN_TOOL") == (result.outcome, result.output["error"])


async def test_receipts_of_a_step_add_up_and_the_next_ones_replace_them(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    def select(question: Any) -> list[str]:
        return [question.query]

    catalog = workshop.catalog(always_on=[], pins=lambda question: ["operation_9"], search=SearchTool(select=select))
    play = await open_play(bench, serve, conversation, tools=(), catalog=catalog)
    found = await steps(play, searched("operation_1", "operation_2"), searched("operation_3"), searched("missing"))

    base = [SEARCH, "operation_9"]
    two, one = [*base, "operation_1", "operation_2"], [*base, "operation_3"]
    assert [base, two, one] == found[:3]


async def test_a_search_that_finds_nothing_takes_the_selection_back(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    play = await open_play(bench, serve, conversation, tools=(), catalog=workshop.catalog())
    found = await steps(play, searched("operation_37"), searched("xyzzy"))

    assert [[SEARCH, "operation_0", "operation_37"], [SEARCH, "operation_0"]] == found[1:]


async def test_a_selection_ends_with_its_run(bench: Bench, serve: Serve, conversation: str, workshop: Workshop) -> None:
    play = await open_play(bench, serve, conversation, tools=(), catalog=workshop.catalog())
    await steps(play, searched("operation_37"))
    ticket = await play.submit("B")
    (await play.stage.call(3)).answer("Yes.")

    assert ["success"] == await play.reasons(ticket)
    assert [SEARCH, "operation_0"] == offered(play.stage.calls[2])


async def test_a_selection_outlives_a_worker(bench: Bench, conversation: str, workshop: Workshop) -> None:
    play = Play(bench, bench.client(), conversation, bench.store)
    agent = play.stage.agent(catalog=workshop.catalog())
    async with bench.worker(agent, providers=play.stage.providers):
        ticket = await play.submit("A")
        (await play.stage.call(1)).use(*searched("operation_37"))
        await play.stage.call(2)
    async with bench.worker(agent, providers=play.stage.providers):
        (await play.stage.call(3)).answer("Done.")

        assert ["success"] == await play.reasons(ticket)
    assert [SEARCH, "operation_0", "operation_37"] == offered(play.stage.calls[2])


# --- what ends a run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason", "failure"),
    [
        (
            {"always_on": [], "activation": Activation(max_active_tools=1), "pins": lambda question: ["operation_1"]},
            TerminalReason.CONTEXT_OVERFLOW,
            (FailureClass.CONTEXT_OVERFLOW, "CATALOG"),
        ),
        (
            {"pins": lambda question: ["nobody"]},
            TerminalReason.CONTEXT_OVERFLOW,
            (FailureClass.CONTEXT_OVERFLOW, "CATALOG"),
        ),
        (
            {"pins": lambda question: [question.nothing]},
            TerminalReason.RUNTIME_FAILURE,
            (FailureClass.APPLICATION, "PINS_FAILED"),
        ),
        (
            {"pins": lambda question: "operation_1"},
            TerminalReason.RUNTIME_FAILURE,
            (FailureClass.APPLICATION, "PINS_FAILED"),
        ),
    ],
    ids=["a pin too many", "a pin of nobody", "pins that raise", "pins that are one text"],
)
async def test_pins_that_do_not_work_end_the_run_before_any_call(
    bench: Bench,
    serve: Serve,
    conversation: str,
    workshop: Workshop,
    options: dict[str, Any],
    reason: TerminalReason,
    failure: tuple[FailureClass, str],
) -> None:
    play = await open_play(bench, serve, conversation, tools=(), catalog=workshop.catalog(**options))
    result = await (await play.submit("A")).result(BOUND)

    assert result.failure is not None
    assert (reason, failure, []) == (
        result.reason,
        (result.failure.failure_class, result.failure.code),
        play.stage.calls,
    )


async def test_with_one_active_tool_no_search_selects(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    catalog = workshop.catalog(always_on=[], activation=Activation(max_active_tools=1))
    play = await open_play(bench, serve, conversation, tools=(), catalog=catalog)

    assert [[SEARCH], [SEARCH]] == await steps(play, searched("operation_37"))


# --- surfaces and pins --------------------------------------------------------------------------


async def test_a_run_has_one_surface_for_all_its_steps(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    asked: list[JsonObject | None] = []

    async def surface(question: SurfaceQuestion) -> str:
        asked.append(question.context)
        return "many" if len(asked) == 1 else "few"

    few, many = workshop.tools[:2], workshop.tools[2:]
    catalog = DeferredCatalog(
        surfaces={"few": Surface(tools=few), "many": Surface(tools=many, always_on=["operation_2"])},
        select_surface=surface,
    )
    play = await open_play(bench, serve, conversation, tools=(), catalog=catalog)
    ticket = await play.submit("A", context={"room": "workshop"})
    (await play.stage.call(1)).use(*searched("operation_37"), ("c", "operation_1", "{}"))
    (await play.stage.call(2)).use(("d", "operation_37", "{}"))
    (await play.stage.call(3)).answer("Done.")

    assert ["success"] == await play.reasons(ticket)
    assert [[SEARCH, "operation_2"], *[[SEARCH, "operation_2", "operation_37"]] * 2] == [
        offered(call) for call in play.stage.calls
    ]
    assert ([{"room": "workshop"}], ["operation_37"]) == (asked, workshop.ran)
    assert "UNKNOWN_TOOL" in str([part for part in await parts(play) if part.call_id == "c"])


@pytest.mark.parametrize(
    ("key", "code"), [("nowhere", "UNKNOWN_SURFACE"), (None, "UNKNOWN_SURFACE")], ids=["unknown", "none"]
)
async def test_a_surface_that_nobody_has_is_a_failure_of_the_application(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop, key: Any, code: str
) -> None:
    surfaces = {"all": Surface(tools=workshop.tools)}
    catalog = DeferredCatalog(surfaces=surfaces, select_surface=lambda question: key)
    play = await open_play(bench, serve, conversation, tools=(), catalog=catalog)
    result = await (await play.submit("A")).result(BOUND)

    assert result.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, code, []) == (result.reason, result.failure.code, play.stage.calls)


async def test_pins_see_the_step_and_what_was_said(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    asked: list[PinQuestion] = []

    async def pins(question: PinQuestion) -> list[str]:
        asked.append(question)
        return [f"operation_{question.step + 1}"]

    play = await open_play(bench, serve, conversation, tools=(), catalog=workshop.catalog(pins=pins))
    found = await steps(play, [("c", "operation_1", "{}")])

    assert [[SEARCH, "operation_0", "operation_1"], [SEARCH, "operation_0", "operation_2"]] == found
    assert [(0, 1), (1, 3)] == [(question.step, len(question.messages)) for question in asked]


# --- beside other parts of an agent -------------------------------------------------------------


async def test_what_a_step_asks_for_holds_but_for_its_tools(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    def prepare(step: StepInput) -> StepOverrides:
        return StepOverrides(active_tools=[SEARCH], instructions="Be brief.")

    catalog = workshop.catalog()
    play = await open_play(bench, serve, conversation, tools=(), catalog=catalog, prepare_step=prepare)
    found = await steps(play, searched("operation_37"), [("c", "operation_37", "{}")])

    base = [SEARCH, "operation_0"]
    assert [base, [*base, "operation_37"], [*base, "operation_37"]] == found
    assert [("Be brief.",)] * 3 == [call.request.prompt.system for call in play.stage.calls]
    assert ["operation_37"] == workshop.ran


async def test_a_tool_of_a_catalog_may_wait_for_approval(bench: Bench, serve: Serve, conversation: str) -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    catalog = DeferredCatalog(tools=[tool(approval="user-approval")(pay)])
    play = await open_play(bench, serve, conversation, tools=(), catalog=catalog)
    ticket = await play.submit("A")
    (await play.stage.call(1)).use(("p", "pay", '{"amount": 1}'))
    (await play.stage.call(2)).use(("q", "pay", '{"amount": 2}'))
    first = await play.reasons(ticket)
    (approval,) = await play.client.pending_approvals(conversation)
    answered = await play.client.respond(conversation, approval.approval_id, True)
    (await play.stage.call(3)).answer("Done.")

    assert (["provider_stop"], ["success"], [2]) == (first, await play.reasons(answered), paid)
    assert [[SEARCH], [SEARCH, "pay"], [SEARCH]] == [offered(call) for call in play.stage.calls]


# --- what is kept -------------------------------------------------------------------------------


async def test_the_ledger_keeps_counts_and_no_query(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    seen: list[str] = []
    catalog = workshop.catalog(observe=lambda evidence: seen.append(evidence.type))
    play = await open_play(bench, serve, conversation, tools=(), catalog=catalog)
    await steps(play, searched("number 37"))
    kept = [
        event for event in await play.ledger() if event.kind in (LedgerKind.CATALOG_STEP, LedgerKind.CATALOG_SEARCH)
    ]

    assert ["step", "search", "step"] == seen
    assert [
        (LedgerKind.CATALOG_STEP, 40, 2, 0, 2, "catalog"),
        (LedgerKind.CATALOG_SEARCH, 40, 2, 1, 3, "current"),
        (LedgerKind.CATALOG_STEP, 40, 2, 1, 3, "current"),
    ] == [
        (
            event.kind,
            *(
                event.payload[name]
                for name in ("catalog_tools", "base_tools", "selected_tools", "active_tools", "source")
            ),
        )
        for event in kept
    ]
    assert "number 37" not in json.dumps([event.payload for event in await play.ledger()])


async def test_a_search_is_an_activity_under_its_own_name(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop
) -> None:
    catalog = workshop.catalog(search=SearchTool(name="find_tools"))
    play = await open_play(bench, serve, conversation, tools=(), catalog=catalog)
    await steps(play, [("s", "find_tools", '{"query": "operation_37"}')])
    scheduled = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        async for event in play.lane.fetch_history_events()
        if event.HasField("activity_task_scheduled_event_attributes")
    ]

    assert ["provider_step", "find_tools", "provider_step"] == scheduled


# --- a real protocol ----------------------------------------------------------------------------


async def test_only_active_tools_are_sent_to_the_provider(
    bench: Bench, serve: Serve, conversation: str, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_TEST_KEY", "sk-catalog-test")
    plan: list[Step] = [
        ToolCalls((ToolUse(SEARCH, {"query": "operation_37"}), ToolUse("operation_5", {"amount": 1}))),
        ToolCalls((ToolUse("operation_37", {"amount": 2}),)),
        Pass("Done."),
    ]
    async with FaultServer(plan) as server:
        model = OpenAIChatModel(name="gpt", base_url=server.openai_url, api_key_env="CATALOG_TEST_KEY")
        await serve(Agent(name="actor", model=model, catalog=workshop.catalog()))
        ticket = await bench.client().submit(conversation, "work")
        result = await ticket.result(BOUND)
        sent = [[item["function"]["name"] for item in request.body["tools"]] for request in server.requests]

    assert (TerminalReason.SUCCESS, []) == (result.reason, server.refusals)
    both = [SEARCH, "operation_0", "operation_37", "operation_5"]
    assert [[SEARCH, "operation_0"], both, both] == sent
    assert ["operation_37"] == workshop.ran
