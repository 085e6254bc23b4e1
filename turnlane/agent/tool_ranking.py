"""The built-in ranking of a catalog: the whole phrase first, and words only if that finds nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from turnlane.records.prompt import ToolSpec

_TOKENS = re.compile(r"[_-]")


def ranked(query: str, manifest: Sequence[ToolSpec]) -> list[str]:
    """The names of the tools that a query finds, best first; ties stand in the order of the manifest.

    The phrase as a whole: a tool of this name, then names that start with it, names with a part that starts
    with it, names that contain it, descriptions that contain it. If no tool has the phrase: by how many of its
    words a name or description contains. Case does not count. A blank query finds nothing.
    """
    needle = query.strip().lower()
    if not needle:
        return []
    words = needle.split()
    return _by(manifest, lambda entry: _score(needle, entry)) or _by(manifest, lambda entry: _misses(words, entry))


def _by(manifest: Sequence[ToolSpec], rank: Callable[[ToolSpec], int | None]) -> list[str]:
    places = [(found, place) for place, entry in enumerate(manifest) if (found := rank(entry)) is not None]
    return [manifest[place].name for _, place in sorted(places)]


def _score(needle: str, entry: ToolSpec) -> int | None:
    name = entry.name.lower()
    holds = (
        name == needle,
        name.startswith(needle),
        any(token.startswith(needle) for token in _TOKENS.split(name)),
        needle in name,
        needle in entry.description.lower(),
    )
    return next((score for score, found in enumerate(holds) if found), None)


def _misses(words: Sequence[str], entry: ToolSpec) -> int | None:
    """How many of the words the entry lacks; None if it has none of them."""
    text = (entry.name.lower(), entry.description.lower())
    missing = sum(not any(word in part for part in text) for word in words)
    return None if missing == len(words) else missing
