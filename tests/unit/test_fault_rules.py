"""The fault server's rules: a sound conversation passes, and each way of breaking it has its code."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from turnlane.testing.fault_plan import Content, Pass, Reasoning, ToolUse, mixed, pieces, seal
from turnlane.testing.rules_anthropic import check_messages
from turnlane.testing.rules_chat import check_chat
from turnlane.testing.rules_responses import check_responses
from turnlane.testing.wire import Asked, RequestRefused
from turnlane.testing.wire_responses import ResponsesWire

Body = dict[str, Any]
Break = Callable[[Body], Any]
SCHEMA = {"type": "object", "properties": {}}

CHAT: Body = {
    "model": "m",
    "stream": True,
    "tools": [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}],
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "read", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "B"},
        {"role": "tool", "tool_call_id": "a", "content": "A"},
    ],
}

MESSAGES: Body = {
    "model": "m",
    "stream": True,
    "max_tokens": 4000,
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "system": [{"type": "text", "text": "Be kind."}],
    "tools": [{"name": "read", "input_schema": SCHEMA}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": seal("hm")},
                {"type": "text", "text": "Reading."},
                {"type": "tool_use", "id": "a", "name": "read", "input": {}},
                {"type": "tool_use", "id": "b", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "b", "content": "B"},
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "A"}]},
                {"type": "text", "text": "and now?"},
            ],
        },
    ],
}

RESPONSES: Body = {
    "model": "m",
    "stream": True,
    "store": False,
    "instructions": "Be kind.",
    "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}],
    "input": [
        {"role": "user", "content": "hi"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": seal("rs_1", "hm"),
        },
        {"type": "function_call", "id": "fc_1_0_rs_1", "call_id": "a", "name": "read", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": "B"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "A"}]},
    ],
}

HEADERS = {"authorization": "Bearer k", "anthropic-version": "2023-06-01"}


def code_of(check: Callable[[Asked], None], sound: Body, breaks: Break, headers: dict[str, str] | None = None) -> str:
    body = copy.deepcopy(sound)
    breaks(body)
    try:
        check(Asked(1, HEADERS if headers is None else headers, body))
    except RequestRefused as error:
        return error.code
    return "sound"


def leave(body: Body) -> None:
    """Change nothing."""


def put(*path: Any) -> Break:
    """Set the last of a path: `put("a", 0, "b", value)` does `body["a"][0]["b"] = value`."""

    def change(body: Body) -> None:
        target: Any = body
        for step in path[:-2]:
            target = target[step]
        target[path[-2]] = path[-1]

    return change


def drop(*path: Any) -> Break:
    """Delete the last of a path."""

    def change(body: Body) -> None:
        target: Any = body
        for step in path[:-1]:
            target = target[step]
        del target[path[-1]]

    return change


def swap(key: str, one: int, two: int) -> Break:
    def change(body: Body) -> None:
        body[key][one], body[key][two] = body[key][two], body[key][one]

    return change


SERVER_CALL = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
THOUGHT = {"type": "thinking", "thinking": "so", "signature": seal("so")}
CACHED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}


def image(media_type: str) -> Body:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": "aGk="}}


def thought(item_id: str) -> Body:
    return {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": seal(item_id, "")}


BASICS: list[tuple[Break, str]] = [
    (leave, "sound"),
    (drop("model"), "model_missing"),
    (put("stream", False), "stream_required"),
    (put("metadata", {"k": ["a\x00"]}), "invalid_characters"),
    (put("metadata", {"\ud83d": 1}), "invalid_characters"),
]

CHAT_BREAKS: list[tuple[Break, str]] = [
    *BASICS,
    (put("messages", []), "messages_missing"),
    (put("tools", [{"type": "custom"}]), "invalid_tool"),
    (put("tools", CHAT["tools"] * 2), "duplicate_tool"),
    (put("tools", 0, "function", "name", "no good"), "invalid_tool_name"),
    (put("tools", 0, "function", "parameters", None), "invalid_schema"),
    (put("messages", 1, "role", "robot"), "invalid_role"),
    (put("messages", 1, "content", "  "), "blank_text"),
    (put("messages", 1, "content", None), "text_missing"),
    (put("messages", 1, "content", []), "text_missing"),
    (put("messages", 1, "content", 0, "type", "video"), "invalid_part"),
    (put("messages", 2, "content", ""), "blank_text"),
    (put("messages", 2, "tool_calls", []), "invalid_tool_calls"),
    (put("messages", 2, "tool_calls", 0, "type", "custom"), "invalid_tool_calls"),
    (put("messages", 2, "tool_calls", 0, "id", ""), "invalid_tool_calls"),
    (put("messages", 2, "tool_calls", 0, "function", None), "invalid_tool_calls"),
    (put("messages", 2, "tool_calls", 0, "function", "name", "a b"), "invalid_tool_name"),
    (put("messages", 2, "tool_calls", 0, "function", "arguments", "[]"), "invalid_arguments"),
    (put("messages", 2, "tool_calls", 1, "id", "a"), "duplicate_call_id"),
    (drop("messages", 2, "tool_calls"), "text_missing"),
    (put("messages", 3, "tool_call_id", "c"), "tool_result_unexpected"),
    (put("messages", 3, "tool_call_id", "a"), "tool_result_unexpected"),
    (put("messages", 3, "content", ""), "blank_text"),
    (drop("messages", 3), "tool_result_missing"),
    (swap("messages", 1, 3), "tool_result_unexpected"),
    (lambda body: body["messages"].insert(3, {"role": "user", "content": "x"}), "tool_result_missing"),
    (lambda body: body["messages"].append({"role": "assistant", "content": "x"}), "assistant_last"),
]

MESSAGES_BREAKS: list[tuple[Break, str]] = [
    *BASICS,
    (drop("max_tokens"), "max_tokens_missing"),
    (put("thinking", "budget_tokens", 4000), "invalid_thinking_budget"),
    (put("system", 0, "text", " "), "blank_text"),
    (put("system", ""), "blank_text"),
    (put("tools", MESSAGES["tools"] * 2), "duplicate_tool"),
    (put("tools", 0, "name", "a.b"), "invalid_tool_name"),
    (put("tools", 0, "input_schema", {}), "invalid_schema"),
    (put("messages", []), "messages_missing"),
    (put("messages", 0, "x"), "invalid_message"),
    (put("messages", 0, "role", "system"), "invalid_role"),
    (drop("messages", 0), "roles_must_alternate"),
    (lambda body: body["messages"].insert(0, {"role": "user", "content": "x"}), "roles_must_alternate"),
    (drop("messages", 2), "assistant_last"),
    (put("messages", 0, "content", ""), "blank_text"),
    (put("messages", 0, "content", []), "text_missing"),
    (put("messages", 0, "content", ["x"]), "invalid_block"),
    (put("messages", 0, "content", [{"type": "tool_use"}]), "invalid_block"),
    (put("messages", 1, "content", 1, "type", "image"), "invalid_block"),
    (put("messages", 1, "content", 1, "text", "\n"), "blank_text"),
    (put("messages", 1, "content", 0, "signature", ""), "thinking_unsigned"),
    (put("messages", 1, "content", 0, "thinking", "hmm"), "invalid_signature"),
    (put("messages", 1, "content", 0, "thinking", ""), "invalid_signature"),
    (put("messages", 1, "content", 0, {"type": "thinking", "thinking": "", "signature": seal("")}), "sound"),
    (put("messages", 1, "content", 0, "thinking", None), "text_missing"),
    (put("messages", 2, "content", 0, "is_error", "yes"), "invalid_block"),
    (put("messages", 0, "content", [{"type": "image", "source": {"type": "base64"}}]), "invalid_source"),
    (put("messages", 0, "content", [image("image/tiff")]), "invalid_media_type"),
    (put("messages", 0, "content", [image("image/png")]), "sound"),
    (put("messages", 1, "content", 1, SERVER_RESULT), "tool_result_unexpected"),
    (lambda body: body["messages"][1]["content"].__setitem__(slice(1, 2), [SERVER_CALL, SERVER_RESULT]), "sound"),
    (put("messages", 1, "content", 1, SERVER_CALL), "hosted_unanswered"),
    (lambda body: body["messages"].append({"role": "assistant", "content": [SERVER_CALL]}), "sound"),
    (lambda body: body["messages"].append({"role": "assistant", "content": [CACHED]}), "assistant_last"),
    (lambda body: body["messages"][2]["content"].extend([CACHED] * 5), "too_many_cache_points"),
    (put("messages", 1, "content", 0, {"type": "redacted_thinking"}), "thinking_unsigned"),
    (lambda body: body["messages"][1]["content"].insert(3, THOUGHT), "sound"),
    (lambda body: body["messages"][1]["content"].extend([THOUGHT, CACHED]), "sound"),
    (drop("messages", 1, "content", 0), "thinking_missing"),
    (drop("tools"), "tools_missing"),
    (put("cache_control", {"type": "ephemeral"}), "sound"),
    (lambda body: body.update(system=[CACHED] * 4, cache_control={"type": "ephemeral"}), "too_many_cache_points"),
    (put("thinking", {"type": "adaptive", "block_binding": {}}), "sound"),
    (put("thinking", "block_binding", {"prefix_mismatch_behavior": "drop_block"}), "beta_missing"),
    (put("thinking", {"type": "disabled", "block_binding": {}}), "unexpected_field"),
    (put("messages", 1, "content", 2, "id", "no good"), "invalid_call_id"),
    (put("messages", 1, "content", 3, "id", "a"), "duplicate_call_id"),
    (put("messages", 1, "content", 2, "name", ""), "invalid_tool_name"),
    (put("messages", 1, "content", 2, "input", "{}"), "invalid_arguments"),
    (lambda body: body["messages"][1]["content"].append({"type": "text", "text": "x"}), "block_after_tool_use"),
    (lambda body: body["messages"][1].update(content=MESSAGES["messages"][1]["content"][:1]), "thinking_last"),
    (drop("messages", 2, "content", 0), "tool_result_missing"),
    (put("messages", 2, "content", 0, "tool_use_id", "a"), "tool_result_twice"),
    (put("messages", 2, "content", 0, "tool_use_id", "c"), "tool_result_unexpected"),
    (put("messages", 2, "content", 0, "content", ""), "blank_text"),
    (put("messages", 2, "content", 0, "content", []), "text_missing"),
    (put("messages", 2, "content", 1, "content", 0, "text", ""), "blank_text"),
    (lambda body: body["messages"][2]["content"].insert(0, {"type": "text", "text": "x"}), "tool_result_late"),
]

RESPONSES_BREAKS: list[tuple[Break, str]] = [
    *BASICS,
    (put("input", "hi"), "sound"),
    (put("input", " "), "blank_text"),
    (put("input", []), "input_missing"),
    (put("instructions", ""), "blank_text"),
    (put("tools", 0, "name", ""), "invalid_tool_name"),
    (put("input", 0, "x"), "invalid_item"),
    (put("input", 0, "type", "poem"), "invalid_item"),
    (put("input", 0, "role", "tool"), "invalid_role"),
    (put("input", 0, "content", [{"type": "output_text", "text": "x"}]), "invalid_part"),
    (put("input", 1, "id", "x"), "invalid_id"),
    (put("input", 1, "summary", None), "invalid_item"),
    (put("input", 1, "summary", 0, "text", "changed"), "invalid_encrypted_content"),
    (drop("input", 1, "encrypted_content"), "reasoning_not_stored"),
    (drop("input", 1), "reasoning_missing"),
    (swap("input", 0, 1), "reasoning_alone"),
    (lambda body: body["input"].insert(1, body["input"][1]), "reasoning_alone"),
    (lambda body: body.update(input=body["input"][:2]), "reasoning_alone"),
    (put("input", 2, "id", "call_1"), "invalid_id"),
    (put("input", 2, "call_id", None), "invalid_tool_calls"),
    (put("input", 2, "name", "a b"), "invalid_tool_name"),
    (put("input", 2, "arguments", ""), "invalid_arguments"),
    (put("input", 3, "call_id", "a"), "duplicate_call_id"),
    (put("input", 4, "call_id", "a"), "tool_result_unexpected"),
    (put("input", 4, "output", ""), "blank_text"),
    (drop("input", 4), "tool_result_missing"),
    (lambda body: body["input"].insert(4, {"role": "user", "content": "x"}), "tool_result_missing"),
    (lambda body: body["input"].insert(4, body["input"][1]), "duplicate_id"),
    (lambda body: body["input"].insert(4, thought("rs_2")), "reasoning_alone"),
    (lambda body: body["input"].insert(3, thought("rs_2")), "sound"),
    (lambda body: body["input"].insert(2, {"type": "web_search_call", "id": "ws_1"}), "sound"),
    (lambda body: body["input"].insert(2, {"type": "web_search_call", "id": "x_1"}), "invalid_id"),
    (lambda body: body["input"].insert(2, {"type": "web_search_call"}), "invalid_id"),
    (lambda body: body["input"].insert(4, {"type": "web_search_call", "id": "ws_1"}), "tool_result_missing"),
    (lambda body: body["input"].append({"role": "assistant", "content": "x"}), "assistant_last"),
]


@pytest.mark.parametrize(("breaks", "code"), CHAT_BREAKS)
def test_a_chat_request_that_breaks_a_rule_has_its_code(breaks: Break, code: str) -> None:
    assert code == code_of(check_chat, CHAT, breaks)


@pytest.mark.parametrize(("breaks", "code"), MESSAGES_BREAKS)
def test_a_messages_request_that_breaks_a_rule_has_its_code(breaks: Break, code: str) -> None:
    assert code == code_of(check_messages, MESSAGES, breaks)


@pytest.mark.parametrize(("breaks", "code"), RESPONSES_BREAKS)
def test_a_responses_request_that_breaks_a_rule_has_its_code(breaks: Break, code: str) -> None:
    assert code == code_of(check_responses, RESPONSES, breaks)


@pytest.mark.parametrize(
    ("check", "sound"), [(check_chat, CHAT), (check_messages, MESSAGES), (check_responses, RESPONSES)]
)
def test_a_request_without_a_key_is_refused(check: Callable[[Asked], None], sound: Body) -> None:
    assert "authentication_error" == code_of(check, sound, leave, {"anthropic-version": "x"})


def test_a_messages_request_names_the_version_it_speaks() -> None:
    assert "version_missing" == code_of(check_messages, MESSAGES, leave, {"x-api-key": "k"})


def test_what_responses_gave_out_may_be_sent_back() -> None:
    asked = Asked(7, HEADERS, RESPONSES | {"include": ["reasoning.encrypted_content"]})
    content = Content(text="Reading.", reasoning=Reasoning("hm"), calls=(ToolUse("read"),))
    *_, completed = ResponsesWire().events(content, asked)
    output = json.loads(completed.data)["response"]["output"]
    sent: Body = RESPONSES | {
        "input": [
            {"role": "user", "content": "hi"},
            *output,
            {"type": "function_call_output", "call_id": "call_7_0", "output": "A"},
        ]
    }

    assert ["reasoning", "message", "function_call"] == [item["type"] for item in output]
    assert "sound" == code_of(check_responses, sent, leave)
    assert "reasoning_missing" == code_of(check_responses, sent, drop("input", 1))


def test_pieces_are_never_empty_and_join_to_the_whole() -> None:
    for count in range(1, 12):
        cut = pieces("abcdefg", count)

        assert ("abcdefg", True, True) == ("".join(cut), all(cut), len(cut) <= count)
    assert [] == pieces("", 3)


def test_mixed_takes_turns() -> None:
    assert ["a", "x", "b", "c"] == mixed([["a", "b", "c"], ["x"]], interleaved=True)
    assert ["a", "b", "x"] == mixed([["a", "b"], ["x"]], interleaved=False)


def test_a_plain_reasoning_text_becomes_reasoning() -> None:
    assert Reasoning("hm") == Pass("x", reasoning="hm").content().reasoning
