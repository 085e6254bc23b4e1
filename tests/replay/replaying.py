"""Replaying a kept history against the lane as it is now: `python tests/replay/replaying.py FILE ...`."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from turnlane.workflows.lane import ConversationLane

HISTORIES = Path(__file__).parent / "histories"
BOUND = 60.0


def kept(pattern: str = "*/*.json") -> list[Path]:
    """The kept histories of all releases, or those that fit a pattern."""
    return sorted(HISTORIES.glob(pattern))


def load(path: Path) -> dict[str, Any]:
    """A kept history, as JSON."""
    history: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return history


def workflow_of(history: dict[str, Any]) -> str:
    """The id of the workflow whose history it is."""
    workflow_id: str = history["events"][0]["workflowExecutionStartedEventAttributes"]["workflowId"]
    return workflow_id


async def divergence(history: dict[str, Any]) -> Exception | None:
    """Replay a history in the sandbox: NondeterminismError if the lane would decide otherwise now, else None.

    Whatever else ends the replay, as a payload that cannot be read any more, is given back as well.
    """
    replayer = Replayer(workflows=[ConversationLane], data_converter=pydantic_data_converter)
    told = WorkflowHistory.from_json(workflow_of(history), history)
    async with asyncio.timeout(BOUND):
        return (await replayer.replay_workflow(told, raise_on_replay_failure=False)).replay_failure


async def replay_all(paths: list[Path]) -> None:
    """Replay the histories in these files, one after the other. Raises what stands in the way of one."""
    for path in paths:
        if (failure := await divergence(load(path))) is not None:
            raise failure


if __name__ == "__main__":
    asyncio.run(replay_all([Path(name) for name in sys.argv[1:]]))
    # What is left of a worker must not meet the end of the interpreter, which it may crash.
    gc.collect()
