"""The command line against a stack that it started itself: every verb, for people and for programs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_stage import PATIENCE, Cli, dev_stack, read_until

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


def test_an_input_is_admitted_and_answered(cli: Cli) -> None:
    reply = cli("submit", "asked", "what is 6*7?", "--wait")

    assert 0 == reply.code
    assert '[calculate ... {"expression": "6*7"}]' in reply.text
    assert "calculate: 42" in reply.text
    assert "[calculate done 42]" in reply.text


def test_for_programs_every_line_is_an_object(cli: Cli) -> None:
    admission, *events, result = cli("submit", "programs", "hello", "--wait", "--json").lines

    assert admission["run_id"] == result["run_id"]
    assert {"admission", "assistant-delta", "terminal"} <= {event["type"] for event in events}
    assert ("completed", "success") == (result["state"], result["reason"])


def test_the_same_key_again_is_the_same_input(cli: Cli) -> None:
    first = cli("submit", "twice", "hello", "--key", "k", "--json").lines[0]
    again = cli("submit", "twice", "hello", "--key", "k", "--json").lines[0]

    assert (first["run_id"], False, True) == (again["run_id"], first["duplicate"], again["duplicate"])


def test_text_may_come_through_a_pipe(cli: Cli) -> None:
    cli("submit", "piped", "--wait", stdin="good morning")

    assert "good morning" == cli("messages", "piped", "--json").lines[0]["items"][0]["parts"][0]["text"]


def test_a_file_may_be_sent_along(cli: Cli, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("hello")

    reply = cli("submit", "with-file", "read this", "--file", str(notes), "--json")

    assert 0 == reply.code
    said = cli("messages", "with-file", "--json").lines[0]["items"][0]
    assert ["text", "file"] == [part["type"] for part in said["parts"]]


def test_a_file_that_cannot_be_read_is_refused(cli: Cli) -> None:
    reply = cli("submit", "with-file", "--file", "there-is-none.txt")

    assert (2, True) == (reply.code, "cannot read there-is-none.txt" in reply.errors)


def test_what_was_said_can_be_read_again(cli: Cli) -> None:
    run_id = cli("submit", "read", "what is 1+1?", "--wait", "--json").lines[-1]["run_id"]

    assert "calculate: 2" in cli("show", "read").text
    assert "calculate: 2" in cli("show", "read", "--run", run_id).text
    assert "what is 1+1?" in cli("messages", "read").text
    assert run_id == cli("show", "read", "--run", run_id, "--json").lines[0]["run"]["id"]
    assert "read" in [line["conversation_id"] for line in cli("conversations", "--json").lines[0]["items"]]


def test_a_conversation_is_shown_with_its_calls_questions_and_models(cli: Cli) -> None:
    cli("submit", "whole", "what is 6*7?", "--wait")
    run_id = cli("submit", "whole", "note: whole", "--wait", "--json").lines[-1]["run_id"]
    [shown] = cli("show", "whole", "--json").lines
    [run] = cli("show", "whole", "--run", run_id, "--json").lines
    text = cli("show", "whole").text
    [pending] = shown["approvals"]

    assert ("save_note", {"text": "whole"}) == (pending["tool_name"], pending["input"])
    assert [pending] == run["approvals"]
    assert {"offline-script"} == {*shown["answered_by"].values(), run["answered_by"]}
    assert (None, 2) == (shown["model"], shown["spend"]["runs"])
    for line in (
        '[calculate {"expression": "6*7"}]',
        "[calculate success 42]",
        f"[asked for approval: {pending['approval_id']}]",
        f'save_note {{"text": "whole"}} waits for approval; approval {pending["approval_id"]}',
        "answered by offline-script",
        "spent by 2 ended runs: ",
    ):
        assert line in text
    assert 0 == cli("deny", "whole", pending["approval_id"]).code


def test_what_a_summary_stands_for_is_listed_on_demand(cli: Cli) -> None:
    for text in ("one", "two", "three"):
        cli("submit", "summed", text, "--wait")
    compacted = cli("compact", "summed", "--force", "--json").lines[0]
    left = cli("messages", "summed", "--json").lines[0]["items"]
    kept = cli("messages", "summed", "--compacted", "--json").lines[0]["items"]

    assert "applied" == compacted["outcome"]
    assert "summary" == left[0]["role"]
    assert (5, 7) == (len(left), len(kept))
    assert "[what it stands for is kept: `messages --compacted` lists it]" in cli("messages", "summed").text


def test_an_error_is_one_line_and_a_code(cli: Cli) -> None:
    cli("submit", "clash", "one thing", "--key", "k")

    reply = cli("submit", "clash", "another", "--key", "k")

    assert (2, "", 1) == (reply.code, reply.text, len(reply.errors.splitlines()))
    assert "(IDEMPOTENCY_CONFLICT)" in reply.errors


def test_for_programs_an_error_is_an_object(cli: Cli) -> None:
    reply = cli("interrupt", "nobody-talks-here", "--json")

    error = reply.lines[0]["error"]
    assert (2, "RUN_CONFLICT", False) == (reply.code, error["code"], error["retryable"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "c", "  "),
        ("submit", "c", "hi", "--context", "[]"),
        ("submit", "c", "hi", "--metadata", "{"),
        ("submit", "c", "hi", "--agent", "nobody"),
        ("submit", "bad\nid", "hi"),
        ("show", "read", "--run", "no-such-run"),
        ("purge", "c"),
        ("deliver", "c", "paid", "7", "--payload", "{"),
        ("deliver", "c", "paid", "7", "--payload", "[-0.0]"),
        ("schema", "NoSuchRecord"),
        ("worker", "--agent", "no.such.module:agent"),
        ("worker", "--agent", "no-colon"),
        ("worker", "--agent", "json:loads"),
        ("worker", "--operator-events", "no-colon"),
        ("worker", "--operator-events", "json:no_such_name"),
        ("worker", "--operator-events", "string:digits"),
        ("dev", "--config", "no-such-file.yaml"),
        ("submit", "c", "hi", "--policy", "no-such-policy"),
        ("no-such-verb",),
        ("model", "c", "no-such-model"),
        ("model", "c", "fast", "--own"),
    ],
)
def test_a_wrong_call_is_refused_without_a_traceback(cli: Cli, arguments: tuple[str, ...]) -> None:
    reply = cli(*arguments)

    assert reply.code in (1, 2)
    assert "Traceback" not in reply.errors + reply.text
    assert "unexpected" not in reply.errors


CHOOSER = """
from turnlane.agent import Agent, ModelDescriptor, ModelRegistry, ScriptedModel
from turnlane.agent.models import Say

