"""What goes with a Messages request beside its prompt: the application's own fields, thinking, and cache points."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from turnlane.activities.providers.wording import extra_fields
from turnlane.agent.models import Model
from turnlane.records.prompt import Prompt

Body = dict[str, Any]

CACHE_POINTS: Final = 4
"""How many breakpoints a request may have, the one that moves with the conversation included."""

BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
_BINDING: Final = {"prefix_mismatch_behavior": "drop_block"}
THOUGHTS: Final = ("thinking", "redacted_thinking")
_VERSION: Final = re.compile(r"claude-[a-z]+-(\d{1,2})(?!\d)(?:[.-](\d{1,2})(?!\d))?")
_BINDS_FROM: Final = (5, 1)


class Fields(NamedTuple):
    """What is laid over a body, and the headers that it needs."""

    extra: Body
    headers: dict[str, str]


def anthropic_fields(model: Model, prompt: Prompt, body: Body) -> Fields:
    """Return what goes with a body, whose surplus cache points are taken away."""
    extra = _with_thinking(model, extra_fields(model, prompt, body), body["messages"])
    _keep_cache_points(body, extra)
    thinking = extra.get("thinking")
    is_bound = isinstance(thinking, dict) and thinking.get("block_binding") is not None
    return Fields(extra, {"anthropic-beta": BINDING_BETA} if is_bound else {})


# --- thinking ---------------------------------------------------------------------------------------


def _with_thinking(model: Model, extra: Body, messages: Sequence[Body]) -> Body:
    """The fields as they go with what was thought before.

    With thinking enabled, the tool round that is being answered must begin with its thinking. One that another
    model began, or whose thinking was cut, has none: that call is made without thinking, since it is refused else.
    """
    thinking = extra.get("thinking")
    if not isinstance(thinking, dict) and "thinking" in extra:
        return extra
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind == "enabled" and not _answers_thinking(messages):
        return {name: value for name, value in extra.items() if name != "thinking"}
    return _bound(extra, thinking or {"type": "adaptive"}) if binds_thinking(model.name) else extra


def binds_thinking(name: str) -> bool:
    """Whether a model ties what it thought to everything before it: instructions, tools and messages.

    Any of them may differ in a later step (a summary, a cut, an answered approval, other tools).
    """
    found = _VERSION.search(name)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= _BINDS_FROM


def forgets_thoughts(model: Model) -> bool:
    """Whether a model is not told what was thought before: one that ties it to the conversation, and is not to think,
    has no way to leave out what no longer fits."""
    thinking = model.extra.get("thinking")
    is_disabled = isinstance(thinking, dict) and thinking.get("type") == "disabled"
    return is_disabled and binds_thinking(model.name)


def _bound(extra: Body, thinking: Mapping[str, Any]) -> Body:
    """Have the provider leave out thoughts that no longer fit, where it would refuse the whole request."""
    if thinking.get("type") == "disabled" or "block_binding" in thinking:
        return extra
    return {**extra, "thinking": {**thinking, "block_binding": dict(_BINDING)}}


def _answers_thinking(messages: Sequence[Body]) -> bool:
    """Whether the last thing said is not a tool's result, or is one of a round that began with thinking."""
    if len(messages) < 2 or messages[-1]["content"][0]["type"] != "tool_result":
        return True
    return messages[-2]["content"][0]["type"] in THOUGHTS


# --- cache points -----------------------------------------------------------------------------------


def _keep_cache_points(body: Body, extra: Body) -> None:
    """Take away the first breakpoints of a body that has too many: each covers all that stands before it."""
    entries = list(_entries(body, extra))
    marked = [entry for entry in entries if entry.get("cache_control")]
    surplus = len(marked) + bool(extra.get("cache_control")) - CACHE_POINTS
    for entry in marked[: max(surplus, 0)]:
        del entry["cache_control"]


def _entries(body: Body, extra: Body) -> Iterator[Body]:
    """The tools and system texts that are sent, in the order of the cache."""
    for name in ("tools", "system"):
        given = extra.get(name, body.get(name))
        yield from (entry for entry in given if isinstance(entry, dict)) if isinstance(given, list) else ()
