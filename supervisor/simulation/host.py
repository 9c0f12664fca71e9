"""The host of a simulated run: customers who want work done, and operators who disturb it.

The host uses the runtime as any embedding program would, and reports its requests and their results to the oracle. The
work of a customer is drawn by the customer's number, never by the order in which things happen. A customer whose
session is lost starts another session, under the next supervisor too, so that the work goes on whatever is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.host.api import Supervisor
from supervisor.host.handle import Session
from supervisor.lifecycles.types import AbortPolicy, AbortScope
from supervisor.plans import AgentConfig, Plan, TaskConfig
from supervisor.plans.tasks import every_task
from supervisor.simulation.checkers import PlanEnded, PlanGiven, PlanResumed
from supervisor.simulation.cost import OutcomeCounts
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.operators import Operators
from supervisor.simulation.plan_workload.operator_bot import HeartbeatSender, OperatorBot, StateTriggers
from supervisor.simulation.plan_workload.plans import draw_plan
from supervisor.simulation.ranges import drawn
from supervisor.simulation.request_log import WITHDRAWN, RequestLog
from supervisor.simulation.scenario import AGENTS, HOUR_S
from supervisor.simulation.world import World
from supervisor.work.plan_handle import run_plan
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.previous_run import find_previous_run
from supervisor.work.results import PlanResult, TaskResult

LATE_S = (0.0, 5.0, 60.0, 600.0)
"""Upper bounds, in seconds, of the delay after which a customer may come back to the next supervisor; one is drawn."""
GIVES_UP_S = (0.0, 0.01, 5.0, 120.0)
"""Upper bounds, in seconds, of the time after which a customer may give up its plan; one is drawn."""
RETRY_S = 1.0
"""Seconds that a customer waits before another try, for example another session after a lost one."""
_KILLED: ContextVar[anyio.Event] = ContextVar("killed")
"""Event that is set when the supervisor is killed to which the current task of the host sends requests."""


class LoadGenerator:
    """Customer of a simulated run, who wants a number of prompts completed, or a plan run to its end, whatever happens
    to the customer's sessions."""

    def __init__(self, number: int, random: KeyedRandom, world: World) -> None:
        load = world.drawn.load
        self.number = number
        self.random = random
        self.turns: int = drawn(load.turns, random, "turns")
        self.turns_left = self.turns
        self.agent = _weighted(world.drawn.weights, random)
        self.works = random.happens(load.works, "works")
        self.plans = self.works or random.happens(drawn(load.plans, random, "plans"), "plan")
        self.sessions_left: int = 1 if self.works else drawn(load.sessions_max, random, "sessions")
        self.lost_at_s: float | None = None
        self.turn = 0
        self.session_id: str | None = None
        """Id of the customer's session; the session may go on under the next supervisor."""
        self.prompt_open = False
        """Whether a prompt of the customer's session has no result yet."""
        self.saves = self.works and random.happens(load.saves, "saves")
        self.plan: Plan | None = None
        """Plan that is run for the customer."""
        self.resumes = False
        """Whether the plan was run before, so that the next run resumes the plan, with all tasks added meanwhile."""
        self.gave_up = False
        """Whether the customer gave the plan up once and then resumed the plan."""

    @property
    def done(self) -> bool:
        return self.turns_left <= 0 or (self.sessions_left <= 0 and self.session_id is None and self.plan is None)


def _weighted(weights: tuple[float, ...], random: KeyedRandom) -> str:
    point = random.unit("agent") * sum(weights)
    for name, weight in zip(AGENTS, weights, strict=True):
        point -= weight
        if point < 0:
            return name
    return AGENTS[-1]


