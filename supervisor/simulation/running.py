"""Simulated runs: from a scenario and a seed to a report.

Theory of operation: the run's event loop holds one task group for the outside world (processes, clocks, the end of the
faults) and, in it, one supervisor after the other. A supervisor runs in a cancel scope until the host is done, the disk
fails, or the supervisor is killed; then the next supervisor starts on the durable records, as if an operator had
started it again; there are at most ``LIVES_MAX`` supervisors. When all work is done, the faults stop, and a last
supervisor must find nothing to do, complete one prompt, and close in order.

Invariants: the host sees replies of the living supervisor only; nothing of a dead supervisor reaches the disk; at the
end the oracle checks that everything has ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import anyio
import msgspec
import trio

from actors.failpoint import controlled_by
from actors.waiting import any_of
from supervisor.control.error_messages import cause_of
from supervisor.embedding.runtime import supervise
from supervisor.host.api import Supervisor
from supervisor.policies.stage_deadlines import EXITING_S
from supervisor.ports import JournalError, JournalUnavailable
from supervisor.sessions.inprocess import AgentTurn
from supervisor.sessions.shutdown import LAST_RECORDS_S
from supervisor.simulation.checkers import OnlyTaskFaultsStruck, SupervisorLeft
from supervisor.simulation.cost import Cost, OutcomeCounts
from supervisor.simulation.engine import EngineResult, run, uncollected
from supervisor.simulation.engine.loop import LIVELOCK_STEPS
from supervisor.simulation.host import Host
from supervisor.simulation.journal import DiskFailed, SupervisorKilled
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.oracle import MakeCheckers, Oracle, no_checkers
from supervisor.simulation.scenario import DrawnScenario
from supervisor.simulation.trace import Trace
from supervisor.simulation.world import Agents, World

T = TypeVar("T")

Intruder = Callable[[int, World, Host], None]
"""Function that is called before each step, with the step's number, the world and the host. The function may inspect,
kill and abort; tasks that the function starts run first."""

ROUNDING_S = 1e-5
"""Tolerance for sums of floats, in seconds."""
RESTART_S = 0.5
"""Seconds from the end of one supervisor to the start of the next."""
USUAL_TURN_S, USUAL_START_S = 300.0, 60.0
"""Seconds within which every turn, and every start, of a simulated agent ends if no fault strikes: the default
limits."""
WORK = "work."
"""Prefix of the faults of tasks. If only these strike, the outcome of a plan can be computed."""
LIVES_MAX = 30
"""The most supervisors in one run; with a disk that fails at every commit, the number would grow without end."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a run. ``digest`` is computed from the whole run, step by step; two runs with the same digest took the
    same steps."""

    seed: int
    scenario: str
    schedule: str
    digest: str
    sessions: int
    simulated_s: float
    steps: int
    records: int
    faults: dict[str, int]
    struck: tuple[str, ...]
    violations: int
    problems: tuple[str, ...]
    ended: dict[str, int]
    reached: dict[str, int]
    tally: OutcomeCounts
    cost: Cost
    lives: int


class MainResult(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Result of a run with a program as the host: the value that the program returned, or the error that the program or
    its supervisor raised, and the report of the run."""

    value: T | None
    error: BaseException | None
    gave_up: BaseException | None
    report: Report


class RunHost(Protocol):
    """Interface of the embedding program of a run: :class:`Host`, :class:`EmbeddingProgram`, or a host that is passed
    to :func:`simulate`."""

    tally: OutcomeCounts
    last_arrival_s: float

    @property
    def done(self) -> bool: ...

    async def play(self, sup: Supervisor) -> None: ...


class EmbeddingProgram(Generic[T]):
    """Host made of one async function, which is called with the supervisor and runs once. Faults may strike as long as
    the function runs. An error of the function is kept, so that the run ends in order and is checked as every other
    run."""

    last_arrival_s = inf

    def __init__(self, main: Callable[[Supervisor], Awaitable[T]]) -> None:
        self._main = main
        self.tally = OutcomeCounts()
        self.done = False
        self.ended = False
        """Whether the function has returned or raised."""
        self.value: T | None = None
        self.error: BaseException | None = None

    async def play(self, sup: Supervisor) -> None:
        """Run the function with this supervisor. The function is not run again under another supervisor."""
        self.done = True
        try:
            self.value = await self._main(sup)
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            raise
        except BaseException as error:  # also what test frameworks raise, which is no Exception
            self.error = error
            await sup.stop(now=True, actor="host")
        self.ended = True


