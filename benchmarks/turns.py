"""What a turn costs: `python -m benchmarks.turns [--quick]` prints one JSON object.

Everything runs on a development server of its own, in a temporary folder. Absolute figures depend on the
machine and on what else it does; the ratios to the floor, measured in the same run, much less.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.histories import per_turn
from benchmarks.long_talk import growth, takeover
from benchmarks.pace import sequential, throughput
from benchmarks.processes import killed, starts, workers
from benchmarks.stage import Stage, stage
from benchmarks.streaming import delta_lag
from benchmarks.targets import targets


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is measured."""

    turns: int = 120
    conversations: int = 50
    rounds: int = 3
    blocks: int = 5
    history_turns: int = 24
    long_turns: int = 200
    deltas: int = 200


QUICK = Extent(turns=30, conversations=20, rounds=1, blocks=1, history_turns=6, long_turns=60, deltas=60)

PARTS = ("sequential", "throughput", "history", "streaming", "long", "start", "killed")


async def measure(extent: Extent, parts: tuple[str, ...]) -> dict[str, Any]:
    """Measure the parts and return the report, targets judged as far as they were measured."""
    report: dict[str, Any] = {"machine": _machine()}
    started = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        async with stage(Path(folder)) as made:
            await _in_process(made, extent, parts, report)
            await _in_processes(made, extent, parts, report)
    report["seconds"] = round(perf_counter() - started, 1)
    measured = [target for target in targets(extent.long_turns) if target.path[0] in report]
    report["targets"] = [target.judged(report) for target in measured]
    return report


async def _in_process(made: Stage, extent: Extent, parts: tuple[str, ...], report: dict[str, Any]) -> None:
    async with made.worker():
        if "sequential" in parts:
            report["sequential"] = await sequential(made, extent.turns)
        if "throughput" in parts:
            report["throughput"] = await throughput(made, extent.conversations, 4, extent.blocks)
        if "history" in parts:
            report["history"] = await per_turn(made, extent.history_turns)
    if "streaming" in parts:
        report["streaming"] = await delta_lag(made, extent.deltas)
    if "long" in parts:
        report["long"], talk = await growth(made, extent.long_turns)
        report["takeover"] = await takeover(made, talk, extent.rounds)


async def _in_processes(made: Stage, extent: Extent, parts: tuple[str, ...], report: dict[str, Any]) -> None:
    async with workers(made) as staff:
        if "start" in parts:
            report["start"] = await starts(made, staff, extent.rounds)
        if "killed" in parts:
            report["killed"] = await killed(made, staff, extent.rounds)


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def main() -> int:
    """Measure, print, and return 1 when a target was missed."""
    parser = argparse.ArgumentParser(description="What a turn costs, against a floor. Prints JSON.")
    parser.add_argument("--quick", action="store_true", help="a minute instead of three; rough figures")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part; may be repeated")
    options = parser.parse_args()
    report = asyncio.run(measure(QUICK if options.quick else Extent(), tuple(options.only or PARTS)))
    # A worker's threads may still be winding down when the interpreter ends; see temporalio's own advice.
    gc.collect()
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(target["ok"] for target in report["targets"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
