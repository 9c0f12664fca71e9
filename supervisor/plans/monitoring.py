"""Monitoring of sessions, as a plan writes it: budgets, loops, model errors and liveness.

The defaults are those of the runtime's classes whose values these models make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from pydantic import Field, Strict

from supervisor.lifecycles.types import ModelProblem
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import Amount, Count, Duration, Flag, Model, Seconds, Several, Text
from supervisor.policies.budgets import Budget
from supervisor.policies.liveness import Liveness
from supervisor.policies.loop_detection import LoopLimits
from supervisor.policies.model_errors import ModelLimits
from supervisor.ports.notices import NoticeKind, NoticeTarget

_LOOPS, _LIVENESS, _TROUBLE = LoopLimits(), Liveness(), ModelLimits()

Dollars = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
ChecksToWake = Annotated[Count, Field(description="Checks without progress until the agent gets a message.")]
ChecksToStop = Annotated[
    Count,
    Field(description="Checks without progress until the turn is interrupted, and the agent asked why; above wake."),
]
ChecksToKill = Annotated[Count, Field(description="Checks without progress until the session is aborted; above stop.")]


class BudgetConfig(Model):
    """Budget of one scope, including everything below it; a field that is not given is not limited there."""

    tokens: Count | None = Field(
        default=None, description="Number of tokens, input and output together, as reported by the agents."
    )
    cost_usd: Dollars | None = Field(default=None, description="US dollars, as reported by the agents.")
    turns: Count | None = Field(default=None, description="Number of turns; a turn that is tried again counts again.")
    tool_calls: Count | None = Field(default=None, description="Number of tool calls.")
    wall_s: Duration | None = Field(
        default=None, description="Seconds of turns, summed: two turns at once use two seconds per second."
    )

    def value(self) -> Budget:
        return msgspec.convert(self.model_dump(), Budget)


class HandBackConfig(Model):
    """Budget of the turn in which a session hands back its work after its own budget is spent."""

    wall_s: Duration = Field(default=60.0, description="Seconds that the turn may take.")
    tool_calls: Count = Field(default=10, description="Number of tool calls in the turn.")
    tokens: Count | None = Field(
        default=None, description="Number of tokens in the turn; by default a tenth of the narrowest limit."
    )
    cost_usd: Dollars | None = Field(
        default=None, description="US dollars in the turn; by default a tenth of the narrowest limit."
    )

    def value(self) -> Budget:
        return msgspec.convert(self.model_dump(), Budget)


class LoopsConfig(Model):
    """Loops: the number of identical calls and identical edits with nothing new in between; 0 is no limit."""

    same_call_max: Amount = Field(
        default=_LOOPS.same_call_max, description="Number of times that the same tool call may repeat; 0: no limit."
    )
    same_edit_max: Amount = Field(
        default=_LOOPS.same_edit_max, description="Number of times that the same edit may repeat; 0: no limit."
    )

    def value(self) -> LoopLimits:
        return msgspec.convert(self.model_dump(), LoopLimits)


class ModelErrorsConfig(Model):
    """Failures of an agent's model in a row, and requests without any effect, before the turn is ended; 0 is no limit.
    Requests are counted if the agent reports them."""

    retries_max: Amount = Field(
        default=_TROUBLE.retries_max,
        description="Failures of the model in a row, retries by the agent and by the supervisor together; 0: no limit.",
    )
    at_once: Several[ModelProblem] = Field(
        default=_TROUBLE.at_once, description="Problems that end the turn the first time."
    )
    fruitless_max: Amount = Field(
        default=_TROUBLE.fruitless_max,
        description="Number of requests to the model with nothing new in between; 0: no limit.",
    )
    requests_max: Amount = Field(
        default=_TROUBLE.requests_max, description="Number of requests to the model within within_s; 0: no limit."
    )
    within_s: Duration = Field(
        default=_TROUBLE.within_s, description="Seconds of the window in which requests_max counts."
    )

    def value(self) -> ModelLimits:
        return msgspec.convert(self.model_dump(), ModelLimits)


class StallConfig(Model):
    """Snapshots in a row without a sign of life after which an agent is woken up, asked to stop, and killed."""

    wake: ChecksToWake = _LIVENESS.default.wake
    stop: ChecksToStop = _LIVENESS.default.stop
    kill: ChecksToKill = _LIVENESS.default.kill

    def problems(self) -> Iterator[Problem]:
        if not self.wake < self.stop < self.kill:
            yield (), f"wake {self.wake}, stop {self.stop}, kill {self.kill}: give each more than the one before"


class LargeStallConfig(StallConfig):
    """Stall limits of large tasks."""

    wake: ChecksToWake = _LIVENESS.large.wake
    stop: ChecksToStop = _LIVENESS.large.stop
    kill: ChecksToKill = _LIVENESS.large.kill


class TestsStallConfig(StallConfig):
    """Stall limits while tests may run."""

    wake: ChecksToWake = _LIVENESS.tests.wake
    stop: ChecksToStop = _LIVENESS.tests.stop
    kill: ChecksToKill = _LIVENESS.tests.kill


class LivenessConfig(Model):
    """Seconds between liveness snapshots (0 for none), the stall limits, and the limit for idle agents."""

    snapshot_s: Seconds = Field(default=_LIVENESS.snapshot_s, description="Seconds between two checks; 0: no check.")
    idle_s: Seconds = Field(
        default=_LIVENESS.idle_s,
        description="Seconds without a prompt after which an agent is ended, if its conversation can be continued by "
        "another process; 0: never.",
    )
    default: StallConfig = Field(
        default=StallConfig(), description="Stall limits where neither large nor tests applies."
    )
    large: LargeStallConfig = Field(
        default=LargeStallConfig(), description="Stall limits of tasks with scope: large or xl."
    )
    tests: TestsStallConfig = Field(
        default=TestsStallConfig(), description="Stall limits while a tool call is open, which may be running tests."
    )

    def value(self) -> Liveness:
        return msgspec.convert(self.model_dump(), Liveness)


class TelemetryConfig(Model):
    """Export of figures, spans and lines of JSON about the work; by default nothing is exported."""

    metrics: Flag = Field(
        default=False, description="Whether figures are counted for Prometheus, at /metrics of the HTTP API."
    )
    traces: Flag = Field(
        default=False, description="Whether spans are made by the API of OpenTelemetry, for the SDK of the process."
    )
    files: Flag = Field(
        default=False,
        description="Whether metrics/ and traces/ of the state directory get a line of JSON for each session, task and "
        "abort that ends.",
    )
    genai: Literal["v0.1.0", "v1.41"] = Field(
        default="v0.1.0", description="Version of the GenAI conventions whose names the spans have."
    )

    @property
    def is_on(self) -> bool:
        """Whether anything is exported."""
        return self.metrics or self.traces or self.files


class NotifyConfig(Model):
    """Receiver of notices: a command or a web address."""

    kinds: Several[NoticeKind] = Field(
        default=tuple(NoticeKind), description="Kinds of notices that the receiver gets; by default all."
    )
    command: Several[Text] = Field(
        default=(),
        description="Program and its arguments, as a list, which gets each notice as one line of JSON on its standard "
        "input, and accepts the notice with exit status 0; give this or url.",
    )
    url: Text = Field(
        default="",
        description="Web address to which each notice is posted as JSON, and which accepts the notice with a status "
        "below 400; give this or command.",
    )
    headers: Mapping[Text, Text] = Field(default={}, description="HTTP headers that are sent to url.")

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