class _Run:
    """State of one simulated run while the run goes on."""

    def __init__(
        self,
        drawn: DrawnScenario,
        on_line: Callable[[str], None] | None,
        make_host: Callable[[World], RunHost] | None = None,
        agents: Agents | None = None,
        checkers: MakeCheckers = no_checkers,
    ) -> None:
        self.checkers = checkers
        self.drawn = drawn
        self.on_line = on_line
        self.make_host = make_host or (lambda world: Host(world, KeyedRandom(drawn.seed).below("host")))
        self.agents = agents
        self.gave_up: BaseException | None = None
        """Error with which the latest supervisor gave up, if any did."""
        self.world: World
        self.host: RunHost
        self.oracle: Oracle
        self.trace: Trace
        self.ready = False
        """Whether the world and the host of the run exist yet."""
        self.intruded = False
        """Whether an intruder (a function that is called before each step) acts in this run."""
        self.points = ExitStack()
        """Stack that holds the control of the runtime's failpoints. A run that is stuck never leaves its blocks, so the
        stack is closed from outside."""

    async def main(self) -> None:
        """Run the world and its supervisors to the end, in the run's own event loop."""
        now = trio.current_time if trio.lowlevel.in_trio_run() else asyncio.get_running_loop().time
        self.trace = Trace(now, self.on_line)
        settings = self.drawn.settings
        ladder, model = settings.abort_policy.ladder, settings.model_trouble.value()
        self.oracle = Oracle(now, self.trace, ladder, self.drawn.grain_s, model, self.checkers)
        async with anyio.create_task_group() as outside:
            self.world = World(self.drawn, outside, now, self.trace, self.oracle, self.agents)
            self.host = self.make_host(self.world)
            self.ready = True
            outside.start_soon(self.world.disturb_clocks)
            outside.start_soon(self._heal)
            with self.points:
                if self.world.faults.may_strike("point"):
                    self.points.enter_context(controlled_by(self.world.decide))
                await self._run_supervisors(outside)
            self._check_work()
            if (
                self.world.lives <= 2
                and not self.intruded
                and all(one.startswith(WORK) for one in self.world.faults.struck)
            ):
                self.oracle.observe(OnlyTaskFaultsStruck(settings.limits.value(), settings.liveness.value()))
            self.oracle.check_quiescence(self.world.disk.entities.values(), self.world.disk.owed.values())
            outside.cancel_scope.cancel()

    def failed(self) -> None:
        """Ignore violations from now on: the run does not end by itself, and all its tasks are cancelled, those of
        agents and disk too."""
        if self.ready:
            self.oracle.ignores_violations = True

    def _check_work(self) -> None:
        """Check that every prompt of every customer was completed, if no fault struck; unless the limits allow less
        time than usual turns take."""
        tally, limits = self.host.tally, self.drawn.settings.limits
        if limits.turn_timeout_s < USUAL_TURN_S or limits.spawn_deadline_s < USUAL_START_S:
            return
        if self.drawn.load.works:
            return  # a plan of work may not want all of its tasks done
        lost = tally.failed + tally.aborted + tally.lost + tally.unanswered
        if lost and not (self.intruded or self.world.faults.struck) and isinstance(self.host, Host):
            words = f"nothing struck, and of its prompts {tally.failed} failed, {tally.aborted} were aborted,"
            self.oracle.violated("nothing_lost", "run", f"{words} {tally.lost} lost, {tally.unanswered} not completed")

    async def _run_supervisors(self, outside: anyio.abc.TaskGroup) -> None:
        """Run one supervisor after the other until the work is done, and then a last supervisor without faults, which
        finds nothing to do."""
        while not self.host.done and self.world.lives < LIVES_MAX:
            await self._run_supervisor(outside)
            await anyio.sleep(RESTART_S)
            await self._await_process_end()
        if not self.host.done:
            self.oracle.violated("quiescence", "run", f"the work is not done after {LIVES_MAX} supervisors")
        self.world.heal()
        await self._run_supervisor(outside, last=True)
        while self.world.killed.is_set() or self.world.scope.cancel_called:  # by an intruder: faults have stopped
            await self._await_process_end()
            await self._run_supervisor(outside, last=True)

    async def _await_process_end(self) -> None:
        """Wait until the processes of the previous supervisor are gone, also those that the kernel is ending, as the
        start of a real supervisor does."""
        with anyio.move_on_after(EXITING_S):
            while self.oracle.has_processes:  # noqa: ASYNC110  its processes have no event for that
                await anyio.sleep(RESTART_S / 10)

    async def _heal(self) -> None:
        await anyio.sleep(self.host.last_arrival_s + self.drawn.heal_after_s)
        self.world.heal()
        await anyio.sleep(self.drawn.quiet_s)
        waiting = ", ".join(self.oracle.unanswered.values()) or "nothing is waited for"
        words = f"is not over {self.drawn.quiet_s:g} s after the last fault: {waiting}"
        self.oracle.violated("quiescence", "run", words)

    async def _probe(self, sup: Supervisor) -> None:
        """Check that a supervisor completes a prompt when no faults strike."""
        killed = self.world.killed
        session = await sup.start_session("probe", agent=_answers_at_once)
        result = await session.run("are you there?")
        if not result.ok and not killed.is_set():  # what a killed one says, nobody hears
            words = f"a prompt without faults is {result.outcome}: {result.error}"
            self.oracle.violated("quiescence", session.id, words)
        await session.close()

    async def _run_supervisor(self, outside: anyio.abc.TaskGroup, *, last: bool = False) -> None:
        """Run one supervisor from its start to its end, or to its kill."""
        over = anyio.Event()
        parts = self.world.next_dependencies()
        scope = self.world.scope
        outside.start_soon(self._supervise, parts, scope, over, last)
        killed = self.world.killed
        await any_of(over, killed)
        if killed.is_set():
            scope.cancel()

    async def _supervise(self, parts: Any, scope: anyio.CancelScope, over: anyio.Event, last: bool) -> None:
        """Open one supervisor, let the host work with it (or probe the last one), and close it. Errors of a killed
        supervisor, whose tasks unwind beside the next supervisor, are ignored."""
        killed = self.world.killed
        sup: Supervisor | None = None
        try:
            with scope:
                async with supervise(parts, self.world.profiles(), self.drawn.settings) as sup:
                    if not last:
                        await self.host.play(sup)
                        self._check_lasted(sup)
                        self.world.request_stop(now=True)
                    elif not killed.is_set():
                        await self._probe(sup)
            if sup is not None and not killed.is_set():
                if sup.failure is not None:  # which a host that is cancelled is not told
                    raise sup.failure
                if sup.core.journal_writer.error is None and sup.core.journal_writer.clean:
                    self.oracle.check_closed(self.world.disk.entities.values())
                self.oracle.observe(SupervisorLeft(sup))
        except* JournalError as failure:
            self.gave_up = cause_of(failure)
            self.trace.note(f"the supervisor gave up: {self.gave_up}")
            self._check_gave_up(self.gave_up)
            self.oracle.gave_up()
        except* Exception as failure:
            if not killed.is_set():
                raise
            del failure
        finally:
            over.set()

    def _check_lasted(self, sup: Supervisor) -> None:
        """Check that the supervisor did not give up because of a disk outage while its host still had work."""
        if isinstance(sup.failure, JournalUnavailable) and not (
            self.world.stop_requested or self.world.killed.is_set()
        ):
            self.oracle.violated("degraded", "run", f"was given up in the middle of its work: {sup.failure}")

    def _check_gave_up(self, failure: BaseException) -> None:
        """Check that a supervisor had a valid reason to give up: the supervisor was killed, the disk failed before the
        supervisor had begun, or the supervisor was to end and the disk stayed down for longer than the time for last
        records."""
        if isinstance(failure, DiskFailed | SupervisorKilled) or self.world.killed.is_set():
            return
        if not isinstance(failure, JournalUnavailable):
            self.oracle.violated("durable", "run", f"the journal failed, and not by a fault: {failure}")
            return
        outage_s = self.world.journal.outage_s
        lasted_s = max(outage_s, self.world.now() - self.world.end_due_s)
        if lasted_s < LAST_RECORDS_S - ROUNDING_S:  # it may go down, and up and down again, after the end has begun
            words = f"was given up after {outage_s:.3f} s, of at least {LAST_RECORDS_S:g} s: {failure}"
            self.oracle.violated("degraded", "run", words)


