"""The command line without a stack: what it loads, and the schemas that it prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from turnlane.client.cli.read import record_schemas


def test_every_public_record_has_a_schema_and_every_reference_in_it_a_definition() -> None:
    schemas = record_schemas()

    referred = set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(schemas)))
    assert {"Event", "Input", "Admission", "Run", "Message", "Snapshot", "LedgerEvent"} <= schemas.keys()
    assert referred <= schemas.keys()


def test_the_command_line_loads_what_few_verbs_need_with_those_verbs() -> None:
    heavy = "{'openai', 'anthropic', 'sqlalchemy', 'yaml', 'temporalio.worker', 'prompt_toolkit'}"
    program = f"import sys; from turnlane.client.cli import app; print({heavy} & sys.modules.keys())"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "set()" == loaded.stdout.strip()
