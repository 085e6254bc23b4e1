"""Recent things: a mapping that forgets its oldest entries, so that what a lane remembers stays bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """Keeps at most `limit` keys: the one that came first goes first. A key that is set anew keeps its place."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > self._limit:
            self.popitem(last=False)
