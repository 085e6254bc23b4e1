"""The prompt as OpenAI's two APIs want it: Chat Completions messages, Responses items."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from turnlane.activities.providers.wording import (
    GO_ON,
    IMAGES,
    PDF,
    attachment_note,
    call_arguments_text,
    data_url,
    inline_data,
    replayable,
    result_text,
    text_first,
    uploaded_id,
    web_url,
    wire_id,
    wire_name,
)
from turnlane.records.messages import ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnlane.records.prompt import Prompt, PromptFile, PromptMessage, PromptPart, Speaker, SystemText, options_for

Item = dict[str, Any]

_REASONING_FIELDS = ("type", "id", "summary", "content", "encrypted_content")
"""What of a reasoning item may come back; its status, for one, is refused."""


def chat_messages(prompt: Prompt, *, one_system: bool = False) -> list[Item]:
    """Return the messages of a Chat Completions call: system texts first, one tool message per result.

    With `one_system` the system texts are one message, unless one of them has options: the templates of many open
    models take no second one.
    """
    system = [given for given in prompt.system_texts if given.text.strip()]
    if one_system and system and not any(options_for(given.options, "openai-chat") for given in system):
        system = [SystemText(text="\n\n".join(given.text for given in system))]
    said = [item for message in prompt.messages for item in _chat(message)]
    if said and said[-1]["role"] == "assistant":
        said.append({"role": "user", "content": GO_ON})
    return [*map(_chat_system, system), *said]


def _chat_system(given: SystemText) -> Item:
    """A system message. Options belong to the content part; without any, the text stands plain."""
    options = options_for(given.options, "openai-chat")
    content = [{"type": "text", "text": given.text, **options}] if options else given.text
    return {"role": "system", "content": content}


def _chat(message: PromptMessage) -> Iterator[Item]:
    if message.speaker is Speaker.TOOL:
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                yield {"role": "tool", "tool_call_id": wire_id(part.call_id), "content": result_text(part)}
    elif message.speaker is Speaker.USER:
        yield from _chat_user(message)
    else:
        yield from _chat_assistant(message)


def _chat_user(message: PromptMessage) -> Iterator[Item]:
    content = [_chat_content(part) for part in message.parts if _is_said(part)]
    if len(content) == 1 and content[0]["type"] == "text":
        # Some compatible servers know plain strings only.
        yield {"role": "user", "content": content[0]["text"]}
    elif content:
        yield {"role": "user", "content": content}


def _chat_content(part: PromptPart) -> Item:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    assert isinstance(part, PromptFile)
    url, file_id = _image_url(part), uploaded_id(part, "openai-chat")
    if url is not None:
        return {"type": "image_url", "image_url": {"url": url}}
    if file_id is not None:
        return {"type": "file", "file": {"file_id": file_id}}
    if (data := _inline_pdf(part)) is not None:
        return {"type": "file", "file": {"filename": part.filename or "file.pdf", "file_data": data}}
    return {"type": "text", "text": attachment_note(part.media_type, part.filename)}


def _chat_assistant(message: PromptMessage) -> Iterator[Item]:
    text = "\n".join(part.text for part in message.parts if isinstance(part, TextPart) and part.text.strip())
    calls = [_chat_call(part) for part in message.parts if isinstance(part, ToolCallPart)]
    if not text and not calls:
        return
    said: Item = {"role": "assistant", "content": text or None}
    if calls:
        said["tool_calls"] = calls
    yield said


def _chat_call(part: ToolCallPart) -> Item:
    function = {"name": wire_name(part.tool_name), "arguments": call_arguments_text(part)}
    return {"id": wire_id(part.call_id), "type": "function", "function": function}


def chat_tools(prompt: Prompt) -> list[Item]:
    """Return the tools on offer in Chat Completions format."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            **options_for(tool.options, "openai-chat"),
        }
        for tool in prompt.tools
    ]


