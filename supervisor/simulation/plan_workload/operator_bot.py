"""Operator bots of a simulated plan run, which approve or reject tasks, and interfere now and then.

Tasks that wait are read from durable records, as an operator's screen would show the tasks; whether a task is approved
was drawn with the task's script. Interference is a fault like any other, with a name; a run without faults has no
interference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import anyio

from supervisor.host.api import Supervisor
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.types import AbortScope, Verb
from supervisor.plans import Plan
from supervisor.plans.tasks import TaskConfig, every_task
from supervisor.simulation.checkers import Heartbeat, PlannedTasksListed, TaskAnswered
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.plan_workload.plans import WORKER, draw_workers
from supervisor.simulation.plan_workload.task_scripts import TaskScript, prompt_of
from supervisor.simulation.request_log import RequestLog
from supervisor.simulation.world import World
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.workers import WorkerPool

ROUND_S: Final = (0.5, 20.0)
"""Bounds for the seconds between two rounds in which a bot inspects its plan."""
SILENCE_S: Final = (60.0, 500.0)
"""Bounds for the seconds for which heartbeats of a worker are suppressed: enough for missed heartbeats, now and then
enough for the worker to be given up as lost."""
ONE: Final = "operator"
MORE: Final = 100
"""First number for tasks that a bot adds to a plan."""


class HeartbeatSender:
    """Sender of heartbeats for the workers of a plan (``supervisor.work.workers.Heartbeat``), until the worker pool
    expects no more. The oracle sees each heartbeat until the supervisor, the newest of *world*, is killed."""

    def __init__(self, world: World) -> None:
        self._oracle, self._now, self._killed = world.oracle, world.now, world.killed
        self._silent_until_s: dict[str, float] = {}

    def silence(self, worker_id: str, seconds: float) -> None:
        """Suppress the heartbeats of a worker for *seconds* seconds."""
        self._silent_until_s[worker_id] = self._now() + seconds

    async def beat(self, worker_pool: WorkerPool, worker_id: str, heartbeat_s: float) -> None:
        """Send the heartbeats of one worker, every *heartbeat_s* seconds, until the worker pool expects no more."""
        while self._comes_through(worker_pool, worker_id):
            await worker_pool.pause(heartbeat_s)

    def _comes_through(self, worker_pool: WorkerPool, worker_id: str) -> bool:
        if self._now() < self._silent_until_s.get(worker_id, 0.0):
            return True
        if not self._killed.is_set():
            self._oracle.observe(Heartbeat(worker_id, self._now()))
        return worker_pool.beat(worker_id)


class OperatorBot:
    """Simulated operator of one plan under one supervisor.

    Args:
        runner: runner of the plan, which takes the bot's commands.
        reloaded: called with the plan after each change that the bot makes to the plan.
        heartbeats: sender of the heartbeats of the plan's workers.
    """

    def __init__(
        self,
        runner: PlanRunner,
        plan: Plan,
        world: World,
        random: KeyedRandom,
        requests: RequestLog,
        reloaded: Callable[[Plan], None],
        heartbeats: HeartbeatSender,
    ) -> None:
        self.runner, self.control = runner, runner.commands
        self._reloaded, self._heartbeats = reloaded, heartbeats
        self._names = [one.task.id for one in every_task(plan.tasks)]
        self._plan, self._board, self._task_scripts, self._oracle = plan, world.board, world.task_scripts, world.oracle
        self._random, self._faults, self._requests = random.below("foreman", world.lives), world.faults, requests
        self._lives = world.lives

    async def run(self) -> None:
        """Inspect the plan and act in rounds, until the asyncio or trio task that runs this method is cancelled."""
        rounds = 0
        while True:
            rounds += 1
            await anyio.sleep(self._random.between(*ROUND_S, "round", rounds))
            await self._check_planned()
            for name in self._tasks_in("PLANNED"):
                await self._decide(name, self.task_script(name).wanted)
            for name in self._tasks_in("PENDING_APPROVAL"):
                if self._random.happens(0.5, "looks at it", name, rounds):
                    await self._decide(name, self.task_script(name).approve())
            for name in self._tasks_in("BLOCKED"):
                if self._random.happens(0.3, "knows what it waits for", name, rounds):
                    await self.unblock(name)
            if not self._faults.healed:
                place = f"{self._plan.workstream}.{self._lives}.{rounds}"
                await self._interfere(self._random.below(rounds), place)
                if self._faults.strikes("work.silent", place):
                    self._silence(self._random.below(rounds, "silence"))
                if self._faults.strikes("host.reloads", place):
                    await self._reload(self._random.below(rounds, "reload"), rounds)

    def _tasks_in(self, state: str) -> list[str]:
        """Return the names of this plan's tasks that are in this state on record, including subtasks that were split
        from the plan's tasks since."""
        return self._board.waiting(state, self._names)

    async def _check_planned(self) -> None:
        """Report the tasks that wait for approval to the oracle, unless records are still being written to the disk or
        were lost."""
        planned = await self.control.planned()
        journal_writer = self.runner.plan_run.sup.journal_writer
        if self.runner.plan_run.running and journal_writer.clean and journal_writer.error is None:
            self._oracle.observe(PlannedTasksListed(planned, self._tasks_in("PLANNED")))

    def task_script(self, name: str) -> TaskScript:
        return self._task_scripts.of(name) or TaskScript(name)

    async def _decide(self, name: str, wanted: bool) -> None:
        with self._requests.record(f"{'approve' if wanted else 'reject'} {name}") as said:
            if wanted:
                answer = await self.control.approve(name, by=ONE)
            else:
                answer = await self.control.reject(name, by=ONE, reason="not like this")
            said.append(answer.state)
            self._oracle.observe(TaskAnswered(name, answer.state))

    async def unblock(self, name: str) -> None:
        with self._requests.record(f"unblock {name}") as said:
            said.append((await self.control.unblock(name, by=ONE, reason="it is there")).state)

    # ------------------------------------------------------------------ interference
    async def _interfere(self, random: KeyedRandom, place: str) -> None:
        for kind, states, act in (
            (
                "host.cancels_task",
                ("OPEN", "CLAIMED", "IN_PROGRESS", "PENDING_APPROVAL", "WAITING_FOR_SUBTASKS"),
                Verb.CANCEL,
            ),
            ("host.requeues", ("IN_PROGRESS",), Verb.REQUEUE),
            ("host.unclaims", ("CLAIMED",), Verb.UNCLAIM),
            ("host.blocks", ("CLAIMED", "IN_PROGRESS"), Verb.BLOCK),
            ("host.splits", ("OPEN", "CLAIMED", "IN_PROGRESS"), Verb.SPLIT),
            ("host.retries", (), Verb.RETRY),
        ):
            candidates = [name for state in states for name in self._tasks_in(state)]
            if act is Verb.RETRY:
                candidates = self._board.cooling(self._names)
            if candidates and self._faults.strikes(kind, place):
                await self.command(act, random.choice(sorted(candidates), "whom", kind), random, place)

    async def _reload(self, random: KeyedRandom, number: int) -> None:
        """Change the plan as an edit of the plan's file would: other workers, and one more task."""
        name = f"{self._plan.workstream}t{MORE + number}"
        if not self.runner.begun.is_set() or name in self._names:  # an earlier supervisor's run was told so
            return
        more = self.part(name)
        told = {"tasks": (*self._plan.tasks, more), "workers": draw_workers(random)}
        plan = Plan.model_validate({**dict(self._plan), **told})
        with self._requests.record(f"add {name}") as said:  # refused, if the run is over
            self.runner.check(plan)
            self._plan, self._names = plan, [one.task.id for one in every_task(plan.tasks)]
            self._reloaded(plan)
            said.append((await self.control.add_plan(plan, by=ONE)).state)

    def _silence(self, random: KeyedRandom) -> None:
        """Suppress the heartbeats of one drawn worker for a drawn time."""
        workers = sorted(self.runner.plan_run.worker_pool._workers) if self.runner.begun.is_set() else []
        if not workers:  # none yet, or none any more: what is left is judged, and needs none
            return
        worker_id = random.choice(workers, "whose")
        self._heartbeats.silence(worker_id, random.between(*SILENCE_S, "for how long"))

    async def command(self, verb: Verb, name: str, random: KeyedRandom, place: str) -> None:
        """Send one command about a task to the plan's runner; now and then twice, with the same command id."""
        given: dict[str, Any] = {"by": ONE, "reason": "on second thoughts", "command_id": f"{verb}.{place}"}
        args: list[Any] = [name]
        if verb is Verb.SPLIT:
            args.append([self.part(f"{name}s{number}") for number in (7, 8)])
        if verb is Verb.BLOCK:
            args.append([random.choice(sorted(("a key", *self._names)), "on what", name)])
        for _ in range(1 + random.happens(0.2, "twice", verb)):
            with self._requests.record(f"{verb} {name}") as said:
                answer = await getattr(self.control, verb)(*args, **given)
                said.append(answer.state)
                if not answer.repeated:
                    self._oracle.observe(TaskAnswered(name, answer.state))

    def part(self, name: str) -> TaskConfig:
        if self._task_scripts.of(name) is None:
            self._task_scripts.add(TaskScript(name))
        return TaskConfig(id=name, agent=WORKER, prompt=prompt_of(name))


