"""Failures: what a provider's error means, as a class and a code, and whether trying again may help.

Evidence is read in this order: the provider's own code or type, the HTTP status, and the wording only
where neither says anything. Texts, headers and keys are read here and never leave.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from turnlane.records.runs import Failure, FailureClass

RETRYABLE_STATUSES: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})

_BY_STATUS: Final[Mapping[int, FailureClass]] = {
    400: FailureClass.INVALID_REQUEST,
    401: FailureClass.AUTHENTICATION,
    402: FailureClass.INSUFFICIENT_CREDITS,
    403: FailureClass.PERMISSION,
    404: FailureClass.MODEL_UNAVAILABLE,
    408: FailureClass.TIMEOUT,
    409: FailureClass.SERVER_ERROR,
    413: FailureClass.CONTEXT_OVERFLOW,
    422: FailureClass.INVALID_REQUEST,
    425: FailureClass.SERVER_ERROR,
    429: FailureClass.RATE_LIMITED,
    503: FailureClass.OVERLOADED,
    504: FailureClass.TIMEOUT,
    529: FailureClass.OVERLOADED,
}

_BY_CODE: Final[Mapping[str, FailureClass]] = {
    "api_error": FailureClass.SERVER_ERROR,
    "internal_error": FailureClass.SERVER_ERROR,
    "internal_server_error": FailureClass.SERVER_ERROR,
    "server_error": FailureClass.SERVER_ERROR,
    "engine_overloaded": FailureClass.OVERLOADED,
    "overloaded": FailureClass.OVERLOADED,
    "overloaded_error": FailureClass.OVERLOADED,
    "server_is_overloaded": FailureClass.OVERLOADED,
    "server_overloaded": FailureClass.OVERLOADED,
    "service_unavailable": FailureClass.OVERLOADED,
    "slow_down": FailureClass.OVERLOADED,
    "rate_limit_error": FailureClass.RATE_LIMITED,
    "rate_limit_exceeded": FailureClass.RATE_LIMITED,
    "too_many_requests": FailureClass.RATE_LIMITED,
    "timeout_error": FailureClass.TIMEOUT,
    "billing_error": FailureClass.INSUFFICIENT_CREDITS,
    "billing_hard_limit_reached": FailureClass.INSUFFICIENT_CREDITS,
    "contract_spend_limit_reached": FailureClass.INSUFFICIENT_CREDITS,
    "enforced_spend_limit_reached": FailureClass.INSUFFICIENT_CREDITS,
    "linked_organization_billing_unavailable": FailureClass.INSUFFICIENT_CREDITS,
    "linked_organization_spend_limit_reached": FailureClass.INSUFFICIENT_CREDITS,
    "insufficient_credits": FailureClass.INSUFFICIENT_CREDITS,
    "insufficient_quota": FailureClass.INSUFFICIENT_CREDITS,
    "authentication_error": FailureClass.AUTHENTICATION,
    "invalid_api_key": FailureClass.AUTHENTICATION,
    "permission_error": FailureClass.PERMISSION,
    "model_not_found": FailureClass.MODEL_UNAVAILABLE,
    "not_found_error": FailureClass.MODEL_UNAVAILABLE,
    "context_length_exceeded": FailureClass.CONTEXT_OVERFLOW,
    "request_too_large": FailureClass.CONTEXT_OVERFLOW,
    "invalid_prompt": FailureClass.INVALID_REQUEST,
    "invalid_image": FailureClass.FILE_REFUSED,
    "invalid_image_format": FailureClass.FILE_REFUSED,
    "invalid_base64_image": FailureClass.FILE_REFUSED,
    "invalid_image_url": FailureClass.FILE_REFUSED,
    "invalid_image_mode": FailureClass.FILE_REFUSED,
    "image_too_large": FailureClass.FILE_REFUSED,
    "image_too_small": FailureClass.FILE_REFUSED,
    "image_parse_error": FailureClass.FILE_REFUSED,
    "image_content_policy_violation": FailureClass.FILE_REFUSED,
    "image_file_too_large": FailureClass.FILE_REFUSED,
    "unsupported_image_media_type": FailureClass.FILE_REFUSED,
    "empty_image_file": FailureClass.FILE_REFUSED,
    "failed_to_download_image": FailureClass.FILE_REFUSED,
    "image_file_not_found": FailureClass.FILE_REFUSED,
}

_BY_WORDING: Final = (
    (
        FailureClass.INSUFFICIENT_CREDITS,
        r"insufficient|not enough credit|credit balance|payment required|quota exceeded",
    ),
    (FailureClass.RATE_LIMITED, r"rate limit|too many requests|slow down"),
    (FailureClass.MODEL_UNAVAILABLE, r"no endpoints found|model not found|unknown model|no allowed providers"),
    (
        FailureClass.CONTEXT_OVERFLOW,
        r"context (length|window)|maximum context|too many tokens|prompt is too long",
    ),
    (
        FailureClass.FILE_REFUSED,
        r"(process|parse|download|unsupported|invalid|corrupt\w*) (the )?(image|pdf)|image (exceeds|dimensions)"
        r"|(image|document)\.source|pdf (specified|pages)",
    ),
    (FailureClass.OVERLOADED, r"overloaded"),
    (FailureClass.TIMEOUT, r"timed out|timeout|deadline exceeded"),
)

_TRANSIENT: Final = frozenset(
    {
        FailureClass.CONNECTION,
        FailureClass.STREAM_CUT,
        FailureClass.TIMEOUT,
        FailureClass.RATE_LIMITED,
        FailureClass.OVERLOADED,
        FailureClass.SERVER_ERROR,
        FailureClass.MALFORMED_RESPONSE,
    }
)

# A code, never a sentence; capitals and hyphens are left out because keys have them.
_TOKEN: Final = re.compile(r"[a-z][a-z0-9_.]{0,63}")


@dataclass(frozen=True)
class SdkErrors:
    """The error types of one SDK: both trees have the same shape under these three roots."""

    status: type[Exception]
    connection: type[Exception]
    timeout: type[Exception]


@dataclass(frozen=True)
class FailureReader:
    """Reads the errors of one provider."""

    provider: str
    sdk: SdkErrors

    def of(self, error: BaseException) -> Failure:
        """Return what an exception means. Never raises; an error nobody knows is `unknown`, with its type as code."""
        if isinstance(error, self.sdk.status):
            return self._of_response(error)
        if isinstance(error, self.sdk.timeout | httpx2.TimeoutException):
            return self._plain(FailureClass.TIMEOUT)
        if _is_bad_address(error) or _is_bad_address(error.__cause__):
            return self._plain(FailureClass.INVALID_REQUEST, "invalid_base_url")
        if isinstance(error, self.sdk.connection | httpx2.ConnectError | httpx2.ProxyError):
            return self._plain(FailureClass.CONNECTION)
        if isinstance(error, httpx2.TransportError):
            return self.stream_cut()
        if isinstance(error, httpx2.DecodingError):
            return self.malformed()
        return self._plain(FailureClass.UNKNOWN, type(error).__name__[:64])

    def of_stream_error(self, body: object) -> Failure:
        """Return what an error event inside a stream means, given its error object."""
        code, kind, message = _error_fields(body)
        status = _status_in(body)
        return self._judged(status, code, kind, message)

    def stream_cut(self) -> Failure:
        """The stream ended without the protocol's end marker."""
        return self._plain(FailureClass.STREAM_CUT)

    def malformed(self) -> Failure:
        """The stream does not follow its protocol: as good as cut, so it may be tried again."""
        return self._plain(FailureClass.MALFORMED_RESPONSE)

    def _of_response(self, error: Exception) -> Failure:
        response: httpx2.Response = error.response  # type: ignore[attr-defined]
        body: object = getattr(error, "body", None)
        code, kind, message = _error_fields(body)
        failure = self._judged(response.status_code, code, kind, message)
        said_no = response.headers.get("x-should-retry") == "false"
        return failure.model_copy(
            update={
                "retryable": failure.retryable and not said_no,
                "retry_after_seconds": retry_after(response.headers, time.time()),
            }
        )

    def _judged(self, status: int | None, code: str | None, kind: str | None, message: str) -> Failure:
        failure_class = _classify(status, code, kind, message)
        return Failure(
            failure_class=failure_class,
            code=code or kind,
            status=status,
            retryable=_is_retryable(status, failure_class),
            provider=self.provider,
        )

    def _plain(self, failure_class: FailureClass, code: str | None = None) -> Failure:
        return Failure(
            failure_class=failure_class, code=code, retryable=failure_class in _TRANSIENT, provider=self.provider
        )


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds a provider asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date."""
    millis = _number(headers.get("retry-after-ms"))
    if millis is not None:
        return millis / 1000
    raw = headers.get("retry-after")
    seconds = _number(raw)
    if seconds is not None or raw is None:
        return seconds
    try:
        return max(parsedate_to_datetime(raw).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return None


def _number(raw: str | None) -> float | None:
    try:
        value = float(raw) if raw is not None else -1.0
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _is_bad_address(error: BaseException | None) -> bool:
    return isinstance(error, httpx2.UnsupportedProtocol | httpx2.InvalidURL)


def _classify(status: int | None, code: str | None, kind: str | None, message: str) -> FailureClass:
    named = _BY_CODE.get(code or "") or _BY_CODE.get(kind or "")
    # "Something went wrong here" is the least that can be said: the status says more.
    if named in (None, FailureClass.SERVER_ERROR) and status is not None:
        default = FailureClass.SERVER_ERROR if status >= 500 else FailureClass.INVALID_REQUEST
        named = _BY_STATUS.get(status, default)
    if named is None:
        named = FailureClass.INVALID_REQUEST if "invalid_request_error" in (code, kind) else FailureClass.UNKNOWN
    # A refused request names its reason in words only: an overlong prompt, an empty account.
    if named in (FailureClass.INVALID_REQUEST, FailureClass.UNKNOWN) and status in (None, 400):
        return _by_wording(message) or named
    return named


def _by_wording(message: str) -> FailureClass | None:
    lowered = message.lower()
    return next((found for found, words in _BY_WORDING if re.search(words, lowered)), None)


def _is_retryable(status: int | None, failure_class: FailureClass) -> bool:
    if status is None:
        return failure_class in _TRANSIENT
    # An exhausted account answers 429 as well, and waiting does not fill it.
    return status in RETRYABLE_STATUSES and failure_class is not FailureClass.INSUFFICIENT_CREDITS


def _error_fields(body: object) -> tuple[str | None, str | None, str]:
    """The code, the type and the wording of an error object, or of one that wraps it under `error`."""
    error = _unwrapped(body)
    details = error.get("details")
    precise = details.get("error_code") if isinstance(details, dict) else None
    message = error.get("message")
    kind = _token(error.get("type"))
    return (
        _token(precise) or _token(error.get("code")),
        kind if kind != "error" else None,
        message if isinstance(message, str) else "",
    )


def _unwrapped(body: object) -> dict[str, Any]:
    if not isinstance(body, dict):
        return {"message": body}
    inner = body.get("error")
    if isinstance(inner, dict):
        return inner
    return {"message": inner} if isinstance(inner, str) else body


def _token(raw: object) -> str | None:
    return raw if isinstance(raw, str) and _TOKEN.fullmatch(raw) else None


def _status_in(body: object) -> int | None:
    """The HTTP status that some gateways put into an error event as its code."""
    code = _unwrapped(body).get("code")
    text = str(code) if isinstance(code, int | str) and not isinstance(code, bool) else ""
    return int(text) if re.fullmatch(r"[45]\d\d", text) else None
