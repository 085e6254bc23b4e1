"""Slow models and slow preparations: nobody waits for ever, and nothing that lives is taken for dead."""

from __future__ import annotations

import asyncio

import pytest

from tests.conftest import Bench, Serve
from turnlane.agent import Agent, ScriptedModel
from turnlane.agent.agent import PromptContext
from turnlane.agent.models import Action, Pause, Say, ScriptedRequest
from turnlane.records.lane import LaneSettings

pytestmark = pytest.mark.server

HEARTBEAT_SECONDS = 3.0


async def test_an_input_behind_a_run_that_timed_out_is_answered(bench: Bench, serve: Serve, conversation: str) -> None:
    def script(request: ScriptedRequest) -> list[Action]:
        is_first = len(request.prompt.messages) == 1
        return [Pause(3600.0)] if is_first else [Say("Here I am.")]

    await serve(Agent(name="slow", model=ScriptedModel(script=script), idle_timeout=0.5))
    client = bench.client()
    silent = await client.submit(conversation, "Are you there?")
    waiting = await client.submit(conversation, "Hello?")
    ends = [await ticket.result(timeout=30) for ticket in (silent, waiting)]

    assert ["timeout", "success"] == [end.reason.value for end in ends]
    assert "Here I am." == ends[1].text


async def test_a_preparation_longer_than_the_heartbeat_timeout_is_made_once(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    prepared: list[str] = []

    async def instructions(context: PromptContext) -> str:
        prepared.append(context.run_id)
        await asyncio.sleep(HEARTBEAT_SECONDS + 1)
        return "Be brief."

    agent = Agent(name="thorough", model=ScriptedModel(script=lambda _: [Say("Done.")]), instructions=instructions)
    await serve(agent, settings=LaneSettings(heartbeat_seconds=HEARTBEAT_SECONDS))
    client = bench.client()
    result = await (await client.submit(conversation, "Go")).result(timeout=30)

    assert ("success", "Done.") == (result.reason.value, result.text)
    assert 1 == len(prepared)
