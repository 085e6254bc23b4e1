"""The rooms of the package: an import goes down only, and workflows stay light and deterministic."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "turnlane"

HEAVY = ("sqlalchemy", "sqlmodel", "alembic", "openai", "anthropic", "httpx", "turnlane.store", "turnlane.activities")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter of the suite, afresh, in the root of the project."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


def test_imports_go_down_the_rooms_only() -> None:
    lint = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"

    done = run("-c", lint)

    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["turnlane.workflows.lane", "turnlane.records.mutations"])
def test_the_lane_and_its_vocabulary_import_nothing_heavy(module: str) -> None:
    look = f"import sys, {module}; print(sorted(set(sys.modules) & set({HEAVY!r})))"

    done = run("-c", look)

    assert ("[]\n", 0) == (done.stdout, done.returncode), done.stderr


@pytest.mark.parametrize("module", ["turnlane.client", "turnlane.store.sql", "turnlane.agent"])
def test_only_a_worker_knows_the_provider_sdks(module: str) -> None:
    look = f"import sys, {module}; print(sorted(set(sys.modules) & {{'openai', 'anthropic'}}))"

    done = run("-c", look)

    assert ("[]\n", 0) == (done.stdout, done.returncode), done.stderr


@pytest.mark.parametrize("door", ["__init__.py", "workflows/__init__.py", "records/__init__.py"])
def test_a_doorway_that_the_sandbox_runs_holds_a_docstring_only(door: str) -> None:
    body = ast.parse((PACKAGE / door).read_text(encoding="utf-8")).body

    assert [ast.Expr] == [type(statement) for statement in body]


def test_the_pure_modules_of_the_lane_do_not_know_temporal() -> None:
    look = "import sys, turnlane.workflows.reducer, turnlane.workflows.ending; print('temporalio' in sys.modules)"

    done = run("-c", look)

    assert ("False\n", 0) == (done.stdout, done.returncode), done.stderr
