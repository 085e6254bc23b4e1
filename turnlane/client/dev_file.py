"""`dev.json`: where a running development stack tells other terminals how to reach it."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from turnlane.client.dev_lock import is_alive

STATE_DIR = ".turnlane"
DEV_FILE = "dev.json"


class DevFile(BaseModel):
    """A running stack. It holds while the process `pid` lives."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    address: str
    namespace: str
    task_queue: str
    store: str
    bus: Path
    ui_url: str | None = None
    pid: int

    def write(self, folder: Path) -> None:
        """Put the file into the state folder, whole or not at all, readable by this user only."""
        draft = folder / f"{DEV_FILE}.new"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self.model_dump_json(indent=2) + "\n")
        draft.replace(folder / DEV_FILE)


def remove_dev_file(folder: Path) -> None:
    """Let nobody find a stack in this state folder any more."""
    (folder / DEV_FILE).unlink(missing_ok=True)


def find_dev_file(start: Path) -> DevFile | None:
    """Return the running stack of the nearest `.turnlane` folder at or above `start`, if there is one.

    A file of another user is passed over, since it could lead anywhere; so is one whose stack is gone.
    """
    for folder in (start, *start.parents):
        found = _read(folder / STATE_DIR / DEV_FILE)
        if found is not None:
            return found if is_alive(found.pid) else None
    return None


def _read(path: Path) -> DevFile | None:
    try:
        if path.stat().st_uid != os.geteuid():
            return None
        return DevFile.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
