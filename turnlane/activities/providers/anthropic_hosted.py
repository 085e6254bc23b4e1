"""Hosted tools of Anthropic: their calls and results stand in the model's own messages, and must be in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Block = dict[str, Any]
Said = tuple[str, list[Block]]

_CALLS: Final = frozenset({"server_tool_use", "mcp_tool_use"})
_PLAIN: Final = frozenset({"text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"})


def is_hosted(block: Block) -> bool:
    """Whether the block is a hosted tool's: its call, or what it found."""
    return block["type"] in _CALLS or _is_result(block)


def _is_result(block: Block) -> bool:
    return str(block["type"]).endswith("_tool_result")


def paired(said: Sequence[Said]) -> list[Said]:
    """Return who said what, without hosted calls that have no result, and without results that have no call.

    A conversation with one of them is refused for ever. Calls of the last answer stay: the provider has yet to make
    them, when it is given the answer back as it is, or with the results of the calls that stand beside them.
    """
    if all(block["type"] in _PLAIN for _, blocks in said for block in blocks):
        return list(said)
    found = {block["tool_use_id"] for _, blocks in said for block in blocks if _is_result(block)}
    last = _place_of_last_answer(said)
    asked: set[str] = set()
    kept: list[Said] = []
    for place, (role, blocks) in enumerate(said):
        asked |= {
            block["id"] for block in blocks if block["type"] in _CALLS and (block["id"] in found or place == last)
        }
        kept.append((role, [block for block in blocks if _id_of(block) in (None, *asked)]))
    return kept


def _id_of(block: Block) -> str | None:
    """The id of the hosted call that a block is of."""
    if block["type"] in _CALLS:
        return str(block["id"])
    return str(block["tool_use_id"]) if _is_result(block) else None


def _place_of_last_answer(said: Sequence[Said]) -> int | None:
    """Where the answer stands that the provider goes on with; None where somebody spoke behind it."""
    spoken = [place for place, (_, blocks) in enumerate(said) if blocks]
    if not spoken:
        return None
    role, blocks = said[spoken[-1]]
    if role == "assistant":
        return spoken[-1] if is_hosted(blocks[-1]) else None
    is_answered = len(spoken) > 1 and all(block["type"] == "tool_result" for block in blocks)
    return spoken[-2] if is_answered else None
