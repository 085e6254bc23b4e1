"""What the wire adapters make of cuts, errors and dropped connections, through the real SDKs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tests.integration.wires import ANTHROPIC, CHAT, FIGURES, KEY, KEY_NAME, RESPONSES, Wire, asked, failure, read
from turnlane.activities.providers.base import ProviderFailure
from turnlane.activities.providers.registry import Providers
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.usage import UsageValue
from turnlane.testing.fault_plan import BadJson, CutAfter, DataOnly, Gate, HangUp, HttpError, Pass, StreamError
from turnlane.testing.fault_server import FaultServer


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "dropped"])
async def test_a_stream_without_its_end_marker_was_cut(providers: Providers, wire: Wire, clean: bool) -> None:
    raised = await failure(providers, wire, CutAfter(events=5, of=Pass("a long answer", chunks=9), clean=clean))

    assert (FailureClass.STREAM_CUT, True) == (raised.failure.failure_class, raised.failure.retryable)


async def test_a_cut_stream_keeps_the_usage_it_had_reported(providers: Providers) -> None:
    raised = await failure(providers, ANTHROPIC, CutAfter(events=3, of=Pass(usage=FIGURES)))

    assert raised.usage is not None
    assert UsageValue.reported(100) == raised.usage.input_tokens


async def test_an_error_event_fails_the_call_after_partial_text(providers: Providers, wire: Wire) -> None:
    raised = await failure(providers, wire, StreamError("overloaded_error", after=4, of=Pass("Partial", chunks=7)))

    assert (FailureClass.OVERLOADED, "overloaded_error", True) == (
        raised.failure.failure_class,
        raised.failure.code,
        raised.failure.retryable,
    )


async def test_a_failed_response_is_a_failure_even_without_event_lines(providers: Providers) -> None:
    step = DataOnly(StreamError("server_error", after=1, as_failed_response=True))

    raised = await failure(providers, RESPONSES, step)

    assert (FailureClass.SERVER_ERROR, True) == (raised.failure.failure_class, raised.failure.retryable)


async def test_garbled_json_is_a_malformed_response(providers: Providers, wire: Wire) -> None:
    raised = await failure(providers, wire, BadJson(at=2))

    assert (FailureClass.MALFORMED_RESPONSE, True) == (raised.failure.failure_class, raised.failure.retryable)


@pytest.mark.parametrize(
    ("status", "failure_class", "retryable"),
    [
        (400, FailureClass.INVALID_REQUEST, False),
        (401, FailureClass.AUTHENTICATION, False),
        (429, FailureClass.RATE_LIMITED, True),
        (500, FailureClass.SERVER_ERROR, True),
        (529, FailureClass.OVERLOADED, True),
    ],
)
async def test_an_error_status_is_one_request_and_one_failure(
    providers: Providers, wire: Wire, status: int, failure_class: FailureClass, retryable: bool
) -> None:
    raised = await failure(providers, wire, HttpError(status, headers={"retry-after": "3"}))

    expected = Failure(
        failure_class=failure_class,
        code=f"fault_{status}",
        status=status,
        retryable=retryable,
        retry_after_seconds=3.0,
        provider=wire.kind.provider,
    )
    assert expected == raised.failure


async def test_a_dropped_connection_is_a_connection_failure(providers: Providers, wire: Wire) -> None:
    raised = await failure(providers, wire, HangUp())

    assert (FailureClass.CONNECTION, True) == (raised.failure.failure_class, raised.failure.retryable)


async def test_a_failure_carries_neither_key_nor_cause(providers: Providers, wire: Wire) -> None:
    raised = await failure(providers, wire, HttpError(401))

    assert raised.__cause__ is None
    assert raised.__context__ is None
    assert KEY not in repr(vars(raised))


async def test_a_missing_key_fails_before_any_request(
    monkeypatch: pytest.MonkeyPatch, providers: Providers, wire: Wire
) -> None:
    monkeypatch.delenv(KEY_NAME)
    async with FaultServer([Pass()]) as server:
        with pytest.raises(ProviderFailure) as caught:
            await read(providers, wire.model(server))

        assert "missing_api_key" == caught.value.failure.code
        assert [] == server.requests


async def test_closing_the_stream_aborts_the_request(providers: Providers, wire: Wire) -> None:
    gate = Gate(of=Pass("a long answer", chunks=9), after=5)
    async with FaultServer([gate]) as server:
        model = wire.model(server)
        async with aclosing(providers.of(model).stream(asked(model))) as stream:  # type: ignore[type-var]
            await anext(stream)

        await server.requests[0].finished.wait()

        assert server.requests[0].client_left


async def test_cancelling_the_reader_aborts_the_request(providers: Providers, wire: Wire) -> None:
    gate = Gate(of=Pass("a long answer", chunks=9), after=5)
    async with FaultServer([gate]) as server:
        reading = asyncio.create_task(read(providers, wire.model(server)))
        await gate.reached.wait()

        reading.cancel()

        with pytest.raises(asyncio.CancelledError):
            await reading
        await server.requests[0].finished.wait()
        assert server.requests[0].client_left


async def test_a_failure_carries_the_name_a_compatible_server_was_given(providers: Providers) -> None:
    async with FaultServer([HttpError(503)]) as server:
        with pytest.raises(ProviderFailure) as caught:
            await read(providers, CHAT.model(server, provider_name="openrouter"))

    assert "openrouter" == caught.value.failure.provider
