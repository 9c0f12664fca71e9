"""Claims: a backlog under drawn wishes against a plain list, and what bounds a task's tries and times.

The model looks at everything each time, so it needs no lanes, buckets or queues to be right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any, Final

import anyio
import msgspec

from supervisor.lifecycles.task import Task
from supervisor.policies.retry_budget import RetryBudget
from supervisor.runtime.journal_writer import Cause
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.keyed_random import Chance
from supervisor.work.attempt_runner import Execution
from supervisor.work.backlog import Backlog, Item, Refusal
from supervisor.work.leases import Claim, StaleClaim
from supervisor.work.owned_paths import spelled
from supervisor.work.timeouts import Complexity, Durations, Scope, TaskKind, Timeouts

__all__ = ["CLAIMING"]

STEPS: Final = 220
NAMES: Final = "abcdefghijklmno"
SKILLS: Final = (None, frozenset[str](), frozenset({"role:x"}), frozenset({"role:x", "role:y"}))
ACTS: Final = (
    *("add", "add", "claim", "claim", "claim", "claim", "this", "this", "settle"),
    *("release", "renew", "reopen", "reopen", "hold", "ready", "ready", "expire", "fence"),
)
PATHS: Final = ("src", "src/a", "src/a/b", "srcs", "docs", ".")


def _overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    def owns(one: str, other: str) -> bool:
        return one == other or one == "" or other.startswith(f"{one}/")

    return any(owns(one, other) or owns(other, one) for one in some for other in others)


class Model:
    """A backlog as docs/work.md describes it."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.order: dict[str, tuple[int, int]] = {}
        self.completed: dict[str, bool] = {}
        self.on_hold: set[str] = set()
        self.held: dict[str, tuple[str, int, float]] = {}
        self.last = 0

    def why(self, name: str, skills: frozenset[str] | None, shut: str) -> str | None:
        """The first thing that keeps a worker from it."""
        item = self.items[name]
        files = spelled(item.files)
        taken = any(_overlap(files, spelled(self.items[one].files)) for one in self.held if one != name)
        for reason, holds in (
            ("settled", name in self.completed),
            ("held", name in self.held),
            ("doomed", any(self.completed.get(one) is False for one in item.depends_on)),
            ("waiting", not self.free(item)),
            ("on_hold", name in self.on_hold),
            ("capabilities", skills is not None and not item.needs <= skills),
            ("files", bool(files) and taken),
            ("provider", item.provider == shut),
        ):
            if holds:
                return reason
        return None

    def free(self, item: Item) -> bool:
        return all(self.completed.get(one) is True for one in item.depends_on) and all(
            one in self.completed for one in item.after if one not in item.depends_on
        )

    def below(self, name: str) -> list[Item]:
        """Those that wait for it, or did, and are not settled themselves."""
        waiting = [one for one in self.items.values() if name in (*one.depends_on, *one.after)]
        return [one for one in waiting if one.id not in self.completed]

    def best(self, skills: frozenset[str] | None, shut: str) -> str | None:
        able = [name for name in self.items if self.why(name, skills, shut) is None]
        return min(able, key=self.order.__getitem__, default=None)

    def give(self, name: str, worker: str, end_s: float) -> int:
        self.last += 1
        self.held[name] = (worker, self.last, end_s)
        return self.last


async def backlogs(desk: Desk) -> None:
    """Who gets what, in which order, why not, and what follows for others when something is settled or open again."""
    for number in range(6):
        chance = desk.chance.below(number)
        ours, model, now_s = Backlog(), Model(), 10.0
        for step in range(STEPS):
            now_s += chance.choice((0.0, 1.0), "pause", step)
            if not _step(desk, ours, model, chance.below(step), now_s):
                return


