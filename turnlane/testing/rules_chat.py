"""What a Chat Completions request must obey: the strict reading, as the pickiest servers take it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnlane.testing.wire import Asked, is_json_object, require, require_basics, require_key, require_said

FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def check_chat(asked: Asked) -> None:
    """Raise RequestRefused for a request that OpenAI, or a strict server like it, answers with 400."""
    require_key(asked.headers, "authorization")
    require_basics(asked.body)
    messages = asked.body.get("messages")
    require(isinstance(messages, list) and messages, "messages_missing", "messages is a non-empty list")
    check_functions([tool.get("function") for tool in asked.body.get("tools") or () if isinstance(tool, dict)])
    _check_messages(messages or [])


def check_functions(functions: Sequence[Any]) -> None:
    """Check the functions on offer: a usable name each, none twice, and an object schema."""
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    require(len(names) == len(functions), "invalid_tool", "a tool is not a function")
    require(len(set(names)) == len(names), "duplicate_tool", "two tools have one name")
    for function in functions:
        require(
            FUNCTION_NAME.fullmatch(str(function.get("name"))), "invalid_tool_name", "a function's name is not usable"
        )
        schema = function.get("parameters")
        require(
            isinstance(schema, dict) and schema.get("type") == "object", "invalid_schema", "parameters is an object"
        )


def _check_messages(messages: Sequence[Any]) -> None:
    open_calls: set[str] = set()
    seen: set[str] = set()
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        require(
            isinstance(message, dict) and message.get("role") in _ROLES, "invalid_role", f"{where} has no known role"
        )
        if message["role"] == "tool":
            _answer(message, open_calls, where)
            continue
        require(not open_calls, "tool_result_missing", f"before {where}: calls without an answer")
        if message["role"] == "assistant":
            open_calls = _calls_of(message, seen, where)
        else:
            check_content(message.get("content"), where, ("text", "image_url", "input_audio", "file"))
    require(not open_calls, "tool_result_missing", "at the end: calls without an answer")
    require(messages[-1]["role"] != "assistant", "assistant_last", "the last message is the assistant's own")


def _answer(message: Mapping[str, Any], open_calls: set[str], where: str) -> None:
    call_id = message.get("tool_call_id")
    require(call_id in open_calls, "tool_result_unexpected", f"{where} answers no open call of the message before")
    open_calls.discard(str(call_id))
    check_content(message.get("content"), where, ("text",))


def _calls_of(message: Mapping[str, Any], seen: set[str], where: str) -> set[str]:
    calls = message.get("tool_calls")
    require(
        calls is None or (isinstance(calls, list) and calls), "invalid_tool_calls", f"{where}: an empty list of calls"
    )
    if message.get("content") is not None:
        check_content(message["content"], where, ("text", "refusal"))
    else:
        require(calls or message.get("refusal"), "text_missing", f"{where} says nothing")
    for call in calls or ():
        _check_call(call, seen, where)
    return {call["id"] for call in calls or ()}


def _check_call(call: Any, seen: set[str], where: str) -> None:
    require(isinstance(call, dict) and call.get("type") == "function", "invalid_tool_calls", f"{where}: not a function")
    call_id, function = call.get("id"), call.get("function")
    require(isinstance(call_id, str) and call_id, "invalid_tool_calls", f"{where}: a call without an id")
    require(call_id not in seen, "duplicate_call_id", f"{where}: an id used before")
    seen.add(call_id)
    require(isinstance(function, dict), "invalid_tool_calls", f"{where}: a call without a function")
    require(FUNCTION_NAME.fullmatch(str(function.get("name"))), "invalid_tool_name", f"{where}: a name is not usable")
    require(is_json_object(function.get("arguments")), "invalid_arguments", f"{where}: arguments are not a JSON object")


def check_content(content: Any, where: str, kinds: Sequence[str]) -> None:
    """Check a content: a text, or a non-empty list of parts of these kinds; no text blank."""
    if not isinstance(content, list):
        require_said(content, where)
        return
    require(content, "text_missing", f"{where} has no parts")
    for part in content:
        require(
            isinstance(part, dict) and part.get("type") in kinds, "invalid_part", f"{where} has a part of another kind"
        )
        if "text" in part["type"] or part["type"] == "refusal":
            require_said(part.get("refusal" if part["type"] == "refusal" else "text"), where)
