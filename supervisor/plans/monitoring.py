"""Monitoring of sessions, as a plan writes it: budgets, loops, model errors and liveness.

The defaults are those of the runtime's classes whose values these models make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from pydantic import Field, Strict

from supervisor.lifecycles.types import ModelProblem
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import Amount, Count, Duration, Model, Seconds, Several, Text
from supervisor.policies.budgets import Budget
from supervisor.policies.liveness import Liveness
from supervisor.policies.loop_detection import LoopLimits
from supervisor.policies.model_errors import ModelLimits
from supervisor.ports.notices import NoticeKind, NoticeTarget

_LOOPS, _LIVENESS, _TROUBLE = LoopLimits(), Liveness(), ModelLimits()

Dollars = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]


class BudgetConfig(Model):
    """Budget of one scope, including everything below it; a field that is not given is not limited there."""

    tokens: Count | None = None
    cost_usd: Dollars | None = None
    turns: Count | None = None
    tool_calls: Count | None = None
    wall_s: Duration | None = None

    def value(self) -> Budget:
        return msgspec.convert(self.model_dump(), Budget)


class HandBackConfig(Model):
    """Budget of the turn in which a session hands back its work after its own budget is spent."""

    wall_s: Duration = 60.0
    tool_calls: Count = 10
    tokens: Count | None = None
    cost_usd: Dollars | None = None

    def value(self) -> Budget:
        return msgspec.convert(self.model_dump(), Budget)


class LoopsConfig(Model):
    """Number of identical calls and identical edits in a row with nothing new in between; 0 is no limit."""

    same_call_max: Amount = _LOOPS.same_call_max
    same_edit_max: Amount = _LOOPS.same_edit_max

    def value(self) -> LoopLimits:
        return msgspec.convert(self.model_dump(), LoopLimits)


class ModelErrorsConfig(Model):
    """Failures of an agent's model in a row, and requests without any effect, before the turn is ended; 0 is no limit.

    A problem listed in *at_once* ends the turn the first time. Requests are counted if the agent reports them.
    """

    retries_max: Amount = _TROUBLE.retries_max
    at_once: Several[ModelProblem] = _TROUBLE.at_once
    fruitless_max: Amount = _TROUBLE.fruitless_max
    requests_max: Amount = _TROUBLE.requests_max
    within_s: Duration = _TROUBLE.within_s

    def value(self) -> ModelLimits:
        return msgspec.convert(self.model_dump(), ModelLimits)


class StallConfig(Model):
    """Snapshots in a row without a sign of life after which an agent is woken up, asked to stop, and killed."""

    wake: Count = _LIVENESS.default.wake
    stop: Count = _LIVENESS.default.stop
    kill: Count = _LIVENESS.default.kill

    def problems(self) -> Iterator[Problem]:
        if not self.wake < self.stop < self.kill:
            yield (), f"wake {self.wake}, stop {self.stop}, kill {self.kill}: give each more than the one before"


class LargeStallConfig(StallConfig):
    """Stall limits of large tasks."""

    wake: Count = _LIVENESS.large.wake
    stop: Count = _LIVENESS.large.stop
    kill: Count = _LIVENESS.large.kill


class TestsStallConfig(StallConfig):
    """Stall limits while tests may run."""

    wake: Count = _LIVENESS.tests.wake
    stop: Count = _LIVENESS.tests.stop
    kill: Count = _LIVENESS.tests.kill


class LivenessConfig(Model):
    """Seconds between liveness snapshots (0 for none), and the stall limits."""

    snapshot_s: Seconds = _LIVENESS.snapshot_s
    default: StallConfig = StallConfig()
    large: LargeStallConfig = LargeStallConfig()
    tests: TestsStallConfig = TestsStallConfig()

    def value(self) -> Liveness:
        return msgspec.convert(self.model_dump(), Liveness)


class NotifyConfig(Model):
    """Receiver of notices, a command or a web address. *kinds* are the kinds of notices that it gets.

    The *command* gets each notice as one line of JSON on its standard input, and has accepted it by exit status 0. To
    the *url* the JSON is posted with *headers*; it has accepted the notice by a status below 400.
    """

    kinds: Several[NoticeKind] = tuple(NoticeKind)
    command: Several[Text] = ()
    url: Text = ""
    headers: Mapping[Text, Text] = {}

    def problems(self) -> Iterator[Problem]:
        if bool(self.command) == bool(self.url):
            yield ("command",), "give either a command or a url, which gets the notices"
        parts = urlsplit(self.url)
        if self.url and not (parts.scheme in ("http", "https") and parts.netloc):
            yield ("url",), f"{self.url!r} is no web address; give one that begins with https:// or http://"
        if self.headers and not self.url:
            yield ("headers",), "are for a url only; leave them out"

    def value(self) -> NoticeTarget:
        headers = tuple(self.headers.items())
        return NoticeTarget(frozenset(self.kinds), command=tuple(self.command), url=self.url, headers=headers)
