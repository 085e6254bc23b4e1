"""The command line as tests use it: a stack that it started itself, processes, and a person at a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from typer.testing import CliRunner

from turnlane.client.cli.app import build_app

ROOT = Path(__file__).parents[2]
PROGRAM = "from turnlane.client.cli import main; main()"
ON_TERMINAL = f"import os; os.close(os.open(os.ttyname(0), os.O_RDWR)); {PROGRAM}"
"""As a session's leader, opening a terminal makes it the one whose Ctrl-C is ours."""
SCRUBBED = re.compile("TEMPORAL|TURNLANE|OPENAI|ANTHROPIC")
PATIENCE = 25.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environment() -> dict[str, str]:
    """Ours without anything that would lead a verb elsewhere, or the demo agent to a real model."""
    kept = {name: value for name, value in os.environ.items() if not SCRUBBED.match(name)}
    quiet = {"TEMPORAL_CONFIG_FILE": os.devnull, "TERM": "xterm", "NO_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1"}
    return kept | quiet | {"PYTHONPATH": str(ROOT)}


@dataclass
class Reply:
    """What a verb answered."""

    code: int
    text: str
    errors: str

    @property
    def lines(self) -> list[Any]:
        assert "" == self.errors
        return [json.loads(line) for line in self.text.splitlines()]


@dataclass
class Cli:
    """The command line in a folder."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __call__(self, *arguments: str, stdin: str = "") -> Reply:
        """Run a verb in this process."""
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            env = {name: None for name in os.environ if SCRUBBED.match(name)}
            result = CliRunner().invoke(build_app(), arguments, input=stdin, env={**env, **environment()})
        finally:
            os.chdir(before)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Reply(result.exit_code, result.stdout, result.stderr)

    def start(self, *arguments: str, program: str = PROGRAM, **options: Any) -> subprocess.Popen[str]:
        """Run a verb in a process of its own."""
        given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        command = [sys.executable, "-c", program, *arguments]
        process = subprocess.Popen(command, cwd=self.folder, env=environment(), text=True, **given)
        self.started.append(process)
        return process

    def end(self) -> None:
        """End what a failed test left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self.started.clear()


def read_until(stream: IO[str], sign: str) -> str:
    """Read lines until one contains `sign`; what came instead is in the failure."""
    seen = ""
    for line in stream:
        seen += line
        if sign in line:
            return seen
    raise AssertionError(f"the output ended without {sign!r}: {seen}")


class Terminal:
    """A person at a terminal: reads what a program writes to it, and types."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (40, 100))
        self._seen = ""
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def until(self, sign: str) -> None:
        """Wait until the program has written `sign` since the last one that was waited for."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while sign not in self._seen:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise AssertionError(f"never saw {sign!r} in: {self._seen}")
            self._seen = self._seen.split(sign, 1)[1]

    def _read(self) -> None:
        while True:
            try:
                text = os.read(self.ours, 65536).decode(errors="replace")
            except OSError:  # the program closed its end, or the test ours
                return
            with self._changed:
                self._seen += ESCAPES.sub("", text)
                self._changed.notify_all()


@contextmanager
def dev_stack(folder: Path) -> Iterator[Cli]:
    """A folder in which `turnlane dev` runs, until the context closes."""
    cli = Cli(folder)
    process = cli.start("dev", "--port", "0", "--ui-port", "0", "--json", stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        assert process.pid == told["pid"]
        cli.started.clear()
        yield cli
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(PATIENCE)
        assert not (cli.folder / ".turnlane" / "dev.json").exists()
    finally:
        process.kill()
        process.communicate()
