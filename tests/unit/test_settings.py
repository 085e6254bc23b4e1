"""Settings: flags, then the environment, then a running stack, then defaults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnlane.client.dev_file import DevFile, remove_dev_file
from turnlane.client.settings import Settings, resolve

NOTHING = {"TEMPORAL_CONFIG_FILE": os.devnull}


@pytest.fixture
def stack(tmp_path: Path) -> DevFile:
    folder = tmp_path / ".turnlane"
    folder.mkdir()
    running = DevFile(
        address="127.0.0.1:4000",
        namespace="dev",
        task_queue="dev-queue",
        store="/dev.db",
        bus=Path("/dev.sock"),
        pid=os.getpid(),
    )
    running.write(folder)
    return running


def test_with_nothing_said_the_defaults_hold(tmp_path: Path) -> None:
    expected = Settings("127.0.0.1:7233", "127.0.0.1:7233", "default", "turnlane", None, None)
    assert expected == resolve(environment=NOTHING, folder=tmp_path)


def test_a_running_stack_is_found_from_a_folder_below_it(stack: DevFile, tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)

    expected = Settings(stack.address, stack.address, "dev", "dev-queue", "/dev.db", Path("/dev.sock"))
    assert expected == resolve(environment=NOTHING, folder=below)


def test_the_environment_goes_before_the_stack_and_flags_before_both(stack: DevFile, tmp_path: Path) -> None:
    env = NOTHING | {"TURNLANE_STORE": "env.db", "TURNLANE_BUS": "env.sock", "TURNLANE_TASK_QUEUE": "env-queue"}

    settings = resolve(environment=env, folder=tmp_path, store="flag.db")

    expected = Settings(stack.address, stack.address, "dev", "env-queue", "flag.db", Path("env.sock"))
    assert expected == settings


def test_the_store_of_a_stack_is_never_used_with_another_server(stack: DevFile, tmp_path: Path) -> None:
    env = NOTHING | {"TEMPORAL_ADDRESS": "prod:7233", "TEMPORAL_NAMESPACE": "prod"}

    expected = Settings("prod:7233", None, None, "turnlane", None, None)
    assert expected == resolve(environment=env, folder=tmp_path)


def test_naming_the_stacks_own_address_still_means_the_stack(stack: DevFile, tmp_path: Path) -> None:
    settings = resolve(environment=NOTHING, folder=tmp_path, address=stack.address)

    assert stack.store == settings.store


def test_a_stack_whose_process_is_gone_is_not_found(stack: DevFile, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stack.model_copy(update={"pid": gone.pid}).write(tmp_path / ".turnlane")

    assert resolve(environment=NOTHING, folder=tmp_path).store is None


def test_a_stack_that_was_removed_is_not_found(stack: DevFile, tmp_path: Path) -> None:
    remove_dev_file(tmp_path / ".turnlane")

    assert resolve(environment=NOTHING, folder=tmp_path).store is None


def test_a_broken_file_is_passed_over(stack: DevFile, tmp_path: Path) -> None:
    (tmp_path / ".turnlane" / "dev.json").write_text('{"address":')

    assert resolve(environment=NOTHING, folder=tmp_path).store is None


def test_the_file_is_for_its_user_alone(stack: DevFile, tmp_path: Path) -> None:
    assert 0o600 == (tmp_path / ".turnlane" / "dev.json").stat().st_mode & 0o777
