"""The projection: which records reach the model, in which order, and that any history gives a legal prompt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recorded import SIGNED, answer, call, draft, prompt_of, record, result, step, text, told, user
from turnlane.activities.projection import INTERRUPTED_MARKER, Verdict, project_with_decisions
from turnlane.activities.prompt_check import check_prompt
from turnlane.records.lane import Taken
from turnlane.records.messages import (
    FilePart,
    MessageStatus,
    ProviderPart,
    ReasoningPart,
    Role,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.prompt import Prompt, PromptMessage, Speaker
from turnlane.store.payloads import HistoryMessage


def last_result(prompt: Prompt) -> ToolResultPart:
    part = prompt.messages[-1].parts[-1]
    assert isinstance(part, ToolResultPart)
    return part


def test_instructions_come_first_and_summaries_join_them_outside_the_messages() -> None:
    summary = record("s", Role.SUMMARY, text("they spoke"), text("of sums"))

    prompt = prompt_of(summary, user("u"), instructions="be kind")

    assert prompt.system == ("be kind", "they spoke\nof sums")
    assert told(prompt) == [("user", ["hi"])]


def test_blank_instructions_are_no_system_text() -> None:
    assert prompt_of(user("u"), instructions="  ").system == ()


def test_user_text_is_joined_and_files_follow_it() -> None:
    file = FilePart(media_type="image/png", reference="https://x/y.png")
    asked = record("u", Role.USER, file, text("a"), text("b"))

    assert told(prompt_of(asked)) == [("user", ["a\nb", "https://x/y.png"])]


def test_steps_become_assistant_and_tool_messages_with_results_in_call_order() -> None:
    done = answer(
        "a",
        step(0, text("looking"), call("1"), call("2"), results=[result("2"), result("1")]),
        step(1, call("3"), results=[result("3")]),
        step(2, text("done")),
    )

    assert told(prompt_of(user("u"), done, user("v"))) == [
        ("user", ["hi"]),
        ("assistant", ["looking", "?1", "?2"]),
        ("tool", ["!1", "!2"]),
        ("assistant", ["?3"]),
        ("tool", ["!3"]),
        ("assistant", ["done"]),
        ("user", ["hi"]),
    ]


def test_a_message_without_steps_is_divided_after_its_results() -> None:
    flat = record(
        "a",
        Role.ASSISTANT,
        *(call("1"), result("1"), call("2"), result("2"), text("done")),
        status=MessageStatus.COMPLETED,
    )

    assert told(prompt_of(user("u"), flat, user("v"))) == [
        ("user", ["hi"]),
        ("assistant", ["?1"]),
        ("tool", ["!1"]),
        ("assistant", ["?2"]),
        ("tool", ["!2"]),
        ("assistant", ["done"]),
        ("user", ["hi"]),
    ]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (MessageStatus.SUPERSEDED, Verdict.SUPERSEDED),
        (MessageStatus.FAILED, Verdict.UNFINISHED),
    ],
)
def test_unspeakable_answers_are_omitted(status: MessageStatus, reason: Verdict) -> None:
    gone = answer("a", step(0, text("never mind")), status=status)

    prompt, decisions = project_with_decisions(
        [user("u"), gone, user("v")], taken=(), instructions="", tools=(), step=0
    )

    assert told(prompt) == [("user", ["hi"]), ("user", ["hi"])]
    assert [decision.reason for decision in decisions] == [Verdict.PROJECTED, reason, Verdict.PROJECTED]


def test_an_interrupted_answer_keeps_its_words_and_says_that_it_was_stopped() -> None:
    cut = answer("a", step(0, text("half a")), status=MessageStatus.INTERRUPTED)

    assert told(prompt_of(user("u"), cut, user("v")))[1] == ("assistant", ["half a", INTERRUPTED_MARKER])


def test_an_interrupted_answer_that_said_nothing_is_omitted() -> None:
    cut = answer("a", step(0, ReasoningPart(text="hm")), status=MessageStatus.INTERRUPTED)

    assert told(prompt_of(user("u"), cut, user("v"))) == [("user", ["hi"]), ("user", ["hi"])]


def test_an_interrupted_call_is_answered_once_and_keeps_the_result_of_its_neighbour() -> None:
    cut = answer("a", step(0, call("1"), call("2"), results=[result("1")]), status=MessageStatus.INTERRUPTED)

    prompt = prompt_of(user("u"), cut, user("v"))

    assert told(prompt)[1:4] == [
        ("assistant", ["?1", "?2"]),
        ("tool", ["!1", "!2"]),
        ("assistant", [INTERRUPTED_MARKER]),
    ]
    synthesised = prompt.messages[2].parts[1]
    assert isinstance(synthesised, ToolResultPart)
    assert synthesised.outcome is ToolOutcome.ERROR
    assert "interrupted; effects possible" in str(synthesised.output)


def test_a_call_that_waits_for_approval_is_shown_as_waiting() -> None:
    asked = answer("a", step(0, call("1"), ToolApprovalRequestPart(approval_id="p", call_id="1")))

    prompt = prompt_of(user("u"), asked)

    assert last_result(prompt).output == {"status": "waiting for approval"}


def test_a_late_result_stands_behind_its_call_and_the_approval_answer_is_silent() -> None:
    asked = answer(
        "a", step(0, call("1"), ToolApprovalRequestPart(approval_id="p", call_id="1"), results=[result("1")])
    )
    approval = record("t", Role.TOOL, ToolApprovalResponsePart(approval_id="p", approved=True))

    assert told(prompt_of(user("u"), asked, user("v"), approval, draft(), at=0)) == [
        ("user", ["hi"]),
        ("assistant", ["?1"]),
        ("tool", ["!1"]),
        ("user", ["hi"]),
    ]


def test_the_live_draft_shows_finished_steps_only() -> None:
    own = draft(step(0, call("1"), results=[result("1")]), step(1, text("an abandoned attempt")))

    assert told(prompt_of(user("u"), own, at=1)) == [("user", ["hi"]), ("assistant", ["?1"]), ("tool", ["!1"])]


def test_injected_inputs_stand_before_the_step_that_took_them() -> None:
    own = draft(step(0, call("1"), results=[result("1")]), step(1, call("2"), results=[result("2")]))
    taken = [
        Taken(run_id="r1", input_id="i0", step=0),
        Taken(run_id="r2", input_id="i1", step=1),
        Taken(run_id="r3", input_id="i2", step=2),
    ]

    prompt = prompt_of(user("u"), own, *(user("i0", "zero"), user("i1", "one"), user("i2", "two")), taken=taken, at=2)

    assert told(prompt) == [
        ("user", ["hi"]),
        ("user", ["zero"]),
        ("assistant", ["?1"]),
        ("tool", ["!1"]),
        ("user", ["one"]),
        ("assistant", ["?2"]),
        ("tool", ["!2"]),
        ("user", ["two"]),
    ]


def test_an_answer_before_any_user_message_is_omitted() -> None:
    prompt, decisions = project_with_decisions(
        [answer("a", step(0, text("hello"))), user("u")], taken=(), instructions="", tools=(), step=0
    )

    assert told(prompt) == [("user", ["hi"])]
    assert decisions[0].reason is Verdict.LEADING_ASSISTANT


def test_a_call_id_used_again_in_a_later_turn_gets_a_variant() -> None:
    first = answer("a", step(0, call("1"), results=[result("1")]))
    second = answer("b", step(0, call("1"), results=[result("1")]))

    assert told(prompt_of(user("u"), first, user("v"), second))[4:] == [("assistant", ["?1_2"]), ("tool", ["!1_2"])]


def test_unsigned_and_unfollowed_reasoning_is_not_sent() -> None:
    signed = ReasoningPart(text="hm", provider=SIGNED)
    done = answer(
        "a", step(0, ReasoningPart(text="loose"), signed, text("so"), ReasoningPart(text="x", provider=SIGNED))
    )

    assert told(prompt_of(user("u"), done))[1] == ("assistant", ["~hm", "so"])


def test_reasoning_stays_before_the_call_it_led_to() -> None:
    one = ReasoningPart(text="one", provider=SIGNED)
    two = ReasoningPart(text="two", provider=SIGNED)
    done = answer("a", step(0, one, call("1"), text("and"), two, call("2"), results=[result("1"), result("2")]))

    assert told(prompt_of(user("u"), done))[1] == ("assistant", ["~one", "?1", "and", "~two", "?2"])


def test_opaque_provider_output_is_carried_as_it_is() -> None:
    done = answer("a", step(0, ProviderPart(envelope=SIGNED), text("so")))

    carried = prompt_of(user("u"), done).messages[1].parts[0]

    assert carried == ReasoningPart(text="", provider=SIGNED)


def test_the_check_finds_what_providers_refuse() -> None:
    orphan = PromptMessage(speaker=Speaker.TOOL, parts=(result("1"),))
    blank = PromptMessage(speaker=Speaker.USER, parts=(text(" "),))
    open_call = PromptMessage(speaker=Speaker.ASSISTANT, parts=(call("1"), text("behind")))

    assert ["message 0: results do not match the calls before it"] == words(Prompt(messages=(orphan,)))
    assert [
        "message 0: blank text",
        "message 1: its calls are not answered",
    ] == words(Prompt(messages=(blank, open_call)))
    assert ["nothing is said"] == words(Prompt())


def words(prompt: Prompt) -> list[str]:
    return [str(fault) for fault in check_prompt(prompt)]


def test_a_fault_names_the_record_it_comes_from() -> None:
    blank = PromptMessage(speaker=Speaker.USER, parts=(text(" "),), record_id="u-1")

    assert ["message 0: blank text (record u-1)"] == words(Prompt(messages=(blank,)))


call_ids = st.sampled_from(["1", "2", "1_2", "call_0_0"])
model_parts = st.one_of(
    st.sampled_from(["", " ", "word"]).map(text),
    call_ids.map(call),
    st.sampled_from([None, SIGNED]).map(lambda envelope: ReasoningPart(text="hm", provider=envelope)),
    st.just(ProviderPart(envelope=SIGNED)),
    call_ids.map(lambda call_id: ToolApprovalRequestPart(approval_id="p", call_id=call_id)),
)
step_bodies = st.tuples(st.lists(model_parts, max_size=5), st.lists(call_ids.map(result), max_size=3))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[HistoryMessage], list[Taken], int]:
    records: list[HistoryMessage] = []
    for number in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from([Role.USER, Role.ASSISTANT, Role.SUMMARY, Role.TOOL]))
        records.append(draw(_records(str(number), kind)))
    if draw(st.booleans()):
        records.append(draw(_records("draft", Role.ASSISTANT, [MessageStatus.STREAMING])))
    late = [user(f"late-{number}") for number in range(draw(st.integers(0, 2)))]
    taken = [Taken(run_id="x", input_id=item.message.id, step=draw(st.integers(0, 4))) for item in late]
    return records + late, taken, draw(st.integers(0, 4))


@st.composite
def _records(
    draw: st.DrawFn, message_id: str, role: Role, statuses: Sequence[MessageStatus] = tuple(MessageStatus)
) -> HistoryMessage:
    if role is Role.TOOL:
        return record(message_id, role, ToolApprovalResponsePart(approval_id="p", approved=True))
    if role is not Role.ASSISTANT:
        return record(
            message_id, role, *(text(words) for words in draw(st.lists(st.sampled_from(["", "a"]), max_size=2)))
        )
    bodies = draw(st.lists(step_bodies, max_size=4))
    steps = [step(number, *parts, results=results) for number, (parts, results) in enumerate(bodies)]
    return answer(message_id, *steps, status=draw(st.sampled_from(statuses)))


@given(histories())
def test_any_history_gives_a_legal_prompt_and_one_decision_per_record(
    drawn: tuple[list[HistoryMessage], list[Taken], int],
) -> None:
    history, taken, at = drawn

    prompt, decisions = project_with_decisions(history, taken=taken, instructions="", tools=(), step=at)

    assert check_prompt(prompt) == []
    assert [decision.message_id for decision in decisions] == [item.message.id for item in history]


# --- pauses ---------------------------------------------------------------------------------------

SEARCH = ProviderPart(envelope=SIGNED.model_copy(update={"data": {"type": "server_tool_use", "id": "s"}}))


def test_what_is_said_before_and_behind_a_pause_is_one_answer() -> None:
    paused = answer("a", step(0, text("looking"), SEARCH), step(1, text("found"), call("1"), results=[result("1")]))

    prompt = prompt_of(user("u"), paused, user("v"))

    assert ["user", "assistant", "tool", "user"] == [message.speaker for message in prompt.messages]
    assert ["text", "reasoning", "text", "tool-call"] == [part.type for part in prompt.messages[1].parts]


def test_a_live_step_that_was_paused_goes_back_as_it_is_and_speaks_last() -> None:
    prompt = prompt_of(user("u"), draft(step(0, text("looking"), SEARCH)), at=1)

    assert (Speaker.ASSISTANT, ["text", "reasoning"]) == (
        prompt.messages[-1].speaker,
        [part.type for part in prompt.messages[-1].parts],
    )


def test_what_is_injected_behind_a_pause_ends_it() -> None:
    taken = [Taken(run_id="q", input_id="v", step=1)]

    prompt = prompt_of(user("u"), user("v", "and?"), draft(step(0, text("looking"), SEARCH)), at=1, taken=taken)

    assert [("user", ["hi"]), ("assistant", ["looking"]), ("user", ["and?"])] == told(prompt)


def test_a_paused_answer_that_was_interrupted_is_told_without_its_open_search() -> None:
    cut = answer("a", step(0, text("looking"), SEARCH), status=MessageStatus.INTERRUPTED)

    assert ["looking", INTERRUPTED_MARKER] == told(prompt_of(user("u"), cut, user("v")))[1][1]
