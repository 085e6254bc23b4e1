"""Every error turnlane raises, as one tree, and its wire form.

    TurnlaneError
    ├── CallerError            the call is wrong; change it
    │   ├── InvalidInputError · InputTooLargeError · UnknownAgentError · AgentMismatchError
    │   ├── IdempotencyConflictError · RecordIdCollisionError
    │   ├── ConversationPurgedError · RunNotFoundError · RunConflictError · ConversationActiveError
    │   ├── ApprovalNotPendingError · ApprovalExpiredError · ApprovalRefusedError · ApprovalDecidedError
    │   ├── PayloadNotFoundError
    │   ├── ConversationNotFoundError · ConversationExistsError · ArchiveInvalidError · BranchRefusedError
    │   └── FileRefusedError · ModelRefusedError · NoCompactionError · StoreRequiredError
    ├── RetryableError         the call is right; make it again with the same key
    │   ├── QueueFullError · StoreUnavailableError · LaneSupersededError · LaneClosingError
    │   └── WorkersUnavailableError · TemporalUnavailableError
    └── FinalError             making the call again cannot help
        ├── StoreSchemaError · StoreIntegrityError · StaleFenceError · StackError
        ├── TemporalRefusedError
        ├── BudgetExceededError · BudgetUnenforceableError · PayloadUnreadableError
        └── PolicyFailedError · PreflightFailedError · StaleModelsError · RunFailedError

Every class has a `code`, which travels (as the type of a Temporal failure, in a reply, on the CLI);
`error_for` turns a code back into its class. Messages carry ids and codes, never content.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TurnlaneError(Exception):
    """The root. `code` names the kind, `retryable` says whether the same call may help, `details` are facts."""

    code: ClassVar[str] = "TURNLANE"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details


class CallerError(TurnlaneError):
    """The call is wrong; the same call will be refused again."""


class RetryableError(TurnlaneError):
    """The call is right and may be made again, with the same idempotency key."""

    retryable = True


class FinalError(TurnlaneError):
    """Nothing a retry could change."""


class InvalidInputError(CallerError):
    """The input does not fit the record or the agent's declared shapes. `details['fields']` are the places:
    the path of each, and behind a colon what is wrong there where the message does not say."""

    code = "INVALID_INPUT"


class InputTooLargeError(CallerError):
    """The input is over a limit; `details` has `limit` and `size` in bytes."""

    code = "INPUT_TOO_LARGE"


class FileRefusedError(CallerError):
    """A file cannot be taken.

    `details['reason']` is `empty`, `type`, `content`, `size`, `pixels`, `count` or `missing`.
    """

    code = "FILE_REFUSED"


class UnknownAgentError(CallerError):
    """No worker on this task queue serves the agent."""

    code = "UNKNOWN_AGENT"


class AgentMismatchError(CallerError):
    """The conversation was started with another agent or tenant; both are fixed by its first admission."""

    code = "AGENT_MISMATCH"


class IdempotencyConflictError(CallerError):
    """The key was used before, for other content."""

    code = "IDEMPOTENCY_CONFLICT"


class RecordIdCollisionError(CallerError):
    """A proposed record id is already in use in this conversation."""

    code = "RECORD_ID_COLLISION"


class ConversationPurgedError(CallerError):
    """The conversation was purged; its id is reserved for ever."""

    code = "CONVERSATION_PURGED"


class ConversationNotFoundError(CallerError):
    """There is no such conversation, or it is another tenant's."""

    code = "CONVERSATION_NOT_FOUND"


class ConversationExistsError(CallerError):
    """There is something under the conversation's id already: records, a ledger, or a lane that was opened."""

    code = "CONVERSATION_EXISTS"


class ArchiveInvalidError(CallerError):
    """The bytes are not an archive of this release, or it does not agree with itself. Nothing was written."""

    code = "ARCHIVE_INVALID"


class BranchRefusedError(CallerError):
    """A conversation cannot be copied as it is. Nothing was written.

    `details['reason']` is `opaque-reference`: the application's own data names a record of the source.
    """

    code = "BRANCH_REFUSED"


class RunNotFoundError(CallerError):
    """The conversation has no such run."""

    code = "RUN_NOT_FOUND"


class RunConflictError(CallerError):
    """The run is not in the state the call needs; `details` has `head_version` and `run_revision`."""

    code = "RUN_CONFLICT"


class ConversationActiveError(CallerError):
    """The conversation still has active runs; `details['run_ids']` names them."""

    code = "CONVERSATION_ACTIVE"


