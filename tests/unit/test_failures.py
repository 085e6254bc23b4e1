"""Failures: what each error of a provider means, whether it is retried, and that nothing private is kept."""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from turnlane.activities.providers.base import ProviderFailure
from turnlane.activities.providers.clients import read_key
from turnlane.activities.providers.failures import FailureReader, SdkErrors, retry_after
from turnlane.agent.models import OpenAIModel
from turnlane.records.runs import FailureClass

REQUEST = httpx2.Request("POST", "https://provider.test/v1", headers={"authorization": "Bearer secret-key"})
OPENAI = FailureReader("openai", SdkErrors(openai.APIStatusError, openai.APIConnectionError, openai.APITimeoutError))
ANTHROPIC = FailureReader(
    "anthropic", SdkErrors(anthropic.APIStatusError, anthropic.APIConnectionError, anthropic.APITimeoutError)
)


def openai_error(status: int, body: Any = None, headers: dict[str, str] | None = None) -> openai.APIStatusError:
    response = httpx2.Response(status, headers=headers, request=REQUEST)
    return openai.APIStatusError("the prompt was: secret", response=response, body=body)


def anthropic_error(status: int, kind: str, message: str = "") -> anthropic.APIStatusError:
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return anthropic.APIStatusError("secret", response=httpx2.Response(status, request=REQUEST), body=body)


@pytest.mark.parametrize(
    ("status", "failure_class", "retryable"),
    [
        (400, FailureClass.INVALID_REQUEST, False),
        (401, FailureClass.AUTHENTICATION, False),
        (402, FailureClass.INSUFFICIENT_CREDITS, False),
        (403, FailureClass.PERMISSION, False),
        (404, FailureClass.MODEL_UNAVAILABLE, False),
        (408, FailureClass.TIMEOUT, True),
        (409, FailureClass.SERVER_ERROR, True),
        (413, FailureClass.CONTEXT_OVERFLOW, False),
        (422, FailureClass.INVALID_REQUEST, False),
        (425, FailureClass.SERVER_ERROR, True),
        (429, FailureClass.RATE_LIMITED, True),
        (500, FailureClass.SERVER_ERROR, True),
        (501, FailureClass.SERVER_ERROR, False),
        (502, FailureClass.SERVER_ERROR, True),
        (503, FailureClass.OVERLOADED, True),
        (504, FailureClass.TIMEOUT, True),
        (529, FailureClass.OVERLOADED, True),
    ],
)
def test_a_status_decides_class_and_retry(status: int, failure_class: FailureClass, retryable: bool) -> None:
    failure = OPENAI.of(openai_error(status))

    assert (failure_class, status, retryable) == (failure.failure_class, failure.status, failure.retryable)


def raised_types(root: type[Exception]) -> Iterator[type[Exception]]:
    """Every type of a tree of exceptions."""
    yield root
    for child in root.__subclasses__():
        yield from raised_types(child)


RETRIED = {408, 409, 425, 429, 500, 502, 503, 504, 529}
RAISED = [
    (reader, kind)
    for reader, root in ((OPENAI, openai.APIStatusError), (ANTHROPIC, anthropic.APIStatusError))
    for kind in raised_types(root)
]


@pytest.mark.parametrize(("reader", "kind"), RAISED, ids=[f"{each.provider}-{kind.__name__}" for each, kind in RAISED])
def test_every_error_an_sdk_raises_for_a_status_is_retried_by_that_status(
    reader: FailureReader, kind: type[Exception]
) -> None:
    declared = getattr(kind, "status_code", None)
    status = declared if isinstance(declared, int) else 500
    error: Any = kind.__new__(kind)
    error.response, error.body = httpx2.Response(status, request=REQUEST), None

    failure = reader.of(error)

    assert (status, status in RETRIED) == (failure.status, failure.retryable)
    assert FailureClass.UNKNOWN is not failure.failure_class


