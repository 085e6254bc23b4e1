"""What a Responses request must obey when nothing is stored at the provider: the strict reading."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnlane.testing.fault_plan import seal
from turnlane.testing.rules_chat import FUNCTION_NAME, check_content, check_functions
from turnlane.testing.wire import (
    Asked,
    RequestRefused,
    is_json_object,
    require,
    require_basics,
    require_key,
    require_said,
)

_BEHIND = re.compile(r"_(rs_\d+)$")
_INPUT = ("input_text", "input_image", "input_file")
_OUTPUT = ("output_text", "refusal")
_HOSTED = {
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
}
"""What the provider's own tools leave behind, and how its ids begin."""


def check_responses(asked: Asked) -> None:
    """Raise RequestRefused for a request that OpenAI answers with 400."""
    require_key(asked.headers, "authorization")
    require_basics(asked.body)
    if asked.body.get("instructions") is not None:
        require_said(asked.body["instructions"], "instructions")
    check_functions([tool for tool in asked.body.get("tools") or () if tool.get("type") == "function"])
    items = asked.body.get("input")
    if isinstance(items, str):
        require_said(items, "input")
        return
    require(isinstance(items, list) and items, "input_missing", "input is a non-empty list")
    _Walk(items or [], stored=asked.body.get("store", True) is not False).check()


@dataclass
class _Walk:
    """One pass over the items, in order."""

    items: Sequence[Any]
    stored: bool
    open_calls: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    reasoning: str | None = None

    def check(self) -> None:
        kinds: dict[str, Callable[[Mapping[str, Any], str], None]] = {
            "message": self._message,
            "function_call": self._call,
            "function_call_output": self._output,
            "reasoning": self._reasoning,
            **dict.fromkeys(_HOSTED, self._hosted),
        }
        for position, item in enumerate(self.items):
            where = f"input[{position}]"
            require(isinstance(item, dict), "invalid_item", f"{where} is not an object")
            kind = item.get("type", "message")
            if kind not in kinds:
                raise RequestRefused("invalid_item", f"{where} is of an unknown type")
            kinds[kind](item, where)
        require(not self.open_calls, "tool_result_missing", "No tool output found for a function call")
        last = self.items[-1]
        require(last.get("type") != "reasoning", "reasoning_alone", "reasoning without its required following item")
        require(last.get("role") != "assistant", "assistant_last", "the last item is the assistant's own")

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        require(not self.open_calls, "tool_result_missing", f"before {where}: calls without an output")
        role = item.get("role")
        require(role in ("user", "assistant", "system", "developer"), "invalid_role", f"{where} has no known role")
        check_content(item.get("content"), where, _OUTPUT if role == "assistant" else _INPUT)
        if role == "assistant":
            self._identified(item, "msg", where)
        else:
            require(self.reasoning is None, "reasoning_alone", f"before {where}: reasoning without its following item")

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        call_id = item.get("call_id")
        require(isinstance(call_id, str) and call_id, "invalid_tool_calls", f"{where} has no call_id")
        require(call_id not in self.seen, "duplicate_call_id", f"{where}: a call_id used before")
        require(FUNCTION_NAME.fullmatch(str(item.get("name"))), "invalid_tool_name", f"{where}: a name is not usable")
        require(is_json_object(item.get("arguments")), "invalid_arguments", f"{where}: not a JSON object")
        self._identified(item, "fc", where)
        self.seen.add(str(call_id))
        self.open_calls.add(str(call_id))

    def _output(self, item: Mapping[str, Any], where: str) -> None:
        call_id = item.get("call_id")
        require(self.reasoning is None, "reasoning_alone", f"before {where}: reasoning without its following item")
        require(call_id in self.open_calls, "tool_result_unexpected", f"{where}: no open call for this output")
        self.open_calls.discard(str(call_id))
        check_content(item.get("output"), where, _INPUT)

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        item_id, summary = item.get("id"), item.get("summary")
        require(isinstance(item_id, str) and item_id.startswith("rs"), "invalid_id", f"{where}: the id begins with rs")
        require(isinstance(summary, list), "invalid_item", f"{where} has no summary")
        require(self.reasoning is None, "reasoning_alone", f"before {where}: reasoning without its following item")
        self._once(item_id, where)
        encrypted = item.get("encrypted_content")
        require(encrypted or self.stored, "reasoning_not_stored", f"{where}: not stored, and not sent along either")
        if encrypted:
            text = "".join(str(part.get("text")) for part in summary or ())
            fits = encrypted == seal(str(item_id), text)
            require(fits, "invalid_encrypted_content", f"{where}: the content was changed")
        self.reasoning = str(item_id)
        self.given.add(self.reasoning)

    def _hosted(self, item: Mapping[str, Any], where: str) -> None:
        require(not self.open_calls, "tool_result_missing", f"before {where}: calls without an output")
        require(item.get("id"), "invalid_id", f"{where} has no id")
        self._identified(item, _HOSTED[item["type"]], where)

    def _once(self, item_id: object, where: str) -> None:
        require(item_id not in self.ids, "duplicate_id", f"{where}: an item given twice")
        self.ids.add(str(item_id))

    def _identified(self, item: Mapping[str, Any], prefix: str, where: str) -> None:
        """Check an item's id, and that an item given out behind reasoning comes behind that reasoning."""
        self.reasoning = None
        item_id = item.get("id")
        if item_id is None:
            return
        require(str(item_id).startswith(prefix), "invalid_id", f"{where}: the id begins with {prefix}")
        self._once(item_id, where)
        behind = _BEHIND.search(str(item_id))
        if behind is not None:
            require(
                behind[1] in self.given, "reasoning_missing", f"{where}: provided without its required reasoning item"
            )
