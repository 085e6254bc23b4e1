"""Models: which provider, protocol and model an agent speaks with. Descriptions only, no SDK."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnlane.records.prompt import Prompt
from turnlane.records.runs import Failure

_PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model at a provider.

    Keys never stand in a model: `api_key_env` names the environment variable of the worker process
    that holds one. `base_url` points at a compatible server. `extra` is passed to the provider's
    request as it is (temperature, reasoning effort and the like).
    """

    provider: ClassVar[str]
    name: str
    base_url: str | None = None
    api_key_env: str | None = None
    max_output_tokens: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def reported_provider(self) -> str:
        """The provider's name in evidence, failures and the ledger."""
        return self.provider


@dataclass(frozen=True, kw_only=True)
class OpenAIModel(Model):
    """A model behind OpenAI's Responses API. The key comes from `OPENAI_API_KEY` unless said otherwise."""

    provider = "openai"
    api_key_env: str | None = "OPENAI_API_KEY"


@dataclass(frozen=True, kw_only=True)
class OpenAIChatModel(Model):
    """A model behind a Chat Completions API: OpenAI's own or any compatible server.

    `provider_name` is what such a server is called in evidence, failures and the ledger: `openrouter`, say.
    """

    provider = "openai-chat"
    api_key_env: str | None = "OPENAI_API_KEY"
    provider_name: str | None = None

    def __post_init__(self) -> None:
        if self.provider_name is not None and not _PROVIDER_NAME.fullmatch(self.provider_name):
            raise ValueError("a provider's name is 1 to 64 lower-case letters, digits, '.', '_' and '-'")

    @property
    def reported_provider(self) -> str:
        return self.provider_name or self.provider


@dataclass(frozen=True, kw_only=True)
class AnthropicModel(Model):
    """A model behind Anthropic's Messages API. The key comes from `ANTHROPIC_API_KEY` unless said otherwise."""

    provider = "anthropic"
    api_key_env: str | None = "ANTHROPIC_API_KEY"
    max_output_tokens: int | None = 8192


@dataclass(frozen=True)
class Say:
    """Stream text in `chunk`-sized pieces, waiting `delay` seconds before each."""

    text: str
    chunk: int = 8
    delay: float = 0.0


@dataclass(frozen=True)
class Think:
    """Stream reasoning text."""

    text: str
    chunk: int = 8
    delay: float = 0.0


@dataclass(frozen=True)
class Call:
    """Ask for a tool call. `arguments` may be a raw string, to script what a broken model would send."""

    tool: str
    arguments: dict[str, Any] | str = field(default_factory=dict)
    call_id: str | None = None


@dataclass(frozen=True)
class Pause:
    """Be silent for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Fail:
    """Fail as a provider would, at this point of the stream."""

    failure: Failure


@dataclass(frozen=True)
class Stop:
    """End the stream with this finish reason (stop, tool-calls, length, content-filter, paused, other)."""

    reason: str


Action = Say | Think | Call | Pause | Fail | Stop


@dataclass(frozen=True)
class ScriptedRequest:
    """What a script is asked: the neutral prompt, and which step and attempt of which run this is."""

    prompt: Prompt
    conversation_id: str
    run_id: str
    step: int
    attempt: int


Script = Callable[[ScriptedRequest], Sequence[Action]]


@dataclass(frozen=True, kw_only=True)
class ScriptedModel(Model):
    """An offline model that plays a script: deterministic, and programmable per step and attempt.

    `script` is called once for each attempt of each step and returns what to stream. It must depend on
    its argument alone, so that any worker plays the same part.
    """

    provider = "scripted"
    name: str = "scripted"
    script: Script
