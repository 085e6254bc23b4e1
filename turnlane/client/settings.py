"""Settings: where Temporal, the store and the event bus are, and who gets to say so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from temporalio.envconfig import ClientConfigProfile

from turnlane.client.dev_file import DevFile, find_dev_file
from turnlane.records.errors import InvalidInputError

DEFAULT_ADDRESS = "127.0.0.1:7233"
DEFAULT_NAMESPACE = "default"
DEFAULT_TASK_QUEUE = "turnlane"


@dataclass(frozen=True)
class Settings:
    """How to reach a turnlane deployment.

    `target` and `namespace` are None where Temporal's own environment configuration (variables or a
    configuration file, with TLS and API key) has the say; `address` is what they come to either way.
    `store` is a database URL or a path, `bus` a socket; None: there is none.
    """

    address: str
    target: str | None
    namespace: str | None
    task_queue: str
    store: str | None
    bus: Path | None


def resolve(
    *,
    address: str | None = None,
    namespace: str | None = None,
    task_queue: str | None = None,
    store: str | None = None,
    bus: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Settle each setting: as given, else the environment, else a running development stack, else the default.

    The environment is `TURNLANE_STORE`, `TURNLANE_BUS`, `TURNLANE_TASK_QUEUE`, and Temporal's own for the
    rest. A development stack, found from `folder` up, says nothing once another address was named: its
    store belongs to its server.
    """
    env = os.environ if environment is None else environment
    profile = _profile(env)
    dev = _matching_stack(address or profile.address, folder or Path.cwd())
    target = address or (None if profile.address else dev.address if dev else DEFAULT_ADDRESS)
    named_bus = bus or env.get("TURNLANE_BUS")
    return Settings(
        address=target or profile.address or DEFAULT_ADDRESS,
        target=target,
        namespace=namespace or (None if profile.namespace else dev.namespace if dev else DEFAULT_NAMESPACE),
        task_queue=task_queue or env.get("TURNLANE_TASK_QUEUE") or (dev.task_queue if dev else DEFAULT_TASK_QUEUE),
        store=store or env.get("TURNLANE_STORE") or (dev.store if dev else None),
        bus=Path(named_bus) if named_bus else dev.bus if dev else None,
    )


def _profile(env: Mapping[str, str]) -> ClientConfigProfile:
    try:
        return ClientConfigProfile.load(override_env_vars=dict(env))
    except RuntimeError as error:
        raise InvalidInputError("Temporal's configuration file or variables cannot be read") from error


def _matching_stack(named_address: str | None, folder: Path) -> DevFile | None:
    dev = find_dev_file(folder)
    return dev if dev is not None and named_address in (None, dev.address) else None
