"""What the demo claims: each claim has a name, is checked, and is told with the time at which it held."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from turnlane.client.cli.output import Output


@dataclass
class Facts:
    """The claims so far, by name, in the order in which they were checked."""

    out: Output
    held: dict[str, bool] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def all_held(self) -> bool:
        """Whether something was claimed, and nothing that was claimed turned out to be wrong."""
        return bool(self.held) and all(self.held.values())

    @property
    def seconds(self) -> float:
        """How long the demo has run."""
        return time.monotonic() - self.started

    def tell(self, text: str) -> None:
        """Say what happens next."""
        self.out.say(f"{self._clock()}    {text}", "bold")

    def check(self, name: str, holds: bool, told: str) -> None:
        """Note whether a claim holds, and say so. A name that was wrong once stays wrong."""
        self.held[name] = holds and self.held.get(name, True)
        self.out.say(f"{self._clock()} {'ok' if holds else 'NO'} {told}", "green" if holds else "bold red")

    def _clock(self) -> str:
        return f"[{self.seconds:5.1f} s]"
