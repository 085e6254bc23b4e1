"""Patience: an application's function that never returns is given up, and one that is merely slow is not."""

from __future__ import annotations

import asyncio

import pytest

from turnlane.activities import patience
from turnlane.activities.patience import Patience, PatienceLostError


async def test_what_is_quick_is_heard() -> None:
    assert 7 == await Patience().wait(asyncio.sleep(0, 7))


async def test_what_never_returns_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.01)

    with pytest.raises(PatienceLostError):
        await Patience().wait(asyncio.Event().wait())


async def test_the_calls_of_one_activity_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.01)
    shared = Patience()
    with pytest.raises(PatienceLostError):
        await shared.wait(asyncio.Event().wait())

    with pytest.raises(PatienceLostError):
        await shared.wait(asyncio.Event().wait())


async def test_a_timeout_of_the_functions_own_is_its_own() -> None:
    async def fails() -> None:
        raise TimeoutError("theirs")

    with pytest.raises(TimeoutError, match="theirs"):
        await Patience().wait(fails())
