"""Prices: what a model costs per million tokens, exactly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

Amount = Decimal | str | int

_CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, init=False)
class Prices:
    """What a million tokens cost. A price that is None is unknown, which is never zero.

    `input` is for tokens that came from no cache, `cache_read` and `cache_write` for those that came from
    one or went into one. Amounts are given as decimal text, whole numbers or `Decimal`; a float is refused
    with TypeError, since it is not the price that was written. Raises ValueError for what is no amount.
    """

    input: Decimal | None
    output: Decimal | None
    cache_read: Decimal | None
    cache_write: Decimal | None
    currency: str

    def __init__(
        self,
        *,
        input: Amount | None,
        output: Amount | None,
        cache_read: Amount | None = None,
        cache_write: Amount | None = None,
        currency: str = "USD",
    ) -> None:
        if not _CURRENCY.fullmatch(currency):
            raise ValueError("a currency is three capital letters")
        given = {"input": input, "output": output, "cache_read": cache_read, "cache_write": cache_write}
        for name, amount in given.items():
            object.__setattr__(self, name, None if amount is None else exact_amount(f"{name} price", amount))
        object.__setattr__(self, "currency", currency)


def exact_amount(name: str, amount: object) -> Decimal:
    """Return an amount of money as it was written. Raises TypeError for a float, ValueError for what is no amount."""
    if isinstance(amount, bool) or not isinstance(amount, Decimal | str | int):
        raise TypeError(f"the {name} is decimal text, a whole number or a Decimal")
    try:
        exact = Decimal(amount)
    except InvalidOperation:
        raise ValueError(f"the {name} is not a decimal number") from None
    if not exact.is_finite() or exact < 0:
        raise ValueError(f"the {name} is zero or more")
    return exact
