"""Graduated access: which agent may claim a task, which work may be merged, and which events count for a trust score.

Each refusal is recorded as a fact of its task, with the reason. Where no graduated access is configured, everything is
allowed, and nothing is recorded.
"""

from __future__ import annotations

import msgspec

from supervisor.lifecycles.session_data import SessionData
from supervisor.policies.access import claim_refusal, file_refusal, transition_refusal
from supervisor.runtime.entity import Refused
from supervisor.work.plan_run import PlanRun
from supervisor.work.task_execution import TaskExecution

REFUSED = "AccessRefused"


def admit(plan_run: PlanRun, execution: TaskExecution) -> None:
    """Assign the task to its agent, or to the first of its ``fallback_agents`` that may claim the task.

    Raises:
        Refused: none of these agents may claim the task.
    """
    trust = plan_run.sup.trust
    if trust.policy is None:
        return
    reasons: dict[str, str] = {}
    for agent in dict.fromkeys((execution.agent, *execution.task.fallback_agents)):
        why = _claim_refusal(plan_run, execution, agent)
        if not why:
            execution.agent = agent
            return
        reasons[agent] = why
        execution.note(REFUSED, {"agent": agent, "transition": "claimed", "level": trust.level(agent).value}, why)
    words = "; ".join(f"{agent}: {why}" for agent, why in reasons.items())
    raise Refused(f"nobody may have it: {words}")


def _claim_refusal(plan_run: PlanRun, execution: TaskExecution, agent: str) -> str:
    rights, config = plan_run.sup.trust.rights(agent), plan_run.plan.agent_configs.get(agent)
    if rights is None:
        return ""
    network = execution.task.network or (config is not None and config.network)
    return claim_refusal(plan_run.sup.trust.level(agent), rights, files=execution.task.files, network=network)


def allows(plan_run: PlanRun, execution: TaskExecution, transition: str) -> bool:
    """Return whether the agent of the task may cause *transition* of the task."""
    agent = _worker(plan_run, execution)
    rights, level = plan_run.sup.trust.rights(agent), plan_run.sup.trust.level(agent)
    why = "" if rights is None else transition_refusal(level, rights, transition)
    if why:
        execution.note(REFUSED, {"agent": agent, "transition": transition, "level": level.value}, why)
    return not why


def may_split(plan_run: PlanRun, execution: TaskExecution) -> bool:
    """Return whether the agent of the task may split the task, by the plan and by the agent's trust level."""
    return execution.task.may_split and allows(plan_run, execution, "split")


async def refused_changes(plan_run: PlanRun, execution: TaskExecution, commit: str, *, on: str = "") -> str:
    """Return the reason why the work on the task, up to *commit* or all of it, may not be merged; ``""`` if it may.

    A refusal because of the changed files is a violation, and counts for the trust score. *on* is the entity that the
    facts are recorded of, if the task was closed before.
    """
    agent = _worker(plan_run, execution)
    rights, level = plan_run.sup.trust.rights(agent), plan_run.sup.trust.level(agent)
    if rights is None:
        return ""
    try:
        message = f"{execution.name}: the work of session {execution.session_id}"
        into = execution.merges_into
        changes = await plan_run.sup.verification.changes(execution.session_id, message, commit, workstream=into)
    except Refused as refusal:
        return str(refusal)
    why = "" if changes is None else file_refusal(level, rights, changes.files, whole=changes.whole)
    if why:
        told = {"agent": agent, "transition": "closed", "level": level.value}
        plan_run.sup.registry.record_fact(
            on or execution.id, REFUSED, execution.cause, {**told, "task": execution.id} if on else told, reason=why
        )
        plan_run.sup.trust.violation(agent, execution.id, execution.cause, why, on=on)
    return why


def count_success(plan_run: PlanRun, execution: TaskExecution, *, on: str = "") -> None:
    """Count a success of the task's agent. The task is about to be closed, or was closed before (then *on* is the
    entity that the fact is recorded of). The work of a split task counts for the agents of its subtasks."""
    if execution.holds_work:
        plan_run.sup.trust.success(_worker(plan_run, execution), execution.id, execution.cause, on=on)


def _worker(plan_run: PlanRun, execution: TaskExecution) -> str:
    """Return the agent that did the work: the agent of the task's session, not the agent planned for the next
    attempt."""
    session = plan_run.sup.registry.sessions.get(execution.session_id)
    if session is not None:
        return session.profile.name
    row = plan_run.sup.recovered_work.rows.get(execution.session_id)
    return execution.agent if row is None else msgspec.json.decode(row.data, type=SessionData).agent