def _step(desk: Desk, ours: Backlog, model: Model, chance: Chance, now_s: float) -> bool:
    """One wish; false where the two have gone apart."""
    name, worker = chance.choice(NAMES, "which"), chance.choice("pq", "who")
    skills, shut = chance.choice(SKILLS, "skills"), chance.choice(("", "-", "g", "h"), "shut") or "-"
    lease_s = chance.choice((3.0, 30.0, inf), "lease")
    match chance.choice(ACTS, "act"):
        case "add" if name not in model.items:
            _add(desk, ours, model, _item(chance, name), chance.happens(0.1, "on hold"))
        case "claim":
            claim = ours.claim(worker, skills, now_s=now_s, lease_s=lease_s, gate=lambda provider: provider != shut)
            wanted = model.best(skills, shut)
            token = model.give(wanted, worker, now_s + lease_s) if wanted is not None else 0
            return _alike(desk, "a claim", claim and tuple(claim), wanted and (wanted, worker, token, now_s + lease_s))
        case "this" if name in model.items:
            why = model.why(name, skills, shut)
            given = ours.claim_by_id(
                name, worker, skills, now_s=now_s, lease_s=lease_s, gate=lambda provider: provider != shut
            )
            if isinstance(given, Claim):
                token = model.give(name, worker, now_s + lease_s) if why is None else 0
                return _alike(desk, "a claim of this", (given.token, why), (token, None))
            assert isinstance(given, Refusal)
            return _alike(desk, f"why not {name}", given.why.value, why)
        case "settle" if name in model.items and name not in model.completed:
            return _settle(desk, ours, model, name, chance.happens(0.7, "completed"))
        case "release" if name in model.held:
            given = ours.release(name, model.held.pop(name)[1])
            return _alike(desk, "a release", given.item_id, name)
        case "renew" if name in model.held:
            whose, token, end_s = model.held[name]
            given = ours.renew(name, token, now_s)
            model.held[name] = (whose, token, given.expires_s)
            return _alike(desk, "a renewal", given.expires_s >= max(end_s, now_s), True)
        case "reopen" if name in model.items:
            waits = [one.id for one in model.below(name)]
            was = model.completed.pop(name, None)
            return _alike(desk, f"{name} again", sorted(ours.reopen(name)), sorted(waits) if was is not None else [])
        case "hold" if name in model.items:
            ours.hold(name)
            model.on_hold.add(name)
        case "ready" if name in model.items:
            ours.ready(name)
            model.on_hold.discard(name)
        case "expire":
            over = sorted(one for one, (_, _, end_s) in model.held.items() if end_s <= now_s)
            for one in over:
                del model.held[one]
            return _alike(desk, "what ran out", sorted(one.item_id for one in ours.expired(now_s)), over)
        case "fence" if chance.happens(0.3, "at all"):
            mine = sorted((held[1], one) for one, held in model.held.items() if held[0] == worker)
            for _, one in mine:
                del model.held[one]
            return _alike(desk, f"what {worker} held", [(one.token, one.item_id) for one in ours.fence(worker)], mine)
    held = sorted((token, one) for one, (_, token, _) in model.held.items())
    return _alike(desk, "all that is held", [(one.token, one.item_id) for one in ours.claims()], held)


def _item(chance: Chance, name: str) -> Item:
    needs = [one for one in NAMES if one < name and chance.happens(0.15, "needs", one)]
    after = [one for one in NAMES if one < name and chance.happens(0.1, "after", one)]
    files = (chance.choice(PATHS, "file"),) if chance.happens(0.4, "files") else ()
    return Item(
        id=name,
        priority=chance.integer(-2, 2, "priority"),
        needs=chance.choice((frozenset(), frozenset({"role:x"}), frozenset({"role:y"})), "role"),
        files=files,
        provider=chance.choice(("", "g", "h"), "provider"),
        depends_on=tuple(needs),
        after=tuple(after),
    )


def _add(desk: Desk, ours: Backlog, model: Model, item: Item, on_hold: bool) -> None:
    given = ours.add(item, on_hold=on_hold)
    model.order[item.id] = (-item.priority, len(model.items))
    model.items[item.id] = item
    if on_hold:
        model.on_hold.add(item.id)
    doomed = any(model.completed.get(one) is False for one in item.depends_on)
    wanted = ((item.id,) if model.free(item) else (), (item.id,) if doomed else ())
    desk.same(f"{item.id} is added", tuple(given), wanted)
    desk.same("it is there", (item.id in ours, len(ours)), (True, len(model.items)))


def _settle(desk: Desk, ours: Backlog, model: Model, name: str, completed: bool) -> bool:
    below = model.below(name)
    doomed_before = {one.id for one in below if any(model.completed.get(each) is False for each in one.depends_on)}
    free_before = {one.id for one in below if model.free(one)}
    given = ours.settle(name, completed=completed)
    model.held.pop(name, None)
    model.completed[name] = completed
    ready = sorted(one.id for one in below if model.free(one) and one.id not in free_before)
    doomed = sorted(one.id for one in below if not completed and name in one.depends_on and one.id not in doomed_before)
    return _alike(desk, f"{name} is settled", (sorted(given.ready), sorted(given.doomed)), (ready, doomed))


def _alike(desk: Desk, what: str, given: object, wanted: object) -> bool:
    desk.same(what, given, wanted)
    return given == wanted


# ------------------------------------------------------------------------------------------------- bounds of a task
USUAL_S: Final[Mapping[str, float]] = {"small": 900.0, "medium": 1800.0, "large": 3600.0, "xl": 7200.0}
FACTOR: Final[Mapping[str, float]] = {"low": 0.7, "medium": 1.0, "high": 1.5}


