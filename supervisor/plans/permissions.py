"""Permissions of an agent, as a plan writes them: one word, or rules in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import Duration, Model, Name, Several, Text, closest
from supervisor.policies.permissions import ANSWER_WITHIN_S, CALL_KINDS, Decision, PermissionPolicy, PermissionRule

Pattern = Annotated[Text, Field(min_length=1)]
_KEYS = ("kind", "title", "tool", "path")


def _listed(kinds: Any) -> Any:
    return (kinds,) if isinstance(kinds, str) else kinds


class PermissionRuleConfig(Model):
    """Decision for requests that match all given criteria: kinds of tool, and patterns for title, tool and path."""

    then: Decision = Field(description="Decision for a request that matches the rule; ask: an operator decides.")
    kind: Annotated[tuple[Name, ...], BeforeValidator(_listed, json_schema_input_type=Name | tuple[Name, ...])] = Field(
        default=(), description=f"Kind of tool, or several: {', '.join(CALL_KINDS)}; by default any."
    )
    title: Pattern | None = Field(
        default=None,
        description="Pattern for the title that the agent gives the request, for example git *; by default any.",
    )
    tool: Pattern | None = Field(default=None, description="Pattern for the agent's name of the tool; by default any.")
    path: Pattern | None = Field(
        default=None,
        description="Pattern for the files that the request names, relative to the agent's working directory; by "
        "default any. A rule that allows must match all of the files.",
    )

    def problems(self) -> Iterator[Problem]:
        if not any(getattr(self, key) for key in _KEYS):
            yield ("then",), "the rule matches every request; give kind, title, tool or path, or use default"
        for kind in self.kind:
            if kind not in CALL_KINDS:  # the rule would never match
                yield ("kind",), f"{kind!r} is no kind of a tool call; {closest(kind, CALL_KINDS, 'the kinds are')}"

    def value(self) -> PermissionRule:
        return PermissionRule(
            then=self.then, kinds=self.kind, title=self.title or "", tool=self.tool or "", path=self.path or ""
        )


class PermissionsConfig(Model):
    """Permissions: rules in order, and the decision where none matches."""

    default: Decision = Field(
        default=Decision.ALLOW, description="Decision for a request that no rule matches; ask: an operator decides."
    )
    rules: Several[PermissionRuleConfig] = Field(
        default=(), description="Rules in order; the first rule that matches decides."
    )
    answer_within_s: Duration = Field(
        default=ANSWER_WITHIN_S,
        description="Seconds that an operator has to answer; after that the permission is denied.",
    )

    def value(self) -> PermissionPolicy:
        rules = tuple(rule.value() for rule in self.rules)
        return PermissionPolicy(default=self.default, rules=rules, answer_within_s=self.answer_within_s)


def _worded(given: Any) -> Any:
    return {"default": given} if isinstance(given, str) else given


Permissions = Annotated[
    PermissionsConfig, BeforeValidator(_worded, json_schema_input_type=Decision | PermissionsConfig)
]
"""Permissions in full, or one word: ``allow``, ``deny`` or ``ask``."""
