"""What the two OpenAI adapters share: how a client is opened, and how its errors and usage are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openai

from turnlane.activities.providers.failures import FailureReader, SdkErrors
from turnlane.activities.providers.wire import TIMEOUT
from turnlane.records.usage import CostValue, Usage, UsageValue

_SDK = SdkErrors(openai.APIStatusError, openai.APIConnectionError, openai.APITimeoutError)


def openai_failures(provider: str) -> FailureReader:
    """Return the reader of the SDK's errors for one of our provider names."""
    return FailureReader(provider, _SDK)


def open_client(api_key: str, base_url: str | None) -> openai.AsyncOpenAI:
    """Open a client that neither retries nor cuts a slow stream."""
    return openai.AsyncOpenAI(api_key=api_key, base_url=base_url, max_retries=0, timeout=TIMEOUT)


def openai_usage(raw: Mapping[str, Any], *, side: tuple[str, str], cost: CostValue | None = None) -> Usage:
    """Read raw usage, whose input includes what came from the cache.

    `side` names the two counts: `("prompt", "completion")` in Chat Completions, `("input", "output")` in Responses.
    """
    given, said = side
    inputs, outputs = raw.get(f"{given}_tokens_details"), raw.get(f"{said}_tokens_details")
    return Usage(
        input_tokens=UsageValue.reported(raw.get(f"{given}_tokens")),
        output_tokens=UsageValue.reported(raw.get(f"{said}_tokens")),
        reasoning_tokens=_detail(outputs, "reasoning_tokens"),
        cache_read_tokens=_detail(inputs, "cached_tokens"),
        cache_write_tokens=_detail(inputs, "cache_write_tokens"),
        cost=cost,
    )


def _detail(details: object, name: str) -> UsageValue:
    return UsageValue.reported(details.get(name) if isinstance(details, dict) else None)
