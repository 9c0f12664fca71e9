"""An office of a drill's own: plans at work in a house, where every attempt takes and becomes just what it is told to.

What happened to each task, run, job, worker and workstream is its **tale**: its records, each with its moment and what
it says, in their order. A drill writes down beforehand what tale the documents promise.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from textwrap import dedent
from typing import Any, Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from supervisor.agents.protocols.inprocess import AgentTurn
from supervisor.embedding.runtime import Supervisor
from supervisor.journal.memory import MemoryStore
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import Plan, Settings, TaskConfig
from supervisor.plans.agents import AgentConfig
from supervisor.plans.task_control import Answer
from supervisor.plugins import FailedAttempt, Plugins, WorkItem
from supervisor.ports import Codec, JournalError, Launch, Merge, Out, TurnEnded
from supervisor.runtime.entity import Refused
from supervisor.runtime.live_session import AgentProfile, NoSuchEntity
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import Guests, House, Prop, Puppet, Rooms
from supervisor.simulation.works.orders import Orders
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.reporting import REPORTED, RESULT
from supervisor.work.results import PlanResult
from supervisor.work.workers import Heart

__all__ = ["FLAT", "RESULT_FACTS", "Hand", "Office", "Try", "plan_of", "task"]

FLAT: Final[Mapping[str, Any]] = {"jitter_percentage": 0, "checkpoint": {"enabled": False}}
"""Delays without chance: twice as long each time, from 2 s on; and nothing is saved."""
TIMERS: Final = 20
"""So many timers, each rounded up to the run's grain, lie one after the other in a tale at most."""
OF_WORK: Final = ("workstream", "task", "run", "job", "worker")
TOLD: Final[Mapping[str, tuple[str, ...]]] = {
    "Born": ("state", "max_retries", "max_attempts", "capabilities", "max_concurrent_tasks", "tasks", "resumed_from"),
    "claimed": ("by",),
    "blocked": ("on",),
    "split": ("subtasks",),
    "subtask_failed": ("subtask",),
    "subtask_timed_out": ("subtask",),
    "approval_granted": ("by",),
    "approval_denied": ("by",),
    "reopened": ("by",),
    "manual_reset": ("by",),
    "execution_failed": ("error", "category", "charged", "final"),
    "worker_started": ("worker_id",),
    "scheduler_assigned": ("depends_on",),
    "skipped": ("cause", "dependency"),
    "validation_failed": ("failed_rules",),
    "registration_complete": ("capabilities", "max_concurrent_tasks"),
    "task_assigned": ("task_id", "active_tasks"),
    "task_completed": ("task_id", "active_tasks"),
    "health_check_timeout": ("missed",),
    "all_tasks_created": ("count",),
    "tasks_added": ("count",),
    "all_tasks_completed": ("completed",),
    "settled_with_failures": ("completed", "failed", "cancelled"),
    "settled_with_cancellations": ("completed", "cancelled"),
    "critical_task_failed": ("task_id",),
    "DeadLettered": ("attempts", "claims"),
    "PartialOutput": ("state", "output"),
    "checkpoint_saved": ("state", "attempt", "saved_as"),
    "ProviderBreaker": ("provider", "circuit"),
    "WaitsForPerson": ("on",),
    "Commanded": ("command",),
    "CommandRefused": ("command",),
}
"""What a tale has of a record's metadata, where it says anything."""


COMMANDS: Final = ("Command", "refused:")
"""How what stands in a tale of commands begins, whatever they came to."""


class Try(NamedTuple):
    """One attempt: how long it takes, what is said, and the error that it ends in, if it does."""

    takes_s: float = 5.0
    error: str = ""
    said: str = ""


DONE: Final = Try()
RESULT_FACTS: Final = frozenset({RESULT, REPORTED})
"""Facts of a workstream that these accounts leave out: ``works/results.py`` holds every run to them."""


