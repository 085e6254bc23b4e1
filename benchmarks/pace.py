"""Pace: how long a turn takes, and how many turns a second go through, against the floor.

Blocks of turns of the floor and of turnlane alternate, so what else the machine does hits both alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from benchmarks.stage import Stage, TurnTime, floor_turn, fresh_id, lane_turn

BLOCK_TURNS = 10

Turn = Callable[[str], Awaitable[TurnTime]]


def spread(values: list[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    return {"p50": round(median(values), 2), "p95": round(quantiles(values, n=20)[-1], 2)}


def _contenders(stage: Stage) -> dict[str, Turn]:
    with_store, alone = stage.client(), stage.client(alone=True)
    return {
        "floor": lambda conversation: floor_turn(stage.floor, conversation),
        "floor_stored": lambda conversation: floor_turn(stage.stored, conversation),
        "lane": lambda conversation: lane_turn(with_store, conversation),
        "floor_wait": lambda conversation: floor_turn(stage.floor, conversation, waits=True),
        "lane_wait": lambda conversation: lane_turn(alone, conversation),
    }


async def _block(turn: Turn) -> list[TurnTime]:
    """Turns of one conversation, one after the other; the first, which starts the workflow, is left out."""
    conversation = fresh_id()
    await turn(conversation)
    return [await turn(conversation) for _ in range(BLOCK_TURNS)]


async def sequential(stage: Stage, turns: int) -> dict[str, Any]:
    """Admission and result times of `turns` warm turns of each contender, and their ratios to the floor."""
    contenders = _contenders(stage)
    times: dict[str, list[TurnTime]] = {name: [] for name in contenders}
    for _ in range(max(turns // BLOCK_TURNS, 2)):
        for name, turn in contenders.items():
            times[name] += await _block(turn)
    report: dict[str, Any] = {
        name: {"admission_ms": spread([t.admission for t in taken]), "result_ms": spread([t.result for t in taken])}
        for name, taken in times.items()
    }
    report["result_ratio"] = _ratio(times["lane"], times["floor"])
    report["stored_result_ratio"] = _ratio(times["floor_stored"], times["floor"])
    report["wait_result_ratio"] = _ratio(times["lane_wait"], times["floor_wait"])
    return report


def _ratio(ours: list[TurnTime], floor: list[TurnTime]) -> float:
    return round(median(t.result for t in ours) / median(t.result for t in floor), 3)


async def throughput(stage: Stage, conversations: int, turns: int, blocks: int) -> dict[str, Any]:
    """Turns a second with many conversations at once; the best of `blocks` each, alternating."""
    contenders = _contenders(stage)
    rates: dict[str, list[float]] = {"floor": [], "floor_stored": [], "lane": []}
    for _ in range(blocks):
        for name, taken in rates.items():
            taken.append(await _rate(contenders[name], conversations, turns))
    best = {name: max(taken) for name, taken in rates.items()}
    report: dict[str, Any] = {f"{name}_turns_per_second": round(rate, 1) for name, rate in best.items()}
    report["ratio"] = round(best["lane"] / best["floor"], 3)
    report["stored_ratio"] = round(best["floor_stored"] / best["floor"], 3)
    return report


async def _rate(turn: Turn, conversations: int, turns: int) -> float:
    async def talk(conversation: str) -> None:
        for _ in range(turns):
            await turn(conversation)

    start = perf_counter()
    await asyncio.gather(*(talk(fresh_id()) for _ in range(conversations)))
    return conversations * turns / (perf_counter() - start)
