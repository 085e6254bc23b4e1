"""The documentation: snippets run, links lead somewhere, tables say what the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from temporalio.workflow import _Definition

from turnlane.client.cli.app import build_app
from turnlane.client.cli.chat_commands import HELP
from turnlane.client.cli.verbs import exit_code
from turnlane.records.admissions import Policy
from turnlane.records.base import Payload
from turnlane.records.errors import TurnlaneError, error_for
from turnlane.records.events import DURABLE_TYPES, EVENT_ADAPTER
from turnlane.records.lane import LaneSettings
from turnlane.records.ledger import LedgerKind
from turnlane.records.limits import FileLimits, Limits
from turnlane.records.operator_events import OperatorEvent
from turnlane.records.runs import ENDINGS, FailureClass
from turnlane.workflows.lane import ConversationLane

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOTES = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
REFERENCE = ROOT / "docs" / "reference.md"

_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_ROW = re.compile(r"^\| (.+) \|$", re.MULTILINE)


class Snippet(NamedTuple):
    """A fenced block of Python in a page."""

    page: Path
    line: int
    is_runnable: bool
    code: str

    @property
    def name(self) -> str:
        """Where it stands."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def compiled(self) -> Any:
        """Its code object; top-level await is allowed."""
        return compile(self.code, self.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def snippets() -> Iterator[Snippet]:
    """All Python in the documentation."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in _FENCE.finditer(text):
            if found[1] == "python":
                line = text.count("\n", 0, found.start()) + 1
                yield Snippet(page, line, found[2].strip() == "runnable", found[3])


SNIPPETS = list(snippets())


def links(page: Path) -> list[str]:
    """The relative links of a page; what stands in fenced blocks is not one."""
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return [target for target in _LINK.findall(prose) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """The anchors that the headings of a page make."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether a relative link names a file, and a heading in it if it says one."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def table(page: Path, first_heading: str, columns: int, section: str = "") -> list[tuple[str, ...]]:
    """The rows of the first table of a section whose first column has this heading, code marks removed."""
    text = page.read_text(encoding="utf-8")
    _, _, after = text[text.index(section) :].partition(f"| {first_heading} |")
    body = after.split("\n\n", 1)[0]
    rows = [tuple(cell.strip(" `") for cell in row.split(" | ")) for row in _ROW.findall(body)]
    return [row[:columns] for row in rows if not row[0].startswith("---")]


def all_codes(root: type[TurnlaneError] = TurnlaneError) -> set[str]:
    """The codes of all errors that are raised, which are the leaves of the tree."""
    children = root.__subclasses__()
    return {root.code} if not children else {code for child in children for code in all_codes(child)}


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.name for snippet in SNIPPETS])
def test_python_in_the_docs_compiles(snippet: Snippet) -> None:
    assert snippet.compiled() is not None


RUNNABLE = [snippet for snippet in SNIPPETS if snippet.is_runnable]


@pytest.mark.parametrize("snippet", RUNNABLE, ids=[snippet.name for snippet in RUNNABLE])
def test_what_is_called_runnable_runs(snippet: Snippet) -> None:
    namespace: dict[str, Any] = {"__name__": "snippet"}
    exec(snippet.compiled(), namespace)

    assert len(namespace) > 2


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    shown = next(snippet.code for snippet in SNIPPETS if snippet.page.name == "README.md")
    example = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")

    assert [line for line in example.splitlines() if line] == [line for line in shown.splitlines() if line]
    assert len(shown.splitlines()) < 25


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert [] == [link for link in links(page) if not leads_somewhere(page, link)]


@pytest.mark.parametrize("note", NOTES, ids=[note.stem for note in NOTES])
def test_a_decision_note_is_short_and_listed(note: Path) -> None:
    assert len(note.read_text(encoding="utf-8").splitlines()) <= 30
    assert note.name in links(note.parent / "README.md")


def test_decision_notes_are_numbered_without_holes() -> None:
    assert [f"{number:04}" for number in range(1, len(NOTES) + 1)] == [note.name[:4] for note in NOTES]


def test_every_error_is_in_the_reference_with_its_class_and_exit_code() -> None:
    errors = {code: error_for(code, "") for code in all_codes()}
    expected = {(code, type(error).__name__, str(exit_code(error))) for code, error in errors.items()}

    assert expected == set(table(REFERENCE, "code", 3))


