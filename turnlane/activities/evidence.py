"""Evidence: what the ledger keeps of a model call. Identities, counts and digests, never what was said."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime

from turnlane.activities.beginnings import digest_of
from turnlane.activities.providers.base import Finish
from turnlane.agent.models import Model
from turnlane.records.base import JsonObject, derived_id
from turnlane.records.errors import ConversationPurgedError
from turnlane.records.ledger import LedgerKind
from turnlane.records.prompt import Prompt
from turnlane.records.steps import Fence
from turnlane.records.turns import ContextFigures
from turnlane.records.usage import Usage
from turnlane.store.payloads import StepFinish
from turnlane.store.protocol import Store


@dataclass(frozen=True)
class Spent:
    """What one attempt spent: the figures as we read them, and the provider's own numbers."""

    usage: Usage | None = None
    raw: JsonObject | None = None


NOTHING = Spent()
"""Nothing was reported."""


def request_evidence(fence: Fence, model: Model, prompt: Prompt, context: ContextFigures | None = None) -> JsonObject:
    """Which model is called for which attempt, with how many messages, and the digest of all that is sent.

    `context` are the figures of the run's budget, if it has one.
    """
    budget: JsonObject = {} if context is None else {"context": context.evidence}
    return budget | {
        "run_id": fence.run_id,
        "token": fence.token,
        "step": fence.step,
        "attempt": fence.attempt,
        "provider": model.reported_provider,
        "model": model.name,
        "messages": len(prompt.messages),
        "body_sha256": _digest(fence.conversation_id, prompt),
    }


def _digest(conversation_id: str, prompt: Prompt) -> str:
    """The digest of all that a prompt sends; the ids of records are for us alone."""
    digest = digest_of(conversation_id, prompt.messages)
    digest.update(prompt.model_dump_json(exclude={"messages"}).encode())
    return digest.hexdigest()


def response_evidence(
    fence: Fence, model: Model, finish: Finish | None, response_id: str | None, spent: Spent
) -> JsonObject:
    """Which response came, from which model, why it ended, and what it spent; `finish` is None if it was cut short."""
    return {
        "run_id": fence.run_id,
        "token": fence.token,
        "step": fence.step,
        "attempt": fence.attempt,
        "finish": finish.reason.value if finish else None,
        **({"code": finish.code} if finish is not None and finish.code is not None else {}),
        "response": {
            "id": (finish.response_id if finish else None) or response_id,
            "provider": (finish.provider if finish else None) or model.reported_provider,
            "model": finish.model if finish else None,
        },
        "usage": None if spent.usage is None else spent.usage.model_dump(mode="json", exclude_none=True),
        "raw_usage": spent.raw,
    }


async def keep_late_evidence(store: Store, finish: StepFinish, now: datetime) -> None:
    """Keep what an attempt came to whose run is another's by now: it was paid for, and stands in the ledger only."""
    fence = finish.fence
    key = derived_id("late", fence.run_id, str(fence.token), str(fence.step), str(fence.attempt))
    evidence = {**finish.evidence, "late": True}
    with contextlib.suppress(ConversationPurgedError):
        await store.append_event(fence.conversation_id, LedgerKind.PROVIDER_RESPONSE, evidence, now, key=key)