@pytest.mark.parametrize(
    ("status", "body", "failure_class", "retryable"),
    [
        (400, {"code": "context_length_exceeded"}, FailureClass.CONTEXT_OVERFLOW, False),
        (400, {"message": "This model's maximum context length is 9"}, FailureClass.CONTEXT_OVERFLOW, False),
        (401, {"type": "invalid_request_error", "code": "invalid_api_key"}, FailureClass.AUTHENTICATION, False),
        (404, {"type": "invalid_request_error"}, FailureClass.MODEL_UNAVAILABLE, False),
        (429, {"code": "insufficient_quota"}, FailureClass.INSUFFICIENT_CREDITS, False),
        (429, {"type": "tokens", "code": "rate_limit_exceeded"}, FailureClass.RATE_LIMITED, True),
        (
            429,
            {"error": {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}},
            FailureClass.INSUFFICIENT_CREDITS,
            False,
        ),
        (503, {"error": {"type": "api_error"}}, FailureClass.OVERLOADED, True),
        (422, {"error": {"type": "api_error"}}, FailureClass.INVALID_REQUEST, False),
        (500, "<html>timeout</html>", FailureClass.SERVER_ERROR, True),
    ],
)
def test_a_code_says_more_than_a_status(status: int, body: Any, failure_class: FailureClass, retryable: bool) -> None:
    failure = OPENAI.of(openai_error(status, body))

    assert (failure_class, retryable) == (failure.failure_class, failure.retryable)


def test_an_overlong_prompt_is_known_by_its_wording_where_no_code_tells() -> None:
    failure = ANTHROPIC.of(anthropic_error(400, "invalid_request_error", "prompt is too long: 9 tokens"))

    assert (FailureClass.CONTEXT_OVERFLOW, False) == (failure.failure_class, failure.retryable)


@pytest.mark.parametrize(
    "message",
    [
        "Could not process image",
        "messages.2.content.1.image.source.base64: image exceeds 5 MB maximum: 6004172 bytes > 5242880 bytes",
        "messages.0.content.0.image.source.base64.data: At least one of the image dimensions exceed max allowed size",
        "The PDF specified was not valid.",
        "A maximum of 100 PDF pages may be provided.",
    ],
)
def test_a_refused_file_is_known_by_its_wording_where_no_code_tells(message: str) -> None:
    failure = ANTHROPIC.of(anthropic_error(400, "invalid_request_error", message))

    assert (FailureClass.FILE_REFUSED, False) == (failure.failure_class, failure.retryable)


def test_a_refused_file_is_known_by_its_code() -> None:
    failure = OPENAI.of(openai_error(400, {"type": "invalid_request_error", "code": "invalid_image_format"}))

    assert (FailureClass.FILE_REFUSED, False) == (failure.failure_class, failure.retryable)


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (openai.APITimeoutError(request=REQUEST), FailureClass.TIMEOUT),
        (openai.APIConnectionError(request=REQUEST), FailureClass.CONNECTION),
        (httpx2.ConnectError("x"), FailureClass.CONNECTION),
        (httpx2.ConnectTimeout("x"), FailureClass.TIMEOUT),
        (httpx2.ReadError("x"), FailureClass.STREAM_CUT),
        (httpx2.RemoteProtocolError("x"), FailureClass.STREAM_CUT),
        (httpx2.DecodingError("x"), FailureClass.MALFORMED_RESPONSE),
    ],
)
def test_errors_of_the_connection_are_retried(error: Exception, failure_class: FailureClass) -> None:
    failure = OPENAI.of(error)

    assert (failure_class, True) == (failure.failure_class, failure.retryable)


def test_an_address_that_cannot_be_called_is_not_retried() -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = httpx2.UnsupportedProtocol("x")

    failure = OPENAI.of(error)

    assert (FailureClass.INVALID_REQUEST, "invalid_base_url", False) == (
        failure.failure_class,
        failure.code,
        failure.retryable,
    )


