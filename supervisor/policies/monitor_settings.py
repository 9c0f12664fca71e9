"""Limits that the monitor of a session applies: budgets, loops, signs of life, errors of the model."""

from __future__ import annotations

import msgspec

from supervisor.policies.budgets import Budget
from supervisor.policies.liveness import Liveness
from supervisor.policies.loop_detection import LoopLimits
from supervisor.policies.model_errors import ModelLimits


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that the monitor applies to each session and to each turn of the session."""

    loops: LoopLimits = LoopLimits()
    liveness: Liveness = Liveness()
    model: ModelLimits = ModelLimits()
    session: Budget = Budget()
    turn: Budget = Budget()
    hand_back: Budget = Budget(wall_s=60.0, tool_calls=10)
    """Budget of the turn in which the agent hands back its work; for tokens and money the default is a tenth of the
    limit."""
