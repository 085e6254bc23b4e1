"""Misfits: where something does not fit a record, in one shape whoever finds out."""

from __future__ import annotations

from pydantic import ValidationError


def misfits(error: ValidationError, *root: str) -> list[str]:
    """Each place that does not fit and how, `path.to.field: kind`, below `root`; never a value."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    return [".".join((*root, *map(str, item["loc"]))) + f": {item['type']}" for item in found]
