"""Worst cases of a plan: tries and seconds until a task has failed whose agent fails for ever. Pure.

Each way to fail is a list of delays, one before each launch: the bounds of session, task run and task limit the list,
and the retry budget of the plan cuts it. A test compares the figures with the scheduler on the virtual clock
(``tests/simulation/test_worst_cases.py``). The seconds are upper bounds, without the time that the agent itself takes
before it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from supervisor.agent_catalogue import is_one_shot
from supervisor.lifecycles.session import backoff_ms
from supervisor.lifecycles.task_run import retry_delay_s
from supervisor.plans.plan import Plan
from supervisor.plans.tasks import TaskConfig, every_task
from supervisor.policies.retry_budget import RetryBudget
from supervisor.work.attempt_limits import AttemptLimit, choose_limit, kind_of
from supervisor.work.budgeting import patience_of
from supervisor.work.task_history import NO_HISTORY, TaskHistory

HANDSHAKES = frozenset({"acp", "claude", "codex"})
"""Adapters whose agents are ready only after a handshake; all others are ready when their program runs."""


class WorstCase(NamedTuple):
    """Tries (launches, or prompts to an agent that lives on) and seconds until a task has failed, if *when* happens at
    each try."""

    when: str
    tries: int
    seconds: float


def retries_max(plan: Plan) -> int:
    """Return the number of launches by which all tasks of the plan together answer failures."""
    tasks = sum(1 for _ in every_task(plan.tasks))
    budget = RetryBudget(share=plan.retry_budget.share, retries_min=plan.retry_budget.least, tasks=tasks)
    return budget.retries_max


def worst_cases(plan: Plan, task: TaskConfig, history: TaskHistory = NO_HISTORY) -> Iterator[WorstCase]:
    """Yield the worst case of each way in which the task can fail for ever; *history* is that of the plan."""
    run, session = plan.task_lifecycle.value(), plan.limits.value()
    retries = retries_max(plan)

    def pause_s(failures: int) -> float:
        """Return the longest delay after that many failures."""
        return retry_delay_s(msgspec.structs.replace(run, failures=failures), 1.0 + run.jitter)

    def case(when: str, claim: Sequence[float], attempt_s: float, claims: int) -> WorstCase:
        delays = [0.0, *claim]
        for number in range(1, claims):
            delays += [pause_s(number), *claim]
        delays = delays[: 1 + retries]
        return WorstCase(when, len(delays), round(sum(delays) + len(delays) * attempt_s, 1))

    def attempts(count: int) -> list[float]:
        # An agent that had started backs off for one error at least: the later of the two delays counts.
        return [max(pause_s(failures), backoff_ms(1, session) / 1000) for failures in range(1, count)]

    same = min(run.max_attempts, run.max_error_repeats + 1)
    by_agents = 1 + min(len(task.fallback_agents), task.max_retries)
    launches = min(session.max_consecutive_errors, session.max_total_errors)
    relaunches = [backoff_ms(failures, session) / 1000 for failures in range(1, launches)]
    probes = [run.cooldown_s] * run.probes_max
    yield case("fails, with the same error each time", attempts(same), 0.0, by_agents)
    yield case("fails, with another error each time", attempts(run.max_attempts), 0.0, by_agents)
    silent_s, longest_s = _silence_s(plan, task), limit_of(plan, task, history).longest_s
    if silent_s < longest_s:
        yield case("hangs", attempts(same) + probes, silent_s + session.grace_s, by_agents)
    endless = "works on without end" if silent_s < longest_s else "hangs, or works on without end"
    yield case(endless, attempts(same) + probes, longest_s + session.grace_s, by_agents)
    agent = plan.agent_configs.get(task.agent)
    if agent is not None and agent.adapter in HANDSHAKES:
        yield case("exits before it is ready", relaunches, 0.0, by_agents)
        yield case("says nothing at its start", relaunches, session.spawn_deadline_s, by_agents)
    if task.acceptance or task.approval == "after" or plan.review_of(task) or plan.workspace == "worktree":
        yield case("has done other work than wanted, each time", [], 0.0, 1 + task.max_retries)


def _silence_s(plan: Plan, task: TaskConfig) -> float:
    """Return the seconds until a silent agent is ended; infinite if nobody watches for silence, as for a one-shot
    agent."""
    agent = plan.agent_configs.get(task.agent)
    if agent is not None and is_one_shot(agent.adapter, None if agent.mapping else agent.line_mapping):
        return float("inf")
    watched = plan.liveness.value()
    silent_s = watched.snapshot_s * (watched.profile(patience_of(task)).kill + 1)  # the first snapshot may hear of it
    return silent_s or float("inf")


def limit_of(plan: Plan, task: TaskConfig, history: TaskHistory = NO_HISTORY) -> AttemptLimit:
    """Return the time limit of the first attempt, as the plan's next run chooses it with that *history*."""
    agent, kind, limits = plan.agent_configs.get(task.agent), kind_of(task), plan.limits
    return choose_limit(
        task,
        agent,
        history.durations(task.id, task.agent, kind.words if kind is not None else ""),
        default_s=plan.task_lifecycle.default_timeout,
        turn_s=limits.turn_timeout_s if "turn_timeout_s" in limits.model_fields_set else None,
        is_command=agent is not None and agent.is_command,
    )
