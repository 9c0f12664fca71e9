"""The host of a simulated run: customers who want work done, and operators who disturb it.

It uses the runtime as any host would, and tells the oracle what it asked and what it heard. Who wants what is drawn by
name, never by the order in which things happen; a customer whose session is lost starts another, also under the next
supervisor, so that the work goes on whatever is killed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextvars import ContextVar

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.embedding.runtime import Session, Supervisor, TurnResult
from supervisor.lifecycles.types import AbortPolicy, AbortScope
from supervisor.plans import AgentConfig, Plan, TaskConfig
from supervisor.plans.tasks import every_task
from supervisor.simulation.asking import WITHDRAWN, Desk
from supervisor.simulation.checkers import Heartbeat, PlanEnded, PlanGiven, PlanResumed
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.meter import Tally
from supervisor.simulation.operators import Operators
from supervisor.simulation.ranges import drawn
from supervisor.simulation.scenario import AGENTS, HOUR_S
from supervisor.simulation.works.operator_bot import Hearts, OperatorBot, StateTriggers
from supervisor.simulation.works.plans import draw_plan
from supervisor.simulation.world import World
from supervisor.work.plan_runner import PlanRunner, run_plan
from supervisor.work.previous_run import find_previous_run
from supervisor.work.results import PlanResult, TaskResult

__all__ = ["Host", "LoadGenerator"]

LATE_S = (0.0, 5.0, 60.0, 600.0)
"""How late customers may come back to the next supervisor."""
GIVES_UP_S = (0.0, 0.01, 5.0, 120.0)
"""How long whoever has a plan run may have it run, and then gives it up."""
RETRY_S = 1.0
"""How long a customer who was refused waits before it starts another session."""
_KILLED: ContextVar[anyio.Event] = ContextVar("killed")
"""That the supervisor was killed which those who are served here asked."""


class LoadGenerator:
    """Who wants a number of prompts answered, whatever happens to the sessions that work on them."""

    def __init__(self, number: int, chance: KeyedRandom, world: World) -> None:
        load = world.drawn.load
        self.number = number
        self.chance = chance
        self.turns: int = drawn(load.turns, chance, "turns")
        self.turns_left = self.turns
        self.agent = _weighted(world.drawn.weights, chance)
        self.works = chance.happens(load.works, "works")
        self.plans = self.works or chance.happens(drawn(load.plans, chance, "plans"), "plan")
        self.sessions_left: int = 1 if self.works else drawn(load.sessions_max, chance, "sessions")
        self.lost_at_s: float | None = None
        self.turn = 0
        self.session_id: str | None = None
        """The session that works for it: it may go on under the next supervisor."""
        self.asked = False
        """A prompt of that session has no answer yet."""
        self.saves = self.works and chance.happens(load.saves, "saves")
        self.plan: Plan | None = None
        """The plan that is run for it."""
        self.resumes = False
        """It is run again, as it has grown by then, to go on with what was not closed."""
        self.gave_up = False
        """It wanted that plan no more, and has thought better of it."""

    @property
    def done(self) -> bool:
        return self.turns_left <= 0 or (self.sessions_left <= 0 and self.session_id is None and self.plan is None)


def _weighted(weights: tuple[float, ...], chance: KeyedRandom) -> str:
    point = chance.unit("agent") * sum(weights)
    for name, weight in zip(AGENTS, weights, strict=True):
        point -= weight
        if point < 0:
            return name
    return AGENTS[-1]


class Host:
    """All customers and operators of one run, over all its supervisors."""

    def __init__(self, world: World, chance: KeyedRandom) -> None:
        self._world = world
        self._oracle = world.oracle
        self._chance = chance
        self._faults = world.faults
        self.tally = Tally()
        count: int = drawn(world.drawn.load.customers, chance, "customers")
        self.customers = [LoadGenerator(number, chance.below("customer", number), world) for number in range(count)]
        self.tally.unanswered = sum(load_generator.turns_left for load_generator in self.customers)
        self._arrivals_s = self._drawn_arrivals()
        self.last_arrival_s = max([HOUR_S * world.drawn.load.hours, *self._arrivals_s])
        """Until then, there is always somebody who wants something."""
        self._approvals = Desk(world.oracle, world.faults)
        self._operators: Operators | None = None
        self._group: TaskGroup
        self._sup: Supervisor

    def _drawn_arrivals(self) -> list[float]:
        at_s, arrivals = 0.0, []
        for load_generator in self.customers:
            at_s += drawn(self._world.drawn.load.arrival_s, load_generator.chance, "arrival")
            arrivals.append(at_s)
        return arrivals

    @property
    def done(self) -> bool:
        return all(load_generator.done for load_generator in self.customers)

    async def play(self, sup: Supervisor) -> None:
        """All that is left to do, on this supervisor."""
        self._sup = sup
        _KILLED.set(self._world.killed)
        operators = Operators(sup, self._world, self._chance, self.tally, self._approvals, len(self.customers))
        self._operators = operators
        try:
            await self._play(operators)
        finally:
            if self._operators is operators:
                self._operators = None

    async def _play(self, operators: Operators) -> None:
        async with anyio.create_task_group() as self._group:
            async with anyio.create_task_group() as work:
                for load_generator, arrival_s in zip(self.customers, self._arrivals_s, strict=True):
                    if not load_generator.done:
                        work.start_soon(self._serve, load_generator, arrival_s)
                for number in range(self._world.drawn.operators):
                    self._group.start_soon(operators.operate, number)
            operators.go_home()

    def targets(self, scope: AbortScope) -> list[str]:
        """What an abort of that scope can be aimed at now, by name; nothing while no supervisor works."""
        return [] if self._operators is None or self._world.killed.is_set() else self._operators.targets(scope)

    def abort(self, target: str, scope: AbortScope) -> None:
        """Abort that, in a task of its own; it needs a supervisor that works."""
        assert self._operators is not None
        self._group.start_soon(self._operators.abort, target, scope)

    # ------------------------------------------------------------------ customers
    async def _serve(self, load_generator: LoadGenerator, arrival_s: float) -> None:
        await anyio.sleep(max(0.0, arrival_s - self._world.now()))
        await self._come_back(load_generator)
        while not (load_generator.done or self._is_leaving):
            if load_generator.session_id is not None or load_generator.plan is not None:
                await self._resume(load_generator)
                continue
            load_generator.sessions_left -= 1
            self.tally.sessions += 1
            if load_generator.plans:
                await self._run_plan(load_generator)
            else:
                await self._run_session(load_generator)
            if not load_generator.done:
                await anyio.sleep(RETRY_S)

    async def _come_back(self, load_generator: LoadGenerator) -> None:
        """To another supervisor, some time after it has begun."""
        place = f"c{load_generator.number}.{self._world.lives}"
        if self._world.lives > 1 and self._faults.strikes("host.comes_late", place):
            how = self._faults.draws("host.comes_late", place)
            await anyio.sleep(how.choice(LATE_S, "how late") * how.unit("late"))

    async def _resume(self, load_generator: LoadGenerator) -> None:
        """What another supervisor began for it: its session, if that goes on, or its plan."""
        if load_generator.plan is not None:
            await self._run_plan(load_generator)
        elif any(one.id == load_generator.session_id for one in self._sup.sessions()):
            self.tally.resumed += 1
            session = self._sup.session(load_generator.session_id or "")
            if not load_generator.asked or await self._hear(load_generator, session):
                await self._prompt_on(load_generator, session)
        if self._dead:
            return
        load_generator.session_id = None
        if not load_generator.done:
            await anyio.sleep(RETRY_S)

    async def _hear(self, load_generator: LoadGenerator, session: Session) -> bool:
        """How the prompt ends that was asked of the last supervisor; false if the session is lost."""
        result = None
        with self._approvals.asking(f"result {session.id}") as said:
            result = await session.result()
            said.append(f"{result.outcome}: {result.error}" if result is not None else "nothing is asked of it")
            if result is not None and not self._dead:
                self._oracle.replies.result_told(session.id, *_answer(result))
        if self._dead:
            return False
        load_generator.asked = False
        if result is not None:
            self._count(load_generator, result.outcome)
        return result is None or result.outcome != "aborted"

    async def _run_session(self, load_generator: LoadGenerator) -> None:
        session = await self._start(load_generator)
        if session is not None:
            load_generator.session_id = session.id
            await self._prompt_on(load_generator, session)
            load_generator.session_id = load_generator.session_id if self._dead else None
        elif not self._dead:
            load_generator.sessions_left += self._sup.outage is not None  # who waits for a disk has lost nothing yet

    @property
    def _dead(self) -> bool:
        """The supervisor that was asked was killed: whatever it seems to have answered since, nobody heard. It unwinds
        beside the next one."""
        return _KILLED.get().is_set()

    @property
    def _is_leaving(self) -> bool:
        """Nothing is begun here any more: its supervisor ends, or is dead."""
        return self._dead or self._sup.stopping.is_set()

    async def _prompt_on(self, load_generator: LoadGenerator, session: Session) -> None:
        """One prompt after the other; then the session is closed."""
        while load_generator.turns_left > 0:
            if not await self._prompt(load_generator, session):
                return
            if load_generator.turns_left <= 0:
                break
            await anyio.sleep(self._pause_s(load_generator))
        with self._approvals.asking(f"close {session.id}") as said:
            await session.close()
            said.append("closed")
            self._oracle.replies.close_answered(session.id)

    def _pause_s(self, load_generator: LoadGenerator) -> float:
        """Until a customer's next turn: where the load has hours, those that are left of its turns are spread evenly,
        with half of the distance as jitter; the last one is at the very end."""
        load = self._world.drawn.load
        if not load.hours:
            pause_s: float = drawn(load.pause_s, load_generator.chance, "pause", load_generator.turn)
            return pause_s
        arrival_s, number = self._arrivals_s[load_generator.number], load_generator.turns - load_generator.turns_left
        jitter = load_generator.chance.between(-0.25, 0.25, "slot", number) if load_generator.turns_left > 1 else 0.0
        at_s: float = arrival_s + (HOUR_S * load.hours - arrival_s) * (number + jitter) / (load_generator.turns - 1)
        return max(0.0, at_s - self._world.now())

    async def _start(self, load_generator: LoadGenerator) -> Session | None:
        session, others = None, set(self._sup.registry.sessions)
        with self._approvals.asking(f"start c{load_generator.number}") as said:
            policy, outage = self._policy(load_generator), self._sup.outage
            session = await self._sup.start_session(
                f"c{load_generator.number}", agent=load_generator.agent, policy=policy
            )
            said.append(session.id)
            self._oracle.acknowledged(session.id, outage)
            self._oracle.rules(session.id, policy)
        if said[-1] == WITHDRAWN and not self._dead:
            self._check_nobody_waits(load_generator, others)
        return session

    def _check_nobody_waits(self, load_generator: LoadGenerator, others: Collection[str]) -> None:
        """Whoever was cancelled as it started a session has none: nobody would ever ask anything of that one."""
        for session_id, work in self._sup.registry.sessions.items():
            its = work.parent is None and session_id.partition("-")[0] == f"c{load_generator.number}"
            if its and session_id not in others and not work.is_stopping:
                self._oracle.violated("nothing_lost", session_id, "goes on, and whoever started it was cancelled")

    def _policy(self, load_generator: LoadGenerator) -> AbortPolicy:
        """A root session's own policy: some let aborts cross levels."""
        policy, crossing = self._world.drawn.settings.policy.value(), self._world.drawn.load.crossing
        return msgspec.structs.replace(
            policy,
            tool_to_sibling=policy.tool_to_sibling or load_generator.chance.happens(crossing, "tool_to_sibling"),
            sibling_to_session=policy.sibling_to_session
            or load_generator.chance.happens(crossing, "sibling_to_session"),
        )

    async def _prompt(self, load_generator: LoadGenerator, session: Session) -> bool:
        """One prompt; false if the session is lost."""
        load_generator.turn += 1
        load_generator.asked = True
        result = None
        with self._approvals.asking(f"prompt {session.id}") as said:
            result = await session.run(f"turn {load_generator.turn} of customer {load_generator.number}")
            said.append(f"{result.outcome}: {result.error}")
            if not self._dead:
                self._oracle.replies.prompt_answered(session.id, *_answer(result))
        if self._dead:
            return False
        if said[-1] == WITHDRAWN:
            return await self._hear(load_generator, session)
        load_generator.asked = False
        if result is None and self._sup.outage is not None:  # the same again when the disk may have recovered
            await anyio.sleep(RETRY_S)
            return True
        if result is None:
            self._lost(load_generator)
            return False
        self._count(load_generator, result.outcome)
        return result.outcome != "aborted"

    def _count(self, load_generator: LoadGenerator, outcome: str) -> None:
        match outcome:
            case "completed":
                self.tally.completed += 1
                self.tally.unanswered -= load_generator.turns_left > 0
                load_generator.turns_left -= 1
                self._go_on(load_generator)
            case "failed":
                self.tally.failed += 1
                load_generator.turns_left -= 1
                self._stand_still(load_generator)
            case _:
                self.tally.aborted += 1
                self._stand_still(load_generator)

    def _lost(self, load_generator: LoadGenerator) -> None:
        self.tally.lost += 1
        self._stand_still(load_generator)

    def _stand_still(self, load_generator: LoadGenerator) -> None:
        if load_generator.lost_at_s is None:
            load_generator.lost_at_s = self._world.now()
            self.tally.unrecovered += 1

    def _go_on(self, load_generator: LoadGenerator) -> None:
        if load_generator.lost_at_s is not None:
            self.tally.recoveries_s.append(round(self._world.now() - load_generator.lost_at_s, 6))
            self.tally.unrecovered -= 1
            load_generator.lost_at_s = None

    async def _run_plan(self, load_generator: LoadGenerator) -> None:
        plan = load_generator.plan = load_generator.plan or self._plan(load_generator)
        results: Sequence[TaskResult] = ()
        with self._approvals.asking(f"plan of customer {load_generator.number}") as said:
            with anyio.move_on_after(self._gives_up_s(load_generator)):
                result = await self._carried_out(load_generator, plan)
                results = list(result.tasks.values())
            said.append(" ".join(f"{one.id}={one.outcome}" for one in results) or "given up")
        if said[-1] == "refused: Refused" and not (
            self._is_leaving or await self._nothing_is_left(load_generator, plan)
        ):
            self._oracle.violated(
                "nothing_lost", f"w{load_generator.number}", "its plan was refused when it was under way"
            )
        if results and load_generator.works and not self._dead:
            self._check_nobody_left([one.id for one in results])
        if await self._wants_the_rest(load_generator, results, given_up=said[-1] == "given up"):
            load_generator.resumes = True
            await self._run_plan(load_generator)
            return
        if not self._dead:
            self._oracle.told(PlanEnded(results, self._world.now()))
            load_generator.plan = None
            for one in results:
                self._count(load_generator, one.outcome)
            if load_generator.sessions_left <= 0 and results and all(one.outcome == "completed" for one in results):
                self._want_no_more(load_generator)

    async def _wants_the_rest(
        self, load_generator: LoadGenerator, results: Sequence[TaskResult], *, given_up: bool
    ) -> bool:
        """Who saves what was done resumes a plan once, where anything of it is left: it is over, or was given up."""
        if not load_generator.saves or load_generator.resumes or load_generator.plan is None or self._is_leaving:
            return False
        if results:
            return _is_resumable(load_generator.plan, results)
        return given_up and await self._thinks_better(load_generator, load_generator.plan)

    async def _thinks_better(self, load_generator: LoadGenerator, plan: Plan) -> bool:
        """Of what it had given up: whether the journal has anything to resume, once all is on record."""
        await anyio.sleep(RETRY_S)
        if self._sup.outage is not None or not self._sup.journal_writer.clean:
            return False
        load_generator.gave_up = not (await self._nothing_is_left(load_generator, plan) or self._is_leaving)
        return load_generator.gave_up

    async def _nothing_is_left(self, load_generator: LoadGenerator, plan: Plan) -> bool:
        """Of a plan that is to be resumed: whether the journal has nothing of it that was not closed."""
        with self._approvals.asking(f"what is left of customer {load_generator.number}'s plan") as said:
            left = find_previous_run(plan, self._world.drawn.settings, await self._sup.journal.entities())
            said.append("something" if left is not None and (left.again or left.unmerged) else "nothing")
        return said[-1] != "something"

    def _check_nobody_left(self, tasks: Sequence[str]) -> None:
        """A plan that is over has told every session that it had begun to end: no task has it any more."""
        for session in self._sup.sessions():
            task = session.id if session.id in tasks else session.id.rpartition("-")[0]
            if task in tasks and "/" not in session.id and session.state != "Stopped":
                words = f"is {session.state} when the plan of {task} is over"
                self._oracle.violated("nothing_lost", session.id, words)

    def _gives_up_s(self, load_generator: LoadGenerator) -> float | None:
        """When it wants its plan no more, under this supervisor; ``None``: it waits for the end of it."""
        place = f"c{load_generator.number}.{load_generator.sessions_left}.{self._world.lives}"
        if load_generator.gave_up or not self._faults.strikes("host.gives_up", place):
            return None
        how = self._faults.draws("host.gives_up", place)
        return how.choice(GIVES_UP_S, "how long") * how.unit("after")

    def _want_no_more(self, load_generator: LoadGenerator) -> None:
        """All its plans are done, whether they had as many tasks as it had prompts in mind, or fewer."""
        self.tally.unanswered -= max(0, load_generator.turns_left)
        load_generator.turns_left = 0

    async def _carried_out(self, load_generator: LoadGenerator, plan: Plan) -> PlanResult:
        """Have it run; somebody attends to a plan of work meanwhile."""
        if not load_generator.works:
            return await run_plan(self._sup, plan)
        world, chance = self._world, load_generator.chance
        oracle = self._oracle

        def heard(worker_id: str) -> None:
            oracle.told(Heartbeat(worker_id, world.now()))

        hearts = Hearts(heard, world.now, world.killed)
        runner = PlanRunner(self._sup, heartbeat=hearts.beat)

        def reloaded(plan: Plan) -> None:
            load_generator.plan = plan
            oracle.told(PlanGiven(plan))

        foreman = OperatorBot(runner, plan, world, chance, self._approvals, reloaded, hearts)
        lurker = StateTriggers(self._sup, foreman, plan.workstream, world, chance, self._approvals)
        if load_generator.resumes:  # what it has grown by since, too
            oracle.told(PlanResumed([one.task.id for one in every_task(plan.tasks)]))
        async with anyio.create_task_group() as group:
            group.start_soon(foreman.attend)
            group.start_soon(lurker.lurk)
            result = await runner.run(plan, resume=load_generator.resumes)
            group.cancel_scope.cancel()
        runner.note_reported("returned to the host")  # and nothing is awaited until it was
        return result

    def _plan(self, load_generator: LoadGenerator) -> Plan:
        chance = load_generator.chance.below("plan", load_generator.sessions_left)
        count: int = drawn(self._world.drawn.load.tasks, chance, "tasks")
        if load_generator.works:
            workspace = self._world.drawn.settings.workspace
            plan = draw_plan(
                load_generator.number,
                count,
                chance,
                self._faults,
                self._world.task_scripts,
                workspace,
                saves=load_generator.saves,
            )
            self._oracle.told(PlanGiven(plan))
            return plan
        tasks = tuple(self._task(load_generator, number, chance) for number in range(count))
        return Plan(agents=_configs(), tasks=tasks, max_sessions=chance.integer(1, 3, "at once"))

    def _task(self, load_generator: LoadGenerator, number: int, chance: KeyedRandom) -> TaskConfig:
        needs = tuple(
            f"p{load_generator.number}-{one}" for one in range(number) if chance.happens(0.3, "needs", number, one)
        )
        name = f"p{load_generator.number}-{number}"
        scope = {"scope": "small"} if chance.happens(self._world.drawn.load.scoped, "scoped", number) else {}
        agent = chance.choice(AGENTS, "agent", number)
        return TaskConfig.model_validate({"id": name, "agent": agent, "prompt": "a task", "depends_on": needs, **scope})


def _is_resumable(plan: Plan, results: Iterable[TaskResult]) -> bool:
    """Whether there is anything to be done again of a plan that is over: its parts count as done with what was split
    into them."""
    outcomes = {one.id: one.outcome for one in results}
    done, again = set[str](), False
    for one in every_task(plan.tasks):
        above, outcome = one.parent, outcomes.get(one.task.id)
        if outcome == "completed" or (above is not None and above.task.id in done):
            done.add(one.task.id)
        elif outcome in ("aborted", "failed"):
            again = True
    return again


def _answer(result: TurnResult) -> tuple[str, str, int | None]:
    return result.outcome, result.error, result.seq


def _configs() -> dict[str, AgentConfig]:
    """A plan's agents are checked by name; the world's profiles are what is run."""
    return {name: AgentConfig(adapter="command", command=("true",)) for name in AGENTS}
