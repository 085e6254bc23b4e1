"""The examples, run as their readers run them: as programs, in a folder of their own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from turnlane.client.dev_server import DevServer

EXAMPLES = Path(__file__).parents[2] / "examples"


async def run_example(name: str, folder: Path, address: str) -> list[str]:
    """The lines that an example prints, when it ends well and complains of nothing."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / name)),
        cwd=folder,
        env=os.environ | {"TEMPORAL_ADDRESS": address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complained = await asyncio.wait_for(process.communicate(), 110)
    assert (0, "") == (process.returncode, complained.decode())
    return said.decode().splitlines()


async def test_the_quickstart_answers(server: DevServer, tmp_path: Path) -> None:
    assert ["2 and 3 make 5."] == await run_example("quickstart.py", tmp_path, server.target)


async def test_the_quickstart_can_be_run_again_on_its_files(server: DevServer, tmp_path: Path) -> None:
    await run_example("quickstart.py", tmp_path, server.target)

    assert ["2 and 3 make 5."] == await run_example("quickstart.py", tmp_path, server.target)


async def test_tools_tell_results_and_mistakes(server: DevServer, tmp_path: Path) -> None:
    lines = await run_example("tools.py", tmp_path, server.target)

    assert ["in_stock success 3", "in_stock error", "order success"] == [
        lines[0],
        " ".join(lines[1].split()[:2]),
        " ".join(lines[2].split()[:2]),
    ]
    assert "UNKNOWN_FRUIT" in lines[1]
    assert "There are: apple, pear." in lines[1]
    assert "12 pear" in lines[2]
    assert ["One call went wrong, and I was told how."] == lines[3:]


async def test_policies_stop_the_answer_in_flight(server: DevServer, tmp_path: Path) -> None:
    first, second, third = await run_example("policies.py", tmp_path, server.target)

    assert first.startswith("interrupted: Let me")
    assert ("success: In short: yes.", "success: In short: yes.") == (second, third)


async def test_a_client_without_a_store_is_told_how_its_run_ended(server: DevServer, tmp_path: Path) -> None:
    assert ["completed, success", "STORE_REQUIRED"] == await run_example("no_store.py", tmp_path, server.target)


async def test_a_file_reaches_the_model_and_a_false_one_is_refused(server: DevServer, tmp_path: Path) -> None:
    answer = "What is to be done? | [file: notes.txt] | Water the fern on Monday."

    assert [answer, "['notes.txt']", "FILE_REFUSED content"] == await run_example("files.py", tmp_path, server.target)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_is_run_here(name: str) -> None:
    assert f'"{name}"' in Path(__file__).read_text(encoding="utf-8")


async def test_a_long_conversation_goes_on_with_a_summary(server: DevServer, tmp_path: Path) -> None:
    lines = await run_example("compaction.py", tmp_path, server.target)

    assert ["I was shown 5 messages and 0 summaries.", "I was shown 3 messages and 1 summaries."] == lines[2:4]
    assert ["summary: Summary of the earlier conversation:", "user: Question 3"] == lines[4:6]


async def test_a_prompt_is_made_of_sections_and_cut_to_its_budget(server: DevServer, tmp_path: Path) -> None:
    assert [
        "Greet the user. First: I am Ada.",
        "Do not greet again. First: I am Ada.",
        "Do not greet again. First: Question 2",
    ] == await run_example("prompt.py", tmp_path, server.target)


async def test_a_tool_is_found_in_a_catalog_of_a_hundred(server: DevServer, tmp_path: Path) -> None:
    base = "offers tool_search, weather_rome"

    assert [
        f"step 1 {base}",
        f"step 2 {base}, weather_oslo",
        f"step 3 {base}, weather_oslo",
        "It is sunny in Oslo.",
    ] == await run_example("catalog.py", tmp_path, server.target)


async def test_an_approved_call_is_made_after_the_answer(server: DevServer, tmp_path: Path) -> None:
    assert [
        "provider_stop",
        "waits: refund {'order': 'B2', 'amount': 500}",
        "5 paid back for A1; 500 paid back for B2",
    ] == await run_example("approvals.py", tmp_path, server.target)


async def test_an_operator_is_told_of_a_turn(server: DevServer, tmp_path: Path) -> None:
    assert [
        "run-started",
        "step-finished step 0 completed cost 1.5 computed",
        "step-finished step 1 completed cost 3.5 computed",
        "run-terminal success cost 5.0 computed",
    ] == await run_example("operator_events.py", tmp_path, server.target)
