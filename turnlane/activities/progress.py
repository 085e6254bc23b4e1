"""Progress: what one attempt of a step has heard of its model by now, and what it spent by that."""

from __future__ import annotations

from dataclasses import dataclass

from turnlane.activities.evidence import NOTHING, Spent
from turnlane.activities.providers.base import Finish
from turnlane.agent.agent import Agent
from turnlane.agent.models import Model
from turnlane.agent.pricing import unreported, with_cost
from turnlane.records.runs import Failure
from turnlane.records.usage import Usage


@dataclass(frozen=True)
class Account:
    """What an attempt spent: as it was told, and what its run is charged.

    That is None where the call was not made, or refused with a status before anything was answered.
    """

    spent: Spent
    charged: Usage | None


@dataclass
class Progress:
    """What one attempt has seen of the stream. `is_asked`: its provider was called."""

    since_checkpoint: int = 0
    finish: Finish | None = None
    early: Spent = NOTHING
    response_id: str | None = None
    failure: Failure | None = None
    is_asked: bool = False
    was_aborted: bool = False

    def account(self, agent: Agent, model: Model, *, is_silent: bool, is_refused: bool) -> Account:
        """What the attempt spent; `is_silent`: nothing of an answer came, `is_refused`: the call was forbidden."""
        finish = self.finish
        heard = Spent(finish.usage, finish.raw_usage) if finish and finish.usage else self.early
        prices = agent.price_list.of(model.name, finish.model if finish else None)
        usage = with_cost(heard.usage, prices)
        has_status = self.failure is not None and self.failure.status is not None
        is_unbilled = is_refused or (has_status and self.response_id is None and is_silent)
        unknown = None if is_unbilled else unreported(prices, is_whole=finish is not None)
        return Account(Spent(usage, heard.raw), usage or unknown)
