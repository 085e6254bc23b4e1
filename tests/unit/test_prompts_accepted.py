"""Any history that a conversation can come to is told so that the strictest reading of each provider accepts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from tests.unit.recorded import NOW, answer, call, draft, imported, record, request, response, result, step, text, user
from turnlane.activities.attachments import Resolved
from turnlane.activities.failing import ApplicationFailedError
from turnlane.activities.projection import project_with_decisions
from turnlane.activities.prompt_check import check_prompt
from turnlane.activities.providers.anthropic_fields import anthropic_fields
from turnlane.activities.providers.anthropic_prompt import anthropic_request
from turnlane.activities.providers.openai_chat import chat_request
from turnlane.activities.providers.openai_responses import responses_request
from turnlane.agent import (
    AnthropicModel,
    FileBytes,
    FileText,
    HistoryOptions,
    OpenAIChatModel,
    OpenAIModel,
    ProviderFile,
)
from turnlane.agent.history import (
    FileUrl,
    IncompleteToolTurn,
    InterruptedAssistant,
    LeadingAssistant,
    ResolvedFile,
    UnresolvedFile,
)
from turnlane.records.base import JsonObject, ProviderEnvelope
from turnlane.records.lane import Taken
from turnlane.records.messages import (
    ControlPart,
    ControlReason,
    FailedAssistant,
    FilePart,
    Message,
    MessageStatus,
    Part,
    ProviderPart,
    ReasoningPart,
    RefusalPart,
    Role,
    SourcePart,
    ToolApprovalRequestPart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.prompt import Prompt, Speaker
from turnlane.store.payloads import HistoryMessage, HistoryStep
from turnlane.testing.fault_plan import seal
from turnlane.testing.rules_anthropic import check_messages
from turnlane.testing.rules_chat import check_chat
from turnlane.testing.rules_responses import check_responses
from turnlane.testing.wire import Asked

HEADERS = {"authorization": "Bearer k", "x-api-key": "k", "anthropic-version": "2023-06-01"}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
SETTLED = [MessageStatus.COMPLETED, MessageStatus.INTERRUPTED, MessageStatus.SUPERSEDED, MessageStatus.FAILED]
PROVIDERS = ["anthropic", "openai", "openai-chat"]
CUT = ControlPart(reason=ControlReason.RUN_INTERRUPTED)


def anthropic(prompt: Prompt) -> None:
    model = AnthropicModel(name="m")
    check_messages(Asked(1, HEADERS, anthropic_request(model, prompt) | {"stream": True}))


def anthropic_thinking(prompt: Prompt) -> None:
    sent(AnthropicModel(name="m", extra=THINKING), prompt)


def anthropic_binding(prompt: Prompt) -> None:
    """A model that ties its thinking to the conversation, asked to think, and asked not to."""
    sent(AnthropicModel(name="claude-opus-5-5"), prompt)
    sent(AnthropicModel(name="claude-opus-5-5", extra={"thinking": {"type": "disabled"}}), prompt)


def sent(model: AnthropicModel, prompt: Prompt) -> None:
    body = anthropic_request(model, prompt)
    extra, headers = anthropic_fields(model, prompt, body)
    check_messages(Asked(1, HEADERS | headers, body | {"stream": True} | extra))


def responses(prompt: Prompt) -> None:
    check_responses(Asked(1, HEADERS, responses_request(OpenAIModel(name="m"), prompt)))


def chat(prompt: Prompt) -> None:
    check_chat(Asked(1, HEADERS, chat_request(OpenAIChatModel(name="m"), prompt)))


READERS: Mapping[str, Callable[[Prompt], None]] = {
    "anthropic": anthropic,
    "anthropic-thinking": anthropic_thinking,
    "anthropic-binding": anthropic_binding,
    "responses": responses,
    "chat": chat,
}


@dataclass
class Drawn:
    """A history while it is drawn: counters make what providers make unique, the rest repeats as it may."""

    draw: st.DrawFn
    made: int = 0
    answers: list[HistoryMessage] = field(default_factory=list)

    def next(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}_{self.made}"

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def words(self) -> str:
        return str(self.one_of("well", "so", " ", "", "\ud83d", "ünï"))

    # --- what a model says ------------------------------------------------------------------------

    def thought(self, provider: str) -> ReasoningPart:
        """Reasoning as its provider gives it out; cut short, it has nothing to send back."""
        words = text(self.words()).text
        if provider == "openai-chat" or self.draw(st.integers(0, 4)) == 0:
            return ReasoningPart(text=words)
        if provider == "anthropic":
            signed: JsonObject = {"type": "thinking", "thinking": words, "signature": seal(words)}
            data: JsonObject = self.one_of(signed, signed, {"type": "redacted_thinking", "data": "x"})
        else:
            item_id = self.next("rs")
            summary: list[JsonValue] = [{"type": "summary_text", "text": words}]
            data = {"type": "reasoning", "id": item_id, "summary": summary, "encrypted_content": seal(item_id, words)}
        return ReasoningPart(text=words, provider=ProviderEnvelope(provider=provider, data=data))

    def hosted(self, provider: str) -> list[Part]:
        """What a tool of the provider's own leaves behind: as a rule a call and its result, in a pause only one."""
        if provider == "openai":
            item: JsonObject = {"type": "web_search_call", "id": self.next("ws"), "status": "completed"}
            return [ProviderPart(envelope=ProviderEnvelope(provider=provider, data=item))]
        if provider == "openai-chat":
            return []
        call_id = self.next("srvtoolu")
        blocks: list[JsonObject] = [
            {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": call_id, "content": []},
        ]
        kept = blocks[self.one_of(0, 0, 0, 1) : self.one_of(2, 2, 2, 1)]
        return [ProviderPart(envelope=ProviderEnvelope(provider=provider, data=block)) for block in kept]

    def said(self, provider: str) -> list[Part]:
        """The parts of one answer of a model, with thinking between its calls and text behind them as it comes."""
        parts: list[Part] = [self.thought(provider)] if self.flag() else []
        for _ in range(self.draw(st.integers(0, 2))):
            parts += self.one_of([text(self.words())], self.hosted(provider), [SourcePart(source_id="s")])
        call_ids = self.draw(st.lists(st.sampled_from(["1", "2", "1_2", "call 3"]), max_size=3, unique=True))
        for call_id in call_ids:
            if provider != "openai-chat" and self.flag():
                parts.append(self.thought(provider))
            parts.append(call(call_id))
        if self.flag():
            parts.append(text(self.words()))
        return parts

    # --- what a run leaves ------------------------------------------------------------------------

    def steps(self, provider: str, *, is_cut: bool) -> list[HistoryStep]:
        bodies = [self.said(provider) for _ in range(self.draw(st.integers(0, 3)))]
        if is_cut and bodies:
            bodies[-1] = bodies[-1][: self.draw(st.integers(0, len(bodies[-1])))]
        return [self.ran(number, parts, is_cut=is_cut) for number, parts in enumerate(bodies)]

    def ran(self, number: int, parts: list[Part], *, is_cut: bool) -> HistoryStep:
        """A step with what came of its calls: results, approvals that are open, given, refused or too late."""
        results: list[ToolResultPart] = []
        for made in [part for part in parts if isinstance(part, ToolCallPart)]:
            fate = self.one_of("done", "done", "empty", "failed", "asked", "denied", *(["cut"] if is_cut else []))
            if fate in ("asked", "denied"):
                approval_id = self.next("approval")
                expires = self.one_of(None, NOW - timedelta(days=1), NOW + timedelta(days=1))
                parts.append(ToolApprovalRequestPart(approval_id=approval_id, call_id=made.call_id, expires_at=expires))
                if fate == "denied":
                    parts.append(response(approval_id, approved=False))
                if fate == "denied" or self.flag():
                    results.append(result(made.call_id, ToolOutcome.ERROR))
            elif fate != "cut":
                outcome = ToolOutcome.ERROR if fate == "failed" else ToolOutcome.SUCCESS
                output: JsonObject | str = "" if fate == "empty" else {"at": made.call_id}
                results.append(
                    ToolResultPart(call_id=made.call_id, tool_name=made.tool_name, outcome=outcome, output=output)
                )
        return step(number, *parts, results=results)

    def run(self, message_id: str) -> HistoryMessage:
        status = self.one_of(*SETTLED)
        is_cut = status is not MessageStatus.COMPLETED
        steps = self.steps(self.one_of(*PROVIDERS), is_cut=is_cut)
        control: list[Part] = [CUT] if is_cut and self.flag() else []
        refusal: list[Part] = [RefusalPart(text="no")] if self.draw(st.integers(0, 9)) == 0 else []
        return answer(message_id, *steps, status=status, control=[*refusal, *control])

    def brought(self, message_id: str) -> HistoryMessage:
        """An answer from elsewhere, in any order."""
        parts: list[Part] = []
        for _ in range(self.draw(st.integers(0, 6))):
            call_id = self.one_of("1", "2")
            parts += self.one_of(
                [text(self.words())],
                [call(call_id), result(call_id)],
                [call(call_id)],
                [result(call_id)],
                [call(call_id), request(f"imported-{call_id}", call_id)],
                [response(f"imported-{call_id}", approved=self.flag())],
            )
        return imported(message_id, *parts, status=self.one_of(*SETTLED))

    # --- what others say --------------------------------------------------------------------------

    def asked(self, message_id: str) -> HistoryMessage:
        parts: list[Part] = [text(self.words()) for _ in range(self.draw(st.integers(0, 2)))]
        for _ in range(self.draw(st.integers(0, 1))):
            media_type = self.one_of("image/png", "application/pdf", "text/plain")
            reference = self.one_of("https://x/y", f"data:{media_type};base64,aGk=", "blob:1")
            parts.append(FilePart(media_type=media_type, reference=reference))
        return record(message_id, Role.USER, *parts)

    def answered(self, message_id: str) -> HistoryMessage:
        """An answer to an approval: one that was asked for, or one that nobody knows."""
        asked = [
            part.approval_id
            for item in self.answers
            for past in item.steps
            for part in past.parts
            if isinstance(part, ToolApprovalRequestPart)
        ]
        approval_id = self.one_of("imported-1", "nobody's", *asked)
        return record(message_id, Role.TOOL, response(approval_id, approved=self.flag()))

    def history(self) -> list[HistoryMessage]:
        makers = [self.asked, self.asked, self.run, self.run, self.brought, self.answered]
        items = [record("sum", Role.SUMMARY, text(self.words()))] if self.flag() else []
        for number in range(self.draw(st.integers(0, 7))):
            item = self.draw(st.sampled_from(makers))(f"m{number}")
            self.answers += [item] if item.steps else []
            items.append(item)
        return items


@dataclass(frozen=True)
class Case:
    """A history as a run at some step sees it."""

    history: Sequence[HistoryMessage]
    taken: Sequence[Taken] = ()
    at: int = 0


@st.composite
def cases(draw: st.DrawFn) -> Case:
    drawn = Drawn(draw)
    history = drawn.history()
    steps = drawn.steps(drawn.one_of(*PROVIDERS), is_cut=False)
    late = [drawn.asked(f"late-{number}") for number in range(draw(st.integers(0, 2)))]
    taken = [Taken(run_id="x", input_id=item.message.id, step=draw(st.integers(0, 4))) for item in late]
    return Case([*history, drawn.asked("now"), draft(*steps), *late], taken, draw(st.integers(0, len(steps))))


def resolver(found: ResolvedFile | None) -> Callable[[FilePart, Message], ResolvedFile | None]:
    return lambda part, message: found


RESOLVERS = [
    None,
    *map(resolver, [None, FileUrl("https://x/y"), FileBytes(b"hi"), FileText(""), FileText("words")]),
    *(resolver(ProviderFile(provider, "file_1")) for provider in PROVIDERS),
]
options = st.builds(
    HistoryOptions,
    resolve_file=st.sampled_from(RESOLVERS),
    unresolved_file=st.sampled_from(get_args(UnresolvedFile)),
    interrupted_assistant=st.sampled_from(get_args(InterruptedAssistant)),
    failed_assistant=st.sampled_from(get_args(FailedAssistant)),
    leading_assistant=st.sampled_from(get_args(LeadingAssistant)),
    incomplete_tool_turn=st.sampled_from(get_args(IncompleteToolTurn)),
)


def resolved(history: Sequence[HistoryMessage], chosen: HistoryOptions) -> Resolved:
    """What the options' resolver says of every file, as the step asks it before it projects."""
    if chosen.resolve_file is None:
        return {}
    found: dict[tuple[str, int], Any] = {
        (item.message.id, place): chosen.resolve_file(part, item.message)
        for item in history
        for place, part in enumerate(item.message.parts)
        if isinstance(part, FilePart)
    }
    return found


def prompt_or_refusal(case: Case, chosen: HistoryOptions) -> Prompt | str:
    """The prompt of a case, or the code with which the options refuse its history."""
    try:
        prompt, decisions = project_with_decisions(
            case.history,
            taken=case.taken,
            instructions="be kind",
            tools=(),
            step=case.at,
            options=chosen,
            resolved=resolved(case.history, chosen),
            now=NOW,
        )
    except ApplicationFailedError as error:
        assert error.record_id in {item.message.id for item in case.history}
        return error.code
    assert [item.message.id for item in case.history] == [decision.message_id for decision in decisions]
    return prompt


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases(), options)
@example(Case([draft()]), HistoryOptions())
@example(Case([user("u"), answer("a", step(0, call("1"), request("p", "1"))), draft()]), HistoryOptions())
def test_every_provider_accepts_what_any_history_becomes(case: Case, chosen: HistoryOptions) -> None:
    prompt = prompt_or_refusal(case, chosen)
    if isinstance(prompt, str):
        assert prompt in ("FILE_UNRESOLVED", "LEADING_ASSISTANT", "INCOMPLETE_TOOL_TURN")
        return

    assert [] == check_prompt(prompt)
    for accepts in READERS.values():
        accepts(prompt)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases())
def test_the_next_step_says_the_same_and_goes_on(case: Case) -> None:
    """What a step was told stays: the provider's cache, and the model, can count on it."""
    if case.taken:
        return
    prompts = [prompt_or_refusal(Case(case.history, (), at), HistoryOptions()) for at in (case.at, case.at + 1)]
    one, two = (prompt.messages for prompt in prompts if isinstance(prompt, Prompt))

    # What is last may be a step in which the provider paused: the next one goes on in the same breath.
    *before, last = one
    assert [*before, last.parts] == [*two[: len(before)], two[len(before)].parts[: len(last.parts)]]
    assert last.speaker is Speaker.ASSISTANT or last == two[len(before)]


@pytest.mark.parametrize("name", READERS)
def test_a_prompt_that_breaks_its_rules_is_refused_by_each_reader(name: str) -> None:
    prompt = Prompt(
        messages=project_with_decisions([draft()], taken=(), instructions="", tools=(), step=0)[0].messages * 0
    )

    with pytest.raises(Exception, match="missing"):
        READERS[name](prompt)
