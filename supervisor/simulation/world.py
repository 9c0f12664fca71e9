"""The simulated machine of a run: processes, disk, clock, and the supervisors that run on it one after the other.

The machine outlives each supervisor. When a supervisor is killed, its shims end its processes, the disk keeps the
durable records, and the next supervisor starts on these records. Tasks of a dead supervisor that still unwind change
nothing: the journal and the workspace of the dead supervisor refuse every operation.

A World acts by itself only by disturbing clocks; other faults strike when a port calls the fault plan.
:mod:`supervisor.simulation.running` starts supervisors; :mod:`supervisor.simulation.host` gives them work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.host.dependencies import Dependencies
from supervisor.host.factories import NoTranscript
from supervisor.policies.permissions import Decision, PermissionPolicy
from supervisor.ports import Append, Launch
from supervisor.ports.agent_profile import AgentFunction, AgentProfile
from supervisor.runtime.availability import RetryingProcessHost
from supervisor.simulation.agents import program_for
from supervisor.simulation.agents.function_agent import function_agent
from supervisor.simulation.agents.jsonl_agent import MAPPING
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.agents.work_agent import check_program, work_agent
from supervisor.simulation.checkers import AttemptBegan, Preserved, WorkRolledBack, WorldMade
from supervisor.simulation.cost import CostMeter
from supervisor.simulation.engine import leap
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.journal import SimulatedArchive, SimulatedDisk, SimulatedJournal
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import Program
from supervisor.simulation.machine.processes import SimulatedProcesses
from supervisor.simulation.oracle import HOME, Oracle
from supervisor.simulation.plan_workload.plans import DEPUTY, MISSING, WORKER
from supervisor.simulation.plan_workload.task_board import TaskBoard
from supervisor.simulation.plan_workload.task_scripts import TaskScript, TaskScripts
from supervisor.simulation.plan_workload.workspace import SimulatedFiles, SimulatedWorkspace
from supervisor.simulation.plan_workload.workspace_contents import WorkspaceContents
from supervisor.simulation.scenario import AGENTS, DrawnScenario
from supervisor.simulation.trace import Trace

Agents = Mapping[str, AgentShape | AgentFunction]

AGENT = "SIMULATED_AGENT"
"""Environment variable with the name of the agent that a simulated program is to be."""
EPOCH_S = 1_800_000_000.0
"""Unix time at which every run begins."""
ANSWERS_S = (0.5, 5.0, 20.0, 40.0)
"""Deadlines for a person's answer to a permission request, in seconds, one of which is drawn."""
JUMP_S = 3600.0
TICK_S = 15.0
"""Seconds between two opportunities for faults of the clocks (``clock.*``)."""
PAUSE_S = 2 * 3600.0
"""The longest pause of a supervisor in seconds: longer than any deadline in a run."""


class SimulatedWall:
    """Simulated wall clock (Unix time): the run's clock plus a start time and the jumps so far."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.offset_s = EPOCH_S

    def time(self) -> float:
        return self._now() + self.offset_s


class _FirstReadClock:
    """Wall clock as one supervisor reads it. *looked* is called with the time of the supervisor's first reading."""

    def __init__(self, wall: SimulatedWall, looked: Callable[[float], None]) -> None:
        self._wall, self._looked = wall, looked
        self._has_looked = False

    def time(self) -> float:
        time_s = self._wall.time()
        if not self._has_looked:
            self._has_looked = True
            self._looked(time_s)
        return time_s


