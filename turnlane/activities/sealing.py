"""Sealing: payloads of invocations as canonical JSON, encrypted and bound to where they belong.

AES-256-GCM under the application's key, a random IV each time, and as authenticated data the JSON array
`[conversation_id, invocation_id, artifact_id]`: a ciphertext that is moved to another place does not open.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic_core import to_jsonable_python

from turnlane.records.base import clean_json
from turnlane.records.errors import InputTooLargeError, PayloadUnreadableError
from turnlane.records.invocations import OpenedPayload, SealedPayload
from turnlane.records.limits import KIB

KEY_BYTES = 32
IV_BYTES = 12
TAG_BYTES = 16
SMALLEST_LIMIT = KIB
LARGEST_LIMIT = 64 * KIB * KIB

_DEPTH = 64
"""How deep a cause is followed: one that leads back to itself ends there as well."""


class PayloadSeal:
    """Encrypts and decrypts payloads of at most `max_bytes`. Raises TypeError for a key that is not bytes,
    ValueError for one of another length and for a limit that is none."""

    def __init__(self, key: bytes, max_bytes: int) -> None:
        if not isinstance(key, bytes | bytearray | memoryview):
            # `bytes(32)` of a number would be a key of zeros.
            raise TypeError("a payload key is bytes")
        if len(bytes(key)) != KEY_BYTES:
            raise ValueError(f"a payload key has exactly {KEY_BYTES} bytes")
        if not SMALLEST_LIMIT <= max_bytes <= LARGEST_LIMIT:
            raise ValueError(f"max_payload_bytes is {SMALLEST_LIMIT} to {LARGEST_LIMIT}")
        self._cipher = AESGCM(bytes(key))
        self.max_bytes = max_bytes

    def seal(self, place: tuple[str, str, str], value: Any) -> SealedPayload:
        """Encrypt a value for a place: conversation, invocation and artifact.

        Raises `InputTooLargeError` for one that is larger than allowed.
        """
        plain = canonical_bytes(value)
        self._check_size(len(plain))
        iv = os.urandom(IV_BYTES)
        sealed = self._cipher.encrypt(iv, plain, _bound_to(place))
        conversation_id, invocation_id, artifact_id = place
        return SealedPayload(
            conversation_id=conversation_id,
            invocation_id=invocation_id,
            artifact_id=artifact_id,
            sha256=hashlib.sha256(plain).hexdigest(),
            bytes=len(plain),
            iv=_text(iv),
            tag=_text(sealed[-TAG_BYTES:]),
            ciphertext=_text(sealed[:-TAG_BYTES]),
        )

    def open(self, sealed: SealedPayload) -> OpenedPayload:
        """Decrypt a payload. Raises `PayloadUnreadableError` for another key, or one that was changed or moved."""
        self._check_claims(sealed)
        place = (sealed.conversation_id, sealed.invocation_id, sealed.artifact_id)
        try:
            iv, tag, ciphertext = (_raw(given) for given in (sealed.iv, sealed.tag, sealed.ciphertext))
            plain = self._cipher.decrypt(iv, ciphertext + tag, _bound_to(place))
        except (InvalidTag, ValueError, binascii.Error):
            raise _unreadable(sealed) from None
        if len(plain) != sealed.bytes or hashlib.sha256(plain).hexdigest() != sealed.sha256:
            raise _unreadable(sealed)
        return OpenedPayload(artifact_id=sealed.artifact_id, sha256=sealed.sha256, value=json.loads(plain))

    def _check_size(self, size: int) -> None:
        if size > self.max_bytes:
            raise InputTooLargeError("the payload is over the limit", size=size, limit=self.max_bytes)

    def _check_claims(self, sealed: SealedPayload) -> None:
        """Refuse what is larger than this reader takes, or than it says, before any of it is decoded."""
        self._check_size(sealed.bytes)
        if len(sealed.ciphertext) > 4 * ((sealed.bytes + 2) // 3):
            raise _unreadable(sealed)


def canonical_bytes(value: Any) -> bytes:
    """Return compact UTF-8 JSON with keys in the order of their UTF-16 code units: equal values give equal bytes."""
    ordered = _ordered(clean_json(json_safe(value)))
    return json.dumps(ordered, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def json_safe(value: Any) -> Any:
    """Return a value as JSON: bytes as `{base64}`, errors as `{name, message, cause}` with cycles cut."""
    return to_jsonable_python(_plain(value), exclude_none=True, inf_nan_mode="strings", bytes_mode="base64")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": _text(value)}
    if isinstance(value, BaseException):
        return _error(value, set())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _error(error: BaseException, seen: set[int]) -> dict[str, Any]:
    told: dict[str, Any] = {"name": type(error).__name__, "message": str(error)}
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in seen and len(seen) < _DEPTH:
        told["cause"] = _error(cause, seen)
    return told


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return {key: _ordered(value[key]) for key in keys}
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    return value


def _bound_to(place: tuple[str, str, str]) -> bytes:
    return json.dumps(list(place), ensure_ascii=False, separators=(",", ":")).encode()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _raw(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _unreadable(sealed: SealedPayload) -> PayloadUnreadableError:
    return PayloadUnreadableError("the payload does not open", artifact_id=sealed.artifact_id)
