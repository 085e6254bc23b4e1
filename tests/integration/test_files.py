"""Files through whole turns: kept in the store, sent by their bytes, and never in a history."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from PIL import Image

from tests.conftest import Bench, Serve
from tests.integration.stage import BOUND, Stage
from turnlane.activities.providers.base import Finish, GeneratedFile
from turnlane.activities.providers.registry import Providers
from turnlane.agent import Agent, Upload
from turnlane.agent.files import FileQuestion
from turnlane.agent.models import AnthropicModel, Model, OpenAIChatModel, OpenAIModel
from turnlane.client import Result, Turnlane
from turnlane.records.errors import FileRefusedError, StoreRequiredError
from turnlane.records.files import blob_of
from turnlane.records.lane import RetryFacts
from turnlane.records.limits import FileLimits, Limits
from turnlane.records.messages import FilePart, TextPart
from turnlane.records.runs import FailureClass, TerminalReason
from turnlane.records.steps import FinishReason
from turnlane.testing.fault_plan import HttpError, Pass, Step
from turnlane.testing.fault_server import FaultServer

pytestmark = pytest.mark.server

KEY_NAME = "FILES_TEST_KEY"
KINDS: dict[str, type[Model]] = {"responses": OpenAIModel, "chat": OpenAIChatModel, "anthropic": AnthropicModel}
PDF = b"%PDF-1.4\n1 0 obj <<>> endobj\ntrailer <<>>\n%%EOF\n"
REFUSED = HttpError(
    400, body={"type": "error", "error": {"type": "invalid_request_error", "message": "Could not process image"}}
)


def picture(width: int = 20, height: int = 10) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(out, "PNG")
    return out.getvalue()


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Model]:
    """Each wire protocol in turn."""
    monkeypatch.setenv(KEY_NAME, "sk-files-test")
    chosen: type[Model] = request.param
    return chosen


async def serve_behind(
    stack: AsyncExitStack, serve: Serve, kind: type[Model], *plan: Step, **options: Any
) -> FaultServer:
    """Serve an agent whose provider answers by this plan, and judges what it is sent."""
    server = await stack.enter_async_context(FaultServer(plan))
    base_url = server.anthropic_url if kind is AnthropicModel else server.openai_url
    model = kind(name="gpt-4.1-test", base_url=base_url, api_key_env=KEY_NAME)
    providers = Providers()
    stack.push_async_callback(providers.aclose)
    retry = RetryFacts(initial_seconds=0.01)
    await serve(Agent(name="reader", model=model, retry=retry, **options), providers=providers)
    return server


async def turn(client: Turnlane, conversation: str, *content: Any) -> Result:
    return await (await client.submit(conversation, list(content))).result(BOUND)


def bodies(server: FaultServer) -> list[str]:
    """What was sent, as JSON; none of it broke a rule of the provider."""
    assert [] == [request.refusal for request in server.refusals]
    return [json.dumps(request.body) for request in server.requests]


async def test_an_image_reaches_the_model_by_its_bytes(
    stack: AsyncExitStack, bench: Bench, serve: Serve, conversation: str, kind: type[Model]
) -> None:
    server = await serve_behind(stack, serve, kind, Pass(text="A teal box."))
    upload = Upload(data=picture(), media_type="image/png", filename="box.png")

    result = await turn(bench.client(), conversation, TextPart(text="What is this?"), upload)

    assert TerminalReason.SUCCESS == result.reason
    assert [True] == [in_base64(upload.data) in body for body in bodies(server)]


async def test_a_pdf_reaches_the_model_by_its_bytes(
    stack: AsyncExitStack, bench: Bench, serve: Serve, conversation: str, kind: type[Model]
) -> None:
    server = await serve_behind(stack, serve, kind, Pass(text="An empty page."))

    await turn(
        bench.client(), conversation, TextPart(text="Read this."), Upload(data=PDF, media_type="application/pdf")
    )

    assert [True] == [in_base64(PDF) in body for body in bodies(server)]


async def test_a_text_file_reaches_the_model_as_text(bench: Bench, serve: Serve, conversation: str) -> None:
    stage = Stage()
    await serve(stage.agent(limits=Limits(files=FileLimits(text_bytes=5))), providers=stage.providers)
    stage.play()

    await turn(bench.client(), conversation, Upload(data=b"hello, you", media_type="text/plain", filename="a.txt"))

    assert [("user", "[file: a.txt]\nhello\n[5 more bytes are not shown]")] == (await stage.call(1)).heard


async def test_files_are_in_no_history_and_no_ledger(bench: Bench, serve: Serve, conversation: str) -> None:
    stage = Stage()
    await serve(stage.agent(), providers=stage.providers)
    stage.play()
    upload = Upload(data=picture(300, 200), media_type="image/png")

    await turn(bench.client(), conversation, TextPart(text="look"), upload)

    events = (await bench.store.read_events(conversation)).items
    history = await bench.client().temporal.get_workflow_handle(f"lane/{conversation}").fetch_history()
    written = history.to_json() + "".join(event.model_dump_json() for event in events)
    assert not any(in_base64(upload.data)[:40] in text for text in (written, json.dumps(written)))


async def test_a_message_refers_to_a_file_that_can_be_read_again(bench: Bench, serve: Serve, conversation: str) -> None:
    stage = Stage()
    await serve(stage.agent(), providers=stage.providers)
    stage.play()
    upload = Upload(data=picture(), media_type="image/png", filename="box.png")
    await turn(bench.client(), conversation, upload)
    [said, *_] = (await bench.client().messages(conversation)).items
    [part] = said.parts
    assert isinstance(part, FilePart)

    kept = await bench.store.get_blob(conversation, blob_of(part.reference) or "")

    assert (upload.data, "image/png", "box.png") == (kept, part.media_type, part.filename)


async def test_a_conversation_with_many_images_takes_one_more_though_an_old_one_was_large(
    stack: AsyncExitStack, bench: Bench, serve: Serve, conversation: str, kind: type[Model]
) -> None:
    server = await serve_behind(stack, serve, kind, Pass(text="Seen."))
    shots = [Upload(data=picture(2162, 322), media_type="image/png")]
    shots += [Upload(data=picture(20 + n), media_type="image/png") for n in range(19)]
    await turn(bench.client(), conversation, *shots)

    result = await turn(bench.client(), conversation, Upload(data=picture(99), media_type="image/png"))

    assert TerminalReason.SUCCESS == result.reason
    assert [False, False] == [in_base64(shots[0].data) in body for body in bodies(server)]


async def test_an_image_that_the_provider_refuses_is_told_by_its_name_and_the_turn_goes_on(
    stack: AsyncExitStack, bench: Bench, serve: Serve, conversation: str, kind: type[Model]
) -> None:
    server = await serve_behind(stack, serve, kind, REFUSED, Pass(text="I cannot see it."))
    upload = Upload(data=picture(), media_type="image/png", filename="box.png")

    result = await turn(bench.client(), conversation, TextPart(text="What is this?"), upload)

    assert (TerminalReason.SUCCESS, "I cannot see it.") == (result.reason, result.text)
    assert [(True, False), (False, True)] == [
        (in_base64(upload.data) in body, "[attachment: box.png]" in body) for body in bodies(server)
    ]


async def test_a_step_that_is_refused_without_its_files_ends_the_run(
    stack: AsyncExitStack, bench: Bench, serve: Serve, conversation: str, kind: type[Model]
) -> None:
    server = await serve_behind(stack, serve, kind, REFUSED)

    result = await turn(bench.client(), conversation, Upload(data=picture(), media_type="image/png"))

    assert (TerminalReason.PROVIDER_FAILURE, 2) == (result.reason, len(server.requests))
    assert result.failure is not None and FailureClass.FILE_REFUSED == result.failure.failure_class


async def test_a_file_of_nowhere_is_refused_and_nothing_is_written(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    stage = Stage()
    await serve(stage.agent(), providers=stage.providers)
    part = FilePart(media_type="image/png", reference="blob:none")

    with pytest.raises(FileRefusedError) as caught:
        await bench.client().submit(conversation, [part])

    assert "missing" == caught.value.details["reason"]
    assert 0 == (await bench.store.load_snapshot(conversation)).version


async def test_a_file_over_the_agents_limit_is_refused(bench: Bench, serve: Serve, conversation: str) -> None:
    stage = Stage()
    await serve(stage.agent(limits=Limits(files=FileLimits(pdf_bytes=10))), providers=stage.providers)

    with pytest.raises(FileRefusedError):
        await bench.client().submit(conversation, [Upload(data=PDF, media_type="application/pdf")])


async def test_an_upload_needs_a_store(bench: Bench, conversation: str) -> None:
    client = Turnlane(bench.client().temporal)

    with pytest.raises(StoreRequiredError):
        await client.submit(conversation, [Upload(data=PDF, media_type="application/pdf")])


async def test_a_generated_file_is_kept_in_the_store_and_told_by_reference(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    made = GeneratedFile(data=picture(), media_type="image/png", filename="made.png")
    await serve(_painter_agent(), providers=Providers({"scripted": lambda: _Painter(made)}))

    result = await turn(bench.client(), conversation, TextPart(text="paint"))

    answer = (await bench.client().messages(conversation)).items[-1]
    [part] = answer.parts
    assert isinstance(part, FilePart)
    assert (TerminalReason.SUCCESS, made.data) == (
        result.reason,
        await bench.store.get_blob(conversation, blob_of(part.reference) or ""),
    )


async def test_an_application_says_where_generated_files_go(bench: Bench, serve: Serve, conversation: str) -> None:
    kept: list[tuple[bytes, str]] = []

    async def keep(upload: Upload, question: FileQuestion) -> str:
        kept.append((upload.data, question.conversation_id))
        return "s3://bucket/made.png"

    made = GeneratedFile(data=picture(), media_type="image/png")
    agent = _painter_agent(persist_generated_file=keep)
    await serve(agent, providers=Providers({"scripted": lambda: _Painter(made)}))
    await turn(bench.client(), conversation, TextPart(text="paint"))

    answer = (await bench.client().messages(conversation)).items[-1]

    assert [(made.data, conversation)] == kept
    assert (FilePart(media_type="image/png", reference="s3://bucket/made.png"),) == answer.parts


async def test_a_generated_file_that_the_application_cannot_keep_fails_the_run(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    def keep(upload: Upload, question: FileQuestion) -> str:
        raise OSError("the disk is full")

    made = GeneratedFile(data=picture(), media_type="image/png")
    agent = _painter_agent(persist_generated_file=keep)
    await serve(agent, providers=Providers({"scripted": lambda: _Painter(made)}))

    result = await turn(bench.client(), conversation, TextPart(text="paint"))

    assert result.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, "PERSIST_FILE_FAILED") == (result.reason, result.failure.code)


class _Painter:
    """A provider that answers with a file."""

    def __init__(self, made: GeneratedFile) -> None:
        self._made = made

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        yield self._made
        yield Finish(FinishReason.STOP)

    async def aclose(self) -> None:
        """Nothing is open."""


def _painter_agent(**options: Any) -> Agent:
    return Stage().agent(name="painter", **options)
