"""The prompt as Anthropic's Messages API wants it: alternating roles, results first, no blank text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import dropwhile
from typing import Any

from turnlane.activities.providers.anthropic_fields import THOUGHTS, forgets_thoughts
from turnlane.activities.providers.anthropic_hosted import is_hosted, paired
from turnlane.activities.providers.wording import (
    GO_ON,
    IMAGES,
    PDF,
    attachment_note,
    call_arguments,
    inline_data,
    replayable,
    result_text,
    text_first,
    uploaded_id,
    web_url,
    wire_id,
    wire_name,
)
from turnlane.agent.models import Model
from turnlane.records.messages import ReasoningPart, TextPart, ToolCallPart, ToolOutcome, ToolResultPart
from turnlane.records.prompt import Prompt, PromptFile, PromptPart, Speaker, options_for

Block = dict[str, Any]

DEFAULT_MAX_TOKENS = 8192
_OPENING = "(the conversation so far)"


def anthropic_request(model: Model, prompt: Prompt) -> dict[str, Any]:
    """Return the body of a Messages call; `model.extra` is laid over it by the adapter."""
    body: dict[str, Any] = {
        "model": model.name,
        "max_tokens": model.max_output_tokens or DEFAULT_MAX_TOKENS,
        "messages": _messages(prompt, forgets=forgets_thoughts(model)),
    }
    system = [
        {"type": "text", "text": given.text, **options_for(given.options, "anthropic")}
        for given in prompt.system_texts
        if given.text.strip()
    ]
    if system:
        body["system"] = system
    if prompt.tools:
        body["tools"] = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.parameters,
                **options_for(tool.options, "anthropic"),
            }
            for tool in prompt.tools
        ]
    elif called := _called(body["messages"]):
        body |= {"tools": [_past_tool(name) for name in called], "tool_choice": {"type": "none"}}
    return body


def _called(messages: list[dict[str, Any]]) -> list[str]:
    """The names of the tools that the conversation called, each once."""
    blocks = (block for message in messages for block in message["content"])
    return list(dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"))


def _past_tool(name: str) -> Block:
    """A tool that was called and is not on offer now: a conversation with calls must define tools."""
    return {"name": name, "description": "No longer on offer.", "input_schema": {"type": "object", "properties": {}}}


def _messages(prompt: Prompt, *, forgets: bool) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for role, blocks in paired(list(_said(prompt, forgets))):
        # Thinking that led to nothing, or to what went, is refused.
        while blocks and blocks[-1]["type"] in THOUGHTS:
            blocks.pop()
        if not blocks:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"].extend(blocks)
        else:
            messages.append({"role": role, "content": blocks})
    if messages and messages[0]["role"] == "assistant":
        messages.insert(0, _user_says(_OPENING))
    if messages and messages[-1]["role"] == "assistant" and not is_hosted(messages[-1]["content"][-1]):
        # Only a hosted tool's work is gone on with: text of the model's own that stands last is refused.
        messages.append(_user_says(GO_ON))
    return messages


def _said(prompt: Prompt, forgets: bool) -> Iterator[tuple[str, list[Block]]]:
    for message in prompt.messages:
        role = "assistant" if message.speaker is Speaker.ASSISTANT else "user"
        parts = [part for part in message.parts if not (forgets and _is_thought(part))]
        yield role, list(_blocks(message.speaker, parts))


def _user_says(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _blocks(speaker: Speaker, parts: Sequence[PromptPart]) -> Iterator[Block]:
    """The blocks of a message.

    Behind a call nothing but calls may stand: text moves before it, and what a hosted tool left there goes. But an
    answer that was thought out between its calls goes back block for block, since it is refused in any other order.
    """
    if speaker is not Speaker.ASSISTANT or _thinks_between_calls(parts):
        yield from (block for part in parts if (block := _block(part)) is not None)
        return
    has_called = False
    for part in text_first(parts):
        block = _block(part)
        has_called = has_called or isinstance(part, ToolCallPart)
        if block is not None and (not has_called or block["type"] == "tool_use"):
            yield block


def _thinks_between_calls(parts: Sequence[PromptPart]) -> bool:
    return any(_is_thought(part) for part in dropwhile(lambda part: not isinstance(part, ToolCallPart), parts))


def _is_thought(part: PromptPart) -> bool:
    block = _reasoning(part) if isinstance(part, ReasoningPart) else None
    return block is not None and block.get("type") in THOUGHTS


def _block(part: PromptPart) -> Block | None:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text} if part.text.strip() else None
    if isinstance(part, ToolCallPart):
        return {
            "type": "tool_use",
            "id": wire_id(part.call_id),
            "name": wire_name(part.tool_name),
            "input": call_arguments(part),
        }
    if isinstance(part, ToolResultPart):
        return _result(part)
    return _reasoning(part) if isinstance(part, ReasoningPart) else _file(part)


def _result(part: ToolResultPart) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": wire_id(part.call_id), "content": result_text(part)}
    if part.outcome is not ToolOutcome.SUCCESS:
        block["is_error"] = True
    return block


def _reasoning(part: ReasoningPart) -> Block | None:
    """The block as it came. Thinking that was cut before its signature is refused, so it is not sent."""
    block = replayable(part, "anthropic")
    if block is not None and block.get("type") == "thinking" and not block.get("signature"):
        return None
    return block


def _file(part: PromptFile) -> Block:
    inline = inline_data(part)
    media_type = inline[0] if inline is not None else part.media_type
    kind = "image" if media_type in IMAGES else "document" if media_type == PDF else None
    source = _source(part, inline)
    if kind is None or source is None:
        return {"type": "text", "text": attachment_note(part.media_type, part.filename)}
    return {"type": kind, "source": source}


def _source(part: PromptFile, inline: tuple[str, str] | None) -> Block | None:
    file_id, url = uploaded_id(part, "anthropic"), web_url(part)
    if inline is not None:
        return {"type": "base64", "media_type": inline[0], "data": inline[1]}
    if file_id is not None:
        return {"type": "file", "file_id": file_id}
    return {"type": "url", "url": url} if url is not None else None
