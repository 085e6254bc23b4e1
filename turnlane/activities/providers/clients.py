"""The SDK clients of a provider: one per address and key variable, opened when first needed.

A key is read from the environment of the worker, checked, given to the SDK, and told to nobody else.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from turnlane.activities.providers.base import ProviderFailure
from turnlane.agent.models import Model
from turnlane.records.runs import Failure, FailureClass

_NO_KEY_NEEDED = "none"


class SdkClient(Protocol):
    """What the SDKs' async clients have in common."""

    def close(self) -> Awaitable[None]: ...


Client = TypeVar("Client", bound=SdkClient)


class Clients(Generic[Client]):
    """Opens clients with `open_client(api_key, base_url)` and keeps them until `aclose`."""

    def __init__(self, open_client: Callable[[str, str | None], Client]) -> None:
        self._open_client = open_client
        self._clients: dict[tuple[str | None, str | None], Client] = {}

    def of(self, model: Model) -> Client:
        """Return the client for a model's address and key; raises `ProviderFailure` for a key that cannot work."""
        place = (model.base_url, model.api_key_env)
        if place not in self._clients:
            self._clients[place] = self._open_client(read_key(model), model.base_url)
        return self._clients[place]

    async def aclose(self) -> None:
        """Close every client and its connections."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()


def read_key(model: Model) -> str:
    """Return the model's key without surrounding whitespace.

    A model without `api_key_env` speaks to a server that wants no key. Raises `ProviderFailure` of class
    `authentication` when the variable is empty, or holds what a header cannot carry.
    """
    if model.api_key_env is None:
        return _NO_KEY_NEEDED
    key = os.environ.get(model.api_key_env, "").strip()
    if not key:
        raise _key_failure(model, "missing_api_key")
    if not all("!" <= character <= "~" for character in key):
        raise _key_failure(model, "invalid_key_characters")
    return key


def _key_failure(model: Model, code: str) -> ProviderFailure:
    return ProviderFailure(
        Failure(failure_class=FailureClass.AUTHENTICATION, code=code, provider=model.reported_provider)
    )
