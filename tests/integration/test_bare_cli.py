"""The bare `temporal` command: a lane is submitted to, asked and controlled with JSON alone, as from any language."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import Play, open_play
from tests.integration.stage import BOUND, until
from turnlane.client.dev_server import DevServer, find_binary

pytestmark = pytest.mark.server


class Command:
    """The `temporal` binary, for the lane of one conversation."""

    def __init__(self, target: str, task_queue: str, conversation: str) -> None:
        self.target = target
        self.lane = f"lane/{conversation}"
        self.starting = (
            *("--type", "ConversationLane", "--task-queue", task_queue),
            *("--input", json.dumps({"conversation_id": conversation})),
        )

    async def __call__(self, *arguments: str) -> Any:
        """Run `temporal workflow ...` and return what it prints, as JSON."""
        code, out, err = await self.run(*arguments)
        assert code == 0, err
        return json.loads(out) if out.strip() else None

    async def run(self, *arguments: str) -> tuple[int | None, str, str]:
        """Run `temporal workflow ...` and return its exit code and what it prints."""
        process = await asyncio.create_subprocess_exec(
            *(find_binary(), "workflow", *arguments, "--workflow-id", self.lane),
            *("--address", self.target, "--output", "json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), BOUND)
        return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def play(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation with a model that is held; what is still held when the test ends is let go."""
    opened = await open_play(bench, serve, conversation)
    yield opened
    opened.stage.play()


@pytest.fixture
def temporal_workflow(server: DevServer, play: Play) -> Command:
    """The command, for the play's lane."""
    return Command(server.target, play.bench.task_queue, play.conversation)


def given(key: str, **fields: Any) -> str:
    return json.dumps({"key": key, "text": key, **fields})


async def test_signal_with_start_opens_a_lane_and_is_answered(play: Play, temporal_workflow: Command) -> None:
    play.stage.play()
    await temporal_workflow(
        "signal-with-start", "--signal-name", "submit", "--signal-input", given("A"), *temporal_workflow.starting
    )
    await (await play.submit("A")).result(BOUND)

    assert [("user", "A"), ("assistant", "answer to A")] == await play.said()


@pytest.mark.parametrize("argument", [(), ("--input", "{}")], ids=["none", "empty"])
async def test_a_lane_that_is_started_without_its_conversation_has_it_from_its_id(
    play: Play, temporal_workflow: Command, argument: tuple[str, ...]
) -> None:
    play.stage.play()
    queue = play.bench.task_queue
    await temporal_workflow(
        *("signal-with-start", "--type", "ConversationLane", "--task-queue", queue, *argument),
        *("--signal-name", "submit", "--signal-input", given("A")),
    )

    await until(lambda: _is_answered(play))
    assert [("user", "A"), ("assistant", "answer to A")] == await play.said()


async def _is_answered(play: Play) -> bool:
    return ("assistant", "answer to A") in await play.said()


async def test_start_and_signal_do_the_same_in_two_steps(play: Play, temporal_workflow: Command) -> None:
    play.stage.play()
    await temporal_workflow("start", *temporal_workflow.starting)
    await temporal_workflow("signal", "--name", "submit", "--input", given("A"))
    await temporal_workflow("signal", "--name", "submit", "--input", given("B"))
    await (await play.submit("B")).result(BOUND)

    assert ["A", "B"] == await play.answered()


async def test_an_update_answers_with_the_admission_and_can_stay_for_the_end(
    play: Play, temporal_workflow: Command
) -> None:
    play.stage.play()
    await temporal_workflow("start", *temporal_workflow.starting)
    first = await temporal_workflow("update", "execute", "--name", "submit", "--input", given("A", agent="actor"))
    again = await temporal_workflow("update", "execute", "--name", "submit", "--input", given("A", stay=True))

    assert (False, True) == (
        first["result"]["admission"]["duplicate"],
        again["result"]["admission"]["duplicate"],
    )
    assert "success" == again["result"]["terminal"]["reason"]
    assert [("user", "A"), ("assistant", "answer to A")] == await play.said()


async def test_update_with_start_opens_a_lane_in_one_step(play: Play, temporal_workflow: Command) -> None:
    play.stage.play()
    reply = await temporal_workflow(
        "execute-update-with-start",
        *("--update-name", "submit", "--update-input", given("A", stay=True)),
        *("--id-conflict-policy", "UseExisting", *temporal_workflow.starting),
    )

    assert "success" == reply["updateResult"]["terminal"]["reason"]


async def test_queries_show_the_runs_and_an_interrupt_stops_one(play: Play, temporal_workflow: Command) -> None:
    await temporal_workflow("start", *temporal_workflow.starting)
    await temporal_workflow("signal", "--name", "submit", "--input", given("A"))
    await play.stage.call(1)
    b = await temporal_workflow("update", "execute", "--name", "submit", "--input", given("B"))
    (lines,) = (await temporal_workflow("query", "--type", "runs"))["queryResult"]
    (known,) = (await temporal_workflow("query", "--type", "admission", "--input", '"B"'))["queryResult"]
    control = await temporal_workflow("update", "execute", "--name", "interrupt", "--input", "{}")
    play.stage.play()
    a_again, b_again = await play.submit("A"), await play.submit("B")

    assert ["running", "queued"] == [line["state"] for line in lines]
    assert b["result"]["admission"]["run_id"] == known["admission"]["run_id"]
    assert "interrupt_requested" == control["result"]["state"]
    assert ["interrupted", "success"] == await play.reasons(a_again, b_again)


async def test_a_refusal_is_told_with_its_code(play: Play, temporal_workflow: Command) -> None:
    await temporal_workflow("start", *temporal_workflow.starting)
    code, out, err = await temporal_workflow.run(
        "update", "execute", "--name", "submit", "--input", given("A", agent="nobody")
    )

    assert 0 != code
    assert "no agent of this name" in out + err
    assert [] == await play.said()
