"""Settings of a supervisor, as a plan writes them: limits, policies, retention and recovery.

The models are used only at the edge; their ``value()`` methods make the values of the runtime, which own the defaults.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import AfterValidator, Field, Strict

from supervisor.lifecycles.types import AbortPolicy, SessionLimits, StageBudgets
from supervisor.plans.access import AccessConfig
from supervisor.plans.fields import (
    OR_VALUE,
    Count,
    Duration,
    Flag,
    Milliseconds,
    Model,
    Name,
    OwnedPath,
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
    TelemetryConfig,
)
from supervisor.policies.budgets import Budget
from supervisor.policies.monitor_settings import MonitorSettings
from supervisor.ports import Retention, WorktreeSetup
from supervisor.ports.notices import NoticeTarget

_LADDER, _LIMITS = StageBudgets(), SessionLimits()


class WorktreeConfig(Model):
    """Set-up of each new worktree, in this order: files of the commit, submodules, copies, command."""

    timeout_s: Duration = Field(
        default=WorktreeSetup().timeout_s,
        description="Seconds that each step may take: git's checkout, the submodules, each copy, and the command.",
    )
    submodules: Flag = Field(
        default=False, description="Whether submodules are checked out; by default their directories are empty."
    )
    copies: Several[OwnedPath] = Field(
        default=(),
        description="Files and directories that git ignores, such as .env, to copy from the user's checkout.",
    )
    setup: Text = Field(
        default="", description="Command for sh, run in the top directory of the worktree, such as npm ci."
    )

    def value(self, env: dict[str, str]) -> WorktreeSetup:
        """Return the set-up, whose command has the environment *env*."""
        return WorktreeSetup(
            timeout_s=self.timeout_s,
            submodules=self.submodules,
            copied=tuple(self.copies),
            command=self.setup,
            env=env,
        )


class StageBudgetsConfig(Model):
    """Budget of each termination stage in seconds."""

    request_s: Seconds = Field(
        default=_LADDER.request_s,
        description="Seconds in which the agent is asked to end, or to report the end of a tool call that was killed.",
    )
    cancel_s: Seconds = Field(
        default=_LADDER.cancel_s, description="Seconds that the target has to end after its cancel scope was cancelled."
    )
    terminate_s: Seconds = Field(
        default=_LADDER.terminate_s, description="Seconds that the processes have to end after SIGTERM."
    )
    kill_s: Seconds = Field(
        default=_LADDER.kill_s,
        description="Seconds that the processes have to end after SIGKILL; those that survive are reported.",
    )

    def value(self) -> StageBudgets:
        return msgspec.convert(self.model_dump(), StageBudgets)


def _author(text: str) -> str:
    name, _, address = text.partition(" <")
    is_known = name.strip() and address[-1:] == ">" and len(address) > 1
    is_known = is_known and not set(f"{name}{address[:-1]}") & set("<>\n\r") and not set(address) & set(" \t")
    if text and text != "user" and not is_known:
        raise ValueError(f"{text!r} is no author; give user, or for example 'Build Robot <robot@example.org>'")
    return text


class PolicyConfig(Model):
    """Levels that an abort may cross, and the budgets of the termination stages."""

    tool_to_sibling: Flag = Field(
        default=False, description="Whether the abort of a tool call also ends the siblings of its session."
    )
    sibling_to_session: Flag = Field(
        default=False, description="Whether an abort that reached the siblings also ends their parent session."
    )
    ladder: Annotated[StageBudgetsConfig | StageBudgets, OR_VALUE] = Field(
        default=StageBudgetsConfig(),
        description="Seconds for each termination stage: request, cancel, terminate and kill.",
    )

    def value(self) -> AbortPolicy:
        return msgspec.convert(self.model_dump(), AbortPolicy)


class LimitsConfig(Model):
    """Limits of each session."""

    max_consecutive_errors: Count = Field(
        default=_LIMITS.max_consecutive_errors,
        description="Failures in a row after which the session gives up; a start of its agent resets the count.",
    )
    max_total_errors: Count = Field(
        default=_LIMITS.max_total_errors, description="Failures in all after which the session gives up."
    )
    backoff_base_ms: Milliseconds = Field(
        default=_LIMITS.backoff_base_ms,
        description="Milliseconds of the pause before the second try; the pause doubles with each failure in a row.",
    )
    backoff_cap_ms: Milliseconds = Field(
        default=_LIMITS.backoff_cap_ms, description="Milliseconds of the longest pause before a try."
    )
    grace_s: Seconds = Field(
        default=_LIMITS.grace_s,
        description="Seconds that an interrupted agent has to end its turn before it is killed.",
    )
    steer_grace_s: Seconds = Field(
        default=_LIMITS.steer_grace_s,
        description="Seconds that an agent has to accept a message within its turn; then the turn is interrupted.",
    )
    spawn_deadline_s: Seconds = Field(
        default=_LIMITS.spawn_deadline_s,
        description="Seconds from the launch of an agent within which it must be ready.",
    )
    turn_timeout_s: Seconds = Field(
        default=_LIMITS.turn_timeout_s, description="Seconds that a turn may take, unless its task has a time-out."
    )
    settle_s: Seconds = Field(
        default=_LIMITS.settle_s,
        description="Seconds that processes of a task's turn may run on after it before they are ended.",
    )
    stable_after_s: Seconds = Field(
        default=_LIMITS.stable_after_s,
        description="Seconds that an agent must run before a failure no longer counts as in a row; 0: a start will do.",
    )
    restarts_max: Count = Field(
        default=_LIMITS.restarts_max,
        description="Failures of a started agent within restarts_within_s; at the next one the session gives up.",
    )
    restarts_within_s: Seconds = Field(
        default=_LIMITS.restarts_within_s, description="Seconds of the window in which restarts_max counts."
    )
    waiting_max: Count = Field(
        default=_LIMITS.waiting_max,
        description="Number of messages, and of prompts, that may wait for a session; one more is refused.",
    )
    stall_threshold_s: Seconds = Field(
        default=_LIMITS.stall_threshold_s, description="Seconds of silence after which an agent is shown as STALLED."
    )
    merging_stall_s: Seconds = Field(
        default=_LIMITS.merging_stall_s,
        description="Seconds of silence after which an agent that merges is shown as STALLED.",
    )

    def value(self) -> SessionLimits:
        return msgspec.convert(self.model_dump(), SessionLimits)


_KEPT = Retention()


class RetentionConfig(Model):
    """Ended entities that the journal keeps, and the seconds between moves of the rest to the archive; null is no
    limit."""

    keep_s: Seconds | None = Field(
        default=_KEPT.keep_s, description="Seconds that an ended entity stays in the journal; null: for ever."
    )
    records_max: Count | None = Field(
        default=_KEPT.records_max,
        description="Records above which the oldest ended entities leave the journal earlier; null: no limit.",
    )
    every_s: Annotated[float, Strict(), Field(ge=1, allow_inf_nan=False)] = Field(
        default=3600.0, description="Seconds between two compactions, at least 1; each moves records to the archive."
    )

    def value(self) -> Retention:
        return Retention(keep_s=self.keep_s, records_max=self.records_max)


class CommitsConfig(Model):
    """Commits that the supervisor makes in git worktrees, merges among them."""

    author: Annotated[Text, AfterValidator(_author)] = Field(
        default="",
        description="Author and committer: user, for the name that git is configured with, or NAME <EMAIL>; by default "
        "supervisor <supervisor@localhost>.",
    )
    sign: Flag = Field(default=False, description="Whether they are signed, as git is configured to.")


class RecoveryConfig(Model):
    """Policy for the work of a supervisor that died."""

    sessions: Literal["resume", "restart", "stop"] = Field(
        default="resume",
        description="Sessions that continue after a crash. resume: those that lose no conversation; restart: the "
        "others too, each in a new conversation that gets the prompt from the start; stop: none.",
    )
    orphans: Literal["open", "failed", "done"] = Field(
        default="open",
        description="State of a task whose session is lost in a crash: open for another session at most max_retries "
        "times, failed, or done.",
    )


class Settings(Model):
    """Settings of a supervisor: sessions at once, the time for a drain, limits of every session, and retention."""

    max_sessions: Count = Field(
        default=6, description="Number of tasks that are worked on at once; sub-agents do not count."
    )
    max_sessions_total: Count | None = Field(
        default=None, description="Largest number of tasks at work at once, in all plans of the supervisor together."
    )
    drain_s: Seconds = Field(
        default=120.0,
        description="Seconds that the turns under way have to end after the first request to stop.",
    )
    policy: Annotated[PolicyConfig | AbortPolicy, OR_VALUE] = Field(
        default=PolicyConfig(), description="Levels that an abort may cross, and the seconds of each termination stage."
    )
    limits: LimitsConfig = Field(
        default=LimitsConfig(),
        description="Limits of each session: failures, pauses, time-outs, and messages that wait.",
    )
    workspace: Literal["directory", "worktree"] = Field(
        default="directory",
        description="Place of the work. directory: agents work in the cwd of their entry; worktree: each root session "
        "works in a git worktree of its own, on a branch of its own, and the work of a task is merged.",
    )
    merge_into: Text = Field(
        default="",
        description="Branch that work is merged into with workspace: worktree; by default the one checked out.",
    )
    worktree: WorktreeConfig = Field(
        default=WorktreeConfig(),
        description="Set-up of each new worktree, with workspace: worktree: submodules, copies of files, a command.",
    )
    commits: CommitsConfig = Field(
        default=CommitsConfig(),
        description="Author and signature of the commits that the supervisor makes with workspace: worktree.",
    )
    retention: RetentionConfig = Field(
        default=RetentionConfig(),
        description="Time that ended entities stay in the journal before they move to the archive.",
    )
    recovery: RecoveryConfig = Field(
        default=RecoveryConfig(), description="Treatment of the sessions and tasks of a supervisor that died."
    )
    access: AccessConfig | None = Field(
        default=None,
        description="Graduated access: agents earn rights by their record. {} switches it on, with workspace: "
        "worktree.",
    )
    plugins: Several[Annotated[Name, plugin_name("plugins")]] | None = Field(
        default=None, description="Names of the installed plug-ins in use; by default all, and with [] none."
    )
    session_budget: Annotated[BudgetConfig | Budget, OR_VALUE] = Field(
        default=BudgetConfig(),
        description="Budget of each session, with its sub-agents; by default nothing is limited.",
    )
    turn_budget: Annotated[BudgetConfig | Budget, OR_VALUE] = Field(
        default=BudgetConfig(),
        description="Budget of each turn; by default nothing is limited. Its key turns has no effect.",
    )
    hand_back: HandBackConfig = Field(
        default=HandBackConfig(),
        description="Budget of the last turn of a session whose budget is spent, in which it hands back its work.",
    )
    loops: LoopsConfig = Field(
        default=LoopsConfig(),
        description="Number of times that an agent may repeat a call or an edit with nothing new in between.",
    )
    model_trouble: ModelErrorsConfig = Field(
        default=ModelErrorsConfig(),
        description="Errors of an agent's model, and requests without effect, after which the turn is ended.",
    )
    liveness: LivenessConfig = Field(
        default=LivenessConfig(),
        description="Interval of the liveness checks, and the checks without progress until an agent is ended.",
    )
    explain_retries: Flag = Field(
        default=True,
        description="Whether a prompt that is sent again says why, and new findings give a task another claim.",
    )
    notify: Several[NotifyConfig] = Field(
        default=(), description="Receivers of notices, which tell when a person is needed; by default there are none."
    )
    telemetry: TelemetryConfig = Field(
        default=TelemetryConfig(),
        description="Export of figures (Prometheus), spans (OpenTelemetry) and files; a reload does not change it.",
    )
    pid_namespaces: Flag = Field(
        default=False,
        description="Whether each program runs in a pid namespace of its own; a reload does not change it.",
    )

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
