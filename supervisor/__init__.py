"""The supervisor runtime for AI agent sessions: ``async with open_supervisor(...) as sup``.

Importing this package is cheap; a module of the runtime is loaded when a name from it is first used.
``dir(supervisor)`` lists the names of the API. The most important ones::

    open_supervisor, reconfigure    run a supervisor, change its agents and settings
    open_reader                     read the journal of a state directory: Reader
    Supervisor, Session             start, find, abort and inspect sessions; prompt one, send it messages
    load_plan, submit, run_plan     read a plan, run it; PlanHandle steers the run
    create_app, HttpOptions         the HTTP API as an app to mount (extra http); how a supervisor serves it itself
    AgentTurn                       argument of an agent that is an async function
    AgentConfig, Settings, Plan     models of a plan file, with the models of their fields (...Config)
    AbortPolicy, Budget             values that a program may pass instead of a model
    TurnResult, PlanResult, Receipt results
    Refused, NoSuchEntity, BadPlan  errors; a model with a wrong field raises pydantic.ValidationError

A wrong type is a TypeError that names the argument, the value, and the type to give.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from supervisor.embedding.import_name import warn_of_clash

if TYPE_CHECKING:
    from supervisor.agent_catalogue.data import BadData
    from supervisor.agent_catalogue.quirks import ErrorReport, Quirks
    from supervisor.control.error_messages import ControlError
    from supervisor.control.http.app import create_app
    from supervisor.control.http.options import BadHttpOptions, HttpOptions
    from supervisor.diagnostics.causal_trace import Explanation
    from supervisor.diagnostics.outcomes import EndedSession
    from supervisor.diagnostics.tree_view import Node
    from supervisor.diagnostics.visual_state import Inspected
    from supervisor.embedding.journals import open_reader
    from supervisor.embedding.runtime import open_supervisor, reconfigure
    from supervisor.host.api import Supervisor
    from supervisor.host.handle import Session, TurnResult
    from supervisor.journal.statedir import StateDirBusy, StateDirError
    from supervisor.lifecycles.types import (
        BEGINNING,
        AbortPolicy,
        AbortReason,
        AbortScope,
        CancelMode,
        DeliveryPoint,
        HeldBy,
        InvalidArgument,
        LifecycleEvent,
        NoSuchEntity,
        RecordId,
        StageBudgets,
        TransitionReason,
        UnknownValue,
    )
    from supervisor.plans import (
        AcceptanceConfig,
        AccessConfig,
        AgentConfig,
        BadPlan,
        BudgetConfig,
        CheckpointConfig,
        CircuitBreakerConfig,
        CommitsConfig,
        CompletionConfig,
        ConditionConfig,
        HandBackConfig,
        LargeStallConfig,
        LimitsConfig,
        LivenessConfig,
        LoopsConfig,
        McpServerConfig,
        ModelErrorsConfig,
        NotifyConfig,
        PermissionRuleConfig,
        PermissionsConfig,
        Plan,
        PolicyConfig,
        RecoveryConfig,
        RetentionConfig,
        RetryBudgetConfig,
        ReviewConfig,
        RightsConfig,
        Settings,
        StageBudgetsConfig,
        StallConfig,
        TaskConfig,
        TaskLifecycle,
        TelemetryConfig,
        TestsStallConfig,
        WorkerConfig,
        WorktreeConfig,
    )
    from supervisor.plans.task_control import CommandResult
    from supervisor.plugins.loading import UnknownPlugin
    from supervisor.plugins.reading import load_plan
    from supervisor.policies.abort_plan import AbortPlan, AbortRecord, NoSiblings, Receipt
    from supervisor.policies.access import AccessLevel
    from supervisor.policies.budgets import Amounts, Budget, BudgetScope
    from supervisor.policies.call_processes import LiveProcess
    from supervisor.policies.liveness import SilentAgent, StallProfileName
    from supervisor.policies.permissions import OpenPermission, OptionChoice
    from supervisor.ports import (
        Compacted,
        EntityRow,
        JournalDamaged,
        JournalError,
        JournalLost,
        JournalUnavailable,
        Outcome,
        Reader,
        Retention,
        UnidentifiedProcess,
    )
    from supervisor.ports.agent_profile import AgentFunction
    from supervisor.ports.outages import Outage, Shortage
    from supervisor.runtime.entity import Degraded, Refused
    from supervisor.runtime.subscriptions import SubscriptionLagged
    from supervisor.sessions.approval_queue import OnPermission
    from supervisor.sessions.inprocess import AgentTurn, ToolAborted
    from supervisor.sessions.inspection import LiveProcesses
    from supervisor.sessions.mcp_stdio import McpError, McpResource
    from supervisor.sessions.shutdown import ServiceFailed
    from supervisor.work.commands import CommandReused
    from supervisor.work.plan_handle import PlanHandle, run_plan, submit
    from supervisor.work.results import PlanResult, TaskResult
    from supervisor.workspaces.git_command import WorkspaceError

    __version__: str

__all__ = [
    "BEGINNING",
    "AbortPlan",
    "AbortPolicy",
    "AbortReason",
    "AbortRecord",
    "AbortScope",
    "AcceptanceConfig",
    "AccessConfig",
    "AccessLevel",
    "AgentConfig",
    "AgentFunction",
    "AgentTurn",
    "Amounts",
    "BadData",
    "BadHttpOptions",
    "BadPlan",
    "Budget",
    "BudgetConfig",
    "BudgetScope",
    "CancelMode",
    "CheckpointConfig",
    "CircuitBreakerConfig",
    "CommandResult",
    "CommandReused",
    "CommitsConfig",
    "Compacted",
    "CompletionConfig",
    "ConditionConfig",
    "ControlError",
    "Degraded",
    "DeliveryPoint",
    "EndedSession",
    "EntityRow",
    "ErrorReport",
    "Explanation",
    "HandBackConfig",
    "HeldBy",
    "HttpOptions",
    "Inspected",
    "InvalidArgument",
    "JournalDamaged",
    "JournalError",
    "JournalLost",
    "JournalUnavailable",
    "LargeStallConfig",
    "LifecycleEvent",
    "LimitsConfig",
    "LiveProcess",
    "LiveProcesses",
    "LivenessConfig",
    "LoopsConfig",
    "McpError",
    "McpResource",
    "McpServerConfig",
    "ModelErrorsConfig",
    "NoSiblings",
    "NoSuchEntity",
    "Node",
    "NotifyConfig",
    "OnPermission",
    "OpenPermission",
    "OptionChoice",
    "Outage",
    "Outcome",
    "PermissionRuleConfig",
    "PermissionsConfig",
    "Plan",
    "PlanHandle",
    "PlanResult",
    "PolicyConfig",
    "Quirks",
    "Reader",
    "Receipt",
    "RecordId",
    "RecoveryConfig",
    "Refused",
    "Retention",
    "RetentionConfig",
    "RetryBudgetConfig",
    "ReviewConfig",
    "RightsConfig",
    "ServiceFailed",
    "Session",
    "Settings",
    "Shortage",
    "SilentAgent",
    "StageBudgets",
    "StageBudgetsConfig",
    "StallConfig",
    "StallProfileName",
    "StateDirBusy",
    "StateDirError",
    "SubscriptionLagged",
    "Supervisor",
    "TaskConfig",
    "TaskLifecycle",
    "TaskResult",
    "TelemetryConfig",
    "TestsStallConfig",
    "ToolAborted",
    "TransitionReason",
    "TurnResult",
    "UnidentifiedProcess",
    "UnknownPlugin",
    "UnknownValue",
    "WorkerConfig",
    "WorkspaceError",
    "WorktreeConfig",
    "__version__",
    "create_app",
    "load_plan",
    "open_reader",
    "open_supervisor",
    "reconfigure",
    "run_plan",
    "submit",
]

_NAMES = {
    "supervisor.agent_catalogue.data": "BadData",
    "supervisor.agent_catalogue.quirks": "ErrorReport Quirks",
    "supervisor.control.error_messages": "ControlError",
    "supervisor.control.http.app": "create_app",
    "supervisor.control.http.options": "BadHttpOptions HttpOptions",
    "supervisor.diagnostics.causal_trace": "Explanation",
    "supervisor.diagnostics.outcomes": "EndedSession",
    "supervisor.diagnostics.tree_view": "Node",
    "supervisor.diagnostics.visual_state": "Inspected",
    "supervisor.embedding.journals": "open_reader",
    "supervisor.embedding.runtime": "open_supervisor reconfigure",
    "supervisor.host.api": "Supervisor",
    "supervisor.host.handle": "Session TurnResult",
    "supervisor.journal.statedir": "StateDirBusy StateDirError",
    "supervisor.lifecycles.types": (
        "AbortPolicy AbortReason AbortScope BEGINNING CancelMode DeliveryPoint HeldBy InvalidArgument LifecycleEvent "
        "NoSuchEntity RecordId StageBudgets TransitionReason UnknownValue"
    ),
    "supervisor.plans": (
        "AcceptanceConfig AccessConfig AgentConfig BadPlan BudgetConfig CheckpointConfig "
        "CircuitBreakerConfig CommitsConfig CompletionConfig ConditionConfig HandBackConfig LargeStallConfig "
        "LimitsConfig LivenessConfig LoopsConfig McpServerConfig ModelErrorsConfig NotifyConfig PermissionRuleConfig "
        "PermissionsConfig Plan PolicyConfig RecoveryConfig RetentionConfig RetryBudgetConfig ReviewConfig "
        "RightsConfig Settings StageBudgetsConfig StallConfig TaskConfig TaskLifecycle TelemetryConfig "
        "TestsStallConfig WorkerConfig WorktreeConfig"
    ),
    "supervisor.plans.task_control": "CommandResult",
    "supervisor.plugins.loading": "UnknownPlugin",
    "supervisor.plugins.reading": "load_plan",
    "supervisor.policies.abort_plan": "AbortPlan AbortRecord NoSiblings Receipt",
    "supervisor.policies.access": "AccessLevel",
    "supervisor.policies.budgets": "Amounts Budget BudgetScope",
    "supervisor.policies.call_processes": "LiveProcess",
    "supervisor.policies.liveness": "SilentAgent StallProfileName",
    "supervisor.policies.permissions": "OpenPermission OptionChoice",
    "supervisor.ports": (
        "Compacted EntityRow JournalDamaged JournalError JournalLost JournalUnavailable Outcome Reader Retention "
        "UnidentifiedProcess"
    ),
    "supervisor.ports.agent_profile": "AgentFunction",
    "supervisor.ports.outages": "Outage Shortage",
    "supervisor.runtime.entity": "Degraded Refused",
    "supervisor.runtime.subscriptions": "SubscriptionLagged",
    "supervisor.sessions.approval_queue": "OnPermission",
    "supervisor.sessions.inspection": "LiveProcesses",
    "supervisor.sessions.inprocess": "AgentTurn ToolAborted",
    "supervisor.sessions.mcp_stdio": "McpError McpResource",
    "supervisor.sessions.shutdown": "ServiceFailed",
    "supervisor.work.commands": "CommandReused",
    "supervisor.work.plan_handle": "PlanHandle run_plan submit",
    "supervisor.work.results": "PlanResult TaskResult",
    "supervisor.workspaces.git_command": "WorkspaceError",
}
"""Names of the API, by the module that defines them."""
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

warn_of_clash()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from supervisor.ports.version import installed_version  # here, since it imports much

        return installed_version()
    if name not in _MODULE_OF:
        missing = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(missing, name=name, obj=import_module(__name__))  # with *obj*, Python suggests a name
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
