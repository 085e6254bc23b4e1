"""The development stack's configuration: `temporal-dev.yaml`, or the same values as defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from turnlane.records.errors import StackError

CONFIG_FILE = "temporal-dev.yaml"

SEARCH_ATTRIBUTES = {"TurnlaneAgent": "Keyword", "TurnlaneState": "Keyword"}

DYNAMIC_CONFIG: dict[str, JsonValue] = {
    "history.transferProcessorMaxPollRPS": 10000,
    "history.timerProcessorMaxPollRPS": 10000,
    "history.visibilityProcessorMaxPollRPS": 10000,
    "frontend.WorkerCommandsEnabled": True,
    "system.enableCancelActivityWorkerCommand": True,
}


class DevConfig(BaseModel):
    """What the stack starts, and where it keeps its files. `temporal-dev.yaml` explains each field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ip: str = "127.0.0.1"
    port: int = Field(default=7233, ge=0, le=65535)
    ui_port: int | None = Field(default=8233, ge=0, le=65535)
    namespace: str = "default"
    task_queue: str = "turnlane"
    state_dir: Path = Path(".turnlane")
    temporal_db: Path | None = Path(".turnlane/temporal.db")
    store: Path = Path(".turnlane/turnlane.db")
    log_level: Literal["debug", "info", "warn", "error", "never"] = "error"
    search_attributes: dict[str, str] = Field(default_factory=lambda: dict(SEARCH_ATTRIBUTES))
    dynamic_config: dict[str, JsonValue] = Field(default_factory=lambda: dict(DYNAMIC_CONFIG))

    @classmethod
    def throwaway(cls, folder: Path) -> DevConfig:
        """A stack for tests: free ports, no UI, Temporal in memory, every file in `folder`."""
        return cls(
            port=0,
            ui_port=None,
            temporal_db=None,
            state_dir=folder / ".turnlane",
            store=folder / ".turnlane" / "turnlane.db",
        )

    def rooted(self, folder: Path) -> DevConfig:
        """The same configuration with its relative paths starting at `folder`."""
        moved: dict[str, Any] = {"state_dir": folder / self.state_dir, "store": folder / self.store}
        moved["temporal_db"] = folder / self.temporal_db if self.temporal_db is not None else None
        return self.model_copy(update=moved)


def load_config(path: Path | None = None) -> DevConfig:
    """Read a configuration file: the one named, else `temporal-dev.yaml` here, else the defaults.

    Raises `StackError` naming the file and the fields when it cannot be used.
    """
    file = path or Path(CONFIG_FILE)
    if path is None and not file.exists():
        return DevConfig().rooted(Path.cwd())
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        return DevConfig.model_validate(raw or {}).rooted(file.resolve().parent)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StackError(f"{file} cannot be read: {type(error).__name__}", path=str(file)) from error
    except ValidationError as error:
        fields = sorted({".".join(str(step) for step in found["loc"]) or "the file" for found in error.errors()})
        raise StackError(f"{file} has settings that do not fit: {', '.join(fields)}", path=str(file)) from error
