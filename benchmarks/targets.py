"""The targets: what turnlane promises of its cost, and whether a run's figures keep it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """A figure of the report, by its path, and the bound it must keep."""

    name: str
    path: tuple[str, ...]
    bound: float
    at_least: bool = False

    def judged(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """Value, bound and whether it is kept."""
        value: Any = report
        for step in self.path:
            value = value[step]
        kept = value >= self.bound if self.at_least else value <= self.bound
        sign = ">=" if self.at_least else "<="
        return {"name": self.name, "value": value, "bound": f"{sign} {self.bound:g}", "ok": kept}


def targets(long_turns: int) -> list[Target]:
    """All targets; `long_turns` is how long the long conversation is."""
    last = f"turn {long_turns}"
    return [
        Target("submit to result, of the floor's", ("sequential", "result_ratio"), 1.3),
        Target("throughput, of the floor's", ("throughput", "ratio"), 0.75, at_least=True),
        Target("history events of a plain turn", ("history", "plain", "events"), 14),
        Target("history bytes of a plain turn", ("history", "plain", "bytes"), 3.5 * 1024),
        Target("history events with wait", ("history", "wait", "events"), 17),
        Target("history events with 1 tool", ("history", "one_tool", "events"), 24),
        Target("history events with 5 parallel tools", ("history", "five_tools", "events"), 36),
        Target(f"time of {last}, of turn 1's", ("long", "time_ratio"), 1.3),
        Target(f"history bytes of {last}, of turn 1's", ("long", "bytes_ratio"), 1.05),
        Target("lag of a delta, median, ms", ("streaming", "lag_ms", "p50"), 5),
        Target("going on after SIGKILL, s", ("killed", "going_on_s"), 10),
        Target("takeover by a fresh worker, extra ms", ("takeover", "extra_ms"), 300),
        Target("worker start to first result, ms", ("start", "lane_first_result_ms"), 1200),
    ]
