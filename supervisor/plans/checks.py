"""Checks across the tasks of a plan: names exist, workers can do the tasks, and dependencies have no cycle.

Every problem is reported with its field and the fix, and all problems at once. Nothing is corrected here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from supervisor.plans.agents import WorkerConfig
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import closest
from supervisor.plans.source import FieldPath, spelled
from supervisor.plans.tasks import SUBTASK_LEVELS_MAX, PlacedTask


def task_problems(placed: Sequence[PlacedTask]) -> Iterator[Problem]:
    """Yield the problems with ids, with names of other tasks, and with the depth of subtasks."""
    first: dict[str, FieldPath] = {}
    for one in placed:
        if one.task.id in first:
            yield (*one.path, "id"), f"{one.task.id!r} is the id of {spelled(first[one.task.id])} too; give it another"
        first.setdefault(one.task.id, one.path)
        if one.level == SUBTASK_LEVELS_MAX + 1:  # deeper levels need no message of their own
            yield one.path, f"subtasks are nested deeper than {SUBTASK_LEVELS_MAX} levels; make them siblings"
    for one in placed:
        for wanted, path in _named(one):
            if wanted not in first:
                yield path, f"{wanted!r} is not a task of this plan; {closest(wanted, first, 'the tasks are')}"


def _named(one: PlacedTask) -> Iterator[tuple[str, FieldPath]]:
    """Yield the names of the tasks for which a task waits, each with its field."""
    for position, wanted in enumerate(one.task.depends_on):
        yield wanted, (*one.path, "depends_on", position)
    if one.task.when is not None and one.task.when.task is not None:
        yield one.task.when.task, (*one.path, "when", "task")


def agent_problems(placed: Sequence[PlacedTask], agents: Mapping[str, object]) -> Iterator[Problem]:
    for one in placed:
        if not one.task.agent and (one.parent is None or one.parent.task.agent):  # reported once, where it is missing
            yield (*one.path, "agent"), "missing; give the name of one of the agents"
        named = [(one.task.agent, (*one.path, "agent"))] if one.task.agent else []
        named += [(name, (*one.path, "fallback_agents", n)) for n, name in enumerate(one.task.fallback_agents)]
        if one.task.review is not None:
            named.append((one.task.review.agent, (*one.path, "review", "agent")))
        for name, path in named:
            if name not in agents:
                yield path, f"{name!r} is not an agent of this plan; {closest(name, agents, 'the agents are')}"


def need_problems(placed: Sequence[PlacedTask], workers: Mapping[str, WorkerConfig]) -> Iterator[Problem]:
    """Yield the problems of tasks whose needs no worker meets. A plan without workers has one worker that can do every
    task."""
    if not workers:
        return
    roles = {role for worker in workers.values() for role in worker.roles}
    capabilities = {one for worker in workers.values() for one in worker.capabilities}
    for one in placed:
        missing = list(_missing(one, roles, capabilities))
        yield from missing
        if not missing and not any(one.task.needs <= worker.provides for worker in workers.values()):
            needs = ", ".join(sorted(one.task.needs))
            yield (*one.path, "capabilities"), f"no worker has all of {needs}; give them to one, or split the task"


def _missing(one: PlacedTask, roles: set[str], capabilities: set[str]) -> Iterator[Problem]:
    role = one.task.role
    if role is not None and role not in roles:
        yield (*one.path, "role"), f"no worker has the role {role!r}; {closest(role, sorted(roles), 'the roles are')}"
    for position, wanted in enumerate(one.task.capabilities):
        if wanted not in capabilities:
            path: FieldPath = (*one.path, "capabilities", position)
            yield path, f"no worker has {wanted!r}; {closest(wanted, sorted(capabilities), 'the capabilities are')}"


# ------------------------------------------------------------------------------------------------------- circles
def circle_problems(placed: Sequence[PlacedTask]) -> Iterator[Problem]:
    """Yield the problem of a cycle of tasks that would wait for each other for ever."""
    needs = {one.task.id: _waits_for(one) for one in placed}
    circle = _cycle({name: tuple(waits) for name, waits in needs.items()})
    if circle:
        following = circle[1] if len(circle) > 1 else circle[0]
        path = needs[circle[0]][following]
        described = " -> ".join([*circle, circle[0]])
        yield path, f"is part of a cycle: {described}; remove one of these dependencies"


def _waits_for(one: PlacedTask) -> Mapping[str, FieldPath]:
    """Return the tasks that must end before the task *one* can, each with its field: dependencies of the task and of
    its parents, and its subtasks."""
    waits: dict[str, FieldPath] = {}
    above: PlacedTask | None = one
    while above is not None:
        for wanted, path in _named(above):
            waits.setdefault(wanted, path[:-1])
        above = above.parent
    for number, subtask in enumerate(one.task.subtasks):
        waits.setdefault(subtask.id, (*one.path, "subtasks", number))
    return waits


def _cycle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a cycle of dependencies, beginning with the task that comes first in the plan; empty if there is none.
    Iterative, not recursive, because a chain of dependencies may be longer than the Python stack."""
    done: set[str] = set()
    for start in needs:
        path: dict[str, None] = {}
        pending = [(start, False)]
        while pending:
            one, leaving = pending.pop()
            if leaving:
                done.add(path.popitem()[0])
            elif one in path:
                walked = list(path)
                return _from_the_first(walked[walked.index(one) :], list(needs))
            elif one not in done:
                path[one] = None
                pending += [(one, True), *((each, False) for each in reversed(needs[one]))]
    return []


def _from_the_first(cycle: list[str], order: list[str]) -> list[str]:
    positions = {name: position for position, name in enumerate(order)}
    start = cycle.index(min(cycle, key=positions.__getitem__))
    return cycle[start:] + cycle[:start]
