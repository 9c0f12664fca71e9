"""The supervisor runtime for AI agent sessions: ``async with open_supervisor(...) as sup``.

Importing this package is cheap; the runtime is loaded when a name of it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.agents.mcp_stdio import McpError, McpResource
    from supervisor.agents.protocols.inprocess import AgentTurn, ToolAborted
    from supervisor.diagnostics.visual_state import Inspected
    from supervisor.embedding.runtime import open_supervisor, reconfigure
    from supervisor.host.api import Supervisor
    from supervisor.host.services import ServiceFailed
    from supervisor.journal.statedir import StateDirBusy, StateDirError
    from supervisor.lifecycles.types import (
        AbortPolicy,
        AbortReason,
        AbortScope,
        CancelMode,
        DeliveryPoint,
        LifecycleEvent,
        StageBudgets,
        TransitionReason,
    )
    from supervisor.plans import (
        AcceptanceConfig,
        AgentConfig,
        LimitsConfig,
        Plan,
        PolicyConfig,
        RetentionConfig,
        Settings,
        TaskConfig,
        TaskLifecycle,
        WorkerConfig,
    )
    from supervisor.plugins.reading import load_plan
    from supervisor.policies.abort_plan import AbortPlan, AbortRecord, Receipt, UnknownTarget
    from supervisor.policies.budgets import Amounts, Budget
    from supervisor.policies.liveness import StallProfileName
    from supervisor.policies.permissions import OpenPermission
    from supervisor.ports import JournalError, JournalLost, JournalUnavailable
    from supervisor.runtime.entity import Degraded, Refused
    from supervisor.runtime.live_session import NoSuchEntity
    from supervisor.runtime.outages import Outage, Shortage
    from supervisor.runtime.subscriptions import SubscriptionLagged
    from supervisor.sessions.handle import Session, TurnResult
    from supervisor.work.plan_handle import PlanHandle, run_plan
    from supervisor.work.results import PlanResult, TaskResult
    from supervisor.workspaces.git_command import WorkspaceError

    __version__: str

__all__ = [
    "AbortPlan",
    "AbortPolicy",
    "AbortReason",
    "AbortRecord",
    "AbortScope",
    "AcceptanceConfig",
    "AgentConfig",
    "AgentTurn",
    "Amounts",
    "Budget",
    "CancelMode",
    "Degraded",
    "DeliveryPoint",
    "Inspected",
    "JournalError",
    "JournalLost",
    "JournalUnavailable",
    "LifecycleEvent",
    "LimitsConfig",
    "McpError",
    "McpResource",
    "NoSuchEntity",
    "OpenPermission",
    "Outage",
    "Plan",
    "PlanHandle",
    "PlanResult",
    "PolicyConfig",
    "Receipt",
    "Refused",
    "RetentionConfig",
    "ServiceFailed",
    "Session",
    "Settings",
    "Shortage",
    "StageBudgets",
    "StallProfileName",
    "StateDirBusy",
    "StateDirError",
    "SubscriptionLagged",
    "Supervisor",
    "TaskConfig",
    "TaskLifecycle",
    "TaskResult",
    "ToolAborted",
    "TransitionReason",
    "TurnResult",
    "UnknownTarget",
    "WorkerConfig",
    "WorkspaceError",
    "__version__",
    "load_plan",
    "open_supervisor",
    "reconfigure",
    "run_plan",
]

_HOMES = {
    "supervisor.policies.abort_plan": ("AbortPlan", "AbortRecord", "Receipt", "UnknownTarget"),
    "supervisor.agents.protocols.inprocess": ("AgentTurn", "ToolAborted"),
    "supervisor.agents.mcp_stdio": ("McpError", "McpResource"),
    "supervisor.plans": (
        "AcceptanceConfig",
        "AgentConfig",
        "LimitsConfig",
        "Plan",
        "PolicyConfig",
        "RetentionConfig",
        "Settings",
        "TaskConfig",
        "TaskLifecycle",
        "WorkerConfig",
    ),
    "supervisor.plugins.reading": ("load_plan",),
    "supervisor.policies.budgets": ("Amounts", "Budget"),
    "supervisor.policies.liveness": ("StallProfileName",),
    "supervisor.journal.statedir": ("StateDirBusy", "StateDirError"),
    "supervisor.work.results": ("PlanResult", "TaskResult"),
    "supervisor.work.plan_handle": ("PlanHandle", "run_plan"),
    "supervisor.runtime.outages": ("Outage", "Shortage"),
    "supervisor.policies.permissions": ("OpenPermission",),
    "supervisor.ports": ("JournalError", "JournalLost", "JournalUnavailable"),
    "supervisor.embedding.runtime": ("open_supervisor", "reconfigure"),
    "supervisor.host.api": ("Supervisor",),
    "supervisor.host.services": ("ServiceFailed",),
    "supervisor.runtime.entity": ("Degraded", "Refused"),
    "supervisor.runtime.subscriptions": ("SubscriptionLagged",),
    "supervisor.sessions.handle": ("Session", "TurnResult"),
    "supervisor.diagnostics.visual_state": ("Inspected",),
    "supervisor.lifecycles.types": (
        "AbortPolicy",
        "AbortReason",
        "AbortScope",
        "CancelMode",
        "DeliveryPoint",
        "StageBudgets",
        "LifecycleEvent",
        "TransitionReason",
    ),
    "supervisor.runtime.live_session": ("NoSuchEntity",),
    "supervisor.workspaces.git_command": ("WorkspaceError",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
    return getattr(import_module(module), name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # here, since it imports much

    try:
        return version("supervisor-runtime")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"
