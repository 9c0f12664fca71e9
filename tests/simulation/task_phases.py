"""Kit for the table tests of commands: brings a task of a simulated plan into a phase, gives commands, and returns what
was seen.

``play(phase, commands)`` runs a plan on a supervisor in virtual time. When the record with which the phase begins is
durable, the commands are given all at once, as requests to the table of control operations, which the control socket
uses, too. After the last answer an operator helps the task to its end: approves, unblocks, and ends the second task,
which only keeps the run going. What is seen are the answers, and the durable records of the task; all checkers of
tests/verification check every run.

Nothing here uses a part of the work package: the plan is run by ``run_plan``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

import anyio
from msgspec.structs import replace

from supervisor import AgentTurn, Plan, PlanHandle, Refused, Supervisor, ToolAborted, run_plan
from supervisor.control.operations import OPERATIONS, error_reply, read_request
from supervisor.lifecycles.task import task_end
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append
from supervisor.simulation.cost import OutcomeCounts
from supervisor.simulation.plan_workload.task_scripts import TaskScript
from supervisor.simulation.scenario import FaultsConfig, LoadConfig, Scenario, WorldConfig
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

TASK: Final = "w0t0"
"""Id of the task, and of its first session. (The simulator's acceptance tests are for names of this form.)"""
OTHER: Final = "w0t1"
"""Id of the task that keeps the run going, or takes the only slot."""
PART: Final = "w0t0s7"
WORK_S: Final = 20.0
"""Seconds of an attempt; a review takes 2, a subtask 3, and the other task 10 times as long."""
DELAY_S: Final = 60.0
"""Seconds of every delay before another attempt, probe or claim."""
SEED: Final = 42
"""Seed with which the workspace takes 4.4 s to prepare, four acceptance tests more than 6 s, and a merge 1.8 s."""
STEADY_S: Final = 0.05
"""Seconds from the record with which a phase begins until the commands are given."""

ONE_SLOT: Final[Mapping[str, Any]] = {"max_sessions": 1}
TESTED: Final[Mapping[str, Any]] = {"command": ["sim-check", TASK]}
REVIEWED: Final[Mapping[str, Any]] = {"review": {"agent": "reviewer"}}
ONCE: Final[Mapping[str, Any]] = {"max_attempts": 1, "base_retry_delay": DELAY_S}

FROM_OPEN: Final = "CLAIMED IN_PROGRESS DONE CLOSED"


class Phase(NamedTuple):
    """A phase of the task: the record with which the phase begins (``ENTITY EVENT``), the states of the task from then
    to its end if no command is given, and the text with which a command is refused that the phase does not allow.

    *tries* and *verdicts* are the outcomes of the first attempts and reviews, *task* and *plan* keys of the plan.
    *other* is the priority of the second task, which then works beside; else that task waits for an approval.
    *before* is a command that is given when the first attempt has begun.
    """

    begins: str
    then: str
    refusal: str
    tries: Sequence[str] = ("works",)
    verdicts: Sequence[str] = ()
    task: Mapping[str, Any] = {}
    plan: Mapping[str, Any] = {}
    other: int | None = None
    before: str = ""


CHECKED: Final = "is done, and its work is being checked"
PHASES: Final[Mapping[str, Phase]] = {
    "planned": Phase(f"r1#{TASK} Born", f"OPEN {FROM_OPEN}", "is PLANNED", task={"approval": "before"}),
    "queued": Phase(f"r1#{OTHER} started", FROM_OPEN, "is OPEN", plan=ONE_SLOT, other=1),
    "claimed": Phase(f"r1#{TASK} claimed", "IN_PROGRESS DONE CLOSED", "is CLAIMED"),
    "turn": Phase(f"r1#{TASK} started", "DONE CLOSED", "is IN_PROGRESS"),
    "delay": Phase(f"r1#{TASK}:job execution_failed", "DONE CLOSED", "is IN_PROGRESS", tries=("fails",)),
    "between": Phase(
        f"r1#{TASK}:job retry_delay_elapsed", "DONE CLOSED", "is IN_PROGRESS", tries=("fails",), plan=ONE_SLOT, other=-1
    ),
    "cooling": Phase(
        f"r1#{TASK}:run execution_timed_out",
        "DONE CLOSED",
        "is IN_PROGRESS",
        tries=("hangs",),
        task={"timeout_s": 100},
        plan={"task_lifecycle": {**ONCE, "circuit_breaker": {"cooldown_period": DELAY_S}}},
    ),
    "checked": Phase(f"r1#{TASK}:run execution_completed", "DONE CLOSED", CHECKED, task={"acceptance": [TESTED] * 4}),
    "reviewed": Phase(f"{TASK}/review Born", "DONE CLOSED", CHECKED, plan=REVIEWED),
    "reclaim": Phase(f"r1#{TASK} retried", FROM_OPEN, "is OPEN", verdicts=("rejects",), plan=REVIEWED),
    "merged": Phase(f"r1#{TASK} completed", "CLOSED", "is DONE"),
    "approval": Phase(f"r1#{TASK} approval_requested", "CLOSED", "is PENDING_APPROVAL", task={"approval": "after"}),
    "blocked": Phase(f"r1#{TASK} blocked", f"OPEN {FROM_OPEN}", "is BLOCKED", before="block"),
    "split": Phase(f"r1#{TASK}:run execution_completed", "DONE CLOSED", "is WAITING_FOR_SUBTASKS", before="split"),
    "failed": Phase(
        f"r1#{TASK} DeadLettered",
        "",
        "has ended (FAILED)",
        tries=("fails",),
        plan={"task_lifecycle": {**ONCE, "circuit_breaker": {"enabled": False}}},
    ),
}
"""Phases by name, in the order of a task's life; ``between``: the delay is over, and no slot is free for the next
attempt; ``reclaim``: in the delay between two claims."""


def _steer(verb: str, **fields: Any) -> Mapping[str, Any]:
    return {"do": "steer", "verb": verb, "tasks": [TASK], "reason": "enough", **fields}


def _abort(target: str, scope: str) -> Mapping[str, Any]:
    return {"do": "abort", "id": target, "scope": scope, "reason": "enough"}


def _send(**fields: Any) -> Mapping[str, Any]:
    return {"do": "send", "id": TASK, "text": "look here", **fields}


COMMANDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "approve": _steer("approve"),
    "reject": _steer("reject"),
    "cancel": _steer("cancel"),
    "retry": _steer("retry"),
    "keep": _steer("keep"),
    "requeue": _steer("requeue"),
    "unclaim": _steer("unclaim"),
    "block": _steer("block", on=["a key"]),
    "unblock": _steer("unblock"),
    "split": {"do": "split", "task": TASK, "subtasks": f"[{{id: {PART}, prompt: part}}]"},
    "send": _send(),
    "send_now": _send(urgent=True),
    "send_at_turn_end": _send(urgent=True, at="turn_end"),
    "abort_session": _abort(TASK, "session"),
    "abort_sibling": _abort(TASK, "sibling"),
    "abort_tool": _abort(f"{TASK}:t1:c1", "tool"),
    "close": {},
    "stop": {"do": "stop"},
    "stop_now": {"do": "stop", "now": True},
    "give_up": {},
}
"""Requests of the commands by name. A host calls ``close`` on the session, and ``cancel`` on the handle of the run
(``give_up``): these two are no requests."""


