"""Settings of a supervisor, as a plan writes them: limits, policies, retention and recovery.

The models are used only at the edge; their ``value()`` methods make the values of the runtime, which own the defaults.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import Field, Strict

from supervisor.lifecycles.session import SessionLimits
from supervisor.lifecycles.types import AbortPolicy, StageBudgets
from supervisor.plans.access import AccessConfig
from supervisor.plans.fields import (
    OR_VALUE,
    Count,
    Flag,
    Milliseconds,
    Model,
    Name,
    Seconds,
    Several,
    Text,
    plugin_name,
    value_of,
)
from supervisor.plans.monitoring import (
    BudgetConfig,
    HandBackConfig,
    LivenessConfig,
    LoopsConfig,
    ModelErrorsConfig,
    NotifyConfig,
)
from supervisor.policies.budgets import Budget
from supervisor.policies.monitor_settings import MonitorSettings
from supervisor.ports import Retention
from supervisor.ports.notices import NoticeTarget

_LADDER, _LIMITS = StageBudgets(), SessionLimits()


class StageBudgetsConfig(Model):
    """Budget of each termination stage in seconds. ``request_s`` is also the time in which an agent must report the end
    of a tool call whose processes were killed."""

    request_s: Seconds = _LADDER.request_s
    cancel_s: Seconds = _LADDER.cancel_s
    terminate_s: Seconds = _LADDER.terminate_s
    kill_s: Seconds = _LADDER.kill_s

    def value(self) -> StageBudgets:
        return msgspec.convert(self.model_dump(), StageBudgets)


class PolicyConfig(Model):
    """Levels that an abort may cross, and the budgets of the termination stages."""

    tool_to_sibling: Flag = False
    sibling_to_session: Flag = False
    ladder: Annotated[StageBudgetsConfig | StageBudgets, OR_VALUE] = StageBudgetsConfig()

    def value(self) -> AbortPolicy:
        return msgspec.convert(self.model_dump(), AbortPolicy)


class LimitsConfig(Model):
    """Limits of each session."""

    max_consecutive_errors: Count = _LIMITS.max_consecutive_errors
    max_total_errors: Count = _LIMITS.max_total_errors
    backoff_base_ms: Milliseconds = _LIMITS.backoff_base_ms
    backoff_cap_ms: Milliseconds = _LIMITS.backoff_cap_ms
    grace_s: Seconds = _LIMITS.grace_s
    steer_grace_s: Seconds = _LIMITS.steer_grace_s
    spawn_deadline_s: Seconds = _LIMITS.spawn_deadline_s
    turn_timeout_s: Seconds = _LIMITS.turn_timeout_s
    settle_s: Seconds = _LIMITS.settle_s
    stable_after_s: Seconds = _LIMITS.stable_after_s
    restarts_max: Count = _LIMITS.restarts_max
    restarts_within_s: Seconds = _LIMITS.restarts_within_s
    waiting_max: Count = _LIMITS.waiting_max
    stall_threshold_s: Seconds = _LIMITS.stall_threshold_s
    merging_stall_s: Seconds = _LIMITS.merging_stall_s

    def value(self) -> SessionLimits:
        return msgspec.convert(self.model_dump(), SessionLimits)


_KEPT = Retention()


class RetentionConfig(Model):
    """Ended entities that the journal keeps, and the seconds between moves of the rest to the archive; null is no
    limit."""

    keep_s: Seconds | None = _KEPT.keep_s
    records_max: Count | None = _KEPT.records_max
    every_s: Annotated[float, Strict(), Field(ge=1, allow_inf_nan=False)] = 3600.0

    def value(self) -> Retention:
        return Retention(keep_s=self.keep_s, records_max=self.records_max)


class RecoveryConfig(Model):
    """Policy for the work of a supervisor that died.

    ``sessions``: ``resume`` sessions whose conversation can be loaded again or that have none to lose, and stop the
    rest; ``restart`` the rest too, each in a new conversation with its prompt sent again; or ``stop`` all of them.
    ``orphans``: a task whose session is lost becomes ``open`` for another session at most ``max_retries`` times, or
    ``failed``, or ``done``.
    """

    sessions: Literal["resume", "restart", "stop"] = "resume"
    orphans: Literal["open", "failed", "done"] = "open"


class Settings(Model):
    """Settings of a supervisor: sessions at once, the time for a drain, limits of every session, and retention.

    With *workspace* ``worktree`` each root session works on a git branch of its own, and the work of a task is merged
    into *merge_into*, by default the branch that is checked out. *plugins* names the installed plug-ins to use, by
    default all. With *explain_retries* a prompt that is sent again tells why, and new findings against the result of a
    task give the task another claim. *notify* names who is told when a person is needed. With *pid_namespaces* each
    program gets a pid namespace of its own where the machine allows it; a change takes effect when the supervisor
    starts.
    """

    max_sessions: Count = 6
    drain_s: Seconds = 120.0
    policy: Annotated[PolicyConfig | AbortPolicy, OR_VALUE] = PolicyConfig()
    limits: LimitsConfig = LimitsConfig()
    workspace: Literal["directory", "worktree"] = "directory"
    merge_into: Text = ""
    retention: RetentionConfig = RetentionConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    access: AccessConfig | None = None
    plugins: Several[Annotated[Name, plugin_name("plugins")]] | None = None
    session_budget: Annotated[BudgetConfig | Budget, OR_VALUE] = BudgetConfig()
    turn_budget: Annotated[BudgetConfig | Budget, OR_VALUE] = BudgetConfig()
    hand_back: HandBackConfig = HandBackConfig()
    loops: LoopsConfig = LoopsConfig()
    model_trouble: ModelErrorsConfig = ModelErrorsConfig()
    liveness: LivenessConfig = LivenessConfig()
    explain_retries: Flag = True
    notify: Several[NotifyConfig] = ()
    pid_namespaces: Flag = False

    @property
    def abort_policy(self) -> AbortPolicy:
        """Levels that an abort may cross, and the budgets of the termination stages."""
        return value_of(self.policy)

    @property
    def notice_targets(self) -> tuple[NoticeTarget, ...]:
        """Receivers of notices."""
        return tuple(one.value() for one in self.notify)

    @property
    def monitor_settings(self) -> MonitorSettings:
        """Limits that the monitor of each session checks."""
        return MonitorSettings(
            loops=self.loops.value(),
            model=self.model_trouble.value(),
            liveness=self.liveness.value(),
            session=value_of(self.session_budget),
            turn=value_of(self.turn_budget),
            hand_back=self.hand_back.value(),
        )
