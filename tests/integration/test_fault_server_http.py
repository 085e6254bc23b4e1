"""The fault server as an HTTP server: what it keeps of requests, what it refuses, and how it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from turnlane.testing.fault_plan import CutAfter, HangUp, Pass, PingsOnly, Silent, Step
from turnlane.testing.fault_server import FaultRequest, FaultServer


def asked(server: FaultServer, **more: Any) -> dict[str, Any]:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]} | more
    headers = {"authorization": "Bearer secret", "cookie": "secret"}
    return {"url": f"{server.openai_url}/chat/completions", "json": body, "headers": headers}


async def body_of(server: FaultServer, **more: Any) -> str:
    async with httpx2.AsyncClient() as client:
        return (await client.post(**asked(server, **more))).text


async def test_pings_are_on_the_wire() -> None:
    async with FaultServer([PingsOnly(0.001)]) as server:
        async with httpx2.AsyncClient() as client, client.stream("POST", **asked(server)) as response:
            first = await anext(response.aiter_bytes())

    assert first.startswith(b": ping\n\n")


async def test_the_last_step_repeats() -> None:
    async with FaultServer([Pass("one"), Pass("two")]) as server:
        said = [await body_of(server) for _ in range(3)]

    assert [True, False, False] == ['"one"' in body for body in said]
    assert [False, True, True] == ['"two"' in body for body in said]


async def test_a_function_decides_for_itself() -> None:

    def plan(request: FaultRequest) -> Step:
        return Pass(f"{request.path} {request.number}")

    async with FaultServer(plan) as server:
        body = await body_of(server)

    assert "/v1/chat/completions 1" in body


async def test_a_request_that_breaks_a_rule_uses_up_no_step() -> None:
    async with FaultServer([HangUp()]) as server:
        body = await body_of(server, messages=[{"role": "user", "content": ""}])
        with pytest.raises(httpx2.RemoteProtocolError):
            await body_of(server)

    assert "blank_text" == json.loads(body)["error"]["code"]
    assert ["blank_text", None] == [request.refusal for request in server.requests]
    assert server.requests[:1] == server.refusals


async def test_requests_are_kept_without_their_secrets() -> None:
    async with FaultServer([Pass()]) as server:
        await body_of(server)
        (request,) = server.requests
        await request.finished.wait()

    assert "m" == request.body["model"] and not request.client_left
    assert not {"authorization", "x-api-key"} & set(request.headers)
    assert "secret" not in json.dumps(dict(request.headers))


async def test_an_unknown_path_is_not_found() -> None:
    async with FaultServer([Pass()]) as server, httpx2.AsyncClient() as client:
        response = await client.get(f"{server.openai_url}/models")

    assert (404, []) == (response.status_code, server.requests)


async def test_what_is_not_http_is_answered_400() -> None:
    async with FaultServer([Pass()]) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.anthropic_url.rsplit(":", 1)[1]))
        writer.write(b"nonsense\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_chunked_request_is_read() -> None:
    async def body() -> AsyncIterator[bytes]:
        for piece in (b'{"model": "m", "stream": true, ', b'"messages": [{"role": "user", "content": "hi"}]}'):
            yield piece

    async with FaultServer([Pass("ok")]) as server, httpx2.AsyncClient() as client:
        headers = {"authorization": "Bearer secret", "expect": "100-continue"}
        response = await client.post(f"{server.openai_url}/chat/completions", content=body(), headers=headers)

    assert 200 == response.status_code and response.text.endswith("data: [DONE]\n\n")


async def test_closing_the_server_drops_open_streams() -> None:
    async with FaultServer([Silent()]) as server:
        call = asyncio.ensure_future(body_of(server))
        await server.wait_for_requests(1)

    with pytest.raises(httpx2.RemoteProtocolError):
        await call


def test_a_server_that_does_not_run_has_no_url() -> None:
    with pytest.raises(RuntimeError, match="not running"):
        _ = FaultServer([Pass()]).openai_url
    with pytest.raises(ValueError, match="at least one step"):
        FaultServer([])
    with pytest.raises(ValueError, match="events or of bytes"):
        CutAfter()