class Seen(NamedTuple):
    """Observations of a run: the answers, the states of the task from the commands on, its end, the last reason, the
    seconds from the commands to the end, and the prompts of its agents."""

    answers: Mapping[str, str]
    then: str
    end: str
    reason: str
    lasted_s: float
    prompts: Sequence[str]


def play(
    phase: Phase,
    commands: Sequence[str],
    *,
    kill: Literal["", "before", "after"] = "",
    at_record: int | None = None,
    plan_after: Mapping[str, Any] | None = None,
) -> Seen:
    """Run a plan, give *commands* in the phase, and return what was seen.

    Args:
        kill: ``before``: the supervisor is killed in the phase, and the commands are given to the next supervisor at
            its start. ``after``: the supervisor is killed when the commands are answered.
        at_record: number of the record at which the commands are given, at once, instead of the phase's record.
        plan_after: keys with other values in the plan that the next supervisor runs.
    """
    scenes: list[_Scene] = []

    def make_scene(world: World) -> _Scene:
        scenes.append(_Scene(world, phase, commands, kill, at_record, plan_after or {}))
        return scenes[0]

    scenario = Scenario(
        name="phases",
        faults=FaultsConfig(kinds=()),
        load=LoadConfig(works=1.0),
        world=WorldConfig(schedules=("fifo",), operators=0, grain_s=0.0, horizon_s=20_000.0),
    )
    drawn = replace(scenario.draw(SEED), settings=make_plan(phase).settings)
    agents = _Agents(phase)
    report = simulate(drawn, host=make_scene, agents={"maker": agents.make, "reviewer": agents.review})
    assert report.problems == (), report.problems
    return scenes[0].seen(agents.prompts)


