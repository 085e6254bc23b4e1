"""Errors: one tree, one code a class, and a way back from the code to the class."""

from collections.abc import Iterator

import pytest

from turnlane.records import errors
from turnlane.records.errors import (
    CallerError,
    FinalError,
    QueueFullError,
    RetryableError,
    RunConflictError,
    TurnlaneError,
    error_for,
)


def tree(root: type[TurnlaneError]) -> Iterator[type[TurnlaneError]]:
    for child in root.__subclasses__():
        yield child
        yield from tree(child)


BRANCHES = {CallerError, RetryableError, FinalError}
KINDS = sorted({kind for kind in tree(TurnlaneError) if kind.__module__ == errors.__name__} - BRANCHES, key=str)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_comes_back_from_its_code(kind: type[TurnlaneError]) -> None:
    details = {"conversation_id": "c", "limit": 3, "message": "m", "self": "s"}
    error = error_for(kind.code, "what happened", details)

    assert kind is type(error)
    assert ("what happened", "what happened", details) == (error.message, str(error), error.details)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_stands_in_one_branch_and_is_retryable_there_only(kind: type[TurnlaneError]) -> None:
    (branch,) = [branch for branch in BRANCHES if issubclass(kind, branch)]

    assert (branch is RetryableError) is kind.retryable
    assert kind.__name__.endswith("Error") and kind.__doc__


def test_no_two_errors_share_a_code() -> None:
    codes = [kind.code for kind in KINDS]

    assert len(codes) == len(set(codes))
    assert TurnlaneError.code not in codes


def test_the_tree_is_drawn_at_its_head() -> None:
    drawn = errors.__doc__ or ""

    assert [] == [kind.__name__ for kind in KINDS if kind.__name__ not in drawn]


def test_an_unknown_code_is_a_plain_error_that_nobody_retries() -> None:
    error = error_for("FROM_A_NEWER_RELEASE", "what happened")

    assert (TurnlaneError, False, {}) == (type(error), error.retryable, error.details)


def test_an_error_carries_its_facts_by_name() -> None:
    error = RunConflictError("the run moved on", head_version=7, run_revision=3)

    assert {"head_version": 7, "run_revision": 3} == error.details
    assert QueueFullError("full").retryable
