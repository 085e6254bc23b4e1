"""Every kind of turn that a release must be able to replay, each played once from beginning to end."""

from __future__ import annotations

from tests.replay import turns_of_callers, turns_of_lanes, turns_of_models
from tests.replay.recipes import TURNS

# Each module adds its kinds to the list when it is imported.
__all__ = ["TURNS", "turns_of_callers", "turns_of_lanes", "turns_of_models"]
