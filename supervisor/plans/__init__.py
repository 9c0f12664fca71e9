"""What a person may write: the models of a plan, and how one is read.

They stand at the edge; inside go the values they make. Nothing here runs anything.
"""

from supervisor.plans.access import AccessConfig, RightsConfig
from supervisor.plans.agents import AgentConfig, WorkerConfig
from supervisor.plans.lifecycle import CheckpointConfig, CircuitBreakerConfig, RetryBudgetConfig, TaskLifecycle
from supervisor.plans.loading import load_plan
from supervisor.plans.monitoring import (
    BudgetConfig,
    HandBackConfig,
    LivenessConfig,
    LoopsConfig,
    ModelTroubleConfig,
    StallConfig,
)
from supervisor.plans.plan import Plan
from supervisor.plans.settings import (
    LadderConfig,
    LimitsConfig,
    PolicyConfig,
    RecoveryConfig,
    RetentionConfig,
    Settings,
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
    "CompletionConfig",
    "ConditionConfig",
    "HandBackConfig",
    "LadderConfig",
    "LimitsConfig",
    "LivenessConfig",
    "LoopsConfig",
    "ModelTroubleConfig",
    "Plan",
    "PolicyConfig",
    "RecoveryConfig",
    "RetentionConfig",
    "RetryBudgetConfig",
    "ReviewConfig",
    "RightsConfig",
    "Settings",
    "StallConfig",
    "TaskConfig",
    "TaskLifecycle",
    "WorkerConfig",
    "load_plan",
]
