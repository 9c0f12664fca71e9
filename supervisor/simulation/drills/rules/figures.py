"""Figures: what a plan that says nothing gets, and what the runtime is bounded by, is what the documents say."""

from __future__ import annotations

import importlib
from functools import reduce

from supervisor.plans import AgentConfig, Plan, TaskConfig
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.specified.figures import BOUNDS, PLAN

__all__ = ["FIGURES"]


def _of(thing: object, path: str) -> object:
    """What is found there, from attribute to attribute."""
    return reduce(getattr, path.split("."), thing)


async def defaults(desk: Desk) -> None:
    """A plan with nothing but its tasks has the defaults of its page."""
    agents = {"a": AgentConfig(adapter="command", command=("true",))}
    plan = Plan(agents=agents, tasks=(TaskConfig(id="t", agent="a", prompt=""),))
    for path, wanted in PLAN.items():
        given = _of(plan, path)
        desk.same(path, (type(given), given), (type(wanted), wanted))


async def bounds(desk: Desk) -> None:
    """The runtime's bounds are those that are told."""
    for where, wanted in BOUNDS.items():
        module, _, name = where.partition(":")
        desk.same(where, _of(importlib.import_module(module), name), wanted)


FIGURES = (defaults, bounds)
