"""The chronology of imported records: which orders of calls, approvals and results are heard, and which are not."""

from __future__ import annotations

import pytest

from tests.unit.recorded import (
    call,
    imported,
    projected,
    prompt_of,
    record,
    request,
    response,
    result,
    text,
    told,
    user,
)
from turnlane.activities.failing import ApplicationFailedError
from turnlane.activities.projection import Verdict
from turnlane.agent import HistoryOptions
from turnlane.records.messages import MessageStatus, Part, Role, ToolApprovalResponsePart, ToolOutcome
from turnlane.store.payloads import HistoryMessage

STRICT = HistoryOptions(incomplete_tool_turn="error")
ASKED = (call("1"), request("p", "1"))


def verdicts(*history: HistoryMessage) -> list[Verdict]:
    return [decision.reason for decision in projected(*history)[1]]


def tool(message_id: str, *parts: Part, conversation_id: str = "c") -> HistoryMessage:
    return record(message_id, Role.TOOL, *parts, conversation_id=conversation_id)


FITS: dict[str, tuple[Part, ...]] = {
    "one round after another": (call("a"), call("p"), result("a"), result("p"), call("b"), result("b"), text("so")),
    "results in another order": (call("a"), call("b"), result("b"), result("a")),
    "asked, approved and done": (*ASKED, response("p"), result("1")),
    "asked, denied and told so": (*ASKED, response("p", approved=False), result("1", ToolOutcome.ERROR)),
    "asked and left open": (text("may I?"), *ASKED),
    "asked and denied, without a result": (*ASKED, response("p", approved=False)),
    "one asked, the other done": (*ASKED, call("2"), result("2")),
}
FAILS: dict[str, tuple[Part, ...]] = {
    "a call that nobody answered": (text("look"), call("a")),
    "a round that begins inside another": (call("a"), call("b"), result("a"), call("c"), result("b"), result("c")),
    "a result before its approval was answered": (*ASKED, result("1")),
    "a second result": (call("a"), result("a"), result("a")),
    "a result of another tool": (call("a"), result("a", tool_name="other")),
    "a result without a call": (result("a"),),
    "an answer that nobody asked for": (response("p"),),
    "a second answer": (*ASKED, response("p"), response("p")),
    "a second request": (*ASKED, request("q", "1"), response("q"), result("1")),
    "an approval id used for two calls": (*ASKED, call("2"), request("p", "2")),
    "a request for no call": (request("p", "1"),),
    "success after a denial": (*ASKED, response("p", approved=False), result("1")),
    "a call id used twice": (call("a"), result("a"), call("a"), result("a")),
}


@pytest.mark.parametrize("parts", FITS.values(), ids=FITS)
def test_an_imported_answer_that_fits_is_heard(parts: tuple[Part, ...]) -> None:
    assert [Verdict.PROJECTED] * 2 == verdicts(user("u"), imported("a", *parts))


@pytest.mark.parametrize("parts", FAILS.values(), ids=FAILS)
def test_an_imported_answer_that_does_not_fit_is_left_out_whole(parts: tuple[Part, ...]) -> None:
    history = (user("u"), imported("a", *parts), user("v"))

    assert Verdict.INCOMPLETE == verdicts(*history)[1]
    assert [("user", ["hi"]), ("user", ["hi"])] == told(prompt_of(*history))


@pytest.mark.parametrize("parts", FAILS.values(), ids=FAILS)
def test_an_imported_answer_that_does_not_fit_can_end_the_run(parts: tuple[Part, ...]) -> None:
    with pytest.raises(ApplicationFailedError) as caught:
        prompt_of(user("u"), imported("a", *parts), options=STRICT)

    assert ("INCOMPLETE_TOOL_TURN", "a") == (caught.value.code, caught.value.record_id)


