"""Requests of all wire protocols, read alike: who says what, in short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def said(body: Any) -> list[tuple[str, str]]:
    """A request in short: who says what; calls as `?`, results as `!` with what they say, thinking as `~`."""
    if "input" in body:
        return list(_items(body["input"]))
    return [one for message in body["messages"] if message["role"] != "system" for one in _message(message)]


def _items(items: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for item in items:
        match item.get("type", "message"):
            case "function_call":
                yield "assistant", "?"
            case "function_call_output":
                yield "tool", f"!{item['output']}"
            case "reasoning":
                yield "assistant", "~"
            case _:
                yield from ((item["role"], part["text"]) for part in item["content"])


def _message(message: Any) -> Iterator[tuple[str, str]]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        yield "tool", f"!{content}"
        return
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else content or ():
        match block["type"]:
            case "tool_use":
                yield "assistant", "?"
            case "tool_result":
                yield "tool", f"!{block['content']}"
            case "thinking":
                yield "assistant", "~"
            case _:
                yield role, block.get("text", "")
    yield from (("assistant", "?") for _ in message.get("tool_calls") or ())


def results(body: Any) -> list[str]:
    """What the results of calls say, in a request."""
    return [text for who, text in said(body) if who == "tool"]