def test_an_error_nobody_knows_is_unknown_and_named_by_its_type() -> None:
    failure = OPENAI.of(ZeroDivisionError("secret"))

    assert (FailureClass.UNKNOWN, "ZeroDivisionError", False) == (
        failure.failure_class,
        failure.code,
        failure.retryable,
    )


@pytest.mark.parametrize(
    ("body", "failure_class", "retryable"),
    [
        ({"error": {"type": "overloaded_error", "message": "x"}}, FailureClass.OVERLOADED, True),
        ({"type": "error", "error": {"type": "api_error"}}, FailureClass.SERVER_ERROR, True),
        ({"type": "error", "code": "server_error"}, FailureClass.SERVER_ERROR, True),
        ({"error": {"code": 502, "message": "x"}}, FailureClass.SERVER_ERROR, True),
        ({"type": "error", "code": "invalid_request_error"}, FailureClass.INVALID_REQUEST, False),
        ({"error": {"type": "invalid_request_error"}}, FailureClass.INVALID_REQUEST, False),
        ({"error": "Overloaded"}, FailureClass.OVERLOADED, True),
        ({"error": {"message": "who knows"}}, FailureClass.UNKNOWN, False),
        (None, FailureClass.UNKNOWN, False),
    ],
)
def test_error_events_in_a_stream_are_classified(body: Any, failure_class: FailureClass, retryable: bool) -> None:
    failure = OPENAI.of_stream_error(body)

    assert (failure_class, retryable) == (failure.failure_class, failure.retryable)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": formatdate(1_000_030, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(999_000, usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "-5", "retry-after": "2"}, 2.0),
        ({"retry-after": "1" + "0" * 400}, None),
        ({"retry-after": "Mon, 99 Foo 99999 99:99:99 GMT"}, None),
        ({}, None),
    ],
)
def test_the_wait_a_provider_asks_for_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert seconds == retry_after(headers, now=1_000_000)


def test_the_wait_is_kept_on_the_failure() -> None:
    assert 7.0 == OPENAI.of(openai_error(429, headers={"retry-after": "7"})).retry_after_seconds


@pytest.mark.parametrize(("said", "retryable"), [("false", False), ("true", True), ("maybe", True)])
def test_a_provider_that_wants_no_other_try_gets_none(said: str, retryable: bool) -> None:
    assert retryable is OPENAI.of(openai_error(503, headers={"x-should-retry": said})).retryable


def test_a_word_of_the_provider_makes_no_refused_request_worth_a_try() -> None:
    assert not OPENAI.of(openai_error(400, headers={"x-should-retry": "true"})).retryable


@pytest.mark.parametrize("code", ["sk-live-4Tz", "Your prompt was: secret", "", None, ["list"], "x" * 65])
def test_only_short_tokens_are_codes(code: Any) -> None:
    assert OPENAI.of(openai_error(400, {"code": code})).code is None


def test_neither_wording_nor_headers_are_kept() -> None:
    kept = OPENAI.of(openai_error(429, {"message": "secret"})).model_dump_json()

    assert "secret" not in kept


def test_a_key_is_read_without_surrounding_whitespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "  sk-1\r\n")

    assert "sk-1" == read_key(OpenAIModel(name="m", api_key_env="SOME_KEY"))


@pytest.mark.parametrize(
    ("key", "code"),
    [("", "missing_api_key"), (" \n", "missing_api_key")]
    + [(key, "invalid_key_characters") for key in ("sk-1\r\nsk-2", "sk 1", "sk-é", "sk\x7f1")],
)
def test_a_key_that_cannot_work_fails_without_showing_it(monkeypatch: pytest.MonkeyPatch, key: str, code: str) -> None:
    monkeypatch.setenv("SOME_KEY", key)

    with pytest.raises(ProviderFailure) as caught:
        read_key(OpenAIModel(name="m", api_key_env="SOME_KEY"))

    assert (FailureClass.AUTHENTICATION, code) == (caught.value.failure.failure_class, caught.value.failure.code)
    assert "sk" not in f"{caught.value!r}{caught.value.failure!r}"