def test_rounds_of_an_import_become_messages_as_the_rounds_of_ours_do() -> None:
    parts = FITS["one round after another"]

    assert [
        ("user", ["hi"]),
        ("assistant", ["?a", "?p"]),
        ("tool", ["!a", "!p"]),
        ("assistant", ["?b"]),
        ("tool", ["!b"]),
        ("assistant", ["so"]),
    ] == told(prompt_of(user("u"), imported("a", *parts), user("v")))[:-1]


def test_a_record_that_does_not_fit_answers_no_approval_in_passing() -> None:
    bad = tool("bad", response("p"), result("nobody's"))
    good = imported("good", response("p"), result("1"))
    history = (user("u"), imported("a", *ASKED), bad, good)

    assert [Verdict.PROJECTED, Verdict.PROJECTED, Verdict.INCOMPLETE, Verdict.PROJECTED] == verdicts(*history)
    assert ("tool", ["!1"]) == told(prompt_of(*history))[-1]


def test_an_approval_survives_what_the_user_says_meanwhile_and_its_result_moves_to_its_call() -> None:
    history = (user("u"), imported("a", *ASKED), user("v", "well?"), tool("t", response("p"), result("1")))
    prompt, decisions = projected(*history)

    assert [True] * 4 == [decision.projected for decision in decisions]
    assert [("user", ["hi"]), ("assistant", ["?1"]), ("tool", ["!1"]), ("user", ["well?"])] == told(prompt)
    assert result("1") == prompt.messages[2].parts[0]


def test_an_approval_of_one_conversation_is_not_answered_in_another() -> None:
    other = [
        record("v", Role.USER, text("hi"), conversation_id="d"),
        tool("t", response("p"), result("1"), conversation_id="d"),
    ]

    assert Verdict.INCOMPLETE == verdicts(user("u"), imported("a", *ASKED), *other)[-1]


def test_a_call_id_may_come_back_once_everything_was_settled() -> None:
    again = imported("b", call("1"), result("1"))

    assert Verdict.PROJECTED == verdicts(user("u"), imported("a", call("1"), result("1")), user("v"), again)[-1]
    assert Verdict.INCOMPLETE == verdicts(user("u"), imported("a", *ASKED), user("v"), again)[-1]


def test_a_denial_that_left_no_result_is_told_as_one() -> None:
    denied = ToolApprovalResponsePart(approval_id="p", approved=False, reason="too dear")
    prompt = prompt_of(user("u"), imported("a", *ASKED), tool("t", denied))
    (told_result,) = prompt.messages[2].parts

    assert {"code": "DENIED", "message": "not run: denied (too dear)"} == getattr(told_result, "output", None)


def test_an_interrupted_import_whose_call_hangs_is_left_out_with_its_text() -> None:
    cut = imported("a", text("half a"), call("1"), status=MessageStatus.INTERRUPTED)

    assert Verdict.INCOMPLETE == verdicts(user("u"), cut)[1]


def test_a_note_about_an_interrupted_import_is_made_whatever_its_calls() -> None:
    cut = imported("a", text("half a"), call("1"), status=MessageStatus.INTERRUPTED)
    options = HistoryOptions(interrupted_assistant="system-note")
    prompt, decisions = projected(user("u"), cut, user("v"), options=options)

    assert ("[interrupted] partial response: half a",) == prompt.system
    assert (True, ("tool-call",)) == (decisions[1].projected, decisions[1].omitted_parts)


def test_a_failed_import_is_heard_with_a_mark_unless_its_call_hangs() -> None:
    options = HistoryOptions(failed_assistant="marked")
    whole = imported("a", text("half a"), status=MessageStatus.FAILED)
    hanging = imported("b", text("half b"), call("1"), status=MessageStatus.FAILED)
    prompt, decisions = projected(user("u"), whole, user("v"), hanging, user("w"), options=options)

    assert ("assistant", ["half a", "[failed: this turn did not complete successfully]"]) == told(prompt)[1]
    assert [Verdict.PROJECTED, Verdict.INCOMPLETE] == [decisions[1].reason, decisions[3].reason]
