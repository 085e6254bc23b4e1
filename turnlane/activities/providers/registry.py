"""The registry of providers: one adapter per wire protocol and worker process, made when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from turnlane.activities.providers.base import Provider, ProviderFailure
from turnlane.agent.models import Model
from turnlane.records.runs import Failure, FailureClass

ProviderFactory = Callable[[], Provider]


class Providers:
    """The adapters of a worker, by `Model.provider`.

    `factories` adds providers of an application's own, or replaces ours. An SDK is imported when the
    first model that needs it is called, so a worker pays only for what it uses.
    """

    def __init__(self, factories: Mapping[str, ProviderFactory] | None = None) -> None:
        self._factories = {**_BUILT_IN, **(factories or {})}
        self._open: dict[str, Provider] = {}

    def of(self, model: Model) -> Provider:
        """Return the adapter that speaks the model's protocol; the same one for every call.

        Raises `ProviderFailure` of class `model_unavailable` when there is none.
        """
        name = model.provider
        if name not in self._open:
            factory = self._factories.get(name)
            if factory is None:
                raise ProviderFailure(Failure(failure_class=FailureClass.MODEL_UNAVAILABLE, code="unknown_provider"))
            self._open[name] = factory()
        return self._open[name]

    async def aclose(self) -> None:
        """Close every adapter that was opened. One that is asked for later is opened anew."""
        opened, self._open = self._open, {}
        for provider in opened.values():
            await provider.aclose()


def _scripted() -> Provider:
    from turnlane.activities.providers.scripted import ScriptedProvider

    return ScriptedProvider()


def _openai() -> Provider:
    from turnlane.activities.providers.openai_responses import OpenAIResponsesProvider

    return OpenAIResponsesProvider()


def _openai_chat() -> Provider:
    from turnlane.activities.providers.openai_chat import OpenAIChatProvider

    return OpenAIChatProvider()


def _anthropic() -> Provider:
    from turnlane.activities.providers.anthropic import AnthropicProvider

    return AnthropicProvider()


_BUILT_IN: Mapping[str, ProviderFactory] = {
    "scripted": _scripted,
    "openai": _openai,
    "openai-chat": _openai_chat,
    "anthropic": _anthropic,
}
