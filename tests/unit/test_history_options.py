"""The history's options: what each choice makes of interrupted, failed and early answers, and of files."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.unit.recorded import (
    NOW,
    SIGNED,
    answer,
    call,
    draft,
    projected,
    prompt_of,
    record,
    request,
    response,
    result,
    results_of,
    step,
    text,
    told,
    user,
)
from turnlane.activities.failing import ApplicationFailedError
from turnlane.activities.projection import FAILED_MARKER, INTERRUPTED_MARKER, Verdict
from turnlane.activities.prompt_writer import AWAITED_NOTE, SILENT_NOTE
from turnlane.agent import HistoryOptions
from turnlane.records.messages import (
    ControlPart,
    ControlReason,
    FilePart,
    MessageStatus,
    ProviderPart,
    ReasoningPart,
    Role,
    SourcePart,
    ToolApprovalRequestPart,
)
from turnlane.records.runs import ENDINGS, TerminalReason

CUT = [ControlPart(reason=ControlReason.RUN_INTERRUPTED)]
FILE = FilePart(media_type="image/png", reference="blob:secret", filename="b.png")
MARKED = HistoryOptions(failed_assistant="marked")


@pytest.mark.parametrize("name", ["unresolved_file", "interrupted_assistant", "failed_assistant", "leading_assistant"])
def test_a_choice_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is one of"):
        HistoryOptions(**{name: "maybe"})  # type: ignore[arg-type]


# --- interrupted, failed, superseded ---------------------------------------------------------------


@pytest.mark.parametrize("control", [[], CUT], ids=["without a control part", "with one"])
def test_an_interrupted_answer_is_marked_by_its_status(control: list[ControlPart]) -> None:
    cut = answer("a", step(0, text("half a")), status=MessageStatus.INTERRUPTED, control=control)
    prompt, decisions = projected(user("u"), cut, user("v"))

    assert ("assistant", ["half a", INTERRUPTED_MARKER]) == told(prompt)[1]
    assert ((), ()) == (decisions[1].omitted_parts, decisions[0].omitted_parts)


def test_an_interrupted_answer_can_be_left_out() -> None:
    cut = answer("a", step(0, text("half a")), status=MessageStatus.INTERRUPTED)
    prompt, decisions = projected(user("u"), cut, user("v"), options=HistoryOptions(interrupted_assistant="omit"))

    assert [("user", ["hi"]), ("user", ["hi"])] == told(prompt)
    assert Verdict.INTERRUPTED == decisions[1].reason


def test_an_interrupted_answer_can_become_a_line_among_the_instructions() -> None:
    cut = answer("a", step(0, text("half\na"), call("1")), status=MessageStatus.INTERRUPTED, control=CUT)
    silent = answer("b", step(0, call("1")), status=MessageStatus.INTERRUPTED)
    options = HistoryOptions(interrupted_assistant="system-note")
    prompt, decisions = projected(user("u"), cut, user("v"), silent, user("w"), options=options, instructions="be kind")

    assert ("be kind", "[interrupted] partial response: half a") == prompt.system
    assert [("user", ["hi"])] * 3 == told(prompt)
    assert (Verdict.PROJECTED, ("tool-call",)) == (decisions[1].reason, decisions[1].omitted_parts)
    assert Verdict.EMPTY == decisions[3].reason


def test_an_interrupted_call_of_ours_is_answered_behind_it_and_the_words_stay() -> None:
    cut = answer("a", step(0, text("let me see"), call("1")), status=MessageStatus.INTERRUPTED)

    assert [
        ("assistant", ["let me see", "?1"]),
        ("tool", ["!1"]),
        ("assistant", [INTERRUPTED_MARKER]),
    ] == told(prompt_of(user("u"), cut, user("v")))[1:4]


def test_a_failed_answer_is_heard_only_where_that_was_asked_for() -> None:
    failed = answer("a", step(0, text("half a"), call("1"), results=[result("1")]), status=MessageStatus.FAILED)
    prompt, decisions = projected(user("u"), failed, user("v"))
    marked = prompt_of(user("u"), failed, user("v"), options=MARKED)

    assert [("user", ["hi"]), ("user", ["hi"])] == told(prompt)
    assert Verdict.UNFINISHED == decisions[1].reason
    assert [("assistant", ["half a", "?1"]), ("tool", ["!1"]), ("assistant", [FAILED_MARKER])] == told(marked)[1:4]


HEARD = {
    TerminalReason.SUCCESS,
    TerminalReason.POLICY_STOP,
    TerminalReason.PROVIDER_STOP,
    TerminalReason.INTERRUPTED,
    TerminalReason.CANCELLED,
    TerminalReason.SHUTDOWN,
}


@pytest.mark.parametrize("reason", [reason for reason, ending in ENDINGS.items() if ending.message_status])
def test_an_answer_is_heard_by_how_its_message_ended_and_not_its_run(reason: TerminalReason) -> None:
    """A timeout, for one, cancels its run, and its answer is a failed one."""
    status = ENDINGS[reason].message_status
    assert status is not None
    decisions = projected(user("u"), answer("a", step(0, text("well")), status=status), user("v"))[1]

    assert (reason in HEARD) is decisions[1].projected


@pytest.mark.parametrize("options", [HistoryOptions(), MARKED])
def test_a_superseded_answer_is_never_heard(options: HistoryOptions) -> None:
    gone = answer("a", step(0, text("never mind")), status=MessageStatus.SUPERSEDED)
    prompt, decisions = projected(user("u"), gone, user("v"), options=options)

    assert [("user", ["hi"]), ("user", ["hi"])] == told(prompt)
    assert Verdict.SUPERSEDED == decisions[1].reason


# --- who speaks first, and last --------------------------------------------------------------------


def test_what_the_assistant_said_first_is_left_out_told_or_refused() -> None:
    history = (answer("a", step(0, text("hello"))), user("u"))
    prompt, decisions = projected(*history)
    allowed = prompt_of(*history, options=HistoryOptions(leading_assistant="allow"))
    with pytest.raises(ApplicationFailedError) as caught:
        prompt_of(*history, options=HistoryOptions(leading_assistant="error"))

    assert ([("user", ["hi"])], Verdict.LEADING_ASSISTANT) == (told(prompt), decisions[0].reason)
    assert [("assistant", ["hello"]), ("user", ["hi"])] == told(allowed)
    assert ("LEADING_ASSISTANT", "a") == (caught.value.code, caught.value.record_id)


def test_a_user_who_said_nothing_that_can_be_told_spoke_all_the_same() -> None:
    options = HistoryOptions(unresolved_file="omit")
    history = (record("u", Role.USER, FILE), answer("a", step(0, text("a picture?"))), user("v"))
    prompt, decisions = projected(*history, options=options)

    assert [("assistant", ["a picture?"]), ("user", ["hi"])] == told(prompt)
    assert [Verdict.EMPTY, Verdict.PROJECTED, Verdict.PROJECTED] == [decision.reason for decision in decisions]


def test_each_conversation_begins_anew() -> None:
    other = record("b", Role.ASSISTANT, text("hello"), status=MessageStatus.COMPLETED, conversation_id="d")

    assert Verdict.LEADING_ASSISTANT == projected(user("u"), other)[1][1].reason


def test_a_prompt_never_ends_with_the_assistant() -> None:
    last = answer("a", step(0, text("well")))

    assert ("user", [SILENT_NOTE]) == told(prompt_of(user("u"), last))[-1]
    assert [("user", [SILENT_NOTE])] == told(prompt_of())


def test_an_awaited_result_is_announced_when_it_stands_further_up() -> None:
    asked = answer("a", step(0, call("1"), request("p", "1"), results=[result("1")]))
    between = (user("v", "and?"), answer("b", step(0, text("I wait"))))
    history = (user("u"), asked, *between, record("t", Role.TOOL, response("p")))
    first = prompt_of(*history, draft(step(0, text("done"), call("2"), results=[result("2")])), at=0)
    second = prompt_of(*history, draft(step(0, text("done"), call("2"), results=[result("2")])), at=1)

    assert [("assistant", ["I wait"]), ("user", [AWAITED_NOTE])] == told(first)[-2:]
    assert first.messages == second.messages[:-2]


def test_an_awaited_result_that_was_the_last_thing_said_needs_no_announcement() -> None:
    asked = answer("a", step(0, call("1"), request("p", "1"), results=[result("1")]))

    assert ("tool", ["!1"]) == told(prompt_of(user("u"), asked, record("t", Role.TOOL, response("p")), draft()))[-1]


# --- approvals of our own --------------------------------------------------------------------------


def test_an_approval_that_nobody_gave_in_time_is_told_as_such() -> None:
    asked = ToolApprovalRequestPart(approval_id="p", call_id="1", expires_at=NOW)
    history = (user("u"), answer("a", step(0, call("1"), asked)), user("v"))

    early = results_of(prompt_of(*history, now=NOW - timedelta(seconds=1)))["1"].output
    late = results_of(prompt_of(*history, now=NOW))["1"].output

    assert {"status": "waiting for approval"} == early
    assert {"code": "APPROVAL_EXPIRED", "message": "not run: nobody approved the call in time"} == late


@pytest.mark.parametrize(("approved", "code"), [(True, "NO_RESULT"), (False, "DENIED")])
def test_a_call_whose_approval_was_answered_and_that_has_no_result_does_not_wait(approved: bool, code: str) -> None:
    history = (
        user("u"),
        answer("a", step(0, call("1"), request("p", "1"))),
        record("t", Role.TOOL, response("p", approved=approved)),
        user("v"),
    )
    output = results_of(prompt_of(*history))["1"].output

    assert isinstance(output, dict)
    assert code == output["code"]


def test_an_answer_to_what_a_summary_replaced_is_silent() -> None:
    history = (record("s", Role.SUMMARY, text("before")), user("u"), record("t", Role.TOOL, response("p")))
    _, decisions = projected(*history, options=HistoryOptions(incomplete_tool_turn="error"))

    assert Verdict.APPROVAL_ANSWER == decisions[2].reason


# --- what is told of each record -------------------------------------------------------------------


def test_a_decision_names_the_parts_that_nothing_stands_for() -> None:
    parts = (
        ReasoningPart(text="loose"),
        SourcePart(source_id="s"),
        text("so"),
        SourcePart(source_id="t"),
        ProviderPart(envelope=SIGNED),
    )
    done = answer("a", step(0, *parts), control=CUT)
    told_whole = answer(
        "b", step(0, ProviderPart(envelope=SIGNED), call("1"), request("p", "1"), results=[result("1")])
    )
    decisions = projected(user("u"), done, user("v"), told_whole)[1]

    assert ("reasoning", "source", "provider", "control") == decisions[1].omitted_parts
    assert () == decisions[3].omitted_parts


# --- files -----------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_had_is_named_and_its_reference_stays_here() -> None:
    prompt = prompt_of(record("u", Role.USER, FILE, text("see")))

    assert [("user", ["see", "[attachment: b.png]"])] == told(prompt)
    assert "secret" not in prompt.model_dump_json()


def test_a_file_that_cannot_be_had_can_be_left_out() -> None:
    options = HistoryOptions(unresolved_file="omit")
    history = (record("u", Role.USER, FILE, text("see")), record("v", Role.USER, FILE), user("w"))
    prompt, decisions = projected(*history, options=options)

    assert [("user", ["see"]), ("user", ["hi"])] == told(prompt)
    assert [("file",), (), ()] == [decision.omitted_parts for decision in decisions]
    assert [Verdict.PROJECTED, Verdict.EMPTY, Verdict.PROJECTED] == [decision.reason for decision in decisions]


def test_a_file_that_cannot_be_had_can_end_the_run_and_is_named() -> None:
    with pytest.raises(ApplicationFailedError, match="blob:secret") as caught:
        prompt_of(record("u", Role.USER, FILE), options=HistoryOptions(unresolved_file="error"))

    assert ("FILE_UNRESOLVED", "u") == (caught.value.code, caught.value.record_id)
