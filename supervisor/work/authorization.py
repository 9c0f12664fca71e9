"""The gate of graduated access: who is given a task, what of its work may be merged, what counts for its standing.

Each refusal is a fact on its task, with the reason. Where no access is configured everything passes, unrecorded.
"""

from __future__ import annotations

import msgspec

from supervisor.lifecycles.session import SessionData
from supervisor.policies.access import claim_refusal, file_refusal, transition_refusal
from supervisor.runtime.entity import Refused
from supervisor.work.plan_run import PlanRun
from supervisor.work.task_execution import TaskExecution

__all__ = ["admit", "allows", "count_success", "may_split", "refused_changes"]

REFUSED = "AccessRefused"


def admit(load: PlanRun, case: TaskExecution) -> None:
    """Give the task to its agent, or to the first of those that it falls back on who may have it.

    Raises:
        Refused: none of them may.
    """
    trust = load.sup.trust
    if trust.policy is None:
        return
    reasons: dict[str, str] = {}
    for agent in dict.fromkeys((case.agent, *case.task.fallback_agents)):
        why = _claim_refusal(load, case, agent)
        if not why:
            case.agent = agent
            return
        reasons[agent] = why
        case.note(REFUSED, {"agent": agent, "transition": "claimed", "level": trust.level(agent).value}, why)
    words = "; ".join(f"{agent}: {why}" for agent, why in reasons.items())
    raise Refused(f"nobody may have it: {words}")


def _claim_refusal(load: PlanRun, case: TaskExecution, agent: str) -> str:
    rights, config = load.sup.trust.rights(agent), load.plan.agents.get(agent)
    if rights is None:
        return ""
    network = case.task.network or (config is not None and config.network)
    return claim_refusal(load.sup.trust.level(agent), rights, files=case.task.files, network=network)


def allows(load: PlanRun, case: TaskExecution, transition: str) -> bool:
    """Whether the agent of the task may cause that transition of it."""
    agent = _worker(load, case)
    rights, level = load.sup.trust.rights(agent), load.sup.trust.level(agent)
    why = "" if rights is None else transition_refusal(level, rights, transition)
    if why:
        case.note(REFUSED, {"agent": agent, "transition": transition, "level": level.value}, why)
    return not why


def may_split(load: PlanRun, case: TaskExecution) -> bool:
    """Whether the agent of the task may split it: where its plan lets it, and its standing."""
    return case.task.may_split and allows(load, case, "split")


async def refused_changes(load: PlanRun, case: TaskExecution, commit: str, *, on: str = "") -> str:
    """Why the work on the task, up to *commit* or all of it, may not be merged: a violation, which counts; ``""`` where
    it may. *on*: whose facts these are, where the task was closed before."""
    agent = _worker(load, case)
    rights, level = load.sup.trust.rights(agent), load.sup.trust.level(agent)
    if rights is None:
        return ""
    try:
        message = f"{case.name}: the work of session {case.session_id}"
        changes = await load.sup.janitor.changes(case.session_id, message, commit)
    except Refused as refusal:
        return str(refusal)
    why = "" if changes is None else file_refusal(level, rights, changes.files, whole=changes.whole)
    if why:
        told = {"agent": agent, "transition": "closed", "level": level.value}
        load.sup.registry.record_fact(
            on or case.id, REFUSED, case.cause, {**told, "task": case.id} if on else told, reason=why
        )
        load.sup.trust.violation(agent, case.id, case.cause, why, on=on)
    return why


def count_success(load: PlanRun, case: TaskExecution, *, on: str = "") -> None:
    """The task is about to be closed, or was *on* another one's record: its agent has a success more. Of the subtasks'
    work they have it."""
    if case.session_id:
        load.sup.trust.success(_worker(load, case), case.id, case.cause, on=on)


def _worker(load: PlanRun, case: TaskExecution) -> str:
    """The agent that did the work: its session knows, whoever is next."""
    work = load.sup.registry.sessions.get(case.session_id)
    if work is not None:
        return work.profile.name
    row = load.sup.inherited.rows.get(case.session_id)
    return case.agent if row is None else msgspec.json.decode(row.data, type=SessionData).agent
