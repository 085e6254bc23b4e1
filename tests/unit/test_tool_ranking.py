"""The built-in ranking of a catalog, rule by rule."""

from __future__ import annotations

import pytest

from turnlane.agent.tool_ranking import ranked
from turnlane.records.prompt import ToolSpec


def manifest(**described: str) -> list[ToolSpec]:
    """A catalog of these tools, in this order."""
    return [ToolSpec(name=name, description=text, parameters={"type": "object"}) for name, text in described.items()]


RESOURCES = manifest(
    resource_disk="Free space of a disk",
    resource_clock="The time in a timezone",
    resource_memory="How much memory is in use",
)
STAIRS = manifest(
    described="what a mail is",
    blackmail="contains it",
    send_mail="a part of the name",
    mailbox="the name starts with it",
    mail="the name itself",
    **{"voice-mail": "another part of the name", "other": "nothing of it"},
)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("resource_clock time timezone", ["resource_clock"]),
        ("free space timezone", ["resource_disk", "resource_clock"]),
        ("resource", ["resource_disk", "resource_clock", "resource_memory"]),
        ("xyzzy plugh", []),
    ],
)
def test_a_query_finds_by_phrase_and_then_by_words(query: str, expected: list[str]) -> None:
    assert expected == ranked(query, RESOURCES)


def test_the_phrase_is_found_in_five_ways_best_first() -> None:
    found = ["mail", "mailbox", "send_mail", "voice-mail", "blackmail", "described"]

    assert found == ranked("mail", STAIRS)


@pytest.mark.parametrize("query", ["  MAIL ", "Mail", "mail\n"])
def test_case_and_blanks_around_do_not_count(query: str) -> None:
    assert "mail" == ranked(query, STAIRS)[0]


@pytest.mark.parametrize("query", ["", "   ", "\n\t"], ids=repr)
def test_a_blank_query_finds_nothing(query: str) -> None:
    assert [] == ranked(query, STAIRS)


def test_words_are_not_tried_when_the_phrase_is_found() -> None:
    tools = manifest(one="red", two="red car", three="car")

    assert ["two"] == ranked("red car", tools)


def test_of_words_those_with_most_come_first_and_ties_stand_as_they_were_given() -> None:
    tools = manifest(a="one", b="three two", c="two", d="one two", e="zero")

    assert ["b", "d", "a", "c"] == ranked("one two three", tools)


def test_a_word_may_stand_in_the_name() -> None:
    assert ["resource_memory"] == ranked("memory gauge", RESOURCES)