async def _answers_at_once(turn: AgentTurn) -> str:
    return "here"


@uncollected()  # when it returns, nobody holds the run's world any more
def simulate(
    drawn: DrawnScenario,
    *,
    host: Callable[[World], RunHost] | None = None,
    agents: Agents | None = None,
    on_line: Callable[[str], None] | None = None,
    before_step: Callable[[int], None] | None = None,
    intrude: Intruder | None = None,
    livelock_steps: int = LIVELOCK_STEPS,
    watch: Callable[[int], None] | None = None,
    checkers: MakeCheckers = no_checkers,
) -> Report:
    """Run a drawn scenario and return the report.

    Args:
        host: function that, given the world, returns the host. The host uses every supervisor until the host is done,
            and replaces the customers and operators of *drawn*.
        agents: agents by name: shapes for simulated agents, or functions. By default the simulated agents ``acp``,
            ``command``, ``inprocess`` and ``jsonl``.
        on_line: called with every line of the trace as the line comes.
        before_step: called before each step with the step's number, from 1; an error that it raises ends the run.
        intrude: like *before_step*, but called with the world and the host too, once both exist.
        livelock_steps: number of steps at one moment of virtual time that counts as a violation.
        watch: called now and then, and at the end, with the number of steps so far.
        checkers: function that returns the checkers that check the run beside the oracle
            (:mod:`supervisor.simulation.checkers`).
    """
    one = _Run(drawn, on_line, host, agents, checkers)
    one.intruded = intrude is not None
    looks_on = before_step if intrude is None else _intruding(one, intrude)
    return _report(one, _ran(one, looks_on, livelock_steps, watch))


