"""Plans: the models of the content of a plan file, and the reader of plan files.

The models are used only at the edge: their ``value()`` methods make the values that the runtime works with. The package
runs nothing, except the acceptance tests and completion checks that other packages call.
"""

from supervisor.plans.access import AccessConfig, RightsConfig
from supervisor.plans.agents import AgentConfig, McpServerConfig, WorkerConfig
from supervisor.plans.lifecycle import CheckpointConfig, CircuitBreakerConfig, RetryBudgetConfig, TaskLifecycle
from supervisor.plans.loading import load_plan
from supervisor.plans.monitoring import (
    BudgetConfig,
    HandBackConfig,
    LargeStallConfig,
    LivenessConfig,
    LoopsConfig,
    ModelErrorsConfig,
    NotifyConfig,
    StallConfig,
    TelemetryConfig,
    TestsStallConfig,
)
from supervisor.plans.permissions import PermissionRuleConfig, PermissionsConfig
from supervisor.plans.plan import Plan
from supervisor.plans.settings import (
    CommitsConfig,
    LimitsConfig,
    PolicyConfig,
    RecoveryConfig,
    RetentionConfig,
    Settings,
    StageBudgetsConfig,
    WorktreeConfig,
)
from supervisor.plans.source import BadPlan
from supervisor.plans.tasks import AcceptanceConfig, ConditionConfig, TaskConfig
from supervisor.plans.verification import CompletionConfig, ReviewConfig

__all__ = [
    "AcceptanceConfig",
    "AccessConfig",
    "AgentConfig",
    "BadPlan",
    "BudgetConfig",
    "CheckpointConfig",
    "CircuitBreakerConfig",
    "CommitsConfig",
    "CompletionConfig",
    "ConditionConfig",
    "HandBackConfig",
    "LargeStallConfig",
    "LimitsConfig",
    "LivenessConfig",
    "LoopsConfig",
    "McpServerConfig",
    "ModelErrorsConfig",
    "NotifyConfig",
    "PermissionRuleConfig",
    "PermissionsConfig",
    "Plan",
    "PolicyConfig",
    "RecoveryConfig",
    "RetentionConfig",
    "RetryBudgetConfig",
    "ReviewConfig",
    "RightsConfig",
    "Settings",
    "StageBudgetsConfig",
    "StallConfig",
    "TaskConfig",
    "TaskLifecycle",
    "TelemetryConfig",
    "TestsStallConfig",
    "WorkerConfig",
    "WorktreeConfig",
    "load_plan",
]