class World:
    """Simulated machine of a run.

    Args:
        drawn: the scenario with the draws of the seed.
        group: task group of the outside world, in which processes run; not a task group of the supervisor.
        now: the run's clock, in seconds.
        agents: agents by name: shapes of simulated agents, or functions. By default one simulated agent of each
            adapter.
    """

    def __init__(
        self,
        drawn: DrawnScenario,
        group: TaskGroup,
        now: Callable[[], float],
        trace: Trace,
        oracle: Oracle,
        agents: Agents | None = None,
    ) -> None:
        self.drawn = drawn
        self.random = KeyedRandom(drawn.seed)
        self.faults = FaultPlan(
            self.random, kinds=drawn.kinds, intensity=drawn.intensity, only=drawn.only, rates=drawn.rates
        )
        self.trace, self.oracle = trace, oracle
        self.now = now
        self.wall = SimulatedWall(now)
        self.disk = SimulatedDisk(self._wrote)
        self.meter = CostMeter()
        self.task_scripts = TaskScripts(lambda task_script, attempt: oracle.observe(AttemptBegan(task_script, attempt)))
        """Scripts (outcomes of tries, tests and merges) of the tasks of all plans."""
        self.board = TaskBoard()
        self.workspaces = WorkspaceContents(
            self.task_scripts,
            lambda owner: oracle.observe(WorkRolledBack(owner)),
            worktrees=drawn.settings.workspace == "worktree",
        )
        oracle.observe(WorldMade(self.task_scripts, self.workspaces, self.disk, drawn.archive))
        self.lives = 0
        self.crashes = 0
        self.killed = anyio.Event()
        """Event that is set when the newest supervisor is killed."""
        self.scope = anyio.CancelScope()
        """Cancel scope in which the newest supervisor and its host run."""
        self.end_due_s = inf
        """Time at which the newest supervisor, after its drain, begins to end; infinite if no stop was requested."""
        self.on_durable: Callable[[Sequence[Append]], None] = lambda batch: None
        """Function that is called with each durable batch, after the oracle."""
        self._group = group
        self._agents = agents or {name: msgspec.structs.replace(drawn.shape, adapter=name) for name in AGENTS}
        self._passed: dict[tuple[str, str], int] = {}
        self.journal: SimulatedJournal
        """Journal of the newest supervisor."""
        self._processes: SimulatedProcesses

    def _wrote(self, batch: Sequence[Append], encoded: Sequence[bytes]) -> None:
        try:
            self.oracle.wrote(batch, encoded)
        except Exception as error:  # to the supervisor it would be one more trouble of its disk
            self.oracle.violated("judged", "run", f"the oracle itself failed: {error!r}")
            raise
        for one in batch:
            self.board.wrote(one)
            self.meter.record(one.record)
        self.on_durable(batch)

    # ------------------------------------------------------------------ supervisors
    def next_dependencies(self) -> Dependencies:
        """Return the ports of the next supervisor, and detach the journal of the previous supervisor."""
        oracle = self.oracle
        self.lives += 1
        self.killed, self.scope, self.end_due_s = anyio.Event(), anyio.CancelScope(), inf
        if self.lives > 1:
            self.journal.detach()
        self.journal = SimulatedJournal(
            self.disk,
            self.faults,
            self._crashes,
            self.drawn.commit_s,
            self.oracle.disk_was_down,
            self.faults.draws("machine.crash_then", self.lives).choice(self.drawn.crashes_at),
        )
        self._processes = SimulatedProcesses(
            self._group,
            self._program_for,
            faults=self.faults,
            random=self.random.below("os", self.lives),
            observe=self.oracle.process,
            pieces=self.drawn.pieces,
        )
        self.oracle.started()
        return Dependencies(
            journal=self.journal,
            processes=RetryingProcessHost(self._processes, self.wall),
            workspace=SimulatedWorkspace(
                self.random.below("workspace"), self.faults, self.task_scripts, self.workspaces, self.killed
            ),
            files=SimulatedFiles(),
            wall=_FirstReadClock(self.wall, self.oracle.clock_set),
            transcript_of=lambda session_id: NoTranscript(),
            seed=self.random.integer(0, 2**48, "kernel", self.lives),
            upkeep=SimulatedArchive(lambda *file: oracle.observe(Preserved(*file))) if self.drawn.archive else None,
        )

    def _crashes(self, place: str, kind: str = "machine.crash") -> bool:
        """Decide whether a fault strikes at this point of a commit, and kill the supervisor if so; return whether the
        supervisor was killed. With the kind ``host.cancelled`` the host is cancelled instead."""
        if self.crashes >= self.drawn.crashes_max or not self.faults.strikes(kind, place):
            return False
        if kind == "host.cancelled":
            self.cancel()
            return False
        self.kill()
        return True

    @property
    def stop_requested(self) -> bool:
        """Whether a stop of the newest supervisor was requested."""
        return self.end_due_s != inf

    def request_stop(self, *, now: bool) -> None:
        """Record that a stop of the newest supervisor is requested: after the drain, or at once with *now* or with a
        second request."""
        drain_s = 0.0 if now or self.stop_requested else self.drawn.settings.drain_s
        self.end_due_s = min(self.end_due_s, self.now() + drain_s)

    def kill(self) -> None:
        """Kill the newest supervisor as SIGKILL does: the supervisor does nothing any more, and the pipes to its shims
        end."""
        if self.killed.is_set() or not self.lives:
            return
        self.crashes += 1
        self.trace.note("killed")
        self._processes.crash()
        self.oracle.killed()
        self.journal.detach()
        self.killed.set()

    def cancel(self) -> None:
        """Cancel the host of the newest supervisor, as a deadline of the host or Ctrl-C would: the supervisor ends
        everything at once."""
        if self.killed.is_set() or not self.lives:
            return
        self.crashes += 1
        self.trace.note("cancelled")
        self.request_stop(now=True)
        self.scope.cancel()

    # ------------------------------------------------------------------ agents
    def _program_for(self, launch: Launch) -> Program:
        match launch.argv:
            case ("sim-work", *_):
                name = launch.cwd.removeprefix(f"{HOME}/")
                return work_agent(
                    self.task_scripts.of(name) or TaskScript(name), self.random, self.now, self.workspaces
                )
            case ("sim-check", name):
                return check_program(self.task_scripts.of(name), self.random)
        spend = partial(self.meter.spend, launch.cwd.removeprefix(f"{HOME}/"))
        shape = self._agents.get(launch.env.get(AGENT, ""))
        usual = self.drawn.shape  # of what an agent has run in a terminal
        return program_for(launch, shape if isinstance(shape, AgentShape) else usual, self.random, self.faults, spend)

    def profiles(self) -> dict[str, AgentProfile]:
        """Return the profiles of the agents of this world, by name."""
        profiles = {name: self._profile(name, one) for name, one in self._agents.items()}
        if self.drawn.load.works:
            for name, program in ((WORKER, "sim-work"), (DEPUTY, "sim-work"), (MISSING, "sim-missing")):
                profiles[name] = AgentProfile(name=name, adapter="command", command=(program,), directory=HOME)
        return profiles

    def _profile(self, name: str, agent: AgentShape | AgentFunction) -> AgentProfile:
        if not isinstance(agent, AgentShape):
            return AgentProfile(name=name, adapter="inprocess", function=agent, directory=HOME)
        if agent.adapter == "inprocess":
            function = function_agent(agent, self.random, self.faults, self.meter.spend)
            return AgentProfile(name=name, adapter="inprocess", function=function, directory=HOME)
        return AgentProfile(
            name=name,
            adapter=agent.adapter,
            command=(f"sim-{agent.adapter}",),
            env={AGENT: name},
            directory=HOME,
            permissions=self._permissions(name),
            mapping=MAPPING if agent.adapter == "jsonl" else None,
        )

    def _permissions(self, name: str) -> PermissionPolicy:
        """Draw the permission policy of an agent: allow everything, or require a person's answer within a deadline that
        may be short."""
        random = self.random.below("permissions", name)
        if not self.drawn.asks or not random.happens(self.drawn.asks, "asks"):
            return PermissionPolicy()
        return PermissionPolicy(default=Decision.ASK, answer_within_s=random.choice(ANSWERS_S, "within"))

    # ------------------------------------------------------------------ points in the runtime
    def decide(self, name: str, who: str) -> bool:
        """Decide whether the runtime takes the rarer path at the failpoint *name* this time; *who* is the entity that
        reached the failpoint."""
        if name == "service":  # an error in the supervisor's own code, which tests of the services inject
            return False
        if not self.faults.may_strike("point"):
            return False
        passed = self._passed.get((name, who), 0)
        self._passed[name, who] = passed + 1
        return self.faults.strikes("point", f"{name}:{who}#{passed}")

    # ------------------------------------------------------------------ clocks
    async def disturb_clocks(self) -> None:
        """Make the wall clock jump, the machine sleep and the supervisor pause when such faults strike, until faults
        stop."""
        ticks = 0
        while not self.faults.healed:
            await anyio.sleep(TICK_S)
            ticks += 1
            if self.faults.strikes("clock.jump", ticks):
                jump_s = self.faults.draws("clock.jump", ticks).between(-JUMP_S, JUMP_S)
                self.wall.offset_s += jump_s
                self.trace.note(f"wall clock {jump_s:+.3f}")
            if self.faults.strikes("clock.suspend", ticks):
                slept_s = self.faults.draws("clock.suspend", ticks).between(1.0, 2 * TICK_S)
                self.trace.note(f"machine slept {slept_s:.3f}")
                self._skip(slept_s)
            if self.faults.strikes("clock.pause", ticks):
                stopped_s = self.faults.draws("clock.pause", ticks).between(60.0, PAUSE_S)
                self.trace.note(f"supervisor stopped for {stopped_s:.3f}")
                self._skip(stopped_s)

    def _skip(self, seconds: float) -> None:
        """Advance the run's clock by *seconds* at once: nothing runs meanwhile."""
        self.oracle.slept(seconds)
        leap(seconds)

    def heal(self) -> None:
        """Stop all faults for the rest of the run."""
        self.faults.heal()
        self.trace.note("healed")
