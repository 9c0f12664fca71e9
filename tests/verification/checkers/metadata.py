"""Checker of the metadata of tasks, task runs and jobs, and of the ends of their waits, against the plan.

The checker works from the plan that the host drew and from durable records (docs/explanation/work.md, spec 000 and
002). A wait must not end early, nor late if nothing prevents its end: the delay between two tries, the wait for the
subtasks of a task, and that of a blocked task for other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import Plan, TaskConfig
from supervisor.ports import Append

Say = Callable[[str, str, str], None]
ROUNDING_S: Final = 1e-3
SUBTASKS_S: Final = 5400.0
"""Seconds that a task waits for its subtasks, unless the plan gives it a time of its own."""
COOLING_S: Final = 60.0
"""Seconds for which no agent is launched against a provider whose breaker is open."""
LOST: Final = (
    "its worker was lost",
    "the supervisor of its session ended",
    "its supervisor ended without closing it",
)
"""Reasons on record for which a task is an orphan."""
OVER: Final = frozenset({"COMPLETED", "SKIPPED", "CANCELLED"})
"""States in which a task run has ended for good."""
ENDED: Final = frozenset({"CLOSED", "CANCELLED", "FAILED"})


class _Task(msgspec.Struct):
    """State of a task according to its records."""

    name: str
    stream: str
    config: TaskConfig | None
    state: str
    waits_for: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    since_s: float = 0.0
    """Time at which the task came into its state, by the journal's clock."""
    retries: int = 0
    claims: int = 0
    run: str = ""
    dead: bool = False
    """Whether the task was recorded as a dead letter since it failed last."""
    reopened: bool = False


class _Run(msgspec.Struct):
    """State of a task run: its limits, its state and the time of that state, and the number of the supervisor under
    which it came into that state."""

    task: str
    limits: Mapping[str, Any]
    state: str = "PENDING"
    since_s: float = 0.0
    attempts: int = 0
    delay_s: float = 0.0
    life: int = 0
    is_reset: bool = False
    """Whether a reset has ended the wait of the run, or the next one."""