def make_plan(phase: Phase) -> Plan:
    """Return the plan with which the task comes into the phase."""
    program = {"adapter": "acp", "command": ["agent"]}  # only the names count: the agents are those of the simulation
    task = {"id": TASK, "agent": "maker", "prompt": "carry it out", "max_retries": 1, **phase.task}
    other = {"id": OTHER, "agent": "maker", "prompt": "work beside"}
    other |= {"approval": "before"} if phase.other is None else {"priority": phase.other}
    tasks = [other, task] if phase.other == 1 else [task, other]  # a takeover keeps the order of the plan
    lifecycle = {"max_attempts": 3, "base_retry_delay": DELAY_S, "jitter_percentage": 0}
    fields = {"agents": {"maker": program, "reviewer": program}, "tasks": tasks, "task_lifecycle": lifecycle}
    fields |= {"workspace": "worktree", "recovery": {"sessions": "restart"}}
    return Plan.model_validate({**fields, **phase.plan})


class _Agents:
    """The agents of the plan, which are functions."""

    def __init__(self, phase: Phase) -> None:
        self._tries, self._verdicts = iter(phase.tries), iter(phase.verdicts)
        self.prompts: list[str] = []
        """Prompts of the agents of the task, in order."""

    async def make(self, turn: AgentTurn) -> str:
        if not turn.prompt.startswith(("carry", "Urgent")):
            return await self._work(turn, 10 if turn.prompt.startswith("work beside") else 3)
        self.prompts.append(turn.prompt)
        outcome = next(self._tries, "works")
        with suppress(ToolAborted):
            await turn.call("tool", self._work, turn, 1_000 if outcome == "hangs" else 1)
        if outcome == "fails":
            raise RuntimeError("it broke")
        return "done"

    async def review(self, turn: AgentTurn) -> str:
        await self._work(turn, 2)
        if next(self._verdicts, "approves") == "rejects":
            return '{"verdict": "reject", "findings": ["there is no test"]}'
        return '{"verdict": "approve"}'

    async def _work(self, turn: AgentTurn, times: int) -> str:
        for _ in range(times):
            await anyio.sleep(WORK_S)
            turn.heartbeat()
        return "done"


