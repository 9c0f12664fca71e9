"""What sessions are watched for, as a person may write it: budgets, circles, and signs of life.

The defaults are those of the values that these models make.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from pydantic import Field, Strict

from supervisor.lifecycles.types import ModelProblem
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import Amount, Count, Duration, Model, Seconds
from supervisor.policies.budgets import Budget
from supervisor.policies.liveness import Liveness
from supervisor.policies.loop_detection import LoopLimits
from supervisor.policies.model_errors import ModelLimits

__all__ = ["BudgetConfig", "HandBackConfig", "LivenessConfig", "LoopsConfig", "ModelTroubleConfig", "StallConfig"]

_LOOPS, _LIVENESS, _TROUBLE = LoopLimits(), Liveness(), ModelLimits()

Dollars = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]


class BudgetConfig(Model):
    """What may be used in one place, and below it; what is not given is not bounded there."""

    tokens: Count | None = None
    cost_usd: Dollars | None = None
    turns: Count | None = None
    tool_calls: Count | None = None
    wall_s: Duration | None = None

    def value(self) -> Budget:
        return msgspec.convert(self.model_dump(), Budget)


class HandBackConfig(Model):
    """What the turn may use in which a session hands back what it has, once its budget is spent."""

    wall_s: Duration = 60.0
    tool_calls: Count = 10
    tokens: Count | None = None
    cost_usd: Dollars | None = None

    def value(self) -> Budget:
        return msgspec.convert(self.model_dump(), Budget)


class LoopsConfig(Model):
    """How often the same call, and the same edit, may be made with nothing new in between; 0: as often as one likes."""

    same_call_max: Amount = _LOOPS.same_call_max
    same_edit_max: Amount = _LOOPS.same_edit_max

    def value(self) -> LoopLimits:
        return msgspec.convert(self.model_dump(), LoopLimits)


class ModelTroubleConfig(Model):
    """How often in a row an agent's model may fail, or be asked in vain, before its turn is ended; 0: no bound.

    Problems *at_once* end it the first time. Requests are counted where the agent tells of them.
    """

    retries_max: Amount = _TROUBLE.retries_max
    at_once: tuple[ModelProblem, ...] = _TROUBLE.at_once
    fruitless_max: Amount = _TROUBLE.fruitless_max
    requests_max: Amount = _TROUBLE.requests_max
    within_s: Duration = _TROUBLE.within_s

    def value(self) -> ModelLimits:
        return msgspec.convert(self.model_dump(), ModelLimits)


class StallConfig(Model):
    """After how many snapshots in a row without a sign of life an agent is woken up, asked to stop, and ended."""

    wake: Count = _LIVENESS.default.wake
    stop: Count = _LIVENESS.default.stop
    kill: Count = _LIVENESS.default.kill

    def problems(self) -> Iterator[Problem]:
        if not self.wake < self.stop < self.kill:
            yield (), f"wake {self.wake}, stop {self.stop}, kill {self.kill}: give each more than the one before"


class LargeStallConfig(StallConfig):
    """The same for large tasks."""

    wake: Count = _LIVENESS.large.wake
    stop: Count = _LIVENESS.large.stop
    kill: Count = _LIVENESS.large.kill


class TestsStallConfig(StallConfig):
    """The same where tests may run."""

    wake: Count = _LIVENESS.tests.wake
    stop: Count = _LIVENESS.tests.stop
    kill: Count = _LIVENESS.tests.kill


class LivenessConfig(Model):
    """How often it is looked whether an agent gives signs of life (0: never), and how long it may give none."""

    snapshot_s: Seconds = _LIVENESS.snapshot_s
    default: StallConfig = StallConfig()
    large: LargeStallConfig = LargeStallConfig()
    tests: TestsStallConfig = TestsStallConfig()

    def value(self) -> Liveness:
        return msgspec.convert(self.model_dump(), Liveness)
