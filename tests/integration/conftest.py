"""What tests are given: talks with a fault server, in each wire protocol, a talk that is compacted,
a conversation whose calls wait for approval, a store for completions, and the adapters as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.conftest import Bench, Serve
from tests.integration.approval_stage import Gated, open_till
from tests.integration.compacting import Talk
from tests.integration.completing import KEY_NAME as COMPLETION_KEY_NAME
from tests.integration.talks import KEY_NAME, WIRES, Talks
from tests.integration.wires import ANTHROPIC, CHAT, KEY, RESPONSES, Wire
from tests.integration.wires import KEY_NAME as WIRE_KEY_NAME
from turnlane.activities.providers.registry import Providers
from turnlane.agent.models import Model
from turnlane.store.sql import SqlStore, open_store


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """What is left open when a test ends, and outlives its worker where it was asked for before it."""
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
async def talks(
    stack: AsyncExitStack, bench: Bench, serve: Serve, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> Talks:
    """Conversations with faulty providers; their servers outlive the worker."""
    monkeypatch.setenv(KEY_NAME, "sk-faults-test")
    return Talks(bench, serve, conversation, stack)


@pytest.fixture(params=list(WIRES.values()), ids=list(WIRES))
def kind(request: pytest.FixtureRequest) -> type[Model]:
    """Each wire protocol in turn."""
    chosen: type[Model] = request.param
    return chosen


@pytest.fixture
def talk(bench: Bench, serve: Serve, conversation: str) -> Talk:
    """A conversation with an agent that compacts."""
    return Talk(bench, serve, conversation)


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqlStore]:
    """A store for completions, whose providers have a key."""
    monkeypatch.setenv(COMPLETION_KEY_NAME, "sk-completions")
    opened = await open_store(str(tmp_path / "completions.db"))
    yield opened
    await opened.close()


@pytest.fixture
async def gated(bench: Bench, serve: Serve, conversation: str) -> Gated:
    """A conversation with an agent whose calls wait for approval, and the till that counts what was done."""
    return await open_till(bench, serve, conversation)


@pytest.fixture(params=[RESPONSES, CHAT, ANTHROPIC], ids=["responses", "chat", "anthropic"])
def wire(request: pytest.FixtureRequest) -> Wire:
    """Each protocol in turn, as the adapters speak it."""
    assert isinstance(request.param, Wire)
    return request.param


@pytest.fixture
async def providers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Providers]:
    """The adapters, closed when the test ends."""
    monkeypatch.setenv(WIRE_KEY_NAME, KEY)
    opened = Providers()
    yield opened
    await opened.aclose()
