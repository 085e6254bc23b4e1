"""Asking the application: what it raises, swallows or never answers holds up nobody and ends no worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from turnlane.activities import asking
from turnlane.activities.asking import BrokeOutError, PatienceLostError, asked


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "GRACE_SECONDS", 0.01)


async def deaf(release: asyncio.Event) -> str:
    """Hear no cancellation, and answer when released."""
    while not release.is_set():
        try:
            await release.wait()
        except asyncio.CancelledError:
            continue
    return "late"


async def later() -> str:
    await asyncio.sleep(0)
    return "so"


@pytest.mark.parametrize("ask", [lambda: "so", later])
async def test_a_function_answers_itself_or_by_what_it_returns(ask: Callable[[], Any]) -> None:
    assert "so" == await asked(ask)


def raiser(error: BaseException) -> Callable[[], Any]:
    def ask() -> Any:
        raise error

    return ask


def late_raiser(error: BaseException) -> Callable[[], Any]:
    async def ask() -> Any:
        await asyncio.sleep(0)
        raise error

    return ask


@pytest.mark.parametrize("make", [raiser, late_raiser])
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), BaseExceptionGroup("x", [SystemExit(1)])])
async def test_what_would_end_a_worker_or_look_like_a_request_to_stop_is_an_ordinary_error(
    make: Callable[[BaseException], Callable[[], Any]], error: BaseException
) -> None:
    with pytest.raises(BrokeOutError, match=type(error).__name__):
        await asked(make(error))


@pytest.mark.parametrize("make", [raiser, late_raiser])
async def test_an_ordinary_error_is_the_functions_own(
    make: Callable[[BaseException], Callable[[], Any]],
) -> None:
    with pytest.raises(KeyError):
        await asked(make(KeyError("x")))


async def test_a_function_that_never_answers_is_left_behind() -> None:
    release = asyncio.Event()

    with pytest.raises(PatienceLostError):
        await asked(lambda: deaf(release), 0.01)

    release.set()


async def test_a_function_that_swallows_a_cancellation_does_not_hold_up_who_is_cancelled() -> None:
    release, began = asyncio.Event(), asyncio.Event()

    async def ask() -> str:
        began.set()
        return await deaf(release)

    asking_task = asyncio.create_task(asked(ask))
    await began.wait()
    asking_task.cancel()
    done, _ = await asyncio.wait({asking_task}, timeout=10)

    assert {asking_task} == done
    assert asking_task.cancelled()
    release.set()


async def test_a_function_that_is_cancelled_may_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "GRACE_SECONDS", 10.0)
    cleaned: list[str] = []

    async def ask() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    with pytest.raises(PatienceLostError):
        await asked(ask, 0.01)

    assert ["up"] == cleaned


async def test_what_a_function_raises_that_was_left_behind_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    release = asyncio.Event()

    async def ask() -> None:
        await deaf(release)
        raise ValueError("xq7 said in confidence")

    with pytest.raises(PatienceLostError):
        await asked(ask, 0.01)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    release.set()
    await asyncio.wait(left, timeout=10)
    del left

    assert "xq7" not in caplog.text