async def times(desk: Desk) -> None:
    """An attempt may take what its size says, or half as long again as nineteen in twenty of its kind have taken."""
    limits = Timeouts()
    desk.same("no size", (limits.of(None), limits.of(None, (1.0,) * 9), limits.hard_cap_s), (300.0, 300.0, 5400.0))
    for scope in Scope:
        for complexity in Complexity:
            wanted_s = min(max(USUAL_S[scope.value] * FACTOR[complexity.value], 300.0), 7200.0)
            for few in ((), (1.0,) * 4):
                desk.same(f"{scope} {complexity}", limits.of(TaskKind(scope, complexity), few), wanted_s)
    kind, known = TaskKind(Scope.SMALL), Durations()
    took: list[float] = []
    for number in range(130):
        took.append(float(desk.chance.integer(100, 6000, "took", number)))
        known.note(kind, took[-1])
        last = sorted(took[-100:])
        if len(last) >= 5:
            usual_s = last[-(-len(last) * 95 // 100) - 1]
            desk.same("after others", limits.of(kind, known.of(kind)), min(max(usual_s * 1.5, 300.0), 7200.0))
    known.note(None, 5.0)
    shown = (known.of(kind), known.of(None), known.of(TaskKind(Scope.XL)))
    desk.same("what is known", shown, (tuple(took[-100:]), (), ()))
    for number in range(256):
        known.note(TaskKind(Scope.XL, role=f"{number}"), 1.0)
    shown = (known.of(kind), known.of(TaskKind(Scope.XL, role="0")), ())
    desk.same("what was heard of longest ago", shown, ((), (1.0,), ()))


async def retries(desk: Desk) -> None:
    """A workstream has a fifth of its tasks for retries, but ten in any case; each is spent once."""
    for tasks, most in ((0, 10), (10, 10), (54, 10), (55, 11), (100, 20)):
        budget: RetryBudget | None = RetryBudget(tasks=tasks)
        spent = 0
        while budget is not None and spent <= most:
            desk.same(f"left of {tasks}", (budget.retries_max, budget.left, budget.spent), (most, most - spent, spent))
            budget, spent = budget.spend(), spent + 1
        desk.same(f"the retries of {tasks} tasks", spent - 1, most)
    grown = RetryBudget(tasks=10, spent=10).grown(90)
    desk.same("one that has grown", (grown.tasks, grown.left, grown.spend() is None), (100, 10, False))
    desk.same("29 hundredths", RetryBudget(share=0.29, retries_min=0, tasks=100).retries_max, 29)
    over = msgspec.structs.replace(grown, spent=50)
    desk.same("one that was overdrawn", (over.left, over.spend()), (0, None))


async def taken_before(desk: Desk) -> None:
    """A claim that was taken away before anybody began it is not begun, and its worker has that slot again: unless the
    task has been claimed for it anew, whose slot that is then. One that stands and is not wanted any more is given
    back; nobody's claim but its own is."""
    for what, taken, next_worker, wish, freed in (
        ("nobody has it", True, "", {}, ["w"]),
        ("another worker has it", True, "v", {}, ["w"]),
        ("yet another one has it", True, "x", {}, ["w"]),
        ("the same worker has it anew", True, "w", {}, []),
        ("it is not wanted", False, "", {"unwanted": "so"}, ["given back"]),
        ("it is over", False, "", {"is_over": True}, ["given back"]),
        ("it is blocked", False, "", {"state": Task.BLOCKED}, ["given back"]),
        ("it is not wanted, and another worker has it", True, "v", {"unwanted": "so"}, ["w"]),
        ("it is not wanted, and the same worker has it anew", True, "w", {"unwanted": "so"}, []),
    ):
        backlog, noted = Backlog(), list[str]()
        backlog.add(Item(id="a"))
        claim = backlog.claim("w", None, now_s=0.0, lease_s=inf)
        assert claim is not None, "it was added just now"
        if taken:
            backlog.revoke("a")
        if next_worker:
            backlog.claim(next_worker, None, now_s=0.0, lease_s=inf)
        stands = backlog.holder("a")

        async def done(worker_id: str, name: str, cause: Cause, noted: list[str] = noted) -> None:
            noted.append(worker_id)

        async def give_back(case: Any, noted: list[str] = noted, claim: Claim = claim) -> None:
            noted.append("given back" if case.claim == claim else "another one is given back")

        case: Any = SimpleNamespace(
            **{"name": "a", "lock": anyio.Lock(), "unwanted": "", "is_over": False, "state": Task.OPEN, **wish},
            cause=Cause(),
            claim=None,
        )
        woken, withdrawn = list[str](), list[Any]()
        load: Any = SimpleNamespace(
            sup=None,
            backlog=backlog,
            pool=SimpleNamespace(done=done),
            give_back=give_back,
            wake=partial(woken.append, "woken"),
            withdrawn=withdrawn.append,
        )
        closing: Any = None
        await Execution(load, closing).carry_out(case, claim)
        desk.same(f"{what}: whose slot is free", noted, freed)
        desk.same(f"{what}: who hears of that", woken, ["woken"] if freed == ["w"] else [])
        desk.same(f"{what}: whose it is", (backlog.holder("a"), case.lock.locked()), (stands, False))
        desk.same(f"{what}: whose probe it was no more", withdrawn, [case])


async def tokens(desk: Desk) -> None:
    """A claim is known by its number, however large, and whoever wrote that down."""
    last = desk.chance.integer(1_000, 2**40, "last")
    backlog = Backlog(last)
    backlog.add(Item(id="a"))
    claim = backlog.claim("w", None, now_s=0.0, lease_s=1.0)
    desk.same("its token", claim and claim.token, last + 1)
    desk.refused("another one", lambda: backlog.check("a", last), StaleClaim)
    desk.same("the same", backlog.check("a", int(str(last + 1))), claim)


CLAIMING = (backlogs, times, retries, taken_before, tokens)
