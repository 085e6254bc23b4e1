"""A model provider that fails on purpose: the wire formats of OpenAI and Anthropic on the loopback.

Give it a plan (see `fault_plan`), point a real SDK at `openai_url` or `anthropic_url`, and look at
`requests` afterwards. Requests are judged as the strictest server would (see the `rules_` modules);
one that breaks a rule is answered 400 with a code, kept in `refusals`, and uses up no step of the plan.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from turnlane.testing.fault_plan import HttpError, Step
from turnlane.testing.fault_play import Answer, Cut, Hold, Part, Pause, answer_to, json_answer
from turnlane.testing.loopback import (
    HEAD_BYTES,
    HttpRequest,
    MalformedRequest,
    chunk_bytes,
    head_bytes,
    read_request,
)
from turnlane.testing.rules_anthropic import check_countable
from turnlane.testing.wire import Asked, RequestRefused, SseEvent, Wire
from turnlane.testing.wire_anthropic import MessagesWire
from turnlane.testing.wire_chat import ChatWire
from turnlane.testing.wire_responses import ResponsesWire

_SECRET_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "cookie", "proxy-authorization"})
_COUNT_PATH = "/v1/messages/count_tokens"
_WIRES: Mapping[str, Wire] = {
    "/v1/responses": ResponsesWire(),
    "/v1/chat/completions": ChatWire(),
    "/v1/messages": MessagesWire(),
}


@dataclass(eq=False)
class FaultRequest:
    """A request as it arrived, without the headers that carry secrets, and what became of it.

    `arrived_at` is the event loop's clock. `refusal` is the code of the rule it broke. `finished` is set
    when the answer was sent or given up; `client_left` says that the client closed before its end.
    """

    number: int
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    arrived_at: float
    refusal: str | None = None
    client_left: bool = False
    finished: asyncio.Event = field(default_factory=asyncio.Event)


Counts = Callable[[Mapping[str, Any]], object]
"""Answers a request to count tokens: the body to what `input_tokens` says, or an `HttpError`."""

Plan = Sequence[Step] | Callable[[FaultRequest], Step]


class FaultServer:
    """The server, while its context is open. A list is used up step by step, and its last step repeats.

    With `counts` it also counts tokens, as Anthropic does; those requests are in `counted`, and use up no step.
    """

    def __init__(self, plan: Plan, *, counts: Counts | None = None) -> None:
        if not callable(plan) and not plan:
            raise ValueError("a plan has at least one step")
        self._plan = plan
        self._counts = counts
        self._next = 0
        self._arrived = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.requests: list[FaultRequest] = []
        self.counted: list[Mapping[str, Any]] = []

    @property
    def refusals(self) -> list[FaultRequest]:
        """The requests that broke a rule."""
        return [request for request in self.requests if request.refusal is not None]

    @property
    def openai_url(self) -> str:
        """The base URL for an OpenAI client."""
        return f"{self.anthropic_url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The base URL for an Anthropic client."""
        if self._server is None:
            raise RuntimeError("the fault server is not running")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def wait_for_requests(self, count: int) -> FaultRequest:
        """Return request number `count` (from 1) once it has arrived."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=HEAD_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and drop every open connection."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if server is not None:
            await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except ConnectionError:
            # The client left before its request was whole, or while it was told that it is not one.
            return
        finally:
            await _close(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            http = await read_request(reader, writer)
        except MalformedRequest as error:
            await _send(writer, json_answer(400, {"error": {"message": str(error), "code": "malformed_request"}}))
            return
        if http is None:
            return
        if http.path == _COUNT_PATH and self._counts is not None:
            await _send(writer, self._count(http, self._counts))
            return
        wire = _WIRES.get(http.path) if http.method == "POST" else None
        if wire is None:
            await _send(writer, json_answer(404, {"error": {"message": "no such endpoint", "code": "not_found"}}))
            return
        request, answer = self._judge(http, wire)
        async with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        await _play_to(request, answer, reader, writer)

    def _count(self, http: HttpRequest, counts: Counts) -> Answer:
        wire, body = _WIRES["/v1/messages"], _json_object(http.body)
        self.counted.append(body)
        try:
            check_countable(Asked(len(self.counted), http.headers, body))
        except RequestRefused as error:
            return json_answer(error.status, wire.error_body(error.status, error.code, error.message))
        said = counts(body)
        if isinstance(said, HttpError):
            return answer_to(said, wire, Asked(len(self.counted), http.headers, body))
        return json_answer(200, {"input_tokens": said})

    def _judge(self, http: HttpRequest, wire: Wire) -> tuple[FaultRequest, Answer]:
        number = len(self.requests) + 1
        shown = {name: value for name, value in http.headers.items() if name not in _SECRET_HEADERS}
        arrived_at = asyncio.get_running_loop().time()
        request = FaultRequest(number, http.path, shown, _json_object(http.body), arrived_at)
        asked = Asked(number, http.headers, request.body)
        try:
            wire.check(asked)
        except RequestRefused as error:
            request.refusal = error.code
            return request, json_answer(error.status, wire.error_body(error.status, error.code, error.message))
        return request, answer_to(self._step_for(request), wire, asked)

    def _step_for(self, request: FaultRequest) -> Step:
        if callable(self._plan):
            return self._plan(request)
        step = self._plan[min(self._next, len(self._plan) - 1)]
        self._next += 1
        return step


def _json_object(body: bytes) -> dict[str, Any]:
    """Parse a body; what is not a JSON object is an empty one, which every rule book refuses."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


async def _play_to(
    request: FaultRequest, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Play the answer until it ends or the client closes, whichever is first."""
    playing = asyncio.create_task(_send(writer, answer))
    leaving = asyncio.create_task(reader.read(1))
    try:
        await asyncio.wait({playing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        request.client_left = not playing.done()
        if playing.done():
            playing.result()
    except ConnectionError:
        request.client_left = True
    finally:
        playing.cancel()
        leaving.cancel()
        await asyncio.gather(playing, leaving, return_exceptions=True)
        request.finished.set()


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    if answer.hold is not None:
        await answer.hold.wait()
    if answer.status is None:
        return
    if answer.body is not None:
        headers = {**answer.headers, "content-length": str(len(answer.body))}
        await _write(writer, head_bytes(answer.status, headers) + answer.body)
        return
    await _write(writer, head_bytes(answer.status, {**answer.headers, "transfer-encoding": "chunked"}))
    await _send_score(writer, answer)


async def _send_score(writer: asyncio.StreamWriter, answer: Answer) -> None:
    for beat in answer.score:
        match beat:
            case SseEvent():
                await _write(writer, chunk_bytes(beat.encode()))
            case Part():
                await _write(writer, chunk_bytes(beat.data))
            case Pause():
                await asyncio.sleep(beat.seconds)
            case Hold():
                beat.reached.set()
                await beat.event.wait()
            case Cut(clean=False):
                return
            case Cut():
                break
    await _write(writer, chunk_bytes(b""))


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        # The client was faster; closed is closed.
        return