class Host:
    """Host of a simulated run: all customers and operators, over all supervisors of the run."""

    bot_class: type[OperatorBot] = OperatorBot

    def __init__(self, world: World, random: KeyedRandom) -> None:
        self.world = world
        self._oracle = world.oracle
        self._random = random
        self._faults = world.faults
        self.tally = OutcomeCounts()
        count: int = drawn(world.drawn.load.customers, random, "customers")
        self.customers = [LoadGenerator(number, random.below("customer", number), world) for number in range(count)]
        self.tally.unanswered = sum(customer.turns_left for customer in self.customers)
        self._arrivals_s: list[float] = []
        for customer in self.customers:
            later_s = drawn(world.drawn.load.arrival_s, customer.random, "arrival")
            self._arrivals_s.append(later_s + (self._arrivals_s[-1] if self._arrivals_s else 0.0))
        self.last_arrival_s = max([HOUR_S * world.drawn.load.hours, *self._arrivals_s])
        """Time of the last arrival of a customer, in seconds; faults may strike at least until then."""
        self._requests = RequestLog(world.oracle, world.faults)
        self.operator_bots: list[OperatorBot] = []
        """Operator bots of all plans that were run, oldest first."""
        self._operators: Operators | None = None
        self._group: TaskGroup
        self.sup: Supervisor

    @property
    def done(self) -> bool:
        return all(customer.done for customer in self.customers)

    async def play(self, sup: Supervisor) -> None:
        """Do all work that remains for the customers, with this supervisor, while operators disturb the run."""
        self.sup = sup
        _KILLED.set(self.world.killed)
        operators = Operators(sup, self.world, self._random, self.tally, self._requests, len(self.customers))
        self._operators = operators
        try:
            async with anyio.create_task_group() as self._group:
                async with anyio.create_task_group() as work:
                    for customer, arrival_s in zip(self.customers, self._arrivals_s, strict=True):
                        if not customer.done:
                            work.start_soon(self._serve, customer, arrival_s)
                    for number in range(self.world.drawn.operators):
                        self._group.start_soon(operators.operate, number)
                operators.stop()
        finally:
            if self._operators is operators:
                self._operators = None

    def targets(self, scope: AbortScope) -> list[str]:
        """Return the ids of the nodes that an abort of this scope can target now; no ids while no supervisor works."""
        return [] if self._operators is None or self.world.killed.is_set() else self._operators.targets(scope)

    def abort(self, target: str, scope: AbortScope) -> None:
        """Start a task that aborts the target as an operator does; a supervisor must be at work."""
        assert self._operators is not None
        self.start(self._operators.abort, target, scope)

    def start(self, function: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
        """Call *function* in a task of this host, as an operator of the current supervisor would."""
        self._group.start_soon(function, *args)

    # ------------------------------------------------------------------ customers
    async def _serve(self, customer: LoadGenerator, arrival_s: float) -> None:
        await anyio.sleep(max(0.0, arrival_s - self.world.now()))
        await self.return_late(customer)
        while not (customer.done or self._is_leaving):
            if customer.session_id is not None or customer.plan is not None:
                await self._resume(customer)
                continue
            customer.sessions_left -= 1
            self.tally.sessions += 1
            if customer.plans:
                await self._run_plan(customer)
            else:
                await self._run_session(customer)
            if not customer.done:
                await anyio.sleep(RETRY_S)

    async def return_late(self, customer: LoadGenerator) -> None:
        """Wait before the customer comes back to a later supervisor, if the fault ``host.comes_late`` strikes."""
        place = f"c{customer.number}.{self.world.lives}"
        if self.world.lives > 1 and self._faults.strikes("host.comes_late", place):
            how = self._faults.draws("host.comes_late", place)
            await anyio.sleep(how.choice(LATE_S, "how late") * how.unit("late"))

    async def _resume(self, customer: LoadGenerator) -> None:
        """Continue the customer's session or plan that began under an earlier supervisor."""
        if customer.plan is not None:
            await self._run_plan(customer)
        elif any(one.id == customer.session_id for one in self.sup.sessions()):
            self.tally.resumed += 1
            session = self.sup.session(customer.session_id or "")
            if not customer.prompt_open or await self._await_result(customer, session):
                await self._prompt_on(customer, session)
        if self._was_killed:
            return
        customer.session_id = None
        if not customer.done:
            await anyio.sleep(RETRY_S)

    async def _await_result(self, customer: LoadGenerator, session: Session) -> bool:
        """Wait for the result of a prompt that was sent to an earlier supervisor. Return false if the session is
        lost."""
        result = None
        with self._requests.record(f"result {session.id}") as said:
            result = await session.result()
            said.append(f"{result.outcome}: {result.error}" if result is not None else "nothing is asked of it")
            if result is not None and not self._was_killed:
                self._oracle.replies.result_told(session.id, result.outcome, result.error, result.seq)
        if self._was_killed:
            return False
        customer.prompt_open = False
        if result is not None:
            self._count(customer, result.outcome)
        return result is None or result.outcome != "aborted"

    async def _run_session(self, customer: LoadGenerator) -> None:
        session = await self._start(customer)
        if session is not None:
            customer.session_id = session.id
            await self._prompt_on(customer, session)
            customer.session_id = customer.session_id if self._was_killed else None
        elif not self._was_killed:
            customer.sessions_left += self.sup.outage is not None  # who waits for a disk has lost nothing yet

    @property
    def _was_killed(self) -> bool:
        """Whether the supervisor to which the current task sends requests was killed. Results that tasks of a killed
        supervisor return while they unwind, beside the next supervisor, count as not received."""
        return _KILLED.get().is_set()

    @property
    def _is_leaving(self) -> bool:
        """Whether the host begins no more work here, since the supervisor ends or was killed."""
        return self._was_killed or self.sup.stopping.is_set()

    async def _prompt_on(self, customer: LoadGenerator, session: Session) -> None:
        """Send the customer's remaining prompts to the session, one by one; then close the session."""
        while customer.turns_left > 0:
            if not await self._prompt(customer, session):
                return
            if customer.turns_left <= 0:
                break
            await anyio.sleep(self._pause_s(customer))
        with self._requests.record(f"close {session.id}") as said:
            await session.close()
            said.append("closed")
            self._oracle.replies.close_answered(session.id)

    def _pause_s(self, customer: LoadGenerator) -> float:
        """Return the seconds until the customer's next turn. If the load has hours, the turns are spread evenly over
        these hours, with half of the distance as jitter; the last turn is at the very end."""
        load = self.world.drawn.load
        if not load.hours:
            pause_s: float = drawn(load.pause_s, customer.random, "pause", customer.turn)
            return pause_s
        arrival_s, number = self._arrivals_s[customer.number], customer.turns - customer.turns_left
        jitter = customer.random.between(-0.25, 0.25, "slot", number) if customer.turns_left > 1 else 0.0
        at_s: float = arrival_s + (HOUR_S * load.hours - arrival_s) * (number + jitter) / (customer.turns - 1)
        return max(0.0, at_s - self.world.now())

    async def _start(self, customer: LoadGenerator) -> Session | None:
        session, others = None, set(self.sup.core.registry.sessions)
        with self._requests.record(f"start c{customer.number}") as said:
            policy, outage = self._policy(customer), self.sup.outage
            session = await self.sup.start_session(f"c{customer.number}", agent=customer.agent, policy=policy)
            said.append(session.id)
            self._oracle.acknowledged(session.id, outage)
            self._oracle.set_policy(session.id, policy)
        if said[-1] == WITHDRAWN and not self._was_killed:
            self._check_withdrawn_start(customer, others)
        return session

    def _check_withdrawn_start(self, customer: LoadGenerator, others: Collection[str]) -> None:
        """Check that a cancelled start of a session has left no live session: nobody would ever send a prompt to such a
        session."""
        for session_id, work in self.sup.core.registry.sessions.items():
            its = work.parent is None and session_id.partition("-")[0] == f"c{customer.number}"
            if its and session_id not in others and not work.is_stopping:
                self._oracle.violated("nothing_lost", session_id, "goes on, and whoever started it was cancelled")

    def _policy(self, customer: LoadGenerator) -> AbortPolicy:
        """Draw the abort policy of the customer's session; some policies let aborts cross levels (policy edges)."""
        policy, crossing = self.world.drawn.settings.abort_policy, self.world.drawn.load.crossing
        return msgspec.structs.replace(
            policy,
            tool_to_sibling=policy.tool_to_sibling or customer.random.happens(crossing, "tool_to_sibling"),
            sibling_to_session=policy.sibling_to_session or customer.random.happens(crossing, "sibling_to_session"),
        )

    async def _prompt(self, customer: LoadGenerator, session: Session) -> bool:
        """Send one prompt and wait for its result. Return false if the session is lost."""
        customer.turn += 1
        customer.prompt_open = True
        result = None
        with self._requests.record(f"prompt {session.id}") as said:
            result = await session.run(f"turn {customer.turn} of customer {customer.number}")
            said.append(f"{result.outcome}: {result.error}")
            if not self._was_killed:
                self._oracle.replies.prompt_answered(session.id, result.outcome, result.error, result.seq)
        if self._was_killed:
            return False
        if said[-1] == WITHDRAWN:
            return await self._await_result(customer, session)
        customer.prompt_open = False
        if result is None and self.sup.outage is not None:  # the same again when the disk may have recovered
            await anyio.sleep(RETRY_S)
            return True
        if result is None:
            self.tally.lost += 1
            self._note_loss(customer)
            return False
        self._count(customer, result.outcome)
        return result.outcome != "aborted"

    def _count(self, customer: LoadGenerator, outcome: str) -> None:
        match outcome:
            case "completed":
                self.tally.completed += 1
                self.tally.unanswered -= customer.turns_left > 0
                customer.turns_left -= 1
                if customer.lost_at_s is not None:
                    self.tally.recoveries_s.append(round(self.world.now() - customer.lost_at_s, 6))
                    self.tally.unrecovered -= 1
                    customer.lost_at_s = None
            case "failed":
                self.tally.failed += 1
                customer.turns_left -= 1
                self._note_loss(customer)
            case _:
                self.tally.aborted += 1
                self._note_loss(customer)

    def _note_loss(self, customer: LoadGenerator) -> None:
        if customer.lost_at_s is None:
            customer.lost_at_s = self.world.now()
            self.tally.unrecovered += 1

    async def _run_plan(self, customer: LoadGenerator) -> None:
        if (plan := customer.plan) is None:
            plan = customer.plan = self.make_plan(customer)
            if customer.works:
                self._oracle.observe(PlanGiven(plan))
        results: Sequence[TaskResult] = ()
        with self._requests.record(f"plan of customer {customer.number}") as said:
            with anyio.move_on_after(self.patience_s(customer)):
                result = await self.execute_plan(customer, plan)
                results = list(result.tasks.values())
            said.append(" ".join(f"{one.id}={one.outcome}" for one in results) or "given up")
        if said[-1] == "refused: Refused" and not (self._is_leaving or await self._nothing_is_left(customer, plan)):
            self._oracle.violated("nothing_lost", f"w{customer.number}", "its plan was refused when it was under way")
        if results and customer.works and not self._was_killed:
            self._check_sessions_stopped([one.id for one in results])
        if await self._wants_resume(customer, results, given_up=said[-1] == "given up"):
            customer.resumes = True
            await self._run_plan(customer)
            return
        if not self._was_killed:
            self._oracle.observe(PlanEnded(results))
            customer.plan = None
            for one in results:
                self._count(customer, one.outcome)
            if customer.sessions_left <= 0 and results and all(one.outcome == "completed" for one in results):
                self.tally.unanswered -= max(0, customer.turns_left)  # its plan had fewer tasks than it wanted prompts
                customer.turns_left = 0

    async def _wants_resume(self, customer: LoadGenerator, results: Sequence[TaskResult], *, given_up: bool) -> bool:
        """Decide whether to resume the plan: once, if the plan has checkpoints, and work of the plan was left when the
        plan ended or was given up."""
        if not customer.saves or customer.resumes or customer.plan is None or self._is_leaving:
            return False
        if results:
            return _is_resumable(customer.plan, results)
        return given_up and await self._reconsiders(customer, customer.plan)

    async def _reconsiders(self, customer: LoadGenerator, plan: Plan) -> bool:
        """Decide, once everything is on record, whether the journal has work to resume of a plan that was given up."""
        await anyio.sleep(RETRY_S)
        if self.sup.outage is not None or not self.sup.core.journal_writer.clean:
            return False
        customer.gave_up = not (await self._nothing_is_left(customer, plan) or self._is_leaving)
        return customer.gave_up

    async def _nothing_is_left(self, customer: LoadGenerator, plan: Plan) -> bool:
        """Whether the journal has no work of the plan that a resume would do."""
        with self._requests.record(f"what is left of customer {customer.number}'s plan") as said:
            left = find_previous_run(plan, self.world.drawn.settings, await self.sup.core.journal.entities())
            said.append("something" if left is not None and (left.again or left.unmerged) else "nothing")
        return said[-1] != "something"

    def _check_sessions_stopped(self, tasks: Sequence[str]) -> None:
        """Check that all sessions of the plan's tasks are stopped when the plan is over."""
        for session in self.sup.sessions():
            task = session.id if session.id in tasks else session.id.rpartition("-")[0]
            if task in tasks and "/" not in session.id and session.state != "Stopped":
                words = f"is {session.state} when the plan of {task} is over"
                self._oracle.violated("nothing_lost", session.id, words)

    def patience_s(self, customer: LoadGenerator) -> float | None:
        """Return the seconds after which the customer gives up the plan under this supervisor; ``None`` if the customer
        waits for the plan's end."""
        place = f"c{customer.number}.{customer.sessions_left}.{self.world.lives}"
        if customer.gave_up or not self._faults.strikes("host.gives_up", place):
            return None
        how = self._faults.draws("host.gives_up", place)
        return how.choice(GIVES_UP_S, "how long") * how.unit("after")

    async def execute_plan(self, customer: LoadGenerator, plan: Plan) -> PlanResult:
        """Run the plan and return the result. For a customer whose plan uses everything that a plan can say
        (``works``), an operator bot approves tasks and interferes meanwhile."""
        if not customer.works:
            return await run_plan(self.sup, plan)
        world, random, oracle = self.world, customer.random, self._oracle
        heartbeats = HeartbeatSender(world)
        runner = PlanRunner(self.sup.core, heartbeat=heartbeats.beat)

        def reloaded(plan: Plan) -> None:
            customer.plan = plan
            oracle.observe(PlanGiven(plan))

        operator_bot = self.bot_class(runner, plan, world, random, self._requests, reloaded, heartbeats)
        self.operator_bots.append(operator_bot)
        state_triggers = StateTriggers(self.sup, operator_bot, plan.workstream, world, random, self._requests)
        if customer.resumes:  # what it has grown by since, too
            oracle.observe(PlanResumed([one.task.id for one in every_task(plan.tasks)]))
        async with anyio.create_task_group() as group:
            group.start_soon(operator_bot.run)
            group.start_soon(state_triggers.run)
            result = await runner.run(plan, resume=customer.resumes)
            group.cancel_scope.cancel()
        runner.note_reported("returned to the host")  # and nothing is awaited until it was
        return result

    def make_plan(self, customer: LoadGenerator) -> Plan:
        random = customer.random.below("plan", customer.sessions_left)
        count: int = drawn(self.world.drawn.load.tasks, random, "tasks")
        if customer.works:
            workspace = self.world.drawn.settings.workspace
            scripts, saves = self.world.task_scripts, customer.saves
            return draw_plan(customer.number, count, random, self._faults, scripts, workspace, saves=saves)
        tasks = tuple(self._task(customer, number, random) for number in range(count))
        agents = {name: AgentConfig(adapter="command", command=("true",)) for name in AGENTS}  # checked, and never run
        return Plan(agents=agents, tasks=tasks, max_sessions=random.integer(1, 3, "at once"))

    def _task(self, customer: LoadGenerator, number: int, random: KeyedRandom) -> TaskConfig:
        needs = tuple(f"p{customer.number}-{one}" for one in range(number) if random.happens(0.3, "needs", number, one))
        name = f"p{customer.number}-{number}"
        scope = {"scope": "small"} if random.happens(self.world.drawn.load.scoped, "scoped", number) else {}
        agent = random.choice(AGENTS, "agent", number)
        return TaskConfig.model_validate({"id": name, "agent": agent, "prompt": "a task", "depends_on": needs, **scope})


def _is_resumable(plan: Plan, results: Iterable[TaskResult]) -> bool:
    """Whether a resume would do any work of a plan that is over. Subtasks of a completed task count as completed."""
    outcomes = {one.id: one.outcome for one in results}
    done, again = set[str](), False
    for one in every_task(plan.tasks):
        above, outcome = one.parent, outcomes.get(one.task.id)
        if outcome == "completed" or (above is not None and above.task.id in done):
            done.add(one.task.id)
        elif outcome in ("aborted", "failed"):
            again = True
    return again
