"""Small rooms of the work side: refusals in full, orders, owned paths, ladders, and what is gone on with.

The models look at everything each time (docs/work.md, docs/plans.md, spec 002 and 004).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Final

from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.task_run import Run, RunData
from supervisor.plans import Plan
from supervisor.policies.fallback_agent import next_agent
from supervisor.policies.retry_budget import retries_spent
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.rules.claiming import PATHS, SKILLS, Model, _overlap
from supervisor.work.backlog import Backlog, Item, Settled, UnknownItem
from supervisor.work.budgeting import narrowings
from supervisor.work.leases import StaleClaim
from supervisor.work.owned_paths import OwnedPaths, spelled
from supervisor.work.results import PlanResult, TaskResult
from supervisor.work.task_execution import checkpoint_after

__all__ = ["STOCKING"]

NAMES: Final = "abcdefgh"
ROUNDS: Final = 40


def _refuses(desk: Desk, what: str, act: Callable[[], Any], error: type[Exception]) -> Exception | None:
    try:
        given = act()
    except error as refused:
        return refused
    desk.same(what, given, error.__name__)
    return None


async def refusals(desk: Desk) -> None:
    """Why an item cannot be had: the first reason, and everybody whom it is about."""
    for number in range(ROUNDS):
        chance = desk.chance.below(number)
        ours, model = Backlog(), Model()
        for one in NAMES:
            item = _item(desk, one, number)
            ours.add(item)
            model.items[one], model.order[one] = item, (-item.priority, len(model.order))
        for one in NAMES:
            what = chance.choice(("held", "settled", "failed", "nothing", "nothing"), "what", one)
            if what == "held" and model.why(one, None, "-") is None:
                model.give(one, f"w{one}", inf)
                ours.claim_by_id(one, f"w{one}", None, now_s=0.0, lease_s=inf)
            elif what in ("settled", "failed"):
                ours.settle(one, completed=what == "settled")
                model.completed[one] = what == "settled"
        for one, skills, shut in itertools.product(NAMES, SKILLS, ("-", "g")):
            given = ours.refusal(one, skills, gate=shut.__ne__)
            why = model.why(one, skills, shut)
            shown = given and (given.why.value, set(given.named))
            desk.same(f"why not {one}", shown, why and (why, _named(model, one, why, skills)))
            if given is not None:
                ends = (given.words.startswith(f"{one!r}: "), given.words.endswith(", ".join(given.named)))
                desk.same("its words", ends, (True, True))
        mine = {one: ours.holder(one) for one in NAMES}
        shown_holders = {one: held.worker_id for one, held in mine.items() if held is not None}
        desk.same("who holds what", shown_holders, {one: held[0] for one, held in model.held.items()})
        for one in NAMES:
            desk.same(
                f"claims of w{one}", [held.item_id for held in ours.claims(f"w{one}")], [one] * (one in model.held)
            )


def _item(desk: Desk, name: str, number: int) -> Item:
    chance, before = desk.chance.below(number, "item", name), [one for one in NAMES if one < name]
    return Item(
        id=name,
        priority=chance.integer(-1, 1, "priority"),
        needs=chance.choice((frozenset(), frozenset({"role:x"}), frozenset({"role:x", "role:z"})), "role"),
        files=(chance.choice(PATHS, "file"),) if chance.happens(0.4, "files") else (),
        provider=chance.choice(("", "g"), "provider"),
        depends_on=tuple(one for one in before if chance.happens(0.2, "needs", one)),
        after=tuple(one for one in before if chance.happens(0.15, "after", one)),
    )


def _named(model: Model, name: str, why: str, skills: frozenset[str] | None) -> set[str]:
    """Everybody, or everything, that keeps it from being claimed in this way."""
    item = model.items[name]
    match why:
        case "held":
            return {model.held[name][0]}
        case "doomed":
            return {one for one in item.depends_on if model.completed.get(one) is False}
        case "waiting":
            needed = {one for one in item.depends_on if model.completed.get(one) is not True}
            return needed | {one for one in item.after if one not in item.depends_on and one not in model.completed}
        case "capabilities":
            return set(item.needs) - set(skills or ())
        case "files":
            files = spelled(item.files)
            return {one for one in model.held if one != name and _overlap(files, spelled(model.items[one].files))}
        case "provider":
            return {item.provider}
    return set()


async def misuse(desk: Desk) -> None:
    """What is not there, is there twice, is over, or is somebody else's."""
    ours = Backlog(last_token=7)
    desk.same("one is added", ours.add(Item(id="a")), Settled(("a",)))
    for wrong in (
        Item(id="a"),
        Item(id="b", depends_on=("b",)),
        Item(id="b", after=("b",)),
        Item(id="b", files=("/x",)),
    ):
        _refuses(desk, f"{wrong}", partial(ours.add, wrong), ValueError)
    acts: dict[str, Callable[[], Any]] = {
        "settle": lambda: ours.settle("?", completed=True),
        "reopen": lambda: ours.reopen("?"),
        "ready": lambda: ours.ready("?"),
        "hold": lambda: ours.hold("?"),
        "rank": lambda: ours.rank("?", 1),
        "refusal": lambda: ours.refusal("?"),
        "claim": lambda: ours.claim_by_id("?", "w", None, now_s=0.0, lease_s=1.0),
    }
    for name, act in acts.items():
        unknown = _refuses(desk, f"{name} of nothing", act, UnknownItem)
        desk.same(
            "which one", isinstance(unknown, UnknownItem) and (unknown.item_id, "'?'" in str(unknown)), ("?", True)
        )
    claim = ours.claim("w", None, now_s=0.0, lease_s=5.0)
    desk.same("the first token", claim and claim.token, 8)
    for late in (7, 9):
        for act in (
            partial(ours.settle, "a", completed=True, token=late),
            partial(ours.release, "a", late),
            partial(ours.renew, "a", late, 1.0),
            partial(ours.check, "a", late),
        ):
            _refuses(desk, "a stale claim", act, StaleClaim)
    desk.same("whose it is", ours.check("a", 8).worker_id, "w")
    desk.same("what nobody has to open again", ours.reopen("a"), ())
    ours.settle("a", completed=True, token=8)
    desk.same("the same once more", ours.settle("a", completed=True), Settled())
    both = _refuses(desk, "the other way", lambda: ours.settle("a", completed=False), ValueError)
    desk.same("it says how", "settled as completed" in str(both), True)
    _refuses(desk, "what is over is nobody's", lambda: ours.check("a", 8), StaleClaim)
    desk.same("nothing is taken from nobody", (ours.revoke("a"), ours.holder("a")), (None, None))
    ours.add(Item(id="b"))
    ours.settle("b", completed=False)
    both = _refuses(desk, "the other way", lambda: ours.settle("b", completed=True), ValueError)
    desk.same("it says how", "settled as not completed" in str(both), True)


