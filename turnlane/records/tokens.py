"""Token counts of what is about to be sent, each with where it came from. Unknown is never zero."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from turnlane.records.base import Payload
from turnlane.records.usage import MAX_COUNT


class CountSource(StrEnum):
    """Where a count comes from: the provider or its tokenizer, a sum of such, a guess, or nowhere."""

    MEASURED = "measured"
    COMPUTED = "computed"
    ESTIMATED = "estimated"
    UNAVAILABLE = "unavailable"


class TokenCount(Payload):
    """A number of tokens. It is known when it has a value and its source is not `unavailable`."""

    value: Annotated[int, Field(ge=0, le=MAX_COUNT)] | None = None
    source: CountSource = CountSource.UNAVAILABLE

    @property
    def known(self) -> int | None:
        """The value if it may be relied on."""
        return None if self.source is CountSource.UNAVAILABLE else self.value


UNKNOWN_COUNT = TokenCount()


def computed_count(value: int) -> TokenCount:
    """A figure that is exact by construction, zero parts included."""
    return TokenCount(value=value, source=CountSource.COMPUTED)


def add_counts(counts: Iterable[TokenCount]) -> TokenCount:
    """Return the sum: unavailable if a part is unknown, estimated if a part was, else computed."""
    total, source = 0, CountSource.COMPUTED
    for count in counts:
        if count.known is None:
            return UNKNOWN_COUNT
        total += count.known
        source = CountSource.ESTIMATED if count.source is CountSource.ESTIMATED else source
    return TokenCount(value=total, source=source)
