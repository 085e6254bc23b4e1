"""How an answer finished: what it means that a provider cut it, withdrew it, or ended it in error."""

from __future__ import annotations

from turnlane.activities.draft import Draft
from turnlane.activities.providers.base import Finish, ProviderFailure
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import RUNS_CALLS, FinishReason

_CLASSES = {
    FinishReason.LENGTH: FailureClass.TRUNCATED,
    FinishReason.CONTENT_FILTER: FailureClass.REFUSED,
}

TRUNCATED = ("OUTPUT_TRUNCATED", "not run: the answer reached its output limit within this step's calls")
REFUSED = ("ANSWER_REFUSED", "not run: the provider refused the answer that this call belongs to")
UNFINISHED = ("NOT_RUN", "not run: the answer ended before its tool calls could be run")
_WITHHELD = {FinishReason.LENGTH: TRUNCATED, FinishReason.CONTENT_FILTER: REFUSED}


def settle_draft(draft: Draft, finish: Finish, provider: str) -> Failure | None:
    """Give the draft of a finished answer its last form, and return why it is not whole, if it is not.

    Of an answer that was cut or refused no call will run: each has an error result that says so. What a refused
    answer said becomes a refusal part, which no model is shown again. Raises ProviderFailure for an answer that
    the provider ended in error.
    """
    if finish.reason is FinishReason.ERROR:
        code = finish.code or "finish_error"
        raise ProviderFailure(
            Failure(failure_class=FailureClass.SERVER_ERROR, code=code, retryable=True, provider=provider),
            finish.usage,
        )
    if finish.reason not in RUNS_CALLS:
        draft.withhold_calls(*_WITHHELD.get(finish.reason, UNFINISHED))
    failure = failure_of(finish.reason, finish.code, provider)
    if failure is not None and failure.failure_class is FailureClass.REFUSED:
        draft.refuse(finish.code)
    return failure


def failure_of(finish: FinishReason, code: str | None, provider: str | None) -> Failure | None:
    """Why an answer that finished is not whole, if it is not."""
    failure_class = _CLASSES.get(finish)
    return None if failure_class is None else Failure(failure_class=failure_class, code=code, provider=provider)
