"""The search of a catalog: its limits, its receipts, and the checks of a catalog when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from turnlane.agent import Agent, ScriptedModel, Tool, tool
from turnlane.agent.catalog import DeferredCatalog, Surface
from turnlane.agent.tool_context import ToolContext
from turnlane.agent.tool_search import Activation, SearchTool, SelectQuestion, schema_bytes
from turnlane.records.catalog import SelectionStatus, ToolSelection, selection_in
from turnlane.records.ledger import LedgerKind
from turnlane.records.limits import Limits
from turnlane.records.messages import ToolOutcome
from turnlane.records.prompt import ToolSpec

RUN = "run-1"


def named(name: str, description: str = "") -> Tool:
    """A tool of this name."""

    def body() -> str:
        return name

    return tool(name=name, description=description or f"Does {name}.")(body)


NAMES = ("target", "other", "third", "fourth")
TOOLS = [named(name) for name in NAMES]


def catalog(**options: Any) -> DeferredCatalog:
    """A catalog of four tools."""
    return DeferredCatalog(**{"tools": TOOLS, **options})


def context(**facts: Any) -> ToolContext:
    return ToolContext(
        **{"conversation_id": "c", "run_id": RUN, "step_number": 0, "call_id": "1", "agent": "helper", **facts}
    )


class Answer:
    """What a search came to: its receipt, and the counts that it left."""

    def __init__(self, selection: ToolSelection, counts: dict[str, Any]) -> None:
        self.selection = selection
        self.counts = counts

    @property
    def told(self) -> tuple[str, tuple[str, ...], tuple[str, ...], bool]:
        """Status, what is selected, what matched, and whether something was left out."""
        found = self.selection
        return found.status.value, found.selected, tuple(match.name for match in found.matches), found.truncated


async def search(searched: DeferredCatalog, query: str, **arguments: Any) -> Answer:
    """Call the search tool as a model would."""
    ctx = context()
    reply = await searched.search_tool.invoke(ctx, {"query": query, **arguments})
    assert ToolOutcome.SUCCESS is reply.outcome
    selection = selection_in(reply.output)
    assert selection is not None
    (note,) = ctx.notes
    assert LedgerKind.CATALOG_SEARCH == note.kind
    return Answer(selection, note.payload)


def selecting(*names: str) -> SearchTool:
    """A search with a selector that always proposes these."""
    return SearchTool(select=lambda question: names)


# --- what a search comes to ---------------------------------------------------------------------


async def test_a_hit_is_selected_and_described() -> None:
    answer = await search(catalog(), "target")

    assert ("SELECTED", ("target",), ("target",), False) == answer.told
    assert (RUN, "default", "Does target.") == (
        answer.selection.run_id,
        answer.selection.surface_key,
        answer.selection.matches[0].description,
    )


async def test_no_hit_selects_nothing() -> None:
    assert ("NO_MATCH", (), (), False) == (await search(catalog(), "xyzzy")).told


async def test_a_call_of_an_inactive_tool_selects_it_by_name() -> None:
    answer = await search(catalog(search=selecting("other")), "target", reason="inactive_call")

    assert ("SEARCH_REQUIRED", ("target",), ("target",), False) == answer.told


async def test_a_call_of_a_tool_that_nobody_has_matches_nothing() -> None:
    answer = await search(catalog(), "nobody", reason="inactive_call")

    assert (("NO_MATCH", (), (), False), 1) == (answer.told, answer.counts["rejected_names"])


async def test_a_query_that_is_too_long_is_refused_unread() -> None:
    asked: list[SelectQuestion] = []

    def select(question: SelectQuestion) -> Sequence[str]:
        asked.append(question)
        return ["target"]

    answer = await search(catalog(search=SearchTool(max_query_bytes=6, select=select)), "tärget")

    assert (("SELECTION_REFUSED", (), (), False), []) == (answer.told, asked)
    assert "tärget" not in str(answer.counts)


async def test_a_query_of_just_the_length_is_read() -> None:
    answer = await search(catalog(search=SearchTool(max_query_bytes=6)), "target")

    assert SelectionStatus.SELECTED is answer.selection.status


async def test_a_selectors_unknown_and_repeated_names_are_counted_and_left_out() -> None:
    answer = await search(catalog(search=selecting("target", "missing", "target")), "anything")

    assert (("target",), 2) == (answer.selection.selected, answer.counts["rejected_names"])


async def test_a_selector_may_wait_and_sees_the_run_but_not_more() -> None:
    asked: list[SelectQuestion] = []

    async def select(question: SelectQuestion) -> Sequence[str]:
        asked.append(question)
        return ["other"]

    ctx = context(context={"tier": "free"})
    await catalog(search=SearchTool(select=select)).search_tool.invoke(ctx, {"query": "anything"})

    assert [("anything", NAMES, {"tier": "free"}, RUN, "default")] == [
        (item.query, tuple(spec.name for spec in item.manifest), item.context, item.run_id, item.surface)
        for item in asked
    ]


@pytest.mark.parametrize("returned", ["target", None, 7], ids=repr)
async def test_a_selector_that_returns_no_names_fails_the_call(returned: Any) -> None:
    ctx = context()
    reply = await catalog(search=SearchTool(select=lambda question: returned)).search_tool.invoke(ctx, {"query": "a"})

    assert (ToolOutcome.ERROR, "INTERNAL_ERROR", []) == (reply.outcome, reply.code, ctx.notes)


async def test_results_are_cut_and_say_so() -> None:
    answer = await search(catalog(search=SearchTool(max_results=2, select=lambda question: NAMES)), "anything")

    assert ("SELECTED", ("target", "other"), ("target", "other"), True) == answer.told


async def test_more_than_may_be_selected_is_refused_and_not_trimmed() -> None:
    answer = await search(catalog(search=selecting(*NAMES), activation=Activation(max_selected_tools=3)), "anything")

    assert ("SELECTION_REFUSED", (), NAMES, False) == answer.told


async def test_more_than_may_be_active_is_refused() -> None:
    limits = Activation(max_active_tools=3)
    one = await search(catalog(always_on=["fourth"], activation=limits), "target")
    two = await search(
        catalog(always_on=["fourth"], activation=limits, search=selecting("target", "other")), "anything"
    )

    assert ("SELECTED", "SELECTION_REFUSED") == (one.selection.status, two.selection.status)


async def test_what_is_always_on_takes_no_second_place() -> None:
    limits = Activation(max_active_tools=2)
    answer = await search(catalog(always_on=["target"], activation=limits), "target")

    assert (("target",), 2) == (answer.selection.selected, answer.counts["active_tools"])


async def test_with_one_active_tool_every_selection_is_refused() -> None:
    answer = await search(catalog(activation=Activation(max_active_tools=1)), "target")

    assert SelectionStatus.SELECTION_REFUSED is answer.selection.status


async def test_schemas_that_are_too_large_are_refused() -> None:
    searched = catalog()
    base = schema_bytes(searched.search_tool.spec)
    target = schema_bytes(TOOLS[0].spec)
    just, short = (catalog(activation=Activation(max_schema_bytes=base + target - less)) for less in (0, 1))

    assert SelectionStatus.SELECTED is (await search(just, "target")).selection.status
    assert SelectionStatus.SELECTION_REFUSED is (await search(short, "target")).selection.status


def test_a_schema_counts_the_bytes_of_its_compact_json() -> None:
    spec = ToolSpec(name="a", description="é", parameters={"type": "object"})

    assert len('{"description":"é","inputSchema":{"type":"object"},"name":"a"}'.encode()) == schema_bytes(spec)


async def test_matches_are_told_as_far_as_there_is_room() -> None:
    long = [named(f"tool_{number}", "x" * 700) for number in range(4)]
    answer = await search(DeferredCatalog(tools=long, search=SearchTool(max_result_bytes=2000)), "tool")

    assert ("SELECTED", 4, 2, True) == (
        answer.selection.status,
        len(answer.selection.selected),
        len(answer.selection.matches),
        answer.selection.truncated,
    )
    assert answer.selection.size <= 2000


async def test_a_receipt_without_room_for_its_names_is_a_refusal() -> None:
    long = [named("n" * 50 + f"_{number}") for number in range(40)]
    limits = Activation(max_selected_tools=40, max_active_tools=41)
    searching = SearchTool(max_results=40, max_result_bytes=1500)
    answer = await search(DeferredCatalog(tools=long, search=searching, activation=limits), "n")

    assert ("SELECTION_REFUSED", (), (), True) == answer.told


async def test_counts_say_what_a_search_did_and_nothing_that_was_said() -> None:
    answer = await search(catalog(always_on=["fourth"], search=selecting("target", "missing")), "the secret words")

    assert {
        "schema_version": 1,
        "type": "search",
        "run_id": RUN,
        "surface_key": "default",
        "catalog_tools": 4,
        "base_tools": 2,
        "pinned_tools": 0,
        "selected_tools": 1,
        "active_tools": 3,
        "rejected_names": 1,
        "replacement_tools": 1,
        "source": "current",
    } == {name: value for name, value in answer.counts.items() if name != "active_schema_bytes"}
    assert "secret" not in str(answer.counts)


async def test_an_observer_is_told_and_its_errors_are_its_own() -> None:
    told: list[str] = []

    def observe(evidence: Any) -> None:
        told.append(evidence.type)
        raise RuntimeError

    answer = await search(catalog(observe=observe), "target")

    assert (["search"], SelectionStatus.SELECTED) == (told, answer.selection.status)


@pytest.mark.parametrize("arguments", [{}, {"query": ""}, {"query": "a", "reason": "because"}, {"query": 1}], ids=str)
async def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: dict[str, Any]) -> None:
    reply = await catalog().search_tool.invoke(context(), arguments)

    assert "VALIDATION_ERROR" == reply.code


def test_the_search_tells_the_model_how_it_ranks() -> None:
    spec = catalog().search_tool.spec

    assert ("tool_search", True) == (spec.name, "phrase first" in spec.description)
    assert {"query", "reason"} == set(spec.parameters["properties"])  # type: ignore[arg-type]


# --- surfaces -----------------------------------------------------------------------------------


async def test_a_surface_is_searched_alone() -> None:
    surfaces = {"a": Surface(tools=TOOLS[:2]), "b": Surface(tools=TOOLS[2:], always_on=["third"])}
    searched = DeferredCatalog(surfaces=surfaces, select_surface=lambda question: "a")
    ctx = context(surface="b")
    reply = await searched.search_tool.invoke(ctx, {"query": "does"})
    selection = selection_in(reply.output)

    assert selection is not None
    assert ("b", ("third", "fourth")) == (selection.surface_key, selection.selected)


# --- what is checked when a catalog is made -----------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": []}, "has tools"),
        ({"surfaces": {"a": Surface(tools=TOOLS)}}, "has tools"),
        ({"tools": [], "surfaces": {"a": Surface(tools=TOOLS)}}, "select_surface"),
        ({"select_surface": lambda question: "a"}, "select_surface"),
        ({"tools": [], "surfaces": {"a": Surface(tools=[])}, "select_surface": lambda question: "a"}, "no tools"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "two tools"),
        ({"tools": [*TOOLS, named("target", "another")]}, "two tools"),
        ({"tools": [*TOOLS, named("tool_search")]}, "two tools"),
        ({"always_on": ["nobody"]}, "always_on"),
        ({"always_on": ["target", "target"]}, "always_on"),
        ({"always_on": ["target"], "activation": Activation(max_active_tools=1)}, "over the limits"),
        ({"activation": Activation(max_schema_bytes=10)}, "over the limits"),
        ({"search": SearchTool(max_result_bytes=10)}, "max_result_bytes"),
        ({"search": SearchTool(name="not a name")}, "name"),
    ],
)
def test_a_catalog_that_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        catalog(**options)


@pytest.mark.parametrize("limit", ["max_query_bytes", "max_results", "max_result_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None], ids=repr)
def test_the_limits_of_a_search_are_whole_and_positive(limit: str, value: Any) -> None:
    with pytest.raises(ValueError, match=limit):
        SearchTool(**{limit: value})


@pytest.mark.parametrize("limit", ["max_selected_tools", "max_active_tools", "max_schema_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None], ids=repr)
def test_the_limits_of_an_activation_are_whole_and_positive(limit: str, value: Any) -> None:
    with pytest.raises(ValueError, match=limit):
        Activation(**{limit: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [TOOLS[0]], "catalog": catalog()}, "tools or a catalog"),
        ({"catalog": catalog(), "limits": Limits(tool_output_bytes=1024)}, "max_result_bytes"),
        ({"catalog": catalog(search=SearchTool(name="commit"))}, "activity"),
    ],
)
def test_a_catalog_that_does_not_go_with_its_agent_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Agent(name="helper", model=ScriptedModel(script=lambda request: ()), **options)


def test_an_agent_finds_the_tools_of_its_catalog_and_the_search() -> None:
    agent = Agent(name="helper", model=ScriptedModel(script=lambda request: ()), catalog=catalog())
    found = [agent.tool(name) for name in ("target", "tool_search", "nobody")]

    assert ["target", "tool_search", None] == [item.name if item is not None else None for item in found]