class NoCompactionError(CallerError):
    """The conversation's agent has no compaction."""

    code = "NO_COMPACTION"


class ApprovalNotPendingError(CallerError):
    """The conversation has no approval of this id to answer: it is missing, stale or already answered."""

    code = "APPROVAL_NOT_PENDING"


class ApprovalExpiredError(CallerError):
    """The approval was not answered in time; the call was not made."""

    code = "APPROVAL_EXPIRED"


class ApprovalRefusedError(CallerError):
    """The agent does not let this responder answer. The approval is still pending."""

    code = "APPROVAL_REFUSED"


class ApprovalDecidedError(CallerError):
    """Another answer came first; `details['decision']` is that one: `approved` or `denied`."""

    code = "APPROVAL_DECIDED"


class QueueFullError(RetryableError):
    """The lane's queue is at its limit. Nothing was admitted."""

    code = "QUEUE_FULL"


class StoreUnavailableError(RetryableError):
    """The store did not answer: it is down, locked or out of reach."""

    code = "STORE_UNAVAILABLE"


class LaneSupersededError(RetryableError):
    """Another incarnation of the lane owns the conversation; this one wrote nothing more."""

    code = "LANE_SUPERSEDED"


class LaneClosingError(RetryableError):
    """The lane was closing when the call arrived; the next call reaches its successor."""

    code = "LANE_CLOSING"


class WorkersUnavailableError(RetryableError):
    """No worker answered in time."""

    code = "WORKERS_UNAVAILABLE"


class TemporalUnavailableError(RetryableError):
    """Temporal did not answer, or cannot just now. `details['status']` is its status, if it gave one."""

    code = "TEMPORAL_UNAVAILABLE"


class TemporalRefusedError(FinalError):
    """Temporal refused the call: a namespace, a permission or an argument is wrong. `details['status']` says which."""

    code = "TEMPORAL_REFUSED"


class StoreSchemaError(FinalError):
    """The store holds a schema this release does not know."""

    code = "STORE_SCHEMA"


class StoreIntegrityError(FinalError):
    """A write would break an invariant of the records; nothing was written."""

    code = "STORE_INTEGRITY"


class StaleFenceError(FinalError):
    """The writer's fence is stale. `details['reason']` is `stale-run` or `run-interrupted`."""

    code = "STALE_FENCE"


class StackError(FinalError):
    """The development stack cannot start; the message says what to do."""

    code = "STACK"


class PolicyFailedError(FinalError):
    """The agent's policy function raised, or named no policy. Nothing was admitted."""

    code = "POLICY_FAILED"


class PayloadNotFoundError(CallerError):
    """The conversation has no payload under this id."""

    code = "PAYLOAD_NOT_FOUND"


class StoreRequiredError(CallerError):
    """The client was made without a store, and the call reads content."""

    code = "STORE_REQUIRED"


class ModelRefusedError(CallerError):
    """The model cannot be used for this. `details['reason']` is `unknown-model`, `unavailable`,
    `missing-capability` (which ones is in `fields`) or `unknown-provider`."""

    code = "MODEL_REFUSED"


class PreflightFailedError(FinalError):
    """The agent's own preflight refused the input, or failed. Nothing was admitted."""

    code = "PREFLIGHT_FAILED"


class StaleModelsError(FinalError):
    """What is known of models was observed too long ago, or in the future."""

    code = "STALE_MODELS"


class BudgetExceededError(FinalError):
    """The conversation spent what its agent's budget allows. Nothing was admitted."""

    code = "BUDGET_EXCEEDED"


class BudgetUnenforceableError(FinalError):
    """The agent has a budget, and nobody knows what the conversation spent. Nothing was admitted."""

    code = "BUDGET_UNENFORCEABLE"


class PayloadUnreadableError(FinalError):
    """An encrypted payload does not open: another key, or it was changed or moved. `details['artifact_id']`."""

    code = "PAYLOAD_UNREADABLE"


class RunFailedError(FinalError):
    """A result was asked of a run that did not complete."""

    code = "RUN_FAILED"


def _concrete(root: type[TurnlaneError]) -> dict[str, type[TurnlaneError]]:
    found = {root.code: root} if "code" in vars(root) else {}
    for child in root.__subclasses__():
        found |= _concrete(child)
    return found


def error_for(code: str, message: str, details: dict[str, Any] | None = None) -> TurnlaneError:
    """Return the error a code stands for; an unknown code gives a plain TurnlaneError."""
    kind = _concrete(TurnlaneError).get(code, TurnlaneError)
    return kind(message, **(details or {}))
