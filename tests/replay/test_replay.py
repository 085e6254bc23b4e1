"""Lanes that are open when a new release is deployed go on: every kept history replays.

A history that fails here is not to be recorded again: the change that broke it would break lanes that
are open now. Guard it with `workflow.patched`, and record the new way beside the old one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.workflow import NondeterminismError

from tests.replay.replaying import HISTORIES, divergence, kept, load
from tests.replay.turns import TURNS

RELEASE = "0.1.0"
SEEDS = ("0", "1", "2", "3", "4")


@pytest.mark.parametrize("path", kept(), ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_kept_history_replays(path: Path) -> None:
    assert await divergence(load(path)) is None


def test_every_kind_of_turn_is_kept() -> None:
    names = {path.name.split(".")[0] for path in kept(f"{RELEASE}/*.json")}

    assert set(TURNS) == names


@pytest.mark.parametrize(
    "name",
    [
        "idle-close",
        "lost-lane",
        "superseded-lane",
        "continue-between-runs",
        "continue-between-steps",
        "waiting-tool-moves",
    ],
)
def test_a_lane_with_several_lives_is_kept_whole(name: str) -> None:
    assert len(kept(f"{RELEASE}/{name}.*.json")) > 1


def test_no_history_tells_where_it_was_recorded() -> None:
    home = str(Path(__file__).parents[2])

    assert [] == [path.name for path in kept() if home in path.read_text(encoding="utf-8")]


def scheduled(history: dict[str, Any]) -> list[dict[str, Any]]:
    """The scheduling of each activity, in order."""
    name = "activityTaskScheduledEventAttributes"
    return [event[name] for event in history["events"] if name in event]


@pytest.mark.parametrize(
    ("name", "activities"),
    [
        ("plain", {"provider_step"}),
        ("parallel-tools", {"provider_step", "add", "ring"}),
        ("store-outage", {"provider_step", "commit"}),
        ("sleeping-tool", {"provider_step", "nap", "add"}),
        ("waiting-tools", {"provider_step", "hear", "add"}),
    ],
)
def test_a_kept_history_is_what_its_name_says(name: str, activities: set[str]) -> None:
    history = load(HISTORIES / RELEASE / f"{name}.json")

    assert activities == {call["activityType"]["name"] for call in scheduled(history)}


# --- what replaying would notice ----------------------------------------------------------------


def is_marker(event: dict[str, Any]) -> bool:
    """Whether an event tells of a local activity that was run."""
    return "markerRecordedEventAttributes" in event


async def test_another_order_of_commands_is_noticed() -> None:
    history = load(HISTORIES / RELEASE / "parallel-tools.json")
    first, second = [call for call in scheduled(history) if call["activityType"]["name"] in ("add", "ring")][:2]
    first["activityType"], second["activityType"] = second["activityType"], first["activityType"]

    assert isinstance(await divergence(history), NondeterminismError)


async def test_another_local_activity_in_its_place_is_noticed() -> None:
    history = load(HISTORIES / RELEASE / "plain.json")
    marker = next(event["markerRecordedEventAttributes"] for event in history["events"] if is_marker(event))
    payload = marker["details"]["data"]["payloads"][0]
    told = json.loads(base64.b64decode(payload["data"]))
    told["activity_type"] = "another"
    payload["data"] = base64.b64encode(json.dumps(told).encode()).decode()

    assert isinstance(await divergence(history), NondeterminismError)


# --- hash seeds ---------------------------------------------------------------------------------


async def replay_elsewhere(seed: str) -> tuple[int | None, str]:
    """Replay the most tangled histories in a fresh interpreter with this hash seed."""
    paths = [str(path) for name in ("parallel-tools", "coalesced", "refused") for path in kept(f"*/{name}.json")]
    script = Path(__file__).with_name("replaying.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        *paths,
        env={**os.environ, "PYTHONHASHSEED": seed},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_a_history_replays_whatever_the_hash_seed() -> None:
    replays = await asyncio.gather(*(replay_elsewhere(seed) for seed in SEEDS))

    assert [] == [said for code, said in replays if code != 0]
