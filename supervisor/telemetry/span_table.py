"""Table of the names in spans: span names, attributes, and the two versions of the GenAI conventions. Pure.

The conventions are young, and their names change; so every name that is emitted stands here, and a test compares them
with what is exported. ``v0.1.0`` is the first version of the repository semantic-conventions-genai; ``v1.41`` is the
last one that the common conventions had. They differ in what matters here as follows:

* v0.1.0 has no ``gen_ai.agent.id`` on spans of agents that run on this machine: an id of an instance is no id there.
* v0.1.0 has given up ``gen_ai.workflow.name``: a workflow is invoked as an agent whose name is that of the workflow.

Names that no convention has begin with ``supervisor.``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from supervisor.telemetry.activities import ActivityKind

SCOPE: Final = "supervisor"
"""Name of the instrumentation scope."""


class GenAi(StrEnum):
    """Version of the GenAI conventions."""

    V0_1_0 = "v0.1.0"
    V1_41 = "v1.41"


SCHEMAS: Final = {GenAi.V0_1_0: None, GenAi.V1_41: "https://opentelemetry.io/schemas/1.41.0"}
"""Schema URLs that spans name. That of v0.1.0 has no file that a consumer could fetch."""


class SpanSpec(NamedTuple):
    """Names of the spans of one kind of activity: the operation, which the name of the span begins with, and the
    attributes by what they say. ``is_genai``: the conventions have this operation."""

    operation: str
    is_genai: bool
    attributes: dict[str, str]


OPERATION: Final = "gen_ai.operation.name"
ERROR_TYPE: Final = "error.type"
ENTITY: Final = "supervisor.entity.id"
OUTCOME: Final = "supervisor.outcome"
PLAN: Final = "supervisor.plan"
CONTINUED: Final = "supervisor.continued"
LINK: Final = "supervisor.link"
"""Attribute of a link: ``ends`` (an abort and what it ends), or ``continues`` (a span of an earlier supervisor)."""
COMMON: Final = (ERROR_TYPE, ENTITY, OUTCOME, PLAN, CONTINUED)

_AGENT: Final = {
    "agent": "gen_ai.agent.name",
    "conversation": "gen_ai.conversation.id",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}
_CALL: Final = {"tool": "gen_ai.tool.name", "call": "gen_ai.tool.call.id", "conversation": "gen_ai.conversation.id"}
_ABORT: Final = {
    "scope": "supervisor.abort.scope",
    "abort_reason": "supervisor.abort.reason",
    "stage": "supervisor.abort.stage",
    "survivors": "supervisor.survivors",
}
_SESSION: Final = {
    "agent": "gen_ai.agent.name",
    "conversation": "gen_ai.conversation.id",
    "turns": "supervisor.turns",
    "calls": "supervisor.tool_calls",
    "stage": "supervisor.termination.stage",
    "survivors": "supervisor.survivors",
}

_SAME: Final = {
    ActivityKind.SESSION: SpanSpec("session", False, _SESSION),
    ActivityKind.CALL: SpanSpec("execute_tool", True, _CALL),
    ActivityKind.ABORT: SpanSpec("abort", False, _ABORT),
}
NAMES: Final = {
    GenAi.V0_1_0: {
        **_SAME,
        ActivityKind.RUN: SpanSpec("invoke_workflow", True, {"agent": "gen_ai.agent.name"}),
        ActivityKind.TURN: SpanSpec("invoke_agent", True, _AGENT),
    },
    GenAi.V1_41: {
        **_SAME,
        ActivityKind.RUN: SpanSpec("invoke_workflow", True, {"agent": "gen_ai.workflow.name"}),
        ActivityKind.TURN: SpanSpec("invoke_agent", True, {**_AGENT, "agent_id": "gen_ai.agent.id"}),
    },
}
"""Names by the version of the conventions and the kind of activity; a task has no span: its sessions have."""
