"""What an application gives, checked where it gives it: whole numbers, and one of a few words."""

from __future__ import annotations

from typing import Any, get_args


def whole_number(name: str, value: object, *, least: int = 0) -> int:
    """Return a whole number. Raises TypeError for anything but an int, ValueError for one below `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is an integer")
    if value < least:
        raise ValueError(f"{name} is at least {least}")
    return value


def one_of(name: str, value: object, choice: Any) -> None:
    """Raise ValueError unless the value is one of a `Literal`'s words."""
    if value not in get_args(choice):
        raise ValueError(f"{name} is one of {', '.join(get_args(choice))}")
