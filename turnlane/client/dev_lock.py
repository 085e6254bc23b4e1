"""The lock that lets one development stack at a time use a state folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from turnlane.records.errors import StackError


def make_state_dir(folder: Path) -> None:
    """Make the state folder, for this user only, and keep it out of version control."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise StackError(f"{folder} cannot be used as the state folder: {error.strerror}", path=str(folder)) from error


class StateLock:
    """Holds a state folder until `release`, or until this process and the server it hands the lock to are gone."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises `StackError` naming the process that has it."""
        make_state_dir(folder)
        self._file = folder / "lock"
        self.fd = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _living_pid(os.pread(self.fd, 64, 0))
            os.close(self.fd)
            raise StackError(
                f"{folder} is in use by another stack (process {holder or 'unknown'}): stop that one, "
                "or give this one its own state_dir",
                path=str(folder),
                pid=holder,
            ) from error
        self.name_holders(os.getpid())

    def name_holders(self, *pids: int) -> None:
        """Say which processes keep the folder, the one to stop first."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, " ".join(str(pid) for pid in pids).encode(), 0)

    def release(self) -> None:
        """Give the folder free. The file stays: removing it would let two holders lock two files."""
        os.close(self.fd)


def _living_pid(names: bytes) -> int | None:
    pids = [int(name) for name in names.split() if name.isdigit()]
    return next((pid for pid in pids if is_alive(pid)), None)


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
