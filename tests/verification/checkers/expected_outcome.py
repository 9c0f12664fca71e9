"""Computation of the expected endings of a plan whose own tasks alone have faults, from the specification and without a
scheduler.

If nobody interferes, the ending of a task follows from its script: the number of attempts, and whether the task is
completed. Time does not matter for that, so the endings are computed task by task, in the order of dependencies. No
ending is expected of a plan in which time matters: a critical task fails and cancels the others, the retry budget runs
out, failures of a session may or may not be consecutive, or a hanging agent may or may not be woken before its time is
over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from supervisor.lifecycles.types import SessionLimits
from supervisor.plans import Plan, TaskConfig
from supervisor.plans.tasks import every_task
from supervisor.policies.liveness import Liveness
from supervisor.simulation.plan_workload.plans import DEPUTY, WORKER
from supervisor.simulation.plan_workload.task_scripts import TaskScript, TaskScripts, Try

MET: Final = frozenset({"completed", "skipped"})
WORDS: Final = 4
"""Number of different texts of unknown errors: the text of an error repeats after four tries."""
USUAL: Final = SessionLimits()
"""Default limits of a session."""
LEAST_S: Final = 300.0
"""Shortest time limit, in seconds, of an attempt at a task with a size, however long similar tasks took
(``supervisor.work.timeouts``)."""
SLACK_S: Final = 5.0
"""Seconds until an agent has its prompt and the first sign of its activity is seen."""
WATCHED: Final = Liveness()
"""Default times at which an agent is woken."""
PROVIDER_TRIES_MAX: Final = 20
"""Number of tries, of a minute each at least after the fifth, in which the patience with a provider does not end."""
LARGE: Final = frozenset({"large", "xl"})


NO_RESULT: Final = "no result"
"""End of a claim whose attempts failed, so that there was nothing to judge."""


class Ending(NamedTuple):
    """Ending of a task: its outcome, the number of attempts, and the number of retries (further attempts and further
    claims)."""

    outcome: str
    attempts: int = 0
    retries: int = 0


def expected_endings(
    plan: Plan, task_scripts: TaskScripts, session: SessionLimits = USUAL, liveness: Liveness = WATCHED
) -> Mapping[str, Ending] | None:
    """Compute the ending of every task; ``None`` if the endings depend on time. *session* and *liveness* are the limits
    of the plan's sessions."""
    tasks = {one.task.id: one for one in every_task(plan.tasks)}
    if any(one.task.agent not in (WORKER, DEPUTY) or one.task.may_split for one in tasks.values()):
        return None
    oracle = _Expectation(plan, task_scripts, session, liveness)
    for task in plan.tasks:
        oracle.ending(task)
    spent = sum(one.retries for one in oracle.endings.values())
    budget = max(plan.retry_budget.least, int(plan.retry_budget.share * len(tasks) + 1e-9))
    critical = any(oracle.endings[name].outcome == "failed" for name, one in tasks.items() if one.task.critical)
    return None if critical or spent > budget or oracle.in_time else oracle.endings