class _Scene:
    """Host of one run: runs the plan under every supervisor until it has a result, gives the commands, and helps the
    task to its end."""

    last_arrival_s = float("inf")

    def __init__(
        self,
        world: World,
        phase: Phase,
        commands: Sequence[str],
        kill: str,
        at_record: int | None,
        plan_after: Mapping[str, Any],
    ) -> None:
        self._world, self._phase, self._commands = world, phase, commands
        self._kill, self._at_record, self._plan_after = kill, at_record, plan_after
        self.tally = OutcomeCounts()
        self.done = False
        self.first_attempt, self.begun = anyio.Event(), anyio.Event()
        """Events that are set when the first attempt at the task, and the phase, have begun."""
        self._states: list[tuple[LifecycleEvent, float]] = []
        """Records of the task that change its state, with their times."""
        self._answers: dict[str, str] = {}
        self._given_s, self._given_after = 0.0, 0
        """Time of the commands, and the number of changes of state before them."""
        world.on_durable = self._record
        world.task_scripts.add(TaskScript(TASK))

    def _record(self, batch: Sequence[Append]) -> None:
        for record in (one.record for one in batch):
            is_change = record.outcome == "transition" and record.from_status != record.to_status
            if record.entity_id == f"r1#{TASK}" and is_change:
                self._states.append((record, self._world.now()))
            moment = f"{record.entity_id} {record.event}"
            if moment == f"r1#{TASK} started":
                self.first_attempt.set()
            # After the end of the task there may be no further record: the run goes on when the operator has acted.
            is_over = record.entity_id == f"r1#{TASK}" and record.to_status in ("CLOSED", "CANCELLED")
            if self._at_record is None:
                is_begun = moment == self._phase.begins
            else:
                is_begun = record.seq == self._at_record or is_over
            if is_begun:
                self.begun.set()

    # ------------------------------------------------------------------ the run
    async def play(self, sup: Supervisor) -> None:
        """Run the plan on this supervisor; an operator gives the commands meanwhile."""
        plan = make_plan(self._phase)
        if self._world.lives > 1:
            plan = plan.model_copy(update=self._plan_after)
        handle = run_plan(sup, plan)
        async with anyio.create_task_group() as group:
            group.start_soon(self._operate, sup, handle)
            with suppress(Refused):  # the run was given up
                await handle
            group.cancel_scope.cancel()
        self.done = True

    async def _operate(self, sup: Supervisor, handle: PlanHandle) -> None:
        if self._phase.before and not self.begun.is_set():
            await self.first_attempt.wait()
            await _ask(sup, COMMANDS[self._phase.before])
        if not self._answers:
            await self._give_commands(sup, handle)
        async with sup.subscribe(0) as records:
            async for record in records:
                await self._help(sup, record)

    async def _give_commands(self, sup: Supervisor, handle: PlanHandle) -> None:
        await self.begun.wait()
        if self._world.lives == 1 and self._at_record is None:
            await anyio.sleep(STEADY_S)
            await self._kill_if("before")
        self._given_s, self._given_after = self._world.now(), len(self._states)
        async with anyio.create_task_group() as group:
            for name in self._commands:
                group.start_soon(self._give, sup, handle, name)
        await self._kill_if("after")

    async def _give(self, sup: Supervisor, handle: PlanHandle, name: str) -> None:
        if name == "close":
            await sup.session(TASK).close("enough")
            answer = "closed"
        elif name == "give_up":
            handle.cancel()
            answer = "given up"
        else:
            answer = await _ask(sup, {**COMMANDS[name], "by": "me"})
        self._answers[name] = answer

    async def _kill_if(self, moment: str) -> None:
        if self._kill == moment:
            self._kill = ""
            self._world.kill()
            await anyio.sleep_forever()  # until the tasks of the dead supervisor are cancelled

    @staticmethod
    async def _help(sup: Supervisor, record: LifecycleEvent) -> None:
        """Give the command that the record calls for; it may be refused, for the record may be an old one."""
        verb = {"PLANNED": "approve", "PENDING_APPROVAL": "approve"}.get(record.to_status)
        if record.event == "blocked":  # a task that is blocked on a subtask goes on by itself
            verb = "unblock"
        is_over = record.to_status in ("CLOSED", "CANCELLED") or record.event == "DeadLettered"
        if record.entity_id == f"r1#{TASK}" and (verb or is_over):
            verb, task = (verb, TASK) if verb else ("reject", OTHER)
            await _ask(sup, {"do": "steer", "verb": verb, "tasks": [task], "reason": "to end the run", "by": "helper"})

    # ------------------------------------------------------------------ afterwards
    def seen(self, prompts: Sequence[str]) -> Seen:
        """Return what was seen; *prompts* are those of the task's agents."""
        last, at_s = self._states[-1]
        end = task_end(last.to_status, str(last.metadata.get("outcome", "")))
        states = [record.to_status for record, _ in self._states[self._given_after :]]
        return Seen(self._answers, " ".join(states), end, last.reason or "", at_s - self._given_s, prompts)


async def _ask(sup: Supervisor, fields: Mapping[str, Any]) -> str:
    """Send a request as a client of the control socket does, and return the answer as a text."""
    try:
        request = read_request(fields)
        (reply,) = [one async for one in OPERATIONS[request.do].handle(sup, request)]
    except Exception as error:
        reply = {"refused": error_reply(error)}
    match reply:
        case {"answer": result}:
            return str(result.state)
        case {"refused": {"kind": kind, "message": message}}:
            return f"{kind}: " + str(message).removeprefix(f"task {TASK!r} ")
        case {"receipt": receipt}:
            ended = "already ended" if receipt.already_ended else "ended"
            return f"{ended}, and task {receipt.cancelled_task} is cancelled" if receipt.cancelled_task else ended
        case {"stopping": how}:
            return str(how)
    return "sent" if "message_id" in reply else str(reply)
