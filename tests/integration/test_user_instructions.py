"""User instructions in a run: said once, before everything else, and never rewritten."""

from __future__ import annotations

import pytest

from tests.conftest import Bench, Serve
from tests.contract.conftest import Lane
from tests.integration.play import open_play
from tests.integration.prompt_stage import BUSY, ending, tell
from tests.integration.stage import BOUND, Stage
from turnlane.activities.seeding import SEED_KEY, seed_id
from turnlane.agent import PromptSection
from turnlane.records.runs import TerminalReason

pytestmark = pytest.mark.server


async def test_user_instructions_are_said_once_and_never_rewritten(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    texts = iter(["I am Ada.", "I am Bob."])
    user = PromptSection(name="who", role="user", render=lambda context: next(texts))
    play = await open_play(bench, serve, conversation, prompt=[user])
    await tell(play, "A", "B")

    assert [("user", "I am Ada."), ("user", "A")] == play.stage.calls[0].heard
    assert ("user", "I am Ada.") == play.stage.calls[1].heard[0]
    assert "I am Bob." not in str(play.stage.calls[1].heard)
    assert ("user", "I am Ada.") == (await play.said())[0]


async def test_user_instructions_come_before_what_was_said_already(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    stage = Stage()
    async with bench.worker(stage.agent(), providers=stage.providers):
        stage.play()
        await (await bench.client().submit(conversation, "A")).result(BOUND)
    play = await open_play(
        bench, serve, conversation, prompt=[PromptSection(name="u", role="user", render="I am Ada.")]
    )
    await tell(play, "B")

    expected = [("user", "I am Ada."), ("user", "A"), ("assistant", "answer to A"), ("user", "B")]
    assert expected == play.stage.calls[0].heard
    assert ["I am Ada.", "A", "B"] == await play.answered()


async def test_user_instructions_planted_before_a_retry_are_there_once(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    user = PromptSection(name="who", role="user", render="I am Ada.")
    play = await open_play(bench, serve, conversation, prompt=[user])
    ticket = await play.submit("A")
    (await play.stage.call(1)).fail(BUSY)
    (await play.stage.call(2)).answer("Hello.")
    await play.reasons(ticket)

    assert [[("user", "I am Ada."), ("user", "A")]] * 2 == [call.heard for call in play.stage.calls]


async def imported(bench: Bench, conversation: str, count: int) -> None:
    """Have the first messages of a seed in the store, as an import of another history leaves them."""
    lane = await Lane(bench.store, conversation).open()
    await lane.apply(lane.seed("imported", *(seed_id(conversation, SEED_KEY, index) for index in range(count))))


USERS = [PromptSection(name=f"u-{text}", role="user", render=text) for text in ("I am Ada.", "I like rain.")]


async def test_user_instructions_that_were_imported_in_part_are_refused(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    await imported(bench, conversation, 1)
    play = await open_play(bench, serve, conversation, prompt=USERS)
    result = await (await play.submit("A")).result(BOUND)

    assert (TerminalReason.RUNTIME_FAILURE, "STORE_INTEGRITY") == ending(result)
    assert [] == play.stage.calls
    assert not await bench.store.is_seeded(conversation, SEED_KEY)


async def test_user_instructions_that_were_imported_whole_are_heard_as_imported(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    await imported(bench, conversation, 2)
    play = await open_play(bench, serve, conversation, prompt=USERS)
    await tell(play, "A")

    ids = [("user", seed_id(conversation, SEED_KEY, index)) for index in range(2)]
    assert [*ids, ("user", "A")] == play.stage.calls[0].heard
    assert await bench.store.is_seeded(conversation, SEED_KEY)