class _Expectation:
    def __init__(self, plan: Plan, task_scripts: TaskScripts, session: SessionLimits, liveness: Liveness) -> None:
        self.plan = plan
        self.endings: dict[str, Ending] = {}
        self.in_time = False
        """Whether the ending depends on time: on the moment at which a session gives up, or an agent is woken."""
        self._task_scripts, self._session, self._liveness = task_scripts, session, liveness
        self._limits = plan.task_lifecycle.value()

    def ending(self, task: TaskConfig) -> Ending:
        """Compute the ending of a task; the endings of its dependencies must be computed before."""
        task_script = self._task_scripts.of(task.id) or TaskScript(task.id)
        found = self._without_work(task, task_script) or (
            self._whole(task, task_script) if task.subtasks else self._worked_on(task, task_script)
        )
        self.endings[task.id] = found
        return found

    def _without_work(self, task: TaskConfig, task_script: TaskScript) -> Ending | None:
        """Return the ending of a task that no agent works on, as a skipped or blocked one; ``None`` if agents work on
        the task."""
        asked = self.plan.approve_plan or task.approval == "before"
        blocked = any(self.endings[one].outcome not in MET for one in task.depends_on)
        if asked and not task_script.wanted:
            found = Ending("rejected")
        elif blocked:
            found = Ending("skipped" if task.optional else "blocked")
        elif task.when is not None and not self._is_met(task):
            found = Ending("skipped")
        else:
            return None
        for one in task.subtasks:
            self.endings[one.id] = Ending("")  # of no account
        return found

    def _is_met(self, task: TaskConfig) -> bool:
        assert task.when is not None
        return task.when.task is not None and self.endings[task.when.task].outcome == task.when.outcome

    def _worked_on(self, task: TaskConfig, task_script: TaskScript) -> Ending:
        return self._claims(task, _Tries(task_script), range(task.max_retries + 1))

    def _claims(self, task: TaskConfig, tries: _Tries, numbers: range, finding: str = "") -> Ending:
        """Compute the ending of a task over all its claims; each claim from the second on is a retry. A claim follows
        one that failed if another agent makes it, or if the findings against the result differ from *finding*, those
        before (rule 47)."""
        claim = numbers.start
        for claim in numbers:
            before, finding = finding, self._claim(task, tries)
            if not finding:
                return Ending("completed", tries.attempts, tries.retries + claim)
            same_agent = _agent(task, claim + 1) == _agent(task, claim)
            if same_agent and finding in (before, NO_RESULT):
                break
        return Ending("failed", tries.attempts, tries.retries + claim)

    def _claim(self, task: TaskConfig, tries: _Tries) -> str:
        """Compute one claim: return the finding against its result, ``""`` if there is none."""
        if not self._run(task, tries):
            return NO_RESULT
        if task.acceptance and not tries.checks():
            return "not accepted"
        if task.approval == "after" and not tries.approvals():
            return "denied"
        return "" if tries.merges() else "not merged"

    def _run(self, task: TaskConfig, tries: _Tries) -> bool:
        """Compute one task run: return whether an attempt succeeds before the circuit stays open (spec 002), or before
        the session, which serves all attempts, gives up."""
        limits, failures, same, last, probes, probing = self._limits, 0, 0, "", 0, False
        while True:
            way, error = self._attempt(task, tries)
            if way is Try.DONE:
                return True
            if way is Try.PERMANENT:
                return False
            if way is Try.OVERLOADED:  # charged to the provider (rule 33), for an hour at most
                self.in_time = self.in_time or tries.attempts > PROVIDER_TRIES_MAX
                if self.in_time:
                    return False
                continue
            same = same + 1 if error == last and failures else 1
            failures, last = failures + 1, error
            if self._gives_up(failures, way):
                return False
            if probing or failures >= limits.max_attempts or same > limits.max_error_repeats:
                if way is not Try.HANGS or probes >= limits.probes_max:  # only a time-out may pass by itself (rule 31)
                    return False
                probes, probing = probes + 1, True
            tries.retries += 1

    def _attempt(self, task: TaskConfig, tries: _Tries) -> tuple[Try, str]:
        """Compute one attempt. An agent that hangs is woken, then asked to stop; after each of these the agent begins
        anew within the attempt (docs/explanation/budgets.md), unless its turn times out before."""
        liveness, limit_s = self._liveness, self._least_s(task)
        profile = liveness.large if task.scope in LARGE else liveness.default
        way, error = tries.begin()
        for snapshots in (profile.wake, profile.stop) if liveness.snapshot_s else ():
            if way is not Try.HANGS or limit_s <= snapshots * liveness.snapshot_s:
                break
            # the first snapshot heard of it, at any time until then
            self.in_time = self.in_time or limit_s <= (snapshots + 1) * liveness.snapshot_s + SLACK_S
            way, error = tries.begin()
            if way is Try.DONE:  # a turn that answers a message is no word on the task: its agent is asked to go on
                way, error = tries.begin()
        return way, error

    def _least_s(self, task: TaskConfig) -> float:
        """Return the shortest time limit of a turn of the task, in seconds."""
        if task.timeout_s is not None:
            return task.timeout_s
        return LEAST_S if task.scope is not None else self.plan.task_lifecycle.value().timeout_s

    def _gives_up(self, errors: int, way: Try) -> bool:
        """Return whether a session gives up at that error, after a start that succeeded (spec 003)."""
        limits = self._session
        at_once = limits.stable_after_s <= 0
        spent = errors >= limits.max_total_errors or (at_once and limits.max_consecutive_errors <= 1)
        in_a_row = not at_once and errors >= limits.max_consecutive_errors  # those that did not go well for so long
        if way is Try.HANGS:  # one that hung is followed by another session, and may be ended before it has given up
            self.in_time = self.in_time or spent or in_a_row
            return False
        self.in_time = self.in_time or (in_a_row and not spent)
        return spent

    def _whole(self, task: TaskConfig, task_script: TaskScript) -> Ending:
        """Compute the ending of a task that its plan split: its subtasks do the work. If the whole is rejected, the
        task fails, and an agent of its own claims it anew."""
        parts = [self.ending(one) for one in task.subtasks]
        if any(one.outcome not in MET for one in parts):
            return Ending("blocked")
        tries = _Tries(task_script)
        finding = "" if not task.acceptance or tries.checks() else "not accepted"
        if not finding and task.approval == "after" and not tries.approvals():
            finding = "denied"
        if not finding:  # there is nothing to merge
            return Ending("completed")
        if not task.max_retries:
            return Ending("failed")
        return self._claims(task, tries, range(1, task.max_retries + 1), finding)


class _Tries:
    """Counters of the tries, checks, merges and approvals over all claims of a task, with the scripted result of
    each."""

    def __init__(self, task_script: TaskScript) -> None:
        self._task_script = task_script
        self.attempts = self.retries = 0
        self._seen = {"checks": 0, "merges": 0, "approvals": 0}

    def begin(self) -> tuple[Try, str]:
        """Count the next try; return its scripted outcome, and the text of its error."""
        number, self.attempts = self.attempts, self.attempts + 1
        way = self._task_script.way(number)
        return way, f"{way} {number % WORDS}" if way is Try.UNKNOWN else way.value

    def checks(self) -> bool:
        return self._next("checks", self._task_script.checks)

    def merges(self) -> bool:
        return self._next("merges", self._task_script.merges)

    def approvals(self) -> bool:
        return self._next("approvals", self._task_script.approvals)

    def _next(self, what: str, drawn: tuple[bool, ...]) -> bool:
        number = self._seen[what]
        self._seen[what] = number + 1
        return drawn[min(number, len(drawn) - 1)]


def _agent(task: TaskConfig, claim: int) -> str:
    """Return the agent of a claim, counted from 0."""
    agents = (task.agent, *task.fallback_agents)
    return agents[min(claim, len(agents) - 1)]