# ------------------------------------------------------------------------------------------------------ lying in wait
PAUSE_S: Final = (0.5, 20.0)
WATCH_MAX_S: Final = 90.0
"""The longest time for which a bot waits for a state, in seconds."""
INSIST: Final = 0.6
"""Share of the bots that wait for the same state again and again."""
_ABOUT_TASKS: Final = [verb for verb in Verb if verb is not Verb.ADD]
ACTS: Final = (*_ABOUT_TASKS, *_ABOUT_TASKS, "close", "close", "abort", "stop", "stop now")
"""All actions on a task, on the session that works on it, or on the supervisor; repeated names are more likely."""


class _StateTrigger(NamedTuple):
    """Trigger: when a task or its task run enters *state*, one of *acts* is done; then the trigger *then*, if any,
    applies to the same task."""

    kind: str
    state: str
    acts: Sequence[str] = ACTS
    then: _StateTrigger | None = None


PROBED: Final = _StateTrigger("run", TaskRun.HALF_OPEN.value, ("cancel", "cancel", "stop"))
"""Trigger at the state in which the task run is about to be probed, as soon as a worker is free."""
UNHELD: Final = _StateTrigger(
    "run", TaskRun.CIRCUIT_OPEN.value, ("close",), _StateTrigger("run", TaskRun.HALF_OPEN.value, ("stop",))
)
"""Trigger for a task run that is about to be probed while the supervisor stops and begins no more work."""
RARE: Final = (
    _StateTrigger("run", TaskRun.CIRCUIT_OPEN.value, ("retry", "close", "cancel")),
    UNHELD,
    UNHELD,
    UNHELD,
    PROBED,
    _StateTrigger("run", TaskRun.VALIDATING.value),
    _StateTrigger("task", Task.PENDING_APPROVAL.value, ("cancel", "cancel", "approve", "reject")),
    _StateTrigger("task", Task.CLAIMED.value, ("split", "block", "unclaim")),
    _StateTrigger("task", Task.IN_PROGRESS.value, ("split", "block", "requeue", "keep", "keep")),
)
"""Triggers for states that commands at random times rarely meet."""
NEXT: Final = _StateTrigger("run", TaskRun.HALF_OPEN.value, ("cancel",))
"""Trigger that cancels while the task run is to be probed by a session that does not exist yet, since the start of the
session takes time."""


