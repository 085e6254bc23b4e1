"""Approval keys: what a worker signs a question with, so that nobody who can write to the store can alter it.

A signature covers the approval's id, the call's id, the tool and the arguments. Keys are the workers' own:
they are never stored, shown or sent.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping

from turnlane.records.base import Json, canonical_json

VARIABLE = "TURNLANE_APPROVAL_KEYS"
VERSION_TAG = "turnlane-approval-v1"
MIN_KEY_BYTES = 16

_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ApprovalKeys:
    """Keys by id. The first one signs, all of them verify: put a new key first to rotate.

    Raises ValueError for no keys, an id that is not 1 to 64 letters, digits, `_` and `-`, and a key of less
    than 16 bytes.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise ValueError("approval keys are at least one")
        for key_id, key in keys.items():
            if not _KEY_ID.fullmatch(key_id):
                raise ValueError("the id of an approval key is 1 to 64 letters, digits, '_' and '-'")
            if len(key) < MIN_KEY_BYTES:
                raise ValueError(f"an approval key has at least {MIN_KEY_BYTES} bytes")
        self._keys = dict(keys)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> ApprovalKeys | None:
        """Return the keys of `TURNLANE_APPROVAL_KEYS`, `id:base64` pairs with commas between them; None without it."""
        given = (os.environ if environment is None else environment).get(VARIABLE, "")
        if not given.strip():
            return None
        keys: dict[str, bytes] = {}
        for pair in given.split(","):
            key_id, _, encoded = pair.strip().partition(":")
            if key_id in keys:
                raise ValueError(f"{VARIABLE} names a key twice")
            keys[key_id] = _decoded(encoded)
        return cls(keys)

    def __repr__(self) -> str:
        return f"ApprovalKeys({', '.join(self._keys)})"

    def sign(self, approval_id: str, call_id: str, tool_name: str, arguments: Json) -> str:
        """Return `id.signature` under the first key."""
        key_id = next(iter(self._keys))
        return f"{key_id}.{self._signature(key_id, approval_id, call_id, tool_name, arguments)}"

    def verify(self, signature: str | None, approval_id: str, call_id: str, tool_name: str, arguments: Json) -> bool:
        """Whether one of the keys made this signature for exactly this call."""
        key_id, _, given = (signature or "").partition(".")
        if key_id not in self._keys or not given.isascii():
            return False
        return hmac.compare_digest(given, self._signature(key_id, approval_id, call_id, tool_name, arguments))

    def _signature(self, key_id: str, approval_id: str, call_id: str, tool_name: str, arguments: Json) -> str:
        signed = [VERSION_TAG, approval_id, call_id, tool_name, arguments_digest(arguments)]
        return _encoded(hmac.digest(self._keys[key_id], canonical_json(signed).encode(), "sha256"))


def arguments_digest(arguments: Json) -> str:
    """The SHA-256 of a call's arguments as canonical JSON, in base64url without padding."""
    return _encoded(hashlib.sha256(canonical_json(arguments).encode()).digest())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{VARIABLE} is `id:base64` pairs with commas between them") from None
