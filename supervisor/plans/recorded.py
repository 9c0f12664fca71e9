"""Plans as plain data in the journal: a run can be continued without the file that its plan was read from.

The journal redacts secrets, so an environment variable of an agent is recorded as ``$NAME`` where its value is secret.
Agents are started with what the supervisor is configured with, and never with what was recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from pydantic import ValidationError

from supervisor.plans.agents import IN_PROCESS
from supervisor.plans.plan import Plan
from supervisor.plans.source import BadPlan
from supervisor.ports.agent_profile import AgentFunction


def plain_plan(plan: Plan) -> dict[str, Any]:
    """Return *plan* as plain data for the journal. Of an agent that is a function, only the name is kept."""
    return plan.model_dump(mode="json", exclude_defaults=True)


def without_values(plain: dict[str, Any], hidden: Collection[str]) -> dict[str, Any]:
    """Return the plain data of a plan with ``$NAME`` in place of the values of the variables *hidden* of its agents."""
    agents = {
        name: {**agent, "env": {one: f"${one}" if one in hidden else value for one, value in agent["env"].items()}}
        if "env" in agent
        else agent
        for name, agent in plain["agents"].items()
    }
    return {**plain, "agents": agents} if hidden else plain


def recalled_plan(plain: Mapping[str, Any], function_of: Callable[[str], AgentFunction | None]) -> Plan:
    """Return the plan from plain data of the journal.

    Args:
        plain: the data.
        function_of: function that returns, given the name of an agent, the function that the agent is now, if it is
            one.

    Raises:
        BadPlan: this version cannot read the data as a plan, or an agent that was a function is none now.
    """
    agents = dict(plain.get("agents", {}))
    for name in [name for name, one in agents.items() if one.get("adapter") == IN_PROCESS]:
        if (function := function_of(name)) is None:
            raise BadPlan(f"agents.{name}: was a function of the program; give it: open_supervisor(agents=...)")
        agents[name] = function
    try:
        return Plan.model_validate({**plain, "agents": agents})
    except ValidationError as error:
        raise BadPlan(f"the journal has a plan that cannot be read: {error}") from None


def request_digest(plan: Plan | None, resume: str | None) -> str:
    """Return a digest, 16 characters, of a request to run *plan*, or to resume the run *resume*."""
    said = [None if plan is None else plain_plan(plan), resume]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]
