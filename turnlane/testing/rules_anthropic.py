"""What a Messages request must obey: the strict reading, roles in turn and every call answered at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turnlane.testing.fault_plan import seal
from turnlane.testing.wire import Asked, RequestRefused, require, require_basics, require_key, require_said

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_CALL_ID = re.compile(r"[A-Za-z0-9_-]+")
_ANY_LIMIT = 2**31
_USER_BLOCKS = ("text", "image", "document", "tool_result", "search_result")
_HOSTED_RESULTS = (
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
)
_ASSISTANT_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", *_HOSTED_RESULTS)
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_CACHE_POINTS = 4
_BINDING_BETA = "thinking-binding-controls-2026-08-01"


def check_messages(asked: Asked) -> None:
    """Raise RequestRefused for a request that Anthropic, read strictly, answers with 400."""
    require_key(asked.headers, "x-api-key", "authorization")
    require(asked.headers.get("anthropic-version"), "version_missing", "the header anthropic-version is missing")
    require_basics(asked.body)
    limit = asked.body.get("max_tokens")
    require(isinstance(limit, int) and limit > 0, "max_tokens_missing", "max_tokens is a positive integer")
    _check_thinking_budget(asked.body)
    _check_binding(asked)
    _check_system(asked.body.get("system"))
    _check_tools(asked.body.get("tools") or ())
    messages = asked.body.get("messages")
    require(isinstance(messages, list) and messages, "messages_missing", "messages is a non-empty list")
    _check_cache_points(asked.body)
    _check_turns(messages or [])
    _check_tools_defined(asked.body, messages or [])
    _check_thinking_kept(asked.body, messages or [])


def check_countable(asked: Asked) -> None:
    """Raise RequestRefused for a request to count tokens that Anthropic, read strictly, answers with 400."""
    for name in ("stream", "max_tokens"):
        require(name not in asked.body, "unexpected_field", f"{name} is no field of a count")
    check_messages(replace(asked, body={**asked.body, "stream": True, "max_tokens": _ANY_LIMIT}))


def _check_thinking_budget(body: Mapping[str, Any]) -> None:
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        fits = isinstance(budget, int) and 1024 <= budget < body["max_tokens"]
        require(fits, "invalid_thinking_budget", "budget_tokens is at least 1024 and below max_tokens")


def _check_binding(asked: Asked) -> None:
    thinking = asked.body.get("thinking") or {}
    is_named = _BINDING_BETA in asked.headers.get("anthropic-beta", "")
    require(not thinking.get("block_binding") or is_named, "beta_missing", "block_binding needs its anthropic-beta")
    takes = thinking.get("type") != "disabled" or "block_binding" not in thinking
    require(takes, "unexpected_field", "thinking that is disabled takes no block_binding")


def _check_system(system: Any) -> None:
    for position, block in enumerate(system if isinstance(system, list) else ()):
        require_said(block.get("text"), f"system[{position}]")
    if isinstance(system, str):
        require_said(system, "system")


def _check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    names = [tool.get("name") for tool in tools]
    require(len(set(names)) == len(names), "duplicate_tool", "two tools have one name")
    for tool in tools:
        require(_TOOL_NAME.fullmatch(str(tool.get("name"))), "invalid_tool_name", "a tool's name is not usable")
        schema = tool.get("input_schema")
        # What the provider runs itself is named by its type, and has a schema of the provider's own.
        is_hosted = tool.get("type") not in (None, "custom") and schema is None
        is_object = isinstance(schema, dict) and schema.get("type") == "object"
        require(is_hosted or is_object, "invalid_schema", "input_schema is an object")


def _check_tools_defined(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
    said = [block for message in messages for block in _blocks_of(message.get("content"), "a message")]
    calls = any(block.get("type") in ("tool_use", "tool_result") for block in said)
    require(body.get("tools") or not calls, "tools_missing", "a conversation with calls must define tools")


def _check_cache_points(body: Mapping[str, Any]) -> None:
    system = body.get("system")
    said = [message.get("content") for message in body["messages"] if isinstance(message, dict)]
    lists = [given for given in (body.get("tools"), system, *said) if isinstance(given, list)]
    points = [block for given in lists for block in given if isinstance(block, dict) and block.get("cache_control")]
    count = len(points) + bool(body.get("cache_control"))
    require(count <= _CACHE_POINTS, "too_many_cache_points", f"at most {_CACHE_POINTS} blocks have cache_control")


def _check_turns(messages: Sequence[Any]) -> None:
    open_calls: list[str] = []
    seen: set[str] = set()
    hosted = _Hosted()
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        expected = "assistant" if position % 2 else "user"
        require(isinstance(message, dict), "invalid_message", f"{where} is not an object")
        require(message.get("role") in ("user", "assistant"), "invalid_role", f"{where} has no known role")
        require(message["role"] == expected, "roles_must_alternate", f"{where}: roles alternate, the user first")
        blocks = _blocks_of(message.get("content"), where)
        if expected == "user":
            _check_results(blocks, open_calls, where)
            open_calls = []
            hosted.hear(blocks)
        else:
            open_calls = _check_said(blocks, seen, hosted, where)
    may_go_on = _is_hosted(_blocks_of(messages[-1].get("content"), "the last message")[-1])
    is_last_fine = messages[-1]["role"] == "user" or may_go_on
    require(is_last_fine, "assistant_last", "the conversation ends with a user message, or where a hosted tool paused")
    require(not hosted.left, "hosted_unanswered", "a hosted tool was called and never answered")


def _is_hosted(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "server_tool_use" or block.get("type") in _HOSTED_RESULTS


@dataclass
class _Hosted:
    """The hosted calls so far: those without a result in the answer before, and those that were left so."""

    open: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)

    def call(self, call_id: str) -> None:
        self.open.add(call_id)

    def answer(self, call_id: object, where: str) -> None:
        known = call_id in self.open | self.left
        require(known, "tool_result_unexpected", f"{where}: no server tool was called for this result")
        self.open.discard(str(call_id))
        self.left.discard(str(call_id))

    def hear(self, blocks: Sequence[Mapping[str, Any]]) -> None:
        """A user spoke: what is still open was left, unless these are but the results of other calls."""
        if any(block.get("type") != "tool_result" for block in blocks):
            self.left |= self.open
            self.open = set()


def _blocks_of(content: Any, where: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(content, str):
        require_said(content, where)
        return [{"type": "text", "text": content}]
    require(isinstance(content, list) and content, "text_missing", f"{where} has no content")
    require(all(isinstance(block, dict) for block in content), "invalid_block", f"{where} has a block of no type")
    return list(content)


def _check_results(blocks: Sequence[Mapping[str, Any]], open_calls: list[str], where: str) -> None:
    """Every call of the message before is answered here, once, and before anything else is said."""
    answers = [str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
    require(set(answers) <= set(open_calls), "tool_result_unexpected", f"{where} answers no call of the message before")
    require(len(set(answers)) == len(answers), "tool_result_twice", f"{where} answers a call twice")
    require(set(answers) == set(open_calls), "tool_result_missing", f"{where} leaves a call without an answer")
    for position, block in enumerate(blocks):
        require(block.get("type") in _USER_BLOCKS, "invalid_block", f"{where} has a block no user may send")
        if block["type"] == "text":
            require_said(block.get("text"), where)
        elif block["type"] == "tool_result":
            require(position < len(answers), "tool_result_late", f"{where}: results stand before other content")
            _check_result(block, where)
        elif block["type"] in ("image", "document"):
            _check_source(block, where)


def _check_source(block: Mapping[str, Any], where: str) -> None:
    source = block.get("source") or {}
    has = {"base64": source.get("data"), "url": source.get("url"), "file": source.get("file_id"), "text": True}
    require(has.get(str(source.get("type"))), "invalid_source", f"{where}: a file without what it says it has")
    if source["type"] == "base64":
        kinds = _IMAGES if block["type"] == "image" else ("application/pdf",)
        require(source.get("media_type") in kinds, "invalid_media_type", f"{where}: no such {block['type']}")


def _check_result(block: Mapping[str, Any], where: str) -> None:
    content = block.get("content")
    require(isinstance(block.get("is_error", False), bool), "invalid_block", f"{where}: is_error is true or false")
    if not isinstance(content, list):
        require_said(content, f"{where}: a tool result")
        return
    require(content, "text_missing", f"{where}: a tool result has no content")
    for part in content:
        if part.get("type") == "text":
            require_said(part.get("text"), f"{where}: a tool result")


def _check_said(blocks: Sequence[Mapping[str, Any]], seen: set[str], hosted: _Hosted, where: str) -> list[str]:
    """Check an assistant message and return its calls."""
    calls: list[str] = []
    for block in blocks:
        kind = block.get("type")
        require(kind in _ASSISTANT_BLOCKS, "invalid_block", f"{where} has a block no assistant may send")
        may_follow = not calls or kind == "tool_use" or _thinks_behind_a_call(blocks)
        require(may_follow, "block_after_tool_use", f"{where} goes on after a call")
        if kind == "text":
            require_said(block.get("text"), where)
        elif kind == "tool_use":
            calls.append(_check_call(block, seen, where))
        elif kind == "server_tool_use":
            hosted.call(_check_call(block, seen, where))
        elif kind in _HOSTED_RESULTS:
            hosted.answer(block.get("tool_use_id"), where)
        else:
            _check_thought(block, where)
    last = blocks[-1].get("type")
    require(last not in ("thinking", "redacted_thinking"), "thinking_last", f"{where} ends with thinking")
    return calls


def _thinks_behind_a_call(blocks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the model thought between its calls: such an answer goes back as it was, whatever stands where."""
    kinds = [block.get("type") for block in blocks]
    return "tool_use" in kinds and not {"thinking", "redacted_thinking"}.isdisjoint(kinds[kinds.index("tool_use") :])