def _intruding(one: _Run, intrude: Intruder) -> Callable[[int], None]:
    def before_step(number: int) -> None:
        if one.ready and isinstance(one.host, Host):
            intrude(number, one.world, one.host)

    return before_step


def simulate_main(
    main: Callable[[Supervisor], Awaitable[T]],
    drawn: DrawnScenario,
    *,
    agents: Agents | None = None,
) -> MainResult[T]:
    """Run *main* as the host of a supervisor in the world of *drawn*, without the customers and operators of *drawn*.

    Args:
        main: async function that is called with the supervisor; the returned value or the raised error is kept.
        agents: as for :func:`simulate`.
    """
    program = EmbeddingProgram(main)
    one = _Run(drawn, None, lambda world: program, agents)
    ran = _ran(one)
    error = program.error or one.gave_up or (None if program.ended else ran.error)
    return MainResult(value=program.value, error=error, gave_up=one.gave_up, report=_report(one, ran))


def _ran(
    one: _Run,
    before_step: Callable[[int], None] | None = None,
    livelock_steps: int = LIVELOCK_STEPS,
    watch: Callable[[int], None] | None = None,
) -> EngineResult[None]:
    drawn = one.drawn
    try:
        ran = run(
            one.main,
            seed=drawn.seed,
            schedule=drawn.schedule,
            horizon_s=drawn.over_s,
            grain_s=drawn.grain_s,
            livelock_steps=livelock_steps,
            before_step=before_step,
            watch=watch,
            on_failed=one.failed,
        )
    finally:
        one.points.close()
    if ran.error is not None and not one.ready:
        raise ran.error  # there is no world yet that it could be told of
    one.trace.now = lambda: ran.simulated_s  # the run's own clock went with its event loop
    one.oracle.ignores_violations = False
    if ran.error is not None:
        one.oracle.violated("quiescence", "run", f"{type(ran.error).__name__}: {ran.error}")
    for words in ran.unhandled:
        one.oracle.violated("bounded", "run", f"an error that nobody handled: {words}")
    return ran


def _report(one: _Run, ran: EngineResult[None]) -> Report:
    oracle, world = one.oracle, one.world
    sessions = [row for row in world.disk.entities.values() if row.kind == "session"]
    ended = Counter(row.state if row.ended else f"{row.state} (open)" for row in sessions)
    return Report(
        seed=one.drawn.seed,
        scenario=one.drawn.name,
        schedule=one.drawn.schedule.value,
        digest=one.trace.hexdigest(),
        sessions=len(sessions),
        simulated_s=round(ran.simulated_s, 6),
        steps=ran.steps,
        records=oracle.records,
        faults=world.faults.counts(),
        struck=tuple(world.faults.struck),
        violations=oracle.count,
        problems=tuple(f"{one.invariant}: {one.entity_id}: {one.message}" for one in oracle.violations),
        ended=dict(sorted(ended.items())),
        reached=oracle.coverage.counts,
        tally=one.host.tally,
        cost=world.meter.cost(),
        lives=world.lives,
    )