def test_every_verb_is_in_the_reference() -> None:
    commands = [command.name for command in build_app().registered_commands]

    assert sorted(name for name in commands if name) == sorted(row[0] for row in table(REFERENCE, "verb", 1))


@pytest.mark.parametrize(
    ("section", "model"), [("## Settings", LaneSettings), ("## Limits\n", Limits), ("## Limits of files", FileLimits)]
)
def test_defaults_in_the_reference_are_those_of_the_code(section: str, model: type[Payload]) -> None:
    defaults = {name: field.default for name, field in model.model_fields.items()}
    expected = {
        name: "below" if isinstance(value, Payload) else str(value).lower().removesuffix(".0")
        for name, value in defaults.items()
    }

    assert expected == {row[0]: row[1] for row in table(REFERENCE, "field", 2, section)}


def test_every_environment_variable_of_the_reference_is_read_somewhere() -> None:
    named = set(re.findall(r"`(TURNLANE_[A-Z_]+)`", REFERENCE.read_text(encoding="utf-8")))
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "turnlane").rglob("*.py"))

    assert named == set(re.findall(r'"(TURNLANE_[A-Z_]+)"', sources))


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page not in NOTES}

    assert pages - {index} == {(index.parent / link).resolve() for link in links(index)}


@pytest.mark.parametrize(("heading", "kinds"), [("failure", FailureClass), ("kind", LedgerKind)])
def test_every_failure_class_and_ledger_kind_is_explained(heading: str, kinds: type[StrEnum]) -> None:
    assert [kind.value for kind in kinds] == [row[0] for row in table(REFERENCE, heading, 1)]


def test_every_handler_of_a_lane_is_told_to_other_languages() -> None:
    text = (ROOT / "docs" / "howto" / "other-languages.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in text.splitlines() if line.startswith("| `")]
    kinds = ("update", "signal", "query")
    told = {
        (name, kind)
        for names, *says in rows
        for name in re.findall(r"`(\w+)`", names)
        for kind, word in zip(kinds, says, strict=True)
        if word == "yes"
    }

    assert handlers() == told


def handlers() -> set[tuple[str, str]]:
    """Name and kind of each handler of the lane."""
    lane = _Definition.must_from_class(ConversationLane)
    kinds = {"update": lane.updates, "signal": lane.signals, "query": lane.queries}
    return {(name, kind) for kind, named in kinds.items() for name in named if name is not None}


def test_every_line_of_a_chat_that_does_something_is_in_the_reference() -> None:
    told = set(re.findall(r"^(/\w+)", HELP, re.MULTILINE))

    assert told == {name for name in re.findall(r"`(/\w+)`", REFERENCE.read_text(encoding="utf-8")) if name != "/help"}


def test_concepts_tell_every_ending_as_the_table_in_the_code() -> None:
    expected = [
        (reason.value, ending.state.value, ending.message_status.value if ending.message_status else "none")
        for reason, ending in ENDINGS.items()
    ]

    assert expected == table(ROOT / "docs" / "concepts.md", "reason", 3)


def test_the_readme_explains_every_policy() -> None:
    assert [policy.value for policy in Policy] == [row[0] for row in table(ROOT / "README.md", "policy", 1)]


def test_every_operator_event_and_each_of_its_fields_is_explained() -> None:
    kinds = get_args(get_args(OperatorEvent)[0])
    common = set.intersection(*(set(kind.model_fields) for kind in kinds))
    page = (ROOT / "docs" / "operator-events.md").read_text(encoding="utf-8")
    told = {name: set(re.findall(r"`(\w+)`", row)) for name, row in re.findall(r"^\| `([\w-]+)` \|(.+)", page, re.M)}

    assert {kind.model_fields["type"].default: set(kind.model_fields) - common for kind in kinds} == told
    assert [] == [name for name in sorted(common) if f"`{name}`" not in page]


def test_every_event_is_explained_with_its_class() -> None:
    schema = EVENT_ADAPTER.json_schema()
    durable = {kind.model_fields["type"].default for kind in DURABLE_TYPES}
    expected = {(name, "durable" if name in durable else "transient") for name in schema["discriminator"]["mapping"]}
    rows = table(ROOT / "docs" / "howto" / "events.md", "event", 2)

    assert expected == {(name, row[1]) for row in rows for name in row[0].split("`, `")}
