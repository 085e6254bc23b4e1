"""Archives and branches from the command line, of a stack that runs and of one that is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.archived_talk import talk
from tests.contract.conftest import Lane
from tests.integration.cli_stage import Cli, Reply
from turnlane.store.sql import open_store

NOWHERE = ("--address", "127.0.0.1:1")


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """A folder with a store in which somebody talked, and nothing that runs."""
    cli = Cli(tmp_path)
    asyncio.run(_talked(tmp_path))
    yield cli
    cli.end()


async def _talked(folder: Path) -> None:
    store = await open_store(str(folder / "store.db"))
    try:
        await talk(await Lane(store, "c-1").open())
    finally:
        await store.close()


def run(cli: Cli, *arguments: str, store: str = "store.db", **options: Any) -> Reply:
    """Run a verb where no Temporal server answers."""
    return cli(*arguments, "--store", store, *NOWHERE, **options)


def answer(cli: Cli, *arguments: str, **options: Any) -> Any:
    """What a verb that succeeds answers to a program."""
    reply = run(cli, *arguments, "--json", **options)
    assert (0, "") == (reply.code, reply.errors), reply.text
    return reply.lines[0]


def test_a_conversation_that_temporal_forgot_is_read_exported_and_branched(cli: Cli) -> None:
    shown = answer(cli, "show", "c-1")
    made = answer(cli, "export", "c-1", "c-1.json")
    branched = answer(cli, "branch", "c-1", "copy", "--through", "run-b")

    listed = [line["conversation_id"] for line in answer(cli, "conversations")["items"]]
    assert ("c-1", 4) == (shown["conversation_id"], len(shown["runs"]))
    assert (made["bytes"], True) == ((cli.folder / "c-1.json").stat().st_size, made["ok"])
    assert ("created", "c-1") == (branched["outcome"], branched["receipt"]["source_conversation_id"])
    assert ["c-1", "copy"] == sorted(listed)
    assert answer(cli, "messages", "c-1")["items"]
    assert "no run is active" in run(cli, "runs", "c-1").text


def test_an_archive_comes_back_from_a_file_and_from_standard_input(cli: Cli) -> None:
    answer(cli, "export", "c-1", "c-1.json")
    printed = run(cli, "export", "c-1", "-")
    from_file = answer(cli, "import", "c-1.json", store="one.db")
    from_input = answer(cli, "import", "-", store="two.db", stdin=printed.text)
    exported = [run(cli, "export", "c-1", "-", store=store).text for store in ("one.db", "two.db")]

    assert (from_file, "c-1") == (from_input, from_file["conversation_id"])
    assert [printed.text] * 2 == exported
    assert (cli.folder / "c-1.json").read_text() == printed.text.strip()


def test_a_branch_is_made_of_an_archive_and_its_repeat_is_the_same_branch(cli: Cli) -> None:
    answer(cli, "export", "c-1", "c-1.json")
    made = answer(cli, "branch", "--archive", "c-1.json", "copy", "--key", "b-1", store="other.db")
    again = answer(cli, "branch", "--archive", "c-1.json", "copy", "--key", "b-1", store="other.db")

    assert ("created", "duplicate") == (made["outcome"], again["outcome"])
    assert made["receipt"] == again["receipt"]
    assert "archive" == made["receipt"]["source_kind"]


def test_a_branch_is_shown_with_where_it_is_from_and_what_others_spent(cli: Cli) -> None:
    answer(cli, "branch", "c-1", "copy")
    shown = answer(cli, "show", "copy")
    spent = answer(cli, "spend", "copy")
    text = run(cli, "show", "copy").text

    assert "c-1" == shown["branched_from"]["source_conversation_id"]
    assert None is answer(cli, "show", "c-1")["branched_from"]
    assert (0, 4) == (spent["runs"], spent["inherited"]["runs"])
    assert 130 == spent["inherited"]["total"]["input_tokens"]["value"]
    assert "branched from c-1 at version" in text
    assert "spent before, elsewhere: " in text
    assert "4 runs, before it was branched" in run(cli, "spend", "copy").text


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("export", "nobody", "x.json"), "CONVERSATION_NOT_FOUND"),
        (("export", "c-1", "kept.json"), "INVALID_INPUT"),
        (("export", "c-1", "no/such/folder.json"), "INVALID_INPUT"),
        (("import", "no-such-file.json"), "INVALID_INPUT"),
        (("import", "kept.json"), "ARCHIVE_INVALID"),
        (("branch", "nobody", "copy"), "CONVERSATION_NOT_FOUND"),
        (("branch", "c-1", "c-1"), "CONVERSATION_EXISTS"),
        (("branch", "c-1", "copy", "--through", "no-such-run"), "RUN_NOT_FOUND"),
        (("branch", "--archive", "kept.json", "copy"), "ARCHIVE_INVALID"),
        (("branch", "c-1", "bad\nid"), "INVALID_INPUT"),
    ],
)
def test_a_wrong_call_changes_nothing_and_says_why(cli: Cli, arguments: tuple[str, ...], code: str) -> None:
    kept = cli.folder / "kept.json"
    kept.write_text("{}")
    before = answer(cli, "conversations")

    reply = run(cli, *arguments, "--json")

    assert (2, code) == (reply.code, reply.lines[0]["error"]["code"])
    assert ("{}", before) == (kept.read_text(), answer(cli, "conversations"))
    assert [] == [path.name for path in cli.folder.iterdir() if path.name.startswith(".")]


def test_a_file_is_replaced_on_demand(cli: Cli) -> None:
    kept = cli.folder / "kept.json"
    kept.write_text("{}")

    answer(cli, "export", "c-1", "kept.json", "--force")

    assert "turnlane.conversation" == json.loads(kept.read_text())["format"]


def test_without_a_store_there_is_nothing_to_move(cli: Cli) -> None:
    for arguments in (("export", "c-1", "x.json"), ("branch", "c-1", "copy"), ("show", "c-1")):
        reply = cli(*arguments, *NOWHERE, "--json")

        assert (2, "STORE_REQUIRED") == (reply.code, reply.lines[0]["error"]["code"])
