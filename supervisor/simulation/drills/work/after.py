"""After: what another supervisor makes of any commit of a plan's life, what is kept and taken back, what is resumed.

Held to docs/work.md ("Ends"), docs/plans.md ("Checkpoints", ``recovery``) and docs/recovery.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import anyio

from supervisor.host import verification as of_places
from supervisor.journal.memory import MemoryStore
from supervisor.plans import Plan
from supervisor.ports import EntityRow, Merge, Ready, Released
from supervisor.simulation.drills.desk import Desk, hearing
from supervisor.simulation.drills.work.office import FLAT, Hand, Office, Try, plan_of, task
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.previous_run import before

__all__ = ["AFTER"]

BROKEN: Final = "sh: x: command not found"
ONCE: Final = {"max_retries": 0}
EVERY: Final = 6
"""One in so many of the commits at which a task stands as none did before is followed by another supervisor."""
ENDS: Final = {
    **dict.fromkeys(("ok", "twice", "checked", "asked", "whole", "part", "planned"), "completed"),
    "never": "skipped",
    "bad": "failed",
    "below": "blocked",
}
"""How each task of the life ends, whoever is killed meanwhile."""
SLOW_S: Final = 8.0
"""More than a plan that is given up waits for its last records."""
OVER: Final = ("CLOSED", "CANCELLED", "FAILED")


def _life(agent: str, **keys: Any) -> Plan:
    tasks = (
        task("ok"),
        task("twice", depends_on=["ok"]),
        task("checked", acceptance=[{"command": ["x"]}]),
        task("asked", approval="after"),
        task("planned", approval="before"),
        task("whole", subtasks=[{"id": "part", "agent": agent, "prompt": "part"}], depends_on=["ok"]),
        task("bad", max_retries=1),
        task("below", depends_on=["bad"]),
        task("never", when={"task": "ok", "is": "failed"}),
    )
    return plan_of(*(one.model_copy(update={"agent": agent}) for one in tasks), **keys)


def _staged(desk: Desk, store: MemoryStore | None = None) -> Office:
    """An office where what fails once has not failed yet, or has."""
    records = store.log.after(0, 1_000_000) if store is not None else ()
    failed = any(one.event == "task_failed" and one.entity_id.startswith("twice:") for one in records)
    tries = {"ok": [Try(2.0)], "twice": [Try(3.0, "it broke"), Try(3.0)][failed:], "bad": [Try(4.0, BROKEN)]}
    office = Office(desk, tries, store)
    office.check_s = 2.0
    office.ready = lambda puppet: [Ready("its-name", "a puppet")]
    return office


class _News:
    """Whether a task stands, with its run and its job, as none did before."""

    def __init__(self, house: Office) -> None:
        self._house = house
        self._seen: set[tuple[str, ...]] = set()

    def __call__(self, seq: int) -> bool:
        rows = self._house.store.entities.values()
        below: dict[str, dict[str, str]] = {}
        for row in rows:
            if row.kind in ("run", "job"):
                below.setdefault(row.parent_id or "", {})[row.kind] = row.state
        found = {(row.state, *below.get(row.id, {}).values()) for row in rows if row.kind == "task"}
        new = found - self._seen
        self._seen |= new
        return bool(new)


APPROVALS: Final = (Hand(15.0, "approve", "asked"), Hand(16.0, "approve", "planned"))


async def _lives_on(desk: Desk, agent: str, orphans: str) -> None:
    life = _staged(desk)
    life.cuts, life.cut_at = [], _News(life)
    result = await life.run(_life(agent), *APPROVALS)
    desk.same("its life", life.outcomes(result), ENDS)
    first = desk.chance.integer(0, EVERY - 1, "first")
    for store in life.cuts[first::EVERY]:
        await _go_on(desk, store, agent, orphans)


async def functions_die(desk: Desk) -> None:
    """Whatever a killed supervisor had on record, the plan ends as it would have: nothing is lost, nothing twice."""
    await _lives_on(desk, "f", "open")


async def functions_are_done(desk: Desk) -> None:
    """The same where what an orphan has left counts as the whole."""
    await _lives_on(desk, "f", "done")


async def puppets_go_on(desk: Desk) -> None:
    """The same where the sessions of tasks go on."""
    await _lives_on(desk, "p", "open")


async def _go_on(desk: Desk, store: MemoryStore, agent: str, orphans: str) -> None:
    what, rows = f"{agent} after {store.last_seq} ({orphans})", list(store.entities.values())
    before = {row.id: row.state for row in rows if row.kind == "task"}
    streams = [row for row in rows if row.kind == "workstream"]
    heir = _staged(desk, store)
    heir.last_seq = store.last_seq
    result = await heir.run(_life(agent, recovery={"orphans": orphans}), *APPROVALS)
    goes_on = bool(streams) and not streams[-1].ended and _is_whole(rows)
    if orphans == "open" or not goes_on:
        desk.same(f"{what}: outcomes", heir.outcomes(result), ENDS)
    records = heir.records(heir.last_seq)
    if goes_on:
        born = [one.entity_id for one in records if one.event == "Born" and one.entity_type in ("workstream", "task")]
        desk.same(f"{what}: is begun anew", [one for one in born if one in before or one != "task:part"], [])
        closed = {one for one, state in before.items() if state in ("CLOSED", "CANCELLED")}
        moved = {one.entity_id for one in records if one.entity_type == "task" and one.outcome == "transition"}
        desk.same(f"{what}: what is settled stays so", closed & moved, set())
    states = {row.id: row.state for row in heir.store.entities.values() if row.kind == "task"}
    desk.same(f"{what}: tasks that are not over", [one for one, state in states.items() if state not in OVER], [])
    kinds = ("workstream", "worker", "job", "session", "turn", "agent")
    left = [row.id for row in heir.store.entities.values() if row.kind in kinds and not row.ended]
    desk.same(f"{what}: what looks alive", left, [])
    _check_charges(desk, heir, what)


def _is_whole(rows: Sequence[EntityRow]) -> bool:
    """Its tasks are all there: what was not yet opened is begun anew otherwise."""
    return sum(row.kind == "task" for row in rows) == len(ENDS)


def _check_charges(desk: Desk, heir: Office, what: str) -> None:
    """A failure is charged once, and a kill to nobody: who fails once has one failure, in one run."""
    failed = Counter(
        one.entity_id
        for one in heir.records()
        if one.entity_type == "run" and one.event == "execution_failed" and one.metadata["charged"]
    )
    good = {name: count for name, count in failed.items() if not name.startswith(("run:bad", "run:twice"))}
    desk.same(f"{what}: what is charged", good, {})
    desk.same(
        f"{what}: what fails once", max([failed[one] for one in failed if one.startswith("run:twice")], default=1), 1
    )


# ------------------------------------------------------------------------------------------------------- checkpoints
def _saves(*states: str, **more: Any) -> dict[str, Any]:
    return {**FLAT, "checkpoint": {"save_on_states": states}, **more}


def _asked(office: Office) -> list[tuple[Any, ...]]:
    """What was asked of the places: what, and of which session or task."""
    return [
        (what, getattr(one[-1] if what == "begin" else one[0], "owner", one[0]))
        for what, *one in office.rooms.noted
        if one
    ]


async def saved(desk: Desk) -> None:
    """What a run has is saved in just the states that the plan names, once for an attempt; the next begins there."""
    for states in (("FAILED",), ("COMPLETED",), ("TIMEOUT", "CIRCUIT_OPEN"), ("CANCELLED",), ()):
        tries = {
            "a": [Try(3.0, "one", said="so far"), Try(3.0, BROKEN), Try(3.0)],
            "b": [Try(100.0), Try(2.0)],
            "c": [Try(30.0)],
        }
        office = Office(desk, tries)
        plan = plan_of(task("a"), task("b", timeout_s=10), task("c"), task_lifecycle=_saves(*states))
        await office.run(plan, Hand(5.0, "cancel", "c"))
        kept = [
            (one.entity_id, one.metadata["state"], one.metadata["attempt"])
            for one in office.records()
            if one.event == "checkpoint_saved"
        ]
        ends = {
            "FAILED": [("run:a", "FAILED", 1), ("run:a", "FAILED", 2)],
            "COMPLETED": [("run:a-2", "COMPLETED", 1), ("run:b", "COMPLETED", 2)],
            "TIMEOUT": [("run:b", "TIMEOUT", 1)],
            "CIRCUIT_OPEN": [("run:a", "CIRCUIT_OPEN", 2)],
            "CANCELLED": [("run:c", "CANCELLED", 1)],
        }
        desk.same(f"saved in {states}", sorted(kept), sorted(one for state in states for one in ends[state]))
        born = {
            one.entity_id: one.metadata["resumed_from"]
            for one in office.records()
            if one.event == "Born" and one.entity_type == "run"
        }
        begins = "run:a" if {"FAILED", "CIRCUIT_OPEN"} & {*states} else ""
        desk.same(f"where it goes on, saved in {states}", (born["run:a-2"], born["run:a"]), (begins, ""))
        said = [
            (one.entity_id, one.metadata["state"], one.metadata["output"])
            for one in office.records()
            if one.event == "PartialOutput"
        ]
        desk.same("what was said", said, [("run:a", "FAILED", "so far")])


async def unsaid(desk: Desk) -> None:
    """The end of what an agent said is kept, so many characters, and nothing where the plan wants that."""
    for keeps, wanted in ((True, ["b" * 4_000]), (False, [])):
        office = Office(desk, {"a": [Try(3.0, BROKEN, said="a" * 3 + "b" * 4_000)]})
        await office.run(plan_of(task("a", **ONCE), task_lifecycle={**FLAT, "save_partial_output": keeps}))
        said = [one.metadata["output"] for one in office.records() if one.event == "PartialOutput"]
        desk.same("what was kept", said, wanted)


async def taken_back(desk: Desk) -> None:
    """What an attempt did that failed, or was cancelled, is taken back before another one begins; done, it stays."""
    office = Office(desk, {"a": [Try(3.0, "one"), Try(3.0)], "b": [Try(30.0)], "c": [Try(3.0)]})
    own = {"rollback": True}
    plan = plan_of(task("a", files=["a"], **own), task("b", files=["b"], **own), task("c"))
    await office.run(plan, Hand(5.0, "cancel", "b"))
    per = {name: [what for what, whose in _asked(office) if whose in (name, f"task:{name}")] for name in "abc"}
    desk.same(
        "who fails once",
        per["a"],
        ["begin", "prepare", "roll_back", "begin", "merge", "forget", "roll_back", "put_away"],
    )
    desk.same("who is cancelled", per["b"], ["begin", "prepare", "roll_back", "put_away"])
    desk.same("who is not taken back", per["c"], ["prepare", "merge", "forget", "put_away"])
    facts = [one.entity_id for one in office.records() if one.event == "RolledBack"]
    desk.same("what is on record", facts, ["run:a"])


async def not_taken_back(desk: Desk) -> None:
    """Where what an attempt did cannot be taken back, another one begins in another worktree; in place there is none,
    so nothing is begun where it would find that."""
    own, fails = {"rollback": True, "files": ["a"]}, "the disk is read-only"
    for own_place, what, ends in ((True, "roll_back", "completed"), (False, "begin", "aborted")):
        office = Office(desk, {"a": [Try(3.0, "one"), Try(3.0)]})
        office.rooms.temporary, office.rooms.fails = own_place, {what: fails}
        result = await office.run(plan_of(task("a", **own), workspace="worktree" if own_place else "directory"))
        assert result is not None
        desk.same(f"no {what}: how it ends", office.outcomes(result), {"a": ends})
        desk.same(f"no {what}: why", fails in result.tasks["a"].error, not own_place)
        desk.same(f"no {what}: who was asked", [name for _, name, _ in office.asked], ["a", "a-2"] if own_place else [])
        gone = [whose for what_, whose in _asked(office) if what_ == "put_away"]
        desk.same(f"no {what}: what goes", [*dict.fromkeys(gone)], ["a", "a-2"] if own_place else [])


async def worktrees(desk: Desk) -> None:
    """In a worktree a new session begins with what the last run had, or with nothing; what is cancelled may stay."""
    for cleans, rolls in ((True, False), (False, False), (True, True), (False, True)):
        office = Office(
            desk, {"a": [Try(3.0, "one"), Try(3.0, BROKEN), Try(3.0)], "b": [Try(30.0)], "c": [Try(3.0, BROKEN)]}
        )
        office.rooms.temporary, office.rooms.released = True, Released(branch="left")
        lifecycle = _saves("FAILED", cleanup_on_cancel=cleans)
        plan = plan_of(
            task("a", rollback=rolls), task("b"), task("c", **ONCE), workspace="worktree", task_lifecycle=lifecycle
        )
        result = await office.run(plan, Hand(5.0, "cancel", "b"))
        assert result is not None
        what = f"cleanup {cleans}, rollback {rolls}"
        kept = [one.entity_id for one in office.records() if one.event == "PlaceKept"]
        desk.same(f"{what}: what stays", kept, [] if cleans else ["task:b"])
        gone = [whose for what_, whose in _asked(office) if what_ == "put_away"]
        desk.same(f"{what}: what goes", sorted({*gone}), sorted(["a", "a-2", "c", *(["b"] if cleans else [])]))
        rolled = [whose for what_, whose in _asked(office) if what_ == "roll_back"]
        desk.same(f"{what}: what is taken back", rolled, ["a"] * rolls)
        born = {
            one.entity_id: one.metadata for one in office.records() if one.event == "Born" and one.entity_type == "run"
        }
        begins = ("", "") if rolls else ("run:a", "saved")
        desk.same(f"{what}: where it goes on", (born["run:a-2"]["resumed_from"], born["run:a-2"]["resumed_at"]), begins)
        desk.same(f"{what}: where its work is", "branch left" in result.tasks["c"].error, True)


LEFT: Final = "work is left that is not merged"


async def told_of_what_is_left(desk: Desk) -> None:
    """Whoever watches the log hears where work is left that is not merged, what cannot be put away, and nothing of
    places that are gone."""
    whose = "whose work is left"
    office = Office(desk)
    with hearing(of_places) as heard:
        async with office.staffed() as sup:
            for branch, directory in (("", ""), ("b", ""), ("", "/d"), ("b", "/d")):
                office.rooms.released = Released(branch=branch, directory=directory)
                desk.same("what is left", await sup.janitor.put_away(whose, "its work"), office.rooms.released)
            office.rooms.fails = {"put_away": "it is read-only"}
            desk.same(
                "what is known of it",
                await sup.janitor.put_away(whose, "its work"),
                Released(problem="it is read-only"),
            )
    wanted: list[tuple[str, dict[str, object]]] = [
        (LEFT, {"branch": "b", "directory": ""}),
        (LEFT, {"branch": "", "directory": "/d"}),
        (LEFT, {"branch": "b", "directory": "/d"}),
        ("the place of a session could not be put away", {"why": "it is read-only"}),
    ]
    of_it = [(event, told) for event, told in heard if told.pop("session", "") == whose]
    desk.same("what is heard", of_it, wanted)


async def resumed(desk: Desk) -> None:
    """What was cancelled or given up is done again, from its checkpoint; what is closed is not, nor what it was split
    into; and who waits for that has it."""
    first = Office(desk, {"b": [Try(3.0, BROKEN)], "c": [Try(30.0)]})
    tasks = (
        task("a"),
        task("b", **ONCE),
        task("c", depends_on=["a"], **ONCE),
        task("d", depends_on=["b"]),
        task("e", subtasks=[{"id": "g", "agent": "f", "prompt": "g"}]),
        task("h", when={"task": "a", "is": "failed"}),
    )
    plan = plan_of(*tasks, task_lifecycle=_saves("FAILED", "CANCELLED"))
    result = await first.run(plan, Hand(8.0, "cancel", "c"))
    ends = {
        "a": "completed",
        "b": "failed",
        "c": "aborted",
        "d": "blocked",
        "e": "completed",
        "g": "completed",
        "h": "skipped",
    }
    desk.same("the first run", first.outcomes(result), ends)
    store, last = first.store, first.store.last_seq
    second = Office(desk, store=store)
    second.rooms.temporary = False
    result = await second.run(plan, resume=True)
    assert result is not None
    wanted = {**dict.fromkeys("abcdeg", "completed"), "h": "skipped"}
    desk.same("the second run", second.outcomes(result), wanted)
    desk.same(
        "whose work it is",
        [(one.id, one.session_id, round(one.took_s)) for one in result.tasks.values() if one.id in "ag"],
        [("a", "a", 0), ("g", "g", 0)],
    )
    desk.same("who was asked", sorted(prompt for _, _, prompt in second.asked), ["b", "c", "d"])
    second.tells(
        """
        workstream:plan-2 0: Born tasks=4 > all_tasks_created count=4 > first_task_started / 10: all_tasks_completed
            completed=4 > validation_passed
        task:b-2 0: Born max_retries=0 > claimed by=b-2 > started / 5: completed > closed
        run:b-2 0: Born max_attempts=5 resumed_from=run:b > executor_started / 5: execution_completed > tests_passed
        job:b-2 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local-2 / 5:
            execution_completed > validation_passed
        task:c-2 0: Born max_retries=0 > claimed by=c-2 > started / 5: completed > closed
        run:c-2 0: Born max_attempts=5 resumed_from=run:c > executor_started / 5: execution_completed > tests_passed
        job:c-2 0: Born max_retries=4 > scheduler_assigned depends_on=job:a > worker_started worker_id=worker:local-2
            / 5: execution_completed > validation_passed
        task:d-2 0: Born max_retries=3 / 5: claimed by=d > started / 10: completed > closed
        run:d-2 0: Born max_attempts=5 / 5: executor_started / 10: execution_completed > tests_passed
        job:d-2 0: Born max_retries=4 / 5: scheduler_assigned depends_on=job:b-2 > worker_started
            worker_id=worker:local-2 / 10: execution_completed > validation_passed
        task:h-2 0: Born max_retries=3 > cancelled
        run:h-2 0: Born max_attempts=5 > skipped cause=condition_not_met
        """,
        after=last,
        whose="task run job workstream",
    )
    third = Office(desk, store=second.store)
    again = await third.run(plan)
    desk.same("anew", (third.outcomes(again), sorted(prompt for _, _, prompt in third.asked)), (wanted, [*"abcdg"]))


def _of_two(**keys: Any) -> Plan:
    tasks = (task("a", **ONCE), task("b", depends_on=["a"], **ONCE))
    return plan_of(*tasks, workspace="worktree", validation=[{"command": ["x"]}], **keys)


def _in_worktrees(desk: Desk, store: MemoryStore | None = None) -> Office:
    office = Office(desk, store=store)
    office.rooms.temporary = True
    return office


async def _done_and_killed(desk: Desk) -> MemoryStore:
    """What is left of a plan whose supervisor was killed as it merged its first task."""
    first = _in_worktrees(desk)
    first.rooms.takes_s["merge"] = 10.0
    await first.run(_of_two(), copy_after_s=8.0)
    return first.copies[0]


async def resumed_at_once(desk: Desk) -> None:
    """Whoever resumes a plan in the supervisor that has just given it up goes on with all that it had come to: also
    with what is still on its way to a slow disk."""
    office = Office(desk, {"a": [Try(60.0), Try(5.0)]})
    plan = plan_of(task("a"), task_lifecycle=_saves("CANCELLED"))
    async with office.staffed(plan.settings) as sup:
        async with anyio.create_task_group() as group:
            group.start_soon(PlanRunner(sup).run, plan)
            await anyio.sleep(20.0)
            office.commit_s = SLOW_S
            group.cancel_scope.cancel()
        result = await PlanRunner(sup).run(plan, resume=True)
    desk.same("the outcomes", office.outcomes(result), {"a": "completed"})
    born = {one.entity_id: one.metadata for one in office.records() if one.event == "Born"}
    desk.same("where it goes on", born["run:a-2"]["resumed_from"], "run:a")


async def late_merges(desk: Desk) -> None:
    """What was done when its supervisor was killed, and is ended by the next one, is merged by who resumes the plan:
    before what depends on it begins; in conflict, it is done again."""
    for merge in (Merge(outcome="merged", commit="c" * 40, target="main"), Merge(outcome="refused", why="in conflict")):
        other = _in_worktrees(desk, await _done_and_killed(desk))
        await other.run(plan_of(task("c")))
        closed = {one.entity_id: one.metadata["unmerged"] for one in other.records() if one.event == "closed"}
        desk.same("how it is closed, and another one's", closed, {"task:a": True, "task:c": False})
        third, last = _in_worktrees(desk, other.store), other.store.last_seq
        third.rooms.merges = [merge]
        result = await third.run(_of_two(), resume=True)
        assert result is not None
        desk.same("the outcomes", (third.outcomes(result), result.error), ({"a": "completed", "b": "completed"}, ""))
        again = merge.outcome == "refused"
        desk.same("who was asked", [prompt for _, _, prompt in third.asked], ["a", "b"] if again else ["b"])
        asked = [(what, whose) for what, whose in _asked(third) if what in ("merge", "prepare", "put_away")]
        desk.same("what comes first", asked[:2], [("merge", "a"), ("put_away", "a")])
        said = [(one.event, one.metadata["task"]) for one in third.records(last) if one.event.startswith("Merge")]
        desk.same("what is on record", said, [("MergeRefused" if again else "Merged", "task:a")])
        states = [row.state for row in third.store.entities.values() if row.kind == "workstream"]
        desk.same("the whole", states, ["cancelled", "completed", "completed"])
        left = before(_of_two(), _of_two().settings, third.store.entities.values())
        desk.same("what is left", left and (left.again, left.unmerged), ({}, {}))


def _is_half_ended(store: MemoryStore, seq: int) -> bool:
    wanted = {"task:a": "CLOSED", "task:b": "OPEN", "workstream:plan": "executing"}
    return all(store.entities[one].state == state for one, state in wanted.items())


async def half_ended(desk: Desk) -> None:
    """An heir is given up before it has come to what was done, and is killed when it has closed that, and not yet ended
    the whole: the next one merges it before anything begins, and once; in conflict, it is done again."""
    for merge in (Merge(outcome="merged", commit="c" * 40, target="main"), Merge(outcome="refused", why="in conflict")):
        second = _in_worktrees(desk, await _done_and_killed(desk))
        second.commit_s = 1.0
        second.cuts, second.cut_at = [], partial(_is_half_ended, second.store)
        await second.run(_of_two(), give_up_after_s=0.5)
        if not second.cuts:  # what is said at once is recorded in any order: the whole may have ended before
            continue
        heir = _in_worktrees(desk, second.cuts[0])
        heir.rooms.merges = [merge]
        desk.same("the outcomes", heir.outcomes(await heir.run(_of_two())), {"a": "completed", "b": "completed"})
        again = ["a"] if merge.outcome == "refused" else []
        desk.same("who was asked", [prompt for _, _, prompt in heir.asked], [*again, "b"])
        merges = [whose.partition("-")[0] for what, whose in _asked(heir) if what == "merge"]
        desk.same("what is merged, in order", merges, ["a", *again, "b"])


async def only_merged(desk: Desk) -> None:
    """A run that has nothing to do but to merge ends as any other: the whole is looked at."""
    for status, ends in ((0, ""), (1, "the whole is not accepted: command x: exited with 1")):
        plan = _of_two().model_copy(update={"tasks": _of_two().tasks[:1]})
        other = _in_worktrees(desk, await _done_and_killed(desk))
        await other.run(plan_of(task("c")))
        third, last = _in_worktrees(desk, other.store), other.store.last_seq
        third.checks = [status]
        result = await third.run(plan, resume=True)
        assert result is not None
        desk.same("how it ends", (third.outcomes(result), result.error), ({"a": "completed"}, ends))
        third.tells(
            f"""
            workstream:plan-3 0: Born tasks=1 > Merged > all_tasks_created count=1 > first_task_started >
                all_tasks_completed completed=1 > validation_{"failed" if status else "passed"}
            """,
            after=last,
            whose="workstream",
        )


async def merged_once(desk: Desk) -> None:
    """Of two tasks that were done when their supervisor was killed, the next one merges what was not merged, and no
    more; where another plan has ended both, a run that has only to merge them begins with the first that it merges."""
    plan = plan_of(task("a"), task("b"), task("c", depends_on=["a", "b"]), workspace="worktree")
    life = Office(desk, {"a": [Try(2.0)]})
    life.rooms.temporary = True
    await life.run(plan, copy_after_s=4.0, give_up_after_s=4.5)
    heir = _in_worktrees(desk, life.copies[0])
    desk.same("the outcomes", heir.outcomes(await heir.run(plan)), dict.fromkeys("abc", "completed"))
    merges = [whose for what, whose in _asked(heir) if what == "merge"]
    desk.same("what an heir merges", [one.partition("-")[0] for one in merges], ["b", "c"])
    both = plan.model_copy(update={"tasks": plan.tasks[:2]})
    first = _in_worktrees(desk)
    first.rooms.takes_s["merge"] = 10.0
    await first.run(both, copy_after_s=8.0)
    other = _in_worktrees(desk, first.copies[0])
    await other.run(plan_of(task("d")))
    last, last_seq = _in_worktrees(desk, other.store), other.store.last_seq
    desk.same(
        "of those only merged", last.outcomes(await last.run(both, resume=True)), dict.fromkeys("ab", "completed")
    )
    merges = [f"task:{whose}" for what, whose in _asked(last) if what == "merge"]
    begun = [one.metadata["task_id"] for one in last.records(last_seq) if one.event == "first_task_started"]
    desk.same("what it merges, and begins with", (merges, begun), (["task:a", "task:b"], ["task:a"]))


AFTER = (
    functions_die,
    functions_are_done,
    puppets_go_on,
    saved,
    unsaid,
    taken_back,
    not_taken_back,
    worktrees,
    told_of_what_is_left,
    resumed,
    resumed_at_once,
    late_merges,
    half_ended,
    only_merged,
    merged_once,
)
