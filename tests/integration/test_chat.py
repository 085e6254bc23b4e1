"""The chat, at a terminal and through a pipe: what people see of a conversation, and what they do to it there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.cli_stage import ON_TERMINAL, PATIENCE, Cli, Terminal, dev_stack, read_until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A folder in which `turnlane dev` runs."""
    with dev_stack(tmp_path_factory.mktemp("dev")) as cli:
        yield cli


@pytest.fixture(autouse=True)
def nothing_is_left_running(cli: Cli) -> Iterator[None]:
    """However a test ends, what it started ends with it."""
    yield
    cli.end()


def test_a_chat_through_a_pipe_answers_every_line_and_ends(cli: Cli) -> None:
    reply = cli("chat", "--conversation", "talk", stdin="what is 2+3?\nwhat is 4*5?\n/queue\n/policy x\n")

    assert 0 == reply.code
    assert "calculate: 5" in reply.text
    assert "calculate: 20" in reply.text
    assert "a policy is one of queue, inject" in reply.text


def test_quit_ends_a_pipe_once_every_line_before_it_is_answered(cli: Cli) -> None:
    reply = cli("chat", "--conversation", "quits", stdin="what is 2+3?\n/quit\nwhat is 4*5?\n")

    assert 0 == reply.code
    assert "calculate: 5" in reply.text
    assert "calculate: 20" not in reply.text


def test_ctrl_c_stops_the_answer_and_not_the_chat(cli: Cli) -> None:
    process = cli.start("chat")
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("wait 100 seconds\n")
    process.stdin.flush()
    read_until(process.stdout, "[wait_seconds ...")
    process.send_signal(signal.SIGINT)
    read_until(process.stdout, "[interrupted]")
    rest, errors = process.communicate("what is 6*7?\n", timeout=PATIENCE)

    assert "calculate: 42" in rest
    assert (0, "") == (process.returncode, errors)


def test_at_a_terminal_one_types_while_the_answer_streams(cli: Cli) -> None:
    terminal = Terminal()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    process = cli.start("chat", program=ON_TERMINAL, start_new_session=True, **streams)
    os.close(terminal.theirs)
    terminal.until("/help tells what you can do")
    terminal.type("wait 100 seconds\r")
    terminal.until("[wait_seconds ...")
    terminal.type("what is")
    terminal.until("what is")
    terminal.type("\x03")
    terminal.until("[interrupted]")
    terminal.type(" 6*7?\r")
    terminal.until("calculate: 42")
    terminal.type("/policy supersede\r")
    terminal.until("policy: supersede")
    terminal.type("/quit\r")
    code = process.wait(PATIENCE)
    os.close(terminal.ours)

    assert 0 == code


@contextmanager
def chat_at_terminal(cli: Cli, *arguments: str) -> Iterator[Terminal]:
    """A chat at a terminal; it is left with /quit and must end well."""
    terminal = Terminal()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    process = cli.start("chat", *arguments, program=ON_TERMINAL, start_new_session=True, **streams)
    os.close(terminal.theirs)
    try:
        terminal.until("/help tells what you can do")
        yield terminal
        terminal.type("/quit\r")
        assert 0 == process.wait(PATIENCE)
    finally:
        os.close(terminal.ours)


def notes(cli: Cli) -> list[str]:
    path = cli.folder / "turnlane-notes.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_at_a_terminal_an_approval_is_asked_and_given_while_one_talks_on(cli: Cli) -> None:
    with chat_at_terminal(cli) as terminal:
        terminal.type("note: buy milk\r")
        terminal.until('[save_note {"text": "buy milk"} waits for approval; approval apr-')
        terminal.type("what is 6*7?\r")
        terminal.until("calculate: 42")
        before = notes(cli)
        terminal.type("/approve it is fine\r")
        terminal.until('[approved save_note {"text": "buy milk"}: it is fine]')
        terminal.until("[save_note done")
        terminal.until('save_note: {"saved"')

    assert "buy milk" not in before
    assert ["buy milk"] == [line for line in notes(cli) if line == "buy milk"]


def test_of_several_approvals_each_is_answered_by_the_beginning_of_its_id(cli: Cli) -> None:
    ids = []
    for text in ("note: several 1", "note: several 2"):
        cli("submit", "several", text, "--wait")
        pending = cli("approvals", "several", "--json").lines
        ids.append(next(each["approval_id"] for each in pending if each["input"]["text"] == text[6:]))
    with chat_at_terminal(cli, "--conversation", "several") as terminal:
        terminal.until("waiting for approval: 2; /approvals lists them")
        terminal.type("/approve\r")
        terminal.until("2 approvals wait: name one by its id; /approvals lists them (APPROVAL_NOT_PENDING)")
        terminal.type("/approvals\r")
        terminal.until(f'{ids[1][:12]}  save_note {{"text": "several 2"}} waits for approval')
        terminal.type(f"/deny {ids[0][:12]} not this one\r")
        terminal.until("not this one]")
        terminal.until("DENIED")
        terminal.type(f"/approve {ids[1][:12]}\r")
        terminal.until("[save_note done")

    assert ["several 2"] == [line for line in notes(cli) if line.startswith("several")]