class Hand(NamedTuple):
    """What somebody asks for after so long: a method of the operator's, and what it is given."""

    after_s: float
    verb: str
    task: str
    more: tuple[Any, ...] = ()
    id: str | None = None
    reason: str = ""


def task(name: str, **more: Any) -> TaskConfig:
    """A task whose prompt is its name."""
    return TaskConfig.model_validate({"id": name, "agent": "f", "prompt": name, **more})


def plan_of(*tasks: TaskConfig, **more: Any) -> Plan:
    """A plan of these tasks, for the agents of an office."""
    agents = {
        name: AgentConfig(adapter="command", command=(name,))
        for name in ("f", "g", "h", *{"p" for one in tasks if one.agent == "p"})
    }
    given = {"agents": agents, "tasks": tasks, "task_lifecycle": FLAT, "liveness": {"snapshot_s": 0}, **more}
    return Plan.model_validate(given)


class _Rooms(Rooms):
    """Places whose merges come to one thing after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.merges: list[Merge] = []
        """What becomes of the next ones; of all others nothing."""

    async def merge(self, session_id: str, message: str, commit: str = "") -> Merge:
        self.merged = self.merges.pop(0) if self.merges else Merge(outcome="nothing")
        return await super().merge(session_id, message, commit)


class Advice(Guests):
    """Plug-ins that say just what they were told to say, and note what they are asked."""

    def __init__(self, made: Callable[[], Codec]) -> None:
        super().__init__(made)
        self.priorities: dict[str, int] = {}
        self.agents: dict[str, str] = {}
        """Who is to try next, by the task."""
        self.again: dict[str, bool] = {}
        """Whether what failed is worth another try, by its error."""
        self.attempts: list[FailedAttempt] = []

    async def priority(self, item: WorkItem) -> int:
        return self.priorities.get(item.id, item.priority)

    async def escalation(self, attempt: FailedAttempt) -> str | None:
        self.attempts.append(attempt)
        return self.agents.get(attempt.task_id)

    async def retry(self, attempt: FailedAttempt) -> bool | None:
        self.attempts.append(attempt)
        return self.again.get(attempt.error.partition(": ")[2])


class Office(House):
    """One that works on plans.

    Args:
        tries: what becomes of the attempts at each task, in their order; of the last one, again and again.
        store: what an earlier supervisor left.
    """

    def __init__(
        self, desk: Desk, tries: Mapping[str, Sequence[Try]] | None = None, store: MemoryStore | None = None
    ) -> None:
        super().__init__(desk, store)
        self.tries = {name: [*found] for name, found in (tries or {}).items()}
        self.asked: list[tuple[str, str, str]] = []
        """Who was asked for what, in order: the agent, its session, and the prompt."""
        self.checks: list[int] = []
        """The exit statuses of the next programs; 0 from then on."""
        self.check_s = 0.0
        self.rooms: _Rooms = _Rooms()
        self.refused: list[tuple[str, str, str]] = []
        """What was asked for and refused: the verb, the task, and why."""
        self.answers_to: list[tuple[str, str, str, bool]] = []
        """The answers: the verb, the task, its state, and whether it was a repetition."""
        self.acts: dict[str, Callable[[AgentTurn], Awaitable[object]]] = {}
        """What an agent does first that is asked for that."""
        self.advice = Advice(self._made)
        self.answers = self._answer
        self._group: TaskGroup | None = None
        self.copies: list[MemoryStore] = []
        """What a kill would have left, at the moments that were wanted."""
        self.began_s = 0.0
        self.last_seq = 0
        """The last record of an earlier supervisor."""

    # ------------------------------------------------------------------ its agents and programs
    async def _work(self, agent: str, turn: AgentTurn) -> str:
        self.asked.append((agent, turn.session_id, turn.prompt))
        one = self._try_of(turn.prompt, agent)
        if one.said:
            turn.say(one.said)
        if turn.prompt in self.acts:
            await self.acts[turn.prompt](turn)
        await anyio.sleep(one.takes_s)
        if one.error:
            raise RuntimeError(one.error)
        return "" if one.said else turn.prompt.split()[0]

    def _try_of(self, prompt: str, agent: str) -> Try:
        """The next attempt at what is asked for."""
        left = self.tries.get(prompt.partition("\n")[0].split()[0]) or self.tries.get(agent, [])
        return (left.pop(0) if len(left) > 1 else left[0]) if left else DONE

    def _answer(self, puppet: Puppet, text: str) -> Iterable[Out]:
        """A puppet, whose conversation goes on with the next supervisor, takes its time as everybody does."""
        self.asked.append(("p", "", text))
        if self._group is not None:
            self._group.start_soon(self._say, puppet, self._try_of(text, "p"))
        return ()

    @staticmethod
    async def _say(puppet: Puppet, one: Try) -> None:
        await anyio.sleep(one.takes_s)
        puppet.says(TurnEnded("error", one.error) if one.error else TurnEnded("end_turn"))

    def _profile(self, name: str) -> AgentProfile:
        async def works(turn: AgentTurn) -> str:
            return await self._work(name, turn)

        return AgentProfile(name=name, adapter="inprocess", function=works, directory=f"/{name}")

    @asynccontextmanager
    async def spawn(self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0) -> AsyncIterator[Prop]:
        async with (
            super().spawn(launch, terminate_s=terminate_s, kill_s=kill_s) as prop,
            anyio.create_task_group() as g,
        ):
            if not isinstance(prop, Puppet):
                g.start_soon(self._check, prop)
            yield prop
            g.cancel_scope.cancel()

    async def _check(self, prop: Prop) -> None:
        await anyio.sleep(self.check_s)
        prop.exit(self.checks.pop(0) if self.checks else 0)

    def guests(self) -> Plugins:
        return self.advice

    # ------------------------------------------------------------------ its plans
    @asynccontextmanager
    async def staffed(self, settings: Settings | None = None, **parts: Any) -> AsyncIterator[Supervisor]:
        """A supervisor with agents f, g and h."""
        agents = {name: self._profile(name) for name in "fgh"}
        agents["p"] = AgentProfile(name="p", adapter="puppet", directory="/p")
        async with self.open(settings, agents, **parts) as sup:
            self.began_s = sup.ledger.clock.now()
            yield sup

    async def run(
        self,
        plan: Plan,
        *hands: Hand,
        heart: Heart | None = None,
        resume: bool = False,
        stop_after_s: float | None = None,
        give_up_after_s: float | None = None,
        copy_after_s: float | None = None,
        beside: Callable[[Supervisor, PlanRunner], Coroutine[Any, Any, None]] | None = None,
    ) -> PlanResult | None:
        """See a plan through, while somebody asks for this and that; how it ended. ``None``: it was given up.

        *copy_after_s*: when what is left of it is copied, as it is after a kill. *beside*: what else is done.
        """
        result: PlanResult | None = None
        async with self.staffed(plan.settings) as sup, anyio.create_task_group() as group:
            self._group = group
            runner = PlanRunner(sup, heart=heart)
            for hand in hands:
                group.start_soon(self._give, runner, hand)
            if stop_after_s is not None:
                group.start_soon(self._stop, sup, stop_after_s)
            if copy_after_s is not None:
                group.start_soon(self._copy, copy_after_s)
            if beside is not None:
                group.start_soon(beside, sup, runner)
            with anyio.move_on_after(give_up_after_s):
                result = await runner.run(plan, resume=resume)
                runner.note_reported("returned to the host")
            group.cancel_scope.cancel()
        return result

    async def _copy(self, after_s: float) -> None:
        await anyio.sleep(after_s)
        self.copies.append(copy.deepcopy(self.store))

    @staticmethod
    async def _stop(sup: Supervisor, after_s: float) -> None:
        await anyio.sleep(after_s)
        sup.stopping.set()

    async def _give(self, runner: PlanRunner, hand: Hand) -> None:
        await anyio.sleep(hand.after_s)
        give = getattr(runner.operating, hand.verb)
        reason = {"reason": hand.reason or "so"}
        try:
            answer: Answer = await give(hand.task, *hand.more, by="me", command_id=hand.id, **reason)
            self.answers_to.append((hand.verb, hand.task, answer.state, answer.repeated))
        except (Refused, LookupError, ValueError, NoSuchEntity, JournalError) as error:
            self.refused.append((hand.verb, hand.task, str(error)))

    # ------------------------------------------------------------------ what happened
    def records(self, after: int = 0) -> list[LifecycleEvent]:
        """Of work, in their order."""
        found = self.store.log.after(after, 1_000_000)
        return [one for one in found if one.entity_type in OF_WORK and one.event not in RESULT_FACTS]

    def tales(self, after: int = 0) -> dict[str, list[tuple[float, str]]]:
        """What happened to each, and when (seconds since the supervisor was opened)."""
        found: dict[str, list[tuple[float, str]]] = {}
        for one in self.records(after):
            told = (round(one.monotonic_s - self.began_s, 6), _told(one))
            found.setdefault(one.entity_id, []).append(told)
        for name, tale in found.items():
            if name.startswith("worker:"):
                tale.sort()  # who comes first of two at once is nobody's business
        return found

    def tells(
        self,
        wanted: str,
        *,
        but: str = "",
        after: int = 0,
        whose: str = "",
        facts: bool = True,
        without: tuple[str, ...] = (),
    ) -> None:
        """This, and nothing else, has happened: of each, whose tale begins a line, what happened at which moment.

        *but*: of these, that instead. *after*: this record only. *whose*: of these kinds only. *facts*: with the
        commands that were given. *without*: nothing of these tasks, of which chance decides.
        """
        orders = Orders(self._desk.say)
        for record in self.records(after):
            orders.wrote(record)
        found = {name: tale for name, tale in self.tales(after).items() if name.startswith(tuple(whose.split()) or "")}
        if not facts:
            found = {name: [one for one in tale if not one[1].startswith(COMMANDS)] for name, tale in found.items()}
            found = {name: tale for name, tale in found.items() if tale}
        found = {name: tale for name, tale in found.items() if name.partition(":")[2] not in without}
        told = {**dict(_stories(wanted)), **dict(_stories(but))}
        told = {name: tale for name, tale in told.items() if name.partition(":")[2] not in without}
        self._desk.same("whose tales", sorted(found), sorted(told))
        for name in told.keys() & found.keys():
            self._same_tale(name, found[name], told[name])

    def _same_tale(self, name: str, found: list[tuple[float, str]], wanted: list[tuple[float, str]]) -> None:
        desk = self._desk
        desk.same(f"the tale of {name}", [what for _, what in found], [what for _, what in wanted])
        for (given_s, what), (wanted_s, _) in zip(found, wanted, strict=False):
            desk.at(f"{name}: {what}", wanted_s, TIMERS, given_s)

    def outcomes(self, result: PlanResult | None) -> dict[str, str]:
        """What became of each task."""
        return {name: one.outcome for name, one in result.tasks.items()} if result is not None else {}


def _told(record: LifecycleEvent) -> str:
    words = [record.event if record.outcome in ("transition", "fact", "born") else f"{record.outcome}:{record.event}"]
    told = record.metadata
    for name in TOLD.get(record.event, ()):
        value = told.get(name)
        if value not in (None, "", [], (), {}) and value is not False:
            words.append(f"{name}={_short(value)}")
    return " ".join(words)


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _stories(text: str) -> Iterable[tuple[str, list[tuple[float, str]]]]:
    """``ID 0: what > what / 5: what``, over more than one line where the next ones are indented."""
    for story in dedent(text).strip().replace("\n   ", " ").splitlines() if text else ():
        name, _, rest = story.partition(" ")
        moments = [moment.strip().partition(": ") for moment in " ".join(rest.split()).split(" / ")]
        yield name, [(float(at_s), what.strip()) for at_s, _, whats in moments for what in whats.split(" > ")]