async def orders(desk: Desk) -> None:
    """Another priority counts for what is not queued yet: the highest first, then what was added first."""
    for number in range(ROUNDS):
        chance, ours = desk.chance.below(number), Backlog()
        wanted: list[tuple[int, int, str]] = []
        for place, name in enumerate(NAMES):
            own, other = chance.integer(-3, 3, "own", name), chance.integer(-3, 3, "other", name)
            on_hold, ranked = chance.happens(0.6, "on hold", name), chance.happens(0.6, "ranked", name)
            ours.add(Item(id=name, priority=own), on_hold=on_hold)
            if ranked:
                ours.rank(name, chance.integer(-3, 3, "first", name))
                ours.rank(name, other)
            ours.ready(name)
            wanted.append((-(other if ranked and on_hold else own), place, name))
        claims = [ours.claim("w", None, now_s=0.0, lease_s=1.0) for _ in NAMES]
        desk.same("the order", [one and one.item_id for one in claims], [name for _, _, name in sorted(wanted)])


async def paths(desk: Desk) -> None:
    """Two holders never have overlapping paths; a path owns what is below it."""
    for given, wanted in (
        (("./a//b/",), ("a/b",)),
        (("src/a", "src"), ("src",)),
        (("src", "srcs", "src-a"), ("src", "src-a", "srcs")),
        (("b", "a", "a"), ("a", "b")),
        ((".", "a"), ("",)),
        (("a/./b/c", "a/b"), ("a/b",)),
        ((), ()),
    ):
        desk.same(f"{given}", spelled(given), wanted)
    for wrong in ("/a", "../a", "a/../b", ".."):
        _refuses(desk, f"{wrong}", partial(spelled, (wrong,)), ValueError)
    places = ("", "a", "a/b", "a/b/c", "ab", "a/c", "d/e", "d")
    ours, held = OwnedPaths(), dict[str, tuple[str, ...]]()
    for step in range(6 * ROUNDS):
        chance = desk.chance.below(step)
        some = [chance.choice(places, "path", number) for number in range(chance.integer(0, 2, "how many"))]
        asked, owner = spelled([one or "." for one in some]), chance.choice("pqr", "who")
        blockers = {one for one, theirs in held.items() if _overlap(asked, theirs)}
        desk.same(f"who is in the way of {asked}", set(ours.blockers(asked)), blockers)
        desk.same("each once", len(ours.blockers(asked)), len(blockers))
        first = ours.blocker(asked)
        desk.same("one of them", first in blockers if blockers else first, True if blockers else None)
        if owner in held and chance.happens(0.5, "gives back"):
            ours.give_back(held.pop(owner))
        elif owner not in held and not blockers:
            ours.take(owner, asked)
            held[owner] = asked