def model(text):
    return ModelDescriptor(model=ScriptedModel(name=text, script=lambda request: [Say(text)]), context_window=1000)

AGENT = Agent(name="chooser", model="short", models=ModelRegistry({"short": model("Yes."), "long": model("I do.")}))
"""


def test_a_model_is_chosen_shown_and_given_back(cli: Cli) -> None:
    (cli.folder / "chooser.py").write_text(CHOOSER)
    here = ("--task-queue", "choosers", "--json")
    worker = cli.start("worker", "--agent", "chooser:AGENT", *here)
    assert worker.stdout is not None
    assert json.loads(worker.stdout.readline())
    chosen = cli("model", "chosen", "long", "--agent", "chooser", *here)
    cli("submit", "chosen", "do you?", "--wait", *here)
    shown = cli("model", "chosen", *here)
    own = cli("model", "chosen", "--own", *here)

    assert ["long", "long", None] == [reply.lines[0]["model"] for reply in (chosen, shown, own)]
    assert "I do." in cli("messages", "chosen").text
    assert "chosen: the agent's own model\n" == cli("model", "chosen").text


OBSERVER = """
import pathlib

def observe(event):
    with pathlib.Path("observed").open("a") as file:
        file.write(event.model_dump_json() + "\\n")
"""


def test_a_function_is_told_of_runs_and_has_heard_all_when_the_worker_ends(cli: Cli) -> None:
    (cli.folder / "observer.py").write_text(OBSERVER)
    worker = cli.start("worker", "--operator-events", "observer:observe", "--task-queue", "observed", "--json")
    assert worker.stdout is not None
    assert json.loads(worker.stdout.readline())
    cli("submit", "observed", "hello", "--wait", "--task-queue", "observed")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=PATIENCE)
    assert 0 == worker.returncode
    events = [json.loads(line) for line in (cli.folder / "observed").read_text().splitlines()]

    assert ["run-started", "step-finished", "run-terminal"] == [event["type"] for event in events]
    assert {"observed"} == {event["conversation_id"] for event in events}


def test_what_a_conversation_spent_is_shown(cli: Cli) -> None:
    cli("submit", "spender", "hello", "--wait", "--json")
    told = cli("spend", "spender", "--json").lines[0]
    shown = cli("spend", "spender").text

    assert (1, 1, None) == (told["runs"], told["missing"], told["active"])
    assert told["total"]["input_tokens"]["value"] > 0
    assert ("1 ended runs" in shown, "of 1 nobody knows the cost; known: nothing" in shown) == (True, True)
    assert 0 == cli("spend", "nobody", "--json").lines[0]["runs"]


def test_a_mistake_inside_an_agents_module_is_told_as_one(cli: Cli) -> None:
    (cli.folder / "mistaken.py").write_text("import json\nAGENT = json.no_such_name\n")
    reply = cli("worker", "--agent", "mistaken:AGENT")

    assert (2, True) == (reply.code, "'mistaken' fails with AttributeError" in reply.errors)


def test_a_second_stack_in_the_folder_is_refused_with_the_pid(cli: Cli) -> None:
    reply = cli("dev", "--port", "0", "--json")

    assert 1 == reply.code
    assert isinstance(reply.lines[0]["error"]["details"]["pid"], int)


def test_a_server_that_does_not_answer_is_worth_another_try(cli: Cli) -> None:
    reply = cli("submit", "c", "hi", "--address", "127.0.0.1:1")

    assert 75 == reply.code
    assert "turnlane dev" in reply.errors


def test_a_queued_run_is_listed_and_cancelled_and_the_running_one_stopped(cli: Cli) -> None:
    waiting = cli("submit", "busy", "wait 100 seconds", "--json").lines[0]["run_id"]
    queued = cli("submit", "busy", "hello", "--json").lines[0]["run_id"]

    assert [waiting, queued] == [run["id"] for run in cli("runs", "busy", "--json").lines]
    assert 0 == cli("cancel", "busy", queued).code
    assert 0 == cli("interrupt", "busy", "--run", waiting).code
    assert "nothing was running" in cli("stop", "idle").text


def test_the_first_delivery_of_an_event_stands(cli: Cli) -> None:
    told = [
        cli("deliver", "shop", "paid", "7", *payload, "--json").lines[0]["accepted"]
        for payload in ((), ("--payload", '{"by": "ann"}'), ())
    ]

    assert [True, False, True] == told
    assert "another delivery came first: paid 7" in cli("deliver", "shop", "paid", "7", "--payload", "1").text


def test_a_purged_conversation_is_gone(cli: Cli) -> None:
    cli("submit", "secret", "forget me", "--wait")

    assert 0 == cli("purge", "secret", "--yes").code
    assert "CONVERSATION_PURGED" == cli("submit", "secret", "hi", "--json").lines[0]["error"]["code"]


def test_a_worker_serves_an_agent_of_the_folder_until_it_is_told_to_stop(cli: Cli) -> None:
    (cli.folder / "mine.py").write_text(
        "from turnlane.agent import Agent, ScriptedModel\n"
        "from turnlane.agent.models import Say\n"
        "agent = Agent(name='mine', model=ScriptedModel(script=lambda request: [Say('from mine')]))\n"
    )
    process = cli.start("worker", "--agent", "mine:agent", "--task-queue", "mine", "--json")
    assert process.stdout is not None
    serving = json.loads(process.stdout.readline())
    reply = cli("submit", "other", "hello", "--agent", "mine", "--task-queue", "mine", "--wait")
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE)

    assert "mine" == serving["task_queue"]
    assert "from mine" in reply.text
    assert (0, "") == (process.returncode, errors)


def test_a_call_that_waits_is_listed_approved_and_denied(cli: Cli) -> None:
    (cli.folder / "gated.py").write_text(
        "from turnlane.agent import Agent, ScriptedModel, tool\n"
        "from turnlane.agent.models import Call, Say\n"
        "@tool(approval='user-approval')\n"
        "def pay(sum: int) -> str:\n"
        "    return f'paid {sum}'\n"
        "def script(request):\n"
        "    last = request.prompt.messages[-1]\n"
        "    return [Say(str(last.parts[0].output))] if last.speaker == 'tool' else [Call('pay', {'sum': 5})]\n"
        "agent = Agent(name='gated', model=ScriptedModel(script=script), tools=[pay])\n"
    )
    here = ("--task-queue", "gated")
    process = cli.start("worker", "--agent", "gated:agent", *here, "--json")
    assert process.stdout is not None
    process.stdout.readline()
    for name in ("gated-1", "gated-2"):
        cli("submit", name, "pay", "--agent", "gated", "--wait", *here)
    listed = cli("approvals", "--json", *here).lines
    shown = cli("approvals", "gated-1", *here)
    first, second = (each["approval_id"] for each in listed)
    approved = cli("approve", "gated-1", first, "--responder", "ann", "--json", *here)
    denied = cli("deny", "gated-2", second, "--reason", "too much", *here)
    late = cli("deny", "gated-1", first, *here)
    read_waiting = cli("approvals", *here)
    cli("submit", "gated-1", "again", "--wait", *here)
    said = cli("messages", "gated-1", *here)
    process.terminate()
    process.communicate(timeout=PATIENCE)

    assert [("gated-1", "pay", {"sum": 5}), ("gated-2", "pay", {"sum": 5})] == [
        (each["conversation_id"], each["tool_name"], each["input"]) for each in listed
    ]
    assert first in shown.text and second not in shown.text
    assert (0, 0, 2) == (approved.code, denied.code, late.code)
    assert f"tool-approval:{first}" == approved.lines[0]["idempotency_key"]
    assert "APPROVAL_DECIDED" in late.errors and "approved" in late.errors
    assert "nothing waits for approval" in read_waiting.text
    assert "paid 5" in said.text


def test_a_tail_tells_the_past_and_ends_with_ctrl_c(cli: Cli) -> None:
    cli("submit", "tailed", "hello", "--wait")
    process = cli.start("tail", "tailed", "--from-seq", "0")
    assert process.stdout is not None
    told = read_until(process.stdout, "I am an offline script")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)

    assert told.startswith("> hello\nYou said: hello\n")
    assert (130, "") == (process.returncode, errors)


def test_the_schema_of_one_record_stands_alone(cli: Cli) -> None:
    schema = cli("schema", "Run").lines[0]

    assert "#/$defs/Run" == schema["$ref"]
    assert "Message" not in schema["$defs"]


def test_an_answer_is_stopped_also_when_the_store_cannot_be_opened(cli: Cli) -> None:
    cli("submit", "no-store", "wait 100 seconds")
    broken = cli.folder / "broken.db"
    broken.write_text("this is no database")
    reply = cli("stop", "no-store", "--store", str(broken))

    assert (0, "stopping: no-store\n", "") == (reply.code, reply.text, reply.errors)


def test_what_is_empty_is_said_in_words(cli: Cli) -> None:
    said = [cli(verb, "nobody-spoke-here").text for verb in ("runs", "show", "messages")]

    assert ["no run is active\n", *["nothing was said in this conversation\n"] * 2] == said


def test_a_run_is_given_up_only_on_ones_word(cli: Cli) -> None:
    reply = cli("abandon", "anything", "some-run", "--expected-revision", "1")

    assert 2 == reply.code
    assert "--stale-owner" in reply.errors