def responses_items(prompt: Prompt, origin: str | None = None) -> list[Item]:
    """Return the input items of a Responses call. Reasoning stays directly before what it led to.

    What was given out elsewhere than at `origin` stays here.
    """
    items = [item for message in prompt.messages for item in _items(message, origin)]
    if items and items[-1].get("role") == "assistant":
        items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": GO_ON}]})
    return items


def _items(message: PromptMessage, origin: str | None) -> Iterator[Item]:
    if message.speaker is Speaker.USER:
        content = [_input_content(part) for part in message.parts if _is_said(part)]
        if content:
            yield {"type": "message", "role": "user", "content": content}
        return
    items = [item for part in text_first(message.parts) if (item := _item(part, origin)) is not None]
    for item, led_to in zip_longest(items, items[1:]):
        # Reasoning and what it led to go together: alone, it is refused.
        if item["type"] != "reasoning" or (led_to is not None and led_to["type"] != "reasoning"):
            yield item


def _item(part: PromptPart, origin: str | None) -> Item | None:
    if isinstance(part, TextPart):
        content = [{"type": "output_text", "text": part.text, "annotations": []}]
        return {"type": "message", "role": "assistant", "content": content} if part.text.strip() else None
    if isinstance(part, ToolCallPart):
        return {
            "type": "function_call",
            "call_id": wire_id(part.call_id),
            "name": wire_name(part.tool_name),
            "arguments": call_arguments_text(part),
        }
    if isinstance(part, ToolResultPart):
        return {"type": "function_call_output", "call_id": wire_id(part.call_id), "output": result_text(part)}
    return _reasoning(part, origin) if isinstance(part, ReasoningPart) else None


def _reasoning(part: ReasoningPart, origin: str | None) -> Item | None:
    """The item as it came. Nothing is stored at the provider, so one without its encrypted content is lost."""
    item = replayable(part, "openai", origin)
    if item is None or item.get("type") != "reasoning":
        return item
    if not item.get("encrypted_content"):
        return None
    return {name: item[name] for name in _REASONING_FIELDS if item.get(name) is not None}


def _input_content(part: PromptPart) -> Item:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    assert isinstance(part, PromptFile)
    return _input_image(part) if part.media_type in IMAGES or _image_url(part) else _input_file(part)


def _input_image(part: PromptFile) -> Item:
    url, file_id = _image_url(part), uploaded_id(part, "openai")
    if url is not None:
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if file_id is not None:
        return {"type": "input_image", "file_id": file_id, "detail": "auto"}
    return {"type": "input_text", "text": attachment_note(part.media_type, part.filename)}


def _input_file(part: PromptFile) -> Item:
    url, file_id = web_url(part), uploaded_id(part, "openai")
    if (data := _inline_pdf(part)) is not None:
        return {"type": "input_file", "filename": part.filename or "file.pdf", "file_data": data}
    if file_id is not None:
        return {"type": "input_file", "file_id": file_id}
    if part.media_type == PDF and url is not None:
        return {"type": "input_file", "file_url": url}
    return {"type": "input_text", "text": attachment_note(part.media_type, part.filename)}


def responses_tools(prompt: Prompt) -> list[Item]:
    """Return the tools on offer in Responses format. Not strict: strict mode takes a subset of JSON schema."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": False,
            **options_for(tool.options, "openai"),
        }
        for tool in prompt.tools
    ]


def _is_said(part: PromptPart) -> bool:
    return isinstance(part, PromptFile) or (isinstance(part, TextPart) and bool(part.text.strip()))


def _image_url(part: PromptFile) -> str | None:
    inline = inline_data(part)
    if inline is not None:
        return data_url(*inline) if inline[0] in IMAGES else None
    return web_url(part) if part.media_type in IMAGES else None


def _inline_pdf(part: PromptFile) -> str | None:
    inline = inline_data(part)
    return data_url(*inline) if inline is not None and inline[0] == PDF else None
