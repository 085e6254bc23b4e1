"""The demo: it runs from the command line, and says no to what does not hold."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from pathlib import Path

import pytest

from turnlane.client.cli.demo_facts import Facts
from turnlane.client.cli.demo_gate import Gate, pass_gate
from turnlane.client.cli.demo_output import Page

PROGRAM = "from turnlane.client.cli import main; main()"
CLAIMS_OF_THE_APPROVAL = {"approval_asked", "nothing_ran_unasked", "approved_call_ran_once", "decision_stands"}
CLAIMS_OF_THE_CRASH = {"worker_killed", "half_answer_withdrawn", "one_attempt_lost", "run_survived", "answer_told_once"}


async def test_every_claim_of_the_demo_holds() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "demo", "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complained = await asyncio.wait_for(process.communicate(), 110)

    assert (0, b"") == (process.returncode, complained), said.decode()
    report = json.loads(said)
    assert [] == [name for name, held in report["facts"].items() if not held]
    assert set(report["facts"]) >= CLAIMS_OF_THE_CRASH | CLAIMS_OF_THE_APPROVAL
    assert report["ok"] is True


def test_a_claim_that_was_wrong_once_stays_wrong() -> None:
    facts = Facts(Page(as_json=True))
    facts.check("a", True, "it is so")
    facts.check("b", False, "it is not so")
    facts.check("b", True, "it is so after all")

    assert {"a": True, "b": False} == facts.held
    assert not facts.all_held


def test_a_demo_that_claimed_nothing_proved_nothing() -> None:
    assert not Facts(Page(as_json=True)).all_held


def test_a_claim_does_not_run_into_the_text_that_streams(capsys: pytest.CaptureFixture[str]) -> None:
    page = Page()
    page.stream("half a sen")
    page.say("ok it holds")
    page.stream("tence\n")
    page.say("the end")

    assert "half a sen\nok it holds\ntence\nthe end\n" == capsys.readouterr().out


async def test_who_waits_at_a_gate_passes_once_it_is_open() -> None:
    async with Gate() as gate:
        passing = asyncio.create_task(pass_gate(gate.port))
        await asyncio.wait_for(gate.reached.wait(), 20)
        held = passing.done()
        gate.open()
        await asyncio.wait_for(passing, 20)

    assert held is False


@pytest.mark.skipif(sys.platform != "linux", reason="waits for the end of a process that is not its child")
async def test_a_worker_of_the_demo_outlives_neither_its_starter_nor_its_server(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from turnlane.client.cli.demo_worker import Place, WorkerProcess\n"
        "from turnlane.client.dev_config import DevConfig\n"
        "from turnlane.client.stack import Stack\n"
        "async def main():\n"
        "    async with Stack(DevConfig.throwaway(pathlib.Path(sys.argv[1])), agents=(), workers=0) as stack:\n"
        "        worker = await WorkerProcess.start()\n"
        "        await worker.serve(Place(stack=stack.dev_file, gate=1, payments=pathlib.Path('none')))\n"
        "        print(worker.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert starter.stdout is not None
    worker = os.pidfd_open(int(await starter.stdout.readline()))
    try:
        starter.kill()
        await starter.wait()
        ended, _, _ = await asyncio.to_thread(select.select, [worker], [], [], 60)
    finally:
        os.close(worker)

    assert [worker] == ended
