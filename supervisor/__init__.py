"""The supervisor runtime for AI agent sessions: ``async with open_supervisor(...) as sup``.

Importing this package is cheap; the runtime is loaded when a name of it is first used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.abort import AbortPlan, AbortRecord, Receipt, UnknownTarget
    from supervisor.adapters.inprocess import AgentTurn, ToolAborted
    from supervisor.adapters.mcp_stdio import McpError, McpResource
    from supervisor.budgets import Amounts, Budget
    from supervisor.journal.statedir import StateDirBusy, StateDirError
    from supervisor.liveness import Patience
    from supervisor.outage import Outage, Shortage
    from supervisor.permissions import OpenPermission
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
    from supervisor.ports import JournalError, JournalLost, JournalUnavailable
    from supervisor.projection import Inspected
    from supervisor.runtime import (
        Degraded,
        Refused,
        Session,
        SubscriptionLagged,
        Supervisor,
        TurnResult,
        open_supervisor,
        reconfigure,
    )
    from supervisor.scheduling.results import PlanResult, TaskResult
    from supervisor.scheduling.runner import run_plan
    from supervisor.vocabulary import (
        AbortPolicy,
        AbortReason,
        AbortScope,
        CancelMode,
        DeliveryPoint,
        Ladder,
        LifecycleEvent,
        TransitionReason,
    )
    from supervisor.work import NoSuchEntity
    from supervisor.workspace.git import WorkspaceError

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
    "Ladder",
    "LifecycleEvent",
    "LimitsConfig",
    "McpError",
    "McpResource",
    "NoSuchEntity",
    "OpenPermission",
    "Outage",
    "Patience",
    "Plan",
    "PlanResult",
    "PolicyConfig",
    "Receipt",
    "Refused",
    "RetentionConfig",
    "Session",
    "Settings",
    "Shortage",
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
    "supervisor.abort": ("AbortPlan", "AbortRecord", "Receipt", "UnknownTarget"),
    "supervisor.adapters.inprocess": ("AgentTurn", "ToolAborted"),
    "supervisor.adapters.mcp_stdio": ("McpError", "McpResource"),
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
    "supervisor.budgets": ("Amounts", "Budget"),
    "supervisor.liveness": ("Patience",),
    "supervisor.journal.statedir": ("StateDirBusy", "StateDirError"),
    "supervisor.scheduling.results": ("PlanResult", "TaskResult"),
    "supervisor.scheduling.runner": ("run_plan",),
    "supervisor.outage": ("Outage", "Shortage"),
    "supervisor.permissions": ("OpenPermission",),
    "supervisor.ports": ("JournalError", "JournalLost", "JournalUnavailable"),
    "supervisor.runtime": (
        "Degraded",
        "Refused",
        "Session",
        "SubscriptionLagged",
        "Supervisor",
        "TurnResult",
        "open_supervisor",
        "reconfigure",
    ),
    "supervisor.projection": ("Inspected",),
    "supervisor.vocabulary": (
        "AbortPolicy",
        "AbortReason",
        "AbortScope",
        "CancelMode",
        "DeliveryPoint",
        "Ladder",
        "LifecycleEvent",
        "TransitionReason",
    ),
    "supervisor.work": ("NoSuchEntity",),
    "supervisor.workspace.git": ("WorkspaceError",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

try:
    __version__ = version("supervisor-runtime")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
    return getattr(import_module(module), name)
