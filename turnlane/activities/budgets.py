"""Budgets kept: asked before an input is admitted, before each model call, and behind each round of tool calls."""

from __future__ import annotations

import logging

from turnlane.activities.clock import utc_now
from turnlane.agent.agent import Agent
from turnlane.agent.budgets import Standing, conversation_standing, is_unenforceable, stop_name
from turnlane.records.base import JsonObject
from turnlane.records.errors import BudgetExceededError, BudgetUnenforceableError
from turnlane.records.ledger import LedgerKind
from turnlane.store.protocol import Store

logger = logging.getLogger(__name__)


async def check_budget(store: Store, agent: Agent, conversation_id: str) -> None:
    """Refuse an input that its conversation cannot pay for: it has no budget left, or nobody knows whether it has and
    the agent refuses then."""
    limits = agent.spend_limits
    if limits is None or not limits.of_conversation:
        return
    standing = conversation_standing(limits, await store.conversation_spend(conversation_id))
    if standing is Standing.REACHED:
        raise BudgetExceededError("the conversation's budget is spent", conversation_id=conversation_id)
    if standing is Standing.UNKNOWN and limits.on_unknown == "refuse":
        raise BudgetUnenforceableError(
            "cannot enforce the conversation's budget: nobody knows what was spent", conversation_id=conversation_id
        )


async def budget_stop(store: Store, agent: Agent, conversation_id: str, run_id: str) -> str | None:
    """Return the name of the policy under which the agent's budget stops a run, or None to go on.

    A limit that cannot be enforced, and is only to be warned of, is told once a run: in the log and the ledger.
    Raises `StoreUnavailableError`, and may be asked again: how a store is waited for is the caller's to say.
    """
    limits = agent.spend_limits
    if limits is None:
        return None
    spend = await store.conversation_spend(conversation_id)
    name = stop_name(limits, spend)
    if name is None and is_unenforceable(limits, spend):
        logger.warning("run %s: its budget cannot be enforced, what was spent is not known", run_id)
        payload: JsonObject = {"run_id": run_id, "missing": spend.missing}
        kind, now = LedgerKind.BUDGET_UNENFORCEABLE, utc_now()
        await store.append_event(conversation_id, kind, payload, now, key=run_id)
    return name
