"""The long talk: whether turn 200 costs what turn 1 costs, and how fast a fresh worker takes it over."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.histories import added_by, history_size, typical
from benchmarks.stage import Stage, fresh_id, lane_turn

WINDOW = 20
TASK_QUEUE = "long"


@dataclass(frozen=True)
class Talk:
    """A conversation that has gone on for a while."""

    conversation: str

    @property
    def workflow_id(self) -> str:
        return f"lane/{self.conversation}"


async def growth(stage: Stage, turns: int) -> tuple[dict[str, Any], Talk]:
    """Compare the first turns of a conversation with its last before `turns`, times alternating."""
    client = stage.client(TASK_QUEUE)
    talk = Talk(fresh_id())
    async with stage.worker(TASK_QUEUE):
        for _ in range(turns - 2 * WINDOW):
            await lane_turn(client, talk.conversation)
        young = Talk(fresh_id())
        await lane_turn(client, young.conversation)
        early = await added_by(stage, young.workflow_id, lambda: lane_turn(client, young.conversation), WINDOW)
        late = await added_by(stage, talk.workflow_id, lambda: lane_turn(client, talk.conversation), WINDOW)
        first, last = await _times(stage, talk)
        await history_size(stage, talk.workflow_id)
    sizes = {"turn_1": typical(early), f"turn_{turns}": typical(late)}
    report = {
        "turn_1_ms": round(median(first), 2),
        f"turn_{turns}_ms": round(median(last), 2),
        "time_ratio": round(median(last) / median(first), 3),
        "history": sizes,
        "bytes_ratio": round(sizes[f"turn_{turns}"]["bytes"] / sizes["turn_1"]["bytes"], 3),
    }
    return report, talk


async def _times(stage: Stage, talk: Talk) -> tuple[list[float], list[float]]:
    client, young = stage.client(TASK_QUEUE), fresh_id()
    await lane_turn(client, young)
    first: list[float] = []
    last: list[float] = []
    for _ in range(WINDOW):
        first.append((await lane_turn(client, young)).result)
        last.append((await lane_turn(client, talk.conversation)).result)
    return first, last


async def takeover(stage: Stage, talk: Talk, rounds: int) -> dict[str, Any]:
    """How long the next admission takes on a worker that has never seen the conversation."""
    client = stage.client(TASK_QUEUE)
    cold: list[float] = []
    warm: list[float] = []
    events: list[int] = []
    for _ in range(rounds):
        events.append((await history_size(stage, talk.workflow_id)).events)
        async with stage.worker(TASK_QUEUE):
            cold.append((await lane_turn(client, talk.conversation)).admission)
            for _ in range(3):
                await history_size(stage, talk.workflow_id)
                warm.append((await lane_turn(client, talk.conversation)).admission)
            await history_size(stage, talk.workflow_id)
    return {
        "cold_admission_ms": round(median(cold), 1),
        "warm_admission_ms": round(median(warm), 1),
        "extra_ms": round(median(cold) - median(warm), 1),
        "events_to_replay": median(events),
    }
