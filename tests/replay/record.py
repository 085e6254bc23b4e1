"""Record the histories of every kind of turn: `python tests/replay/record.py [NAME ...]`.

Starts a server of its own, plays each turn, and keeps the histories under `histories/<release>/`. They
are kept for ever: a later release that cannot replay them would break the lanes that are open then.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HISTORIES = HERE / "histories"


def scrubbed(value: Any) -> Any:
    """A history without stack traces: they say where this machine keeps its files, and replay ignores them."""
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items() if key != "stackTrace"}
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    return value


def keep(folder: Path, name: str, histories: list[str]) -> None:
    """Replace what is kept of a kind of turn, numbered where it has several histories."""
    for old in [*folder.glob(f"{name}.json"), *folder.glob(f"{name}.[0-9]*.json")]:
        old.unlink()
    for number, text in enumerate(histories, 1):
        suffix = f".{number}" if len(histories) > 1 else ""
        kept = json.dumps(scrubbed(json.loads(text)), separators=(",", ":"))
        (folder / f"{name}{suffix}.json").write_text(kept + "\n", encoding="utf-8")


async def record(names: list[str], folder: Path) -> None:
    """Play the turns of these names, all of them if none is given, and keep their histories in `folder`."""
    from temporalio.client import Client
    from temporalio.contrib.pydantic import pydantic_data_converter

    from tests.replay.studio import BreakableStore, Studio
    from tests.replay.turns import TURNS
    from turnlane.client.dev_config import DevConfig
    from turnlane.client.dev_server import DevServer
    from turnlane.store.sql import open_store

    with tempfile.TemporaryDirectory() as scratch:
        async with DevServer(DevConfig.throwaway(Path(scratch))) as server:
            temporal = await Client.connect(server.target, data_converter=pydantic_data_converter, identity="recorder")
            for name in names or TURNS:
                started = time.monotonic()
                store = await open_store(str(Path(scratch) / f"{name}.db"))
                studio = Studio(name, temporal, BreakableStore(store))
                try:
                    await TURNS[name](studio)
                    histories = [history.to_json() for history in await studio.histories()]
                finally:
                    await store.close()
                keep(folder, name, histories)
                print(f"{name}: {len(histories)} in {time.monotonic() - started:.1f} s", flush=True)


def main() -> None:
    """Record under the release that is installed."""
    # A script finds only its own folder, and the turns are modules of the project.
    sys.path.insert(0, str(ROOT))
    folder = HISTORIES / importlib.metadata.version("turnlane")
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(record(sys.argv[1:], folder))
    # What is left of a worker must not meet the end of the interpreter, which it may crash.
    gc.collect()


if __name__ == "__main__":
    main()