class MetadataChecker:
    """Checker of metadata and waits of one simulated run. *say* reports a violation; *bound_s* is the tolerated delay
    of anything due, in seconds; *now* is the run's clock, in seconds."""

    def __init__(self, say: Say, bound_s: float, now: Callable[[], float]) -> None:
        self._say, self._bound_s, self._now = say, bound_s, now
        self._names: dict[str, str] = {}
        """Names of the plans, by workstream."""
        self._plans: dict[str, Plan] = {}
        """Plans by the name of their workstream."""
        self._slots: dict[str, list[tuple[float, dict[str, int]]]] = {}
        """Slots of the workers of each workstream by the plans given so far, with the time of each plan; records of
        workers that were born before may still be on their way to the disk."""
        self._tasks: dict[str, _Task] = {}
        self._runs: dict[str, _Run] = {}
        self._jobs: dict[str, tuple[str, str]] = {}
        """Task and state of each job."""
        self._blocked: dict[str, None] = {}
        """Ids of the blocked tasks, in order."""
        self._under_way: set[str] = set()
        """Workstreams that this supervisor has begun or continued, which the birth of a worker shows."""
        self._due: dict[tuple[str, str], tuple[float, str]] = {}
        """Deadline of each wait, and the text that describes it."""
        self._life = 0

    # ------------------------------------------------------------------ supervisors and clocks
    def ended(self) -> None:
        """Note that the supervisor has ended: the next supervisor continues its waits."""
        self._life += 1
        self._under_way.clear()
        self._due.clear()

    def delayed(self, seconds: float) -> None:
        """Extend the deadlines by so many seconds, in which no work and no records were possible."""
        self._due = {key: (due_s + seconds, why) for key, (due_s, why) in self._due.items()}

    def planned(self, plan: Plan) -> None:
        """Note a plan that the host is about to run."""
        self._plans[plan.workstream] = plan
        slots = {one: config.slots for one, config in plan.workers.items()} or {"local": plan.max_sessions}
        self._slots.setdefault(plan.workstream, []).append((self._now(), slots))

    # ------------------------------------------------------------------ what is durable
    def wrote(self, one: Append, at_s: float, config: Callable[[str], TaskConfig | None]) -> None:
        """Process a durable append. *config* returns the plan's configuration of a task, by the task's name."""
        record = one.record
        self._look(record.entity_id, at_s)
        match record.entity_type, record.outcome:
            case "workstream", "born":
                self._names[record.entity_id] = str(record.metadata["name"])
            case "task", "born":
                self._task_born(record, one.state, config)
            case "run", "born":
                self._run_born(record)
            case "job", "born":
                self._job_born(record)
            case "worker", "born":
                self._worker_born(record, at_s)
            case "task", "transition":
                self._task_moved(record, one.state)
            case "run", "transition":
                self._run_moved(record, one)
            case "job", "transition":
                self._job_moved(record, one.state)
            case "task", "fact":
                self._fact(record)

    def _look(self, entity_id: str, at_s: float) -> None:
        """Report overdue waits, except those that this record ends."""
        for key, (due_s, why) in [*self._due.items()]:
            if at_s <= due_s or key[0] == entity_id or (key[1] == "parts" and self._is_tried(key[0])):
                continue
            del self._due[key]
            self._say("punctual", key[0], f"{why}, {at_s - due_s:.3f} s too long")

    def _is_tried(self, task_id: str) -> bool:
        """Return whether the task's own attempt is under way beside its subtasks, or the attempt's result waits for a
        free worker since an earlier supervisor: until then the subtasks are not given up (docs/how-to/operate.md)."""
        run = self._runs.get(self._tasks[task_id].run)
        return run is not None and run.state == "IN_PROGRESS"

    def _tried(self, task_id: str) -> None:
        """Note that the task's own attempt is over: from now on, subtasks whose time is over must be given up."""
        key = (task_id, "parts")
        if key in self._due:
            due_s, why = self._due[key]
            self._due[key] = (max(due_s, self._now() + self._bound_s), why)

    def _wait(self, entity_id: str, what: str, seconds: float, why: str) -> None:
        self._due.setdefault((entity_id, what), (self._now() + seconds + self._bound_s, why))

    def _plan(self, stream: str) -> Plan | None:
        return self._plans.get(self._names.get(stream, ""))

    # ------------------------------------------------------------------ births
    def _task_born(self, record: LifecycleEvent, state: str, config: Callable[[str], TaskConfig | None]) -> None:
        told, name = record.metadata, str(record.metadata["name"])
        known, stream = config(name), str(record.metadata["workstream"])
        self._tasks[record.entity_id] = _Task(name, stream, known, state, tuple(told["waiting_for"]))
        plan = self._plan(stream)
        if known is None or plan is None:
            return
        asked = plan.approve_plan or known.approval == "before"
        wanted = (known.max_retries, known.approval == "after", [*known.depends_on], "PLANNED" if asked else "OPEN")
        given = (told["max_retries"], told["needs_approval"], [*told["waiting_for"]], state)
        self._same(record, given, wanted)

    def _run_born(self, record: LifecycleEvent) -> None:
        told = record.metadata
        task = self._tasks[str(told["task"])]
        task.run = record.entity_id
        self._runs[record.entity_id] = _Run(str(told["task"]), told, life=self._life)
        plan = self._plan(task.stream)
        if plan is None:
            return
        lifecycle, circuit = plan.task_lifecycle, plan.task_lifecycle.circuit_breaker
        wanted = {
            "max_attempts": lifecycle.max_attempts,
            "base_delay_s": lifecycle.base_retry_delay,
            "max_delay_s": lifecycle.max_retry_delay,
            "cooldown_s": circuit.cooldown_period,
            "probes_max": circuit.probes_max if circuit.enabled else 0,
            "timeout_s": lifecycle.value().timeout_s,
            "attempts": 0,
            "failures": 0,
            "probes": 0,
        }
        self._same(record, {name: told[name] for name in wanted}, wanted)
        if circuit.enabled:
            self._same(record, told["max_error_repeats"], circuit.max_error_repeats)

    def _job_born(self, record: LifecycleEvent) -> None:
        told, task_id = record.metadata, str(record.metadata["task"])
        task = self._tasks[task_id]
        self._jobs[record.entity_id] = (task_id, "pending")
        attempts = int(self._runs[task.run].limits["max_attempts"])
        wanted = (task.run, task.stream, attempts - 1, 0)
        given = (told["run"], told["workstream_id"], told["max_retries"], told["retry_count"])
        self._same(record, given, wanted)
        if task.config is not None:
            role = task.config.role
            named = (told["critical"], [*told["capabilities"]])
            self._same(record, named, (task.config.critical, [f"role:{role}"] if role else []))

    def _worker_born(self, record: LifecycleEvent, at_s: float) -> None:
        """Check the slots of a new worker: those of the plan, or one worker with all slots."""
        stream = str(record.metadata["workstream"])
        self._under_way.add(stream)
        self._unblock()  # what it was blocked on may have been closed under a supervisor before
        known = self._slots.get(self._names.get(stream, ""), [])
        before = [slots for since_s, slots in known if since_s < at_s]
        changed = [slots for since_s, slots in known if abs(since_s - at_s) <= ROUNDING_S]  # just then
        name, given = record.entity_id.removeprefix("worker:"), record.metadata["max_concurrent_tasks"]
        wanted = [slots.get(name) or slots.get(name.rpartition("-")[0]) for slots in (*before[-1:], *changed)]
        if known and given not in wanted:
            self._same(record, given, wanted[-1] if wanted else None)

    def _same(self, record: LifecycleEvent, given: object, wanted: object) -> None:
        if given != wanted:
            self._say("legal", record.entity_id, f"is born with {given}, not with {wanted}, as its plan says")

    # ------------------------------------------------------------------ tasks
    def _task_moved(self, record: LifecycleEvent, state: str) -> None:
        task, told = self._tasks[record.entity_id], record.metadata
        before, since_s = task.state, task.since_s
        task.state, task.since_s = state, record.monotonic_s
        for what in ("parts", "blocked"):
            self._due.pop((record.entity_id, what), None)
        self._blocked.pop(record.entity_id, None)
        match record.event:
            case "claimed":
                task.claims += 1
                self._check_agent(record, task)
            case "DeadLettered":
                task.dead = True
                run = self._runs[task.run]
                given, wanted = told["attempts"], 0 if run.state in OVER else run.attempts
                if (given, told["claims"]) != (wanted, task.claims):
                    words = f"is a dead letter of {given} and {told['claims']}, not of {wanted} and {task.claims}"
                    self._say("counted_right", record.entity_id, words)
            case "retried":
                task.retries, task.dead = task.retries + 1, False
                self._check_words(record, f"try {task.retries + 1}")
            case "reopened":
                task.retries, task.dead, task.reopened = 0, False, True
            case "unblocked":
                self._check_unblocked(record, task)
            case "split":
                task.parts = tuple(told["subtasks"])
            case "subtask_timed_out":
                self._check_wait(record, task, since_s)
            case "subtasks_completed":
                self._check_parts(record, task)
            case "orphaned" | "unclaimed" | "requeued":
                self._check_lost(record, before)
        if state == "WAITING_FOR_SUBTASKS" and before != state:
            self._wait(record.entity_id, "parts", self._parts_s(task), "waits for its subtasks")
        if state == "BLOCKED":
            waits_for = told.get("on") or [told.get("subtask")]
            task.waits_for = tuple(str(one) for one in waits_for)
            self._blocked[record.entity_id] = None
        self._delay(record.entity_id, task, before)
        self._unblock()
        if state in ENDED or state == "WAITING_FOR_SUBTASKS":  # which may all have ended while it was blocked
            self._settled_parts()

    def _delay(self, task_id: str, task: _Task, before: str) -> None:
        """Stop the wait for the delay of a job while its task is blocked, and start it anew when the task goes on."""
        delayed = [job for job, one in self._jobs.items() if one == (task_id, "retrying")]
        for job in delayed if "BLOCKED" in (task.state, before) else ():
            self._due.pop((job, "delay"), None)
            if before == "BLOCKED" and task.state not in ENDED:
                self._wait_for_delay(job, self._runs[task.run])

    def _unblock(self) -> None:
        """Expect blocked tasks to go on at once when all tasks that they wait for are closed and their plan is under
        way."""
        for one in [one for one in self._blocked if self._tasks[one].stream in self._under_way]:
            found = [self._tasks.get(name) for name in self._tasks[one].waits_for]
            if found and all(task is not None and task.state == "CLOSED" for task in found):
                self._wait(one, "blocked", 0.0, "is blocked on what is closed")

    def _settled_parts(self) -> None:
        """Drop the deadline of a wait for subtasks when all these subtasks have ended."""
        for entity_id, what in [key for key in self._due if key[1] == "parts"]:
            parts = [self._tasks.get(one) for one in self._tasks[entity_id].parts]
            if all(one is not None and one.state in ENDED for one in parts):
                del self._due[entity_id, what]

    @staticmethod
    def _parts_s(task: _Task) -> float:
        own_s = task.config.timeout_s if task.config is not None else None
        return own_s or SUBTASKS_S

    def _check_wait(self, record: LifecycleEvent, task: _Task, since_s: float) -> None:
        waited_s = record.monotonic_s - since_s
        if waited_s < self._parts_s(task) - ROUNDING_S and self._life == 0:
            self._say("punctual", record.entity_id, f"gives its subtasks up after {waited_s:.3f} s")

    def _check_parts(self, record: LifecycleEvent, task: _Task) -> None:
        unmet = [one for one in task.parts if not self._is_met(one)]
        if unmet:
            self._say("completion_requirement", record.entity_id, f"is done, and {', '.join(unmet)} is not")

    def _is_met(self, task_id: str) -> bool:
        """Return whether a dependency is closed, or was skipped."""
        task = self._tasks[task_id]
        return task.state == "CLOSED" or self._runs[task.run].state == "SKIPPED"

    def _check_agent(self, record: LifecycleEvent, task: _Task) -> None:
        """Check the agent of a claim: the task's own agent first, then its fallback agents in order, one for each
        retry."""
        if task.config is None or task.reopened:
            return
        ladder = (task.config.agent, *task.config.fallback_agents)
        self._check_words(record, f"agent {ladder[min(task.retries, len(ladder) - 1)]}")

    def _check_unblocked(self, record: LifecycleEvent, task: _Task) -> None:
        names = [self._tasks[one].name if one in self._tasks else one for one in task.waits_for]
        if record.reason.endswith(": closed"):
            self._check_words(record, f"{', '.join(names)}: closed")

    def _check_lost(self, record: LifecycleEvent, before: str) -> None:
        """Check that a task becomes an orphan exactly if its holder is lost, and that the record that takes the task
        away names the reason."""
        lost, recovered = record.reason in LOST, record.transition_reason == "orphan_recovered"
        direct = record.event == "requeued" and before == "IN_PROGRESS"
        if (
            (record.event == "orphaned") > lost
            or (direct and lost)
            or (record.event != "orphaned" and recovered is not lost)
        ):
            words = f"{record.event} in {before} says {record.transition_reason} of itself"
            self._say("legal", record.entity_id, f"{words}, and {record.reason!r}")

    def _check_words(self, record: LifecycleEvent, wanted: str) -> None:
        if record.reason != wanted:
            self._say("legal", record.entity_id, f"{record.event} says {record.reason!r} of itself, not {wanted!r}")

    def _fact(self, record: LifecycleEvent) -> None:
        task, told = self._tasks[record.entity_id], record.metadata
        match record.event:
            case "Commanded" | "CommandRefused" if told["command"] == "reset":
                self._runs[task.run].is_reset = record.event == "Commanded"
            case "WaitsForPerson":
                if (given := tuple(told["on"])) != task.waits_for or task.state != "BLOCKED":
                    self._say("legal", record.entity_id, f"waits for a person and {given}, not for {task.waits_for}")
            case "ProviderBreaker" if told["circuit"] == "open":
                later_s = float(told["free_at_s"]) - record.monotonic_s
                if abs(later_s - COOLING_S) > ROUNDING_S:
                    self._say("punctual", record.entity_id, f"its provider is asked again after {later_s:.3f} s")

    def failed(self, entity_id: str) -> None:
        """Check that a task that was reported as failed is recorded as a dead letter."""
        task = self._tasks[entity_id]
        if task.state == "FAILED" and not task.dead:
            self._say("honest_ends", entity_id, "has failed, and no record says that it is a dead letter")

    # ------------------------------------------------------------------ runs
    def _run_moved(self, record: LifecycleEvent, one: Append) -> None:
        run, state = self._runs[record.entity_id], one.state
        if record.event == "retry_decided":
            share = abs(float(record.metadata["jitter"]) - 1.0)
            if share > float(run.limits["jitter"]) + ROUNDING_S:
                self._say("punctual", record.entity_id, f"its delay is drawn {share:.3f} off, more than its limits let")
        if run.life == self._life and record.event in ("backoff_completed", "cooldown_expired"):
            most_s = run.delay_s if record.event == "backoff_completed" else float(run.limits["cooldown_s"])
            waited_s = record.monotonic_s - run.since_s
            if waited_s < most_s - ROUNDING_S and not run.is_reset:
                words = f"{record.event} comes after {waited_s:.3f} s, of {most_s:.3f} s"
                self._say("punctual", record.entity_id, words)
        if state != run.state:
            run.since_s, run.life = record.monotonic_s, self._life
            if run.state == "IN_PROGRESS":
                self._tried(run.task)
        if state == "IN_PROGRESS" and run.state != state:
            run.attempts += 1
            run.is_reset = False
        if record.event == "manual_reset":
            run.attempts = 0
        if state == "RETRYING" and run.state != state:  # its data is worked out a second time elsewhere
            run.delay_s = float(msgspec.json.decode(one.data)["delay_s"])
        run.state = state

    # ------------------------------------------------------------------ jobs
    def _job_moved(self, record: LifecycleEvent, state: str) -> None:
        task_id, _ = self._jobs[record.entity_id]
        self._jobs[record.entity_id] = (task_id, state)
        self._due.pop((record.entity_id, "delay"), None)
        task = self._tasks[task_id]
        run = self._runs[task.run]
        if state == "retrying" and task.state not in ("BLOCKED", "WAITING_FOR_SUBTASKS"):
            self._wait_for_delay(record.entity_id, run)

    def _wait_for_delay(self, job_id: str, run: _Run) -> None:
        seconds = float(run.limits["cooldown_s" if run.state == "CIRCUIT_OPEN" else "max_delay_s"])
        seconds = max(seconds, run.delay_s)  # a provider may have announced a longer wait
        self._wait(job_id, "delay", seconds, "waits for another try")