def _cancelling(moment: str) -> _StateTrigger:
    """Return the trigger that cancels a task when the task, or its task run, enters the state *moment* (``KIND
    STATE``)."""
    kind, state = moment.split(" ")
    if state == TaskRun.HALF_OPEN.value:
        return _StateTrigger("run", TaskRun.CIRCUIT_OPEN.value, ("close",), NEXT)
    return _StateTrigger(kind, state, ("cancel",))


ANY: Final = (
    *(_StateTrigger("run", one.value) for one in TaskRun),
    *(_StateTrigger("task", one.value) for one in Task),
)


class StateTriggers:
    """Bot that sends commands at the moment when a task of one plan enters some state, under one supervisor. *name* is
    the name of the plan's workstream, with which the names of the plan's tasks begin. Most bots always wait for the
    same state."""

    def __init__(
        self,
        sup: Supervisor,
        operator_bot: OperatorBot,
        name: str,
        world: World,
        random: KeyedRandom,
        requests: RequestLog,
    ) -> None:
        self._sup, self._operator_bot, self._name = sup, operator_bot, name
        self._world, self._requests = world, requests
        self._random = random.below("lurker", world.lives)
        cancels_at = world.drawn.cancels_at or ()
        triggers = [_cancelling(one) for one in cancels_at] or RARE
        insists = bool(cancels_at) or random.happens(INSIST, "insists")
        self._insists_on = random.choice(triggers, "insists on") if insists else None

    async def run(self) -> None:
        """Wait for states and act, again and again, until the asyncio or trio task of this method is cancelled."""
        number = 0
        while True:
            number += 1
            await anyio.sleep(self._random.between(*PAUSE_S, "pause", number))
            place, faults = f"{self._name}.{self._world.lives}.{number}", self._world.faults
            if not faults.healed and faults.strikes("host.lurks", place):
                await self._watch_once(self._random.below(number), place)

    async def _watch_once(self, random: KeyedRandom, place: str) -> None:
        triggers = RARE if random.happens(0.5, "rare") else ANY
        trigger: _StateTrigger | None = self._insists_on or random.choice(triggers, "trap")
        task = f"{self._name}t"
        while trigger is not None:
            found = await self._wait_for_state(trigger, task)
            if found is None or self._world.faults.healed:
                return
            task, holder = found
            await self._act(random.choice(trigger.acts, "act", trigger.state), task, holder, random, place)
            trigger = trigger.then

    async def _wait_for_state(self, trigger: _StateTrigger, called: str) -> tuple[str, str] | None:
        """Wait until a task whose name begins with *called*, or the task's run, enters the trigger's state. Return the
        name and the holder of the task, or ``None`` if the wait takes too long."""
        with anyio.move_on_after(WATCH_MAX_S):
            async with self._sup.subscribe() as records:
                async for record in records:
                    if (record.entity_type, record.outcome, record.to_status) == (
                        trigger.kind,
                        "transition",
                        trigger.state,
                    ):
                        whose = self._world.board.whose(record.entity_id)
                        if whose is not None and whose[0].startswith(called):
                            return whose
        return None

    async def _act(self, act: str, task: str, holder: str, random: KeyedRandom, place: str) -> None:
        if act in list(Verb):
            await self._operator_bot.command(Verb(act), task, random, f"lurker.{place}")
            return
        with self._requests.record(f"{act} {task} right then") as said:
            match act:
                case "close":
                    await self._sup.core.aborts.close_session(holder, reason="enough of it")
                    said.append("closed")
                    self._world.oracle.replies.close_answered(holder)
                case "abort":
                    receipt = await self._sup.abort(holder, AbortScope.SESSION, reason="enough of it", actor="operator")
                    said.append(receipt.abort_id)
                case _:
                    self._world.request_stop(now=act == "stop now")
                    await self._sup.stop(now=act == "stop now", actor="operator")
                    said.append("stopping")