# ----------------------------------------------------------------------------------------------- tries and their ends
async def tries(desk: Desk) -> None:
    """Who is next after so many failures; how many retries were spent; what another run goes on with."""
    for count in range(4):
        fallbacks = [f"f{number}" for number in range(count)]
        for failures in range(6):
            wanted = "own" if not (failures and count) else fallbacks[min(failures, count) - 1]
            desk.same(f"after {failures} failures", next_agent("own", fallbacks, failures), wanted)
    tasks = [TaskData(retries=number, workstream="w", name="t", digest="") for number in (0, 1, 4)]
    desk.same("retries of tasks", retries_spent(tasks, ()), 5)
    for state, failures, probes, permanent in itertools.product(Run, range(5), range(3), (False, True)):
        data = RunData(failures=failures, probes=probes, permanent=permanent)
        opened = permanent or probes or state.value in ("FAILED", "TIMEOUT", "CIRCUIT_OPEN", "HALF_OPEN")
        charged = failures - probes - (1 if opened else 0)  # the one that opened its circuit, and those of probes
        desk.same(f"retries of {state} {data}", retries_spent((), ((state, data),)), charged if charged > 0 else 0)
    both = ((Run.RETRYING, RunData(failures=2)), (Run.PENDING, RunData()), (Run.RETRYING, RunData(failures=1)))
    desk.same("retries of all", retries_spent(tasks, both), 8)
    _checkpoints(desk)


def _checkpoints(desk: Desk) -> None:
    for state, saved, rollback, before in itertools.product(Run, (None, Run.FAILED), (False, True), ("", "r0")):
        data = RunData(saved_in=saved, saved_as="here", resumed_from=before, resumed_at=before and "there")
        own = saved is not None and not rollback
        wanted = None if state is Run.COMPLETED else ("r1", "here") if own else ("r0", "there") if before else None
        desk.same(f"what {state} leaves", checkpoint_after("r1", state, data, rollback=rollback), wanted)


async def endings(desk: Desk) -> None:
    """A plan is well if all its tasks are completed or not wanted, and nothing is wrong with the whole."""
    outcomes = ("completed", "failed", "aborted", "skipped", "blocked")
    for some in itertools.product(outcomes, outcomes):
        tasks = {f"{place}": TaskResult(f"{place}", "", outcome, "", 0.0) for place, outcome in enumerate(some)}
        for error in ("", "no"):
            well = error == "" and all(one in ("completed", "skipped") for one in some)
            desk.same(f"a plan that is {some} {error!r}", PlanResult(tasks, error).ok, well)
    desk.same("budgets that are narrowed", [*narrowings(_narrow())], list(NARROWED))
    desk.same("budgets that are not", [*narrowings(Plan.model_validate(_plan([])))], [])


def _plan(tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rest = {"id": "last", "agent": "a", "prompt": "x"}
    return {"agents": {"a": {"adapter": "command", "command": ("x",)}}, "tasks": [*tasks, rest], "budget": {"turns": 9}}


def _narrow() -> Plan:
    part = {"id": "part", "agent": "a", "prompt": "x", "budget": {"tokens": 700, "turns": 3}}
    whole = {"id": "whole", "agent": "a", "prompt": "x", "budget": {"tokens": 500, "turns": 9}, "subtasks": [part]}
    wide = {"id": "wide", "agent": "a", "prompt": "x", "budget": {"turns": 12, "tokens": 10_000}}
    return Plan.model_validate(_plan([whole, wide]))


NARROWED: Final = (
    "tasks[0].subtasks[0].budget.tokens: 700 is narrowed to 500, which the task whole has",
    "tasks[1].budget.turns: 12 is narrowed to 9, which the plan has",
)

STOCKING: Final[tuple[Any, ...]] = (refusals, misuse, orders, paths, tries, endings)