def test_through_a_pipe_an_approval_is_answered_once_it_was_asked(cli: Cli) -> None:
    reply = cli("chat", stdin="note: piped 1\n/approvals\n/approve\n/deny\nnote: piped 2\n/deny no more\n")

    assert 0 == reply.code
    assert '[approved save_note {"text": "piped 1"}]' in reply.text
    assert "nothing waits for approval (APPROVAL_NOT_PENDING)" in reply.text
    assert '[denied save_note {"text": "piped 2"}: no more]' in reply.text
    assert 1 == reply.text.count('Let me see. \n[save_note {"text": "piped 1"}')
    assert ["piped 1"] == [line for line in notes(cli) if line.startswith("piped")]


def test_for_programs_a_chat_prints_what_it_was_asked_for_as_objects(cli: Cli) -> None:
    lines = cli("chat", "--json", stdin="note: programs\n/approvals\n/spend\n/model\n/deny\n").lines

    [asked] = [line for line in lines if line.get("tool_name") == "save_note" and "approval_id" in line]
    [spent] = [line for line in lines if "total" in line]
    assert {"text": "programs"} == asked["input"]
    assert 1 == spent["runs"]
    assert {"ok": True, "conversation_id": spent["conversation_id"], "model": None} in lines


def test_a_call_that_waits_without_a_worker_is_told_as_waiting_and_as_going_on(cli: Cli) -> None:
    reply = cli("chat", stdin="remind me in 3 seconds to stretch\n")

    told = [line.split(" until ")[0] for line in reply.text.splitlines() if line.startswith("[remind")]
    assert ['[remind ... {"seconds": 3.0, "about": "stretch"}]', "[remind waits", "[remind goes on]"] == told[:3]
    assert told[3].startswith('[remind done {"about": "stretch"')


def test_a_conversation_is_compacted_counted_and_given_files_from_its_chat(cli: Cli, tmp_path: Path) -> None:
    shown = tmp_path / "plan.txt"
    shown.write_text("turn left")
    lines = ["one", "two", "three", "four", "/spend", "/compact", "/compact x", f"/file {shown}", "/file", "what now?"]
    reply = cli("chat", "--conversation", "curated", stdin="\n".join(lines) + "\n")

    assert "4 ended runs: " in reply.text
    assert "compaction: a summary stands where the older part stood" in reply.text or "nothing old enough" in reply.text
    assert "/compact takes nothing, or the word force (INVALID_INPUT)" in reply.text
    assert 2 == reply.text.count("goes along with your next line: plan.txt")
    said = cli("messages", "curated", "--json").lines[0]["items"]
    assert ["text", "file"] == [part["type"] for part in said[-2]["parts"]]


TROUBLED = """
from turnlane.agent import Agent, ModelDescriptor, ModelRegistry, ScriptedModel, tool
from turnlane.agent.models import Call, Fail, Say, Stop
from turnlane.records.lane import RetryFacts
from turnlane.records.runs import Failure, FailureClass

BUSY = Failure(failure_class=FailureClass.OVERLOADED, status=529, retryable=True)
REFUSED = Failure(failure_class=FailureClass.AUTHENTICATION, status=401)

@tool(read_only=True)
def look() -> str:
    return "a tree"

def primary(request):
    said = request.prompt.messages[-1].parts[0]
    text = getattr(said, "text", "")
    if text == "busy":
        return [Say("Half"), Fail(BUSY)] if request.attempt < 2 else [Say("Here I am.")]
    if text == "hand over":
        return [Fail(REFUSED)]
    if text == "cut":
        return [Say("Once upon"), Stop("length")]
    if text == "loop" or not text:
        return [Call("look", {})]
    return [Say("Primary.")]

model = ScriptedModel(name="primary", script=primary)
second = ScriptedModel(name="second", script=lambda request: [Say("Second.")])
models = ModelRegistry({
    "first": ModelDescriptor(model=model, context_window=9000, capabilities={"tools"}),
    "other": ModelDescriptor(model=second, context_window=9000, capabilities={"tools"}),
})
agent = Agent(
    name="troubled", model="first", models=models, fallbacks=[second], tools=[look], max_steps=2,
    retry=RetryFacts(max_tries=3, initial_seconds=0.2),
)
"""


def test_what_went_wrong_is_told_in_a_line_each_and_another_model_can_be_chosen(cli: Cli) -> None:
    (cli.folder / "troubled.py").write_text(TROUBLED)
    here = ("--task-queue", "troubled")
    worker = cli.start("worker", "--agent", "troubled:agent", *here, "--json", stderr=subprocess.DEVNULL)
    assert worker.stdout is not None
    assert json.loads(worker.stdout.readline())
    reply = cli(
        *("chat", "--conversation", "troubled", "--agent", "troubled", *here),
        stdin="busy\nhand over\ncut\nloop\n/model other\n/model nobody\nhello\n/model -\n",
    )
    worker.terminate()
    worker.communicate(timeout=PATIENCE)

    told = [line for line in reply.text.splitlines() if line.startswith("[") and not line.startswith("[queued")]
    assert told[0].startswith("[overloaded: tried again in 0.")
    assert [
        "[what it had begun to say is withdrawn]",
        "[authentication: the model second takes over]",
        "[cut short: the answer reached its output limit (length)]",
    ] == told[1:4]
    assert "[stopped at the agent's step limit (max-steps)]" == told[-1]
    assert "Here I am." in reply.text and "Second." in reply.text
    assert "model: other" in reply.text and "model: the agent decides" in reply.text
    assert "(MODEL_REFUSED)" in reply.text