def _check_call(block: Mapping[str, Any], seen: set[str], where: str) -> str:
    call_id = block.get("id")
    require(_CALL_ID.fullmatch(str(call_id)), "invalid_call_id", f"{where}: a call's id is not usable")
    require(call_id not in seen, "duplicate_call_id", f"{where}: an id used before")
    require(_TOOL_NAME.fullmatch(str(block.get("name"))), "invalid_tool_name", f"{where}: a name is not usable")
    require(isinstance(block.get("input"), dict), "invalid_arguments", f"{where}: input is not an object")
    seen.add(str(call_id))
    return str(call_id)


def _check_thought(block: Mapping[str, Any], where: str) -> None:
    if block["type"] == "redacted_thinking":
        require(block.get("data"), "thinking_unsigned", f"{where}: redacted thinking without its data")
        return
    thinking, signature = block.get("thinking"), block.get("signature")
    require(isinstance(thinking, str), "text_missing", f"{where}: thinking has no text")
    require(signature, "thinking_unsigned", f"{where}: thinking without its signature")
    require(signature == seal(str(thinking)), "invalid_signature", f"{where}: the signature does not fit the thinking")


def _check_thinking_kept(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
    """With thinking enabled, the tool round being answered must still begin with its thinking."""
    if (body.get("thinking") or {}).get("type") != "enabled" or len(messages) < 2:
        return
    blocks = _blocks_of(messages[-2].get("content"), "the last assistant message")
    kinds = [block.get("type") for block in blocks]
    if "tool_use" in kinds and kinds[0] not in ("thinking", "redacted_thinking"):
        raise RequestRefused("thinking_missing", "a tool round of a thinking model begins with its thinking")
