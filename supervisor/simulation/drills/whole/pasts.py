"""Pasts: what a journal tells of those before, and who ends that nobody takes up, reckoned from drawn journals.

A log is looked at from its end here, where the runtime folds it from its beginning. Held to docs/recovery.md,
docs/work.md (standings) and the tables of spec 000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from supervisor.host import trust_scores as of_trust
from supervisor.host.trust_scores import STANDING, Trust
from supervisor.journal.memory import MemoryJournal
from supervisor.lifecycles import job, worker, workstream
from supervisor.lifecycles import task_run as run
from supervisor.lifecycles.agent import Agent
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.task import Task, TaskData
from supervisor.lifecycles.types import AbortPolicy, CancelMode, Kind, Ladder, LifecycleEvent
from supervisor.plans import AcceptanceConfig, AgentConfig, Plan, Settings, TaskConfig
from supervisor.plans.settings import RecoveryConfig
from supervisor.policies.access import AccessPolicy, Level, Standing, told
from supervisor.ports import EntityRow, Place
from supervisor.recovery.journal_state import Past, at_rest, due_of, past_of
from supervisor.recovery.restore import loses_nothing
from supervisor.recovery.resumable import continued, digest_of, heirs_of
from supervisor.recovery.takeover import _launches
from supervisor.runtime.entity_types import JOB_KIND, RUN_KIND, TASK_KIND, WORKER_KIND, WORKSTREAM_KIND
from supervisor.runtime.journal_writer import Cause, Clock
from supervisor.runtime.live_session import AgentProfile
from supervisor.simulation.drills.desk import Desk, hearing
from supervisor.simulation.drills.house import House, afresh
from supervisor.simulation.keyed_random import Chance

__all__ = ["PASTS"]

LOGS: Final = 40
STANDINGS: Final = 60
"""How many successes and violations are watched."""
POLICY: Final = AbortPolicy(tool_to_sibling=True, ladder=Ladder(request_s=3.0))
Claims = Mapping[str, str]
ORPHAN: Final = "orphan_recovered"


def _record(number: int, event: str, outcome: str = "transition", **more: Any) -> LifecycleEvent:
    fields: dict[str, Any] = {"entity_type": "session", "entity_id": "s", "entity_seq": number, **more}
    return LifecycleEvent(
        seq=10 * number, timestamp=float(number), monotonic_s=2.0 * number, event=event, outcome=outcome, **fields
    )


class Journal(MemoryJournal):
    """Records that can be read, a few at a time."""

    def __init__(self, records: Sequence[LifecycleEvent]) -> None:
        super().__init__()
        self._records = sorted(records, key=lambda one: one.seq)

    async def events(
        self, *, entity_id: str | None = None, after_seq: int = 0, limit: int = 10_000
    ) -> list[LifecycleEvent]:
        found = [one for one in self._records if one.seq > after_seq and entity_id in (None, one.entity_id)]
        return found[: min(limit, 3)]


def _drawn(chance: Chance, number: int) -> LifecycleEvent:
    """Something that may stand in the log of a session."""
    failed = {"verdict": {"model": {"final": chance.happens(0.3, "final")} if chance.happens(0.5, "model") else None}}
    match chance.choice(
        ("asked", "asked", "reaped", "reaped", "ready", "started", "failed", "failed", "fact", "stop"), "what"
    ):
        case "asked":
            told = {"request_id": f"s:r{chance.integer(1, 30, 'number')}", "once": chance.happens(0.4, "once")}
            return _record(number, "TurnRequested", from_status="Running", to_status="Running", metadata=told)
        case "reaped":
            came_from = chance.choice(("SessionComplete", "CoolingDown", "Running", "Stopped"), "from")
            told = {"completed": chance.happens(0.5, "completed"), "error": f"error {number}"}
            states = {"from_status": came_from, "to_status": came_from}
            return _record(number, "TurnReaped", **states, metadata=told, actor=f"s:t{number}")
        case "ready":
            return _record(number, "WorktreeReady", from_status="A", to_status="B", metadata={"path": f"/{number}"})
        case "started":
            return _record(number, "SessionStarted", from_status="Spawning", to_status="Running")
        case "failed":
            came_from, to = chance.choice(
                (("Running", "CoolingDown"), ("Running", "Stopped"), ("Spawning", "CoolingDown")), "to"
            )
            why = chance.choice((None, ORPHAN, "model_error"), "why")
            return _record(
                number,
                "SessionExited",
                from_status=came_from,
                to_status=to,
                transition_reason=why,
                metadata=failed,
                actor=f"s:t{number}",
            )
        case "stop":
            outcome = chance.choice(("transition", "transition", "stale"), "outcome")
            return _record(
                number, chance.choice(("OperatorStop", "FatalError"), "which"), outcome, from_status="A", to_status="A"
            )
        case _:
            return _fact(chance, number)


def _fact(chance: Chance, number: int) -> LifecycleEvent:
    match chance.choice(
        (
            "Placed",
            "Adopted",
            "Resumed",
            "AbortRecord",
            "AbortRecord",
            "Usage",
            "Budgeted",
            "ModelTrouble",
            "ActorLost",
        ),
        "fact",
    ):
        case "Placed":
            place = {} if chance.happens(0.5, "old") else {"place": {"owner": f"t{number}"}}
            policy = msgspec.to_builtins(POLICY) if chance.happens(0.5, "policy") else None
            return _record(number, "Placed", "fact", metadata={"mode": "abandon", "policy": policy, **place})
        case "Adopted":
            return _record(number, "Adopted", "fact")  # those of earlier versions say no more
        case "Resumed":
            told = {"resume_id": chance.choice((None, f"id{number}"), "id"), "interrupted": chance.happens(0.5, "cut")}
            return _record(number, "Resumed", "fact", metadata=told)
        case "AbortRecord":
            told = {"scope": chance.choice(("session", "sibling", "tool"), "scope")}
            told["policy_edge"] = chance.choice((None, None, "tool_to_sibling", "sibling_to_session"), "edge")
            return _record(number, "AbortRecord", "fact", metadata=told)
        case "Usage":
            return _record(number, "Usage", "fact", metadata={"turn": "t", "used": {"turns": number}})
        case "Budgeted":
            scopes = [{"id": f"host:{number}", "title": "x", "limits": {"turns": 1}, "used": {}}]
            return _record(number, "Budgeted", "fact", metadata={"scopes": scopes, "patience": "large", "common": True})
        case "ModelTrouble":
            return _record(number, "ModelTrouble", "fact", metadata={"in_a_row": number})
        case _:
            return _record(number, "ActorLost", "fact" if chance.happens(0.2, "really") else "stale")


def _last(log: Sequence[LifecycleEvent], *events: str, outcome: str = "transition") -> LifecycleEvent | None:
    return next((one for one in reversed(log) if one.event in events and one.outcome == outcome), None)


def _since(log: Sequence[LifecycleEvent], one: LifecycleEvent | None) -> Sequence[LifecycleEvent]:
    return [each for each in log if one is None or each.seq > one.seq]


def _is_crash(one: LifecycleEvent) -> bool:
    to = (one.event, one.from_status, one.to_status)
    return (
        one.outcome == "transition"
        and to == ("SessionExited", "Running", "CoolingDown")
        and one.transition_reason != ORPHAN
    )


def _is_final(one: LifecycleEvent) -> bool:
    model = one.metadata["verdict"]["model"]
    return model is not None and bool(model["final"])


def _claims(chance: Chance, log: Sequence[LifecycleEvent]) -> Claims:
    """Which prompt the turns that failed, or are over, were for, as far as that is still known: not always the last
    one."""
    found: dict[str, str] = {}
    for one in log:
        asked = [each.metadata["request_id"] for each in log if each.event == "TurnRequested" and each.seq < one.seq]
        if one.event in ("SessionExited", "TurnReaped") and asked and chance.happens(0.7, "kept", one.seq):
            found[one.actor] = chance.choice(asked, "asked", one.seq)
    return found


def _claimed(turn_id: str, request_id: str) -> Sequence[LifecycleEvent]:
    """The log of a turn: it is claimed right after its birth, unless an abort names it before."""
    mine: dict[str, Any] = {"entity_type": "turn", "entity_id": turn_id}
    return (
        _record(1, "Born", "born", **mine),
        _record(2, "AbortRecord", "fact", **mine),
        _record(3, "task_claimed", metadata={"request_id": request_id}, **mine),
        _record(4, "agent_spawned", metadata={"phase": "launched"}, **mine),
    )


def _ended_it(log: Sequence[LifecycleEvent], one: LifecycleEvent, claims: Claims) -> bool:
    """Whether that crash was the end of its prompt: that is tried once, or its model has failed for good."""
    return _is_final(one) or _is_once(log, one, claims)


def _is_once(log: Sequence[LifecycleEvent], one: LifecycleEvent, claims: Claims) -> bool:
    """Whether that turn's prompt is tried once."""
    asked = [each for each in log if each.event == "TurnRequested" and each.seq < one.seq]
    of_turn = [each for each in asked if each.metadata["request_id"] == claims.get(one.actor)]
    return any(bool(each.metadata["once"]) for each in (of_turn or asked)[-1:])


def _answers(log: Sequence[LifecycleEvent], one: LifecycleEvent, claims: Claims) -> bool:
    """Whether that end of a turn is an answer: it was completed, or its prompt was not to be tried again."""
    if one.event != "TurnReaped" or one.from_status == "SessionComplete":
        return one.event == "TurnReaped"
    for each in [each for each in reversed(log) if each.seq < one.seq]:
        if _is_crash(each) or _answers(log, each, claims):
            return _is_crash(each) and _ended_it(log, each, claims)
    return False


async def pasts(desk: Desk) -> None:
    """What the last of each says, and what voids it."""
    for number in range(LOGS):
        chance = desk.chance.below(number)
        born = _record(1, "Born", "born", to_status="Initializing", cause_id=7)
        born = msgspec.structs.replace(born, seq=1)  # it may be the first record that there is
        log = [born, *(_drawn(chance.below(place), place) for place in range(2, 2 + chance.integer(0, 25, "long")))]
        claims = _claims(chance, log)
        turns = [each for one in claims.items() for each in _claimed(*one)]
        past = await past_of(Journal([*log, *turns]), "s")
        _compare(desk, past, log, claims)


def _compare(desk: Desk, past: Past, log: Sequence[LifecycleEvent], claims: Claims) -> None:
    what = " ".join(one.event for one in log)
    moved = [one for one in log if one.outcome in ("born", "transition") and one.from_status != one.to_status]
    desk.same(f"{what}: entered", (past.entered_seq, past.entered_s), (moved[-1].seq, moved[-1].monotonic_s))
    placed = _last(log, "Placed", outcome="fact")
    policy = POLICY if placed is not None and placed.metadata["policy"] is not None else None
    mode = CancelMode.ABANDON if placed is not None else CancelMode.WAIT_COMPLETED
    place = Place(**placed.metadata.get("place", {})) if placed is not None else Place()
    desk.same(f"{what}: placed", (past.policy, past.mode, past.place), (policy, mode, place))
    asked = [one for one in log if one.event == "TurnRequested"]
    requests = max((int(one.metadata["request_id"][3:]) for one in asked), default=0)
    desk.same(f"{what}: requests", past.requests, requests)
    resumed = _last(_since(log, _last(log, "SessionStarted")), "Resumed", outcome="fact")
    wanted = (resumed.metadata["resume_id"], resumed.metadata["interrupted"]) if resumed is not None else (None, False)
    desk.same(f"{what}: resumed", (past.resume_id, past.interrupted), wanted)
    ready = _last(log, "WorktreeReady")
    desk.same(f"{what}: directory", past.directory, ready.metadata["path"] if ready is not None else None)
    stop, adopted = _last(log, "OperatorStop", "FatalError"), _last(log, "Adopted", outcome="fact")
    aborts = [one for one in log if one.event == "AbortRecord" and one.metadata["scope"] != "tool"]
    mine = [one for one in aborts if (one.metadata["scope"], one.metadata["policy_edge"]) == ("session", None)]
    stand = [one for one in aborts if one not in mine or one in _since(log, stop)]
    desk.same(f"{what}: aborts", past.aborts, stand)
    desk.same(f"{what}: joined", past.joined_seq, adopted.seq if adopted is not None else 1)
    desk.same(f"{what}: lost", past.lost, _last(log, "ActorLost", outcome="fact") is not None)
    crashes = tuple(one.monotonic_s for one in log if _is_crash(one) and not _ended_it(log, one, claims))
    desk.same(f"{what}: crashes", past.crashes, crashes)
    once = [one for one in asked if one.metadata["once"]]
    since = _since(log, once[-1] if once else None)
    answers = [one for one in since if _answers(log, one, claims) and _is_once(log, one, claims)]
    given = None if past.answer is None else tuple(past.answer)
    how = answers[-1].metadata if answers else {}
    answer = ("completed" if how["completed"] else "failed", how["error"], answers[-1].seq) if answers else None
    desk.same(f"{what}: answer", given, answer)
    used, scopes = _last(log, "Usage", outcome="fact"), _last(log, "Budgeted", outcome="fact")
    desk.same(f"{what}: used", past.budget.used.turns, used.metadata["used"]["turns"] if used is not None else 0)
    told = scopes.metadata["scopes"] if scopes is not None else []
    desk.same(
        f"{what}: scopes",
        (list(past.budget.scopes), past.budget.patience.value, past.budget.common),
        (told, "large" if told else "default", bool(told)),
    )
    good = [
        one for one in log if one.event == "TurnReaped" and one.metadata["completed"] and _answers(log, one, claims)
    ]
    trouble = _last(_since(log, good[-1] if good else None), "ModelTrouble", outcome="fact")
    desk.same(f"{what}: troubles", past.budget.troubles, trouble.metadata["in_a_row"] if trouble is not None else 0)


async def calls(desk: Desk) -> None:
    """Which call a session was started by, and when a turn of an earlier version times out."""
    born = _record(5, "Born", "born", cause_id=20)
    started = _record(2, "tool_started", entity_id="p:t1", metadata={"number": 4})
    other = _record(2, "tool_completed", entity_id="p:t1", metadata={"number": 4})
    before = _record(1, "tool_started", entity_id="p:t1", metadata={"number": 3})
    for records, wanted in (
        ([born, started], "p:t1:c4"),
        ([before, born, started], "p:t1:c4"),
        ([before, born], None),
        ([born, other], None),
        ([born, _record(3, "x")], None),
        ([born], None),
    ):
        past = await past_of(Journal(records), "s")
        desk.same(f"the call of {[one.event for one in records]}", past.started_by, wanted)
    spawned = [
        _record(number, "agent_spawned", outcome, entity_id="t", to_status=to)
        for number, (outcome, to) in enumerate(
            (("transition", "CLAIMING"), ("transition", "RUNNING"), ("stale", "RUNNING")), 1
        )
    ]
    late = [
        _record(8, "zoo", entity_id="t", to_status="TOOL_USE"),
        _record(9, "agent_spawned", entity_id="t", to_status="TOOL_USE"),
    ]

    class Turn:
        id, data = "t", type("Data", (), {"timeout_s": 30.0})

    turn: Any = Turn()
    desk.same("when it times out", await due_of(Journal([*spawned, *late]), turn), 34.0)
    desk.same("that never began", await due_of(Journal(spawned[:1]), turn), None)


def _row(kind: Kind, name: str, state: str = "", data: object = None, **more: Any) -> EntityRow:
    given: dict[str, Any] = {"parent_id": None, "ended": False, "born_at": 0.0, "changed_at": 0.0, **more}
    row = EntityRow(kind=kind, id=name, state=state, data=msgspec.json.encode(data), entity_seq=1, born_seq=1, **given)
    read: EntityRow = afresh(row)
    return read


async def rests(desk: Desk) -> None:
    """What has failed rests with its run, unless its workstream goes on; agents are numbered on."""
    rows = [
        _row(Kind.WORKSTREAM, "w1"),
        _row(Kind.WORKSTREAM, "w2", ended=True),
        *(_row(Kind.TASK, f"f{n}", "FAILED", TaskData(workstream=f"w{n}")) for n in (1, 2, 3)),
        *(_row(Kind.TASK, f"o{n}", "OPEN", TaskData(workstream=f"w{n}")) for n in (1, 2)),
        *(_row(Kind.RUN, f"r{n}", "CIRCUIT_OPEN", parent_id=f"f{n}") for n in (1, 2, 3)),
        _row(Kind.RUN, "r4", "EXECUTING", parent_id="f2"),
        _row(Kind.RUN, "r6", "CANCELLED", parent_id="f2"),
        _row(Kind.JOB, "j2", "RUNNING", parent_id="f2"),
        _row(Kind.RUN, "r5", "CIRCUIT_OPEN", parent_id="o2"),
        _row(Kind.JOB, "f9", "FAILED", TaskData(workstream="w2")),
    ]
    desk.same("what rests", at_rest(rows), {"f2", "f3", "r2", "r3"})
    agents = [
        _row(Kind.AGENT, f"{whose}:a{n}", parent_id=whose) for whose, n in (("s", 2), ("s", 11), ("s", 9), ("t", 0))
    ]
    found = _launches([*agents, _row(Kind.AGENT, "x:a7"), _row(Kind.TURN, "s:t99", parent_id="s")])
    desk.same("the last agents", found, {"s": 11, "t": 0})


async def runs(desk: Desk) -> None:
    """A plan goes on with the newest run whose tasks stand in it as they were; with any other it begins anew."""
    agents = {name: AgentConfig(adapter="command", command=("true",)) for name in "xy"}
    test = AcceptanceConfig(command=("true",))

    def planned(*tasks: TaskConfig, **more: Any) -> Plan:
        return Plan(agents=agents, tasks=tasks, **more)

    a = TaskConfig(id="a", agent="x", prompt="do a")
    b = TaskConfig(id="b", agent="x", prompt="do b", depends_on=("a",), acceptance=(test,))
    plan = planned(a, b)

    def left(run_id: str, settings: Settings, *tasks: TaskConfig, ended: bool = False) -> list[EntityRow]:
        rows = [_row(Kind.WORKSTREAM, run_id, ended=ended)]
        for one in tasks:
            data = TaskData(workstream=run_id, name=one.id, digest=digest_of(one, settings), claimed_by=f"s-{one.id}")
            rows.append(_row(Kind.TASK, f"{run_id}.{one.id}", "IN_PROGRESS", data))
        rows += [
            _row(kind, f"{run_id}.{kind.value}", parent_id=f"{run_id}.a") for kind in (Kind.RUN, Kind.JOB, Kind.TURN)
        ]
        return [*rows, _row(Kind.WORKER, f"{run_id}.w", parent_id=run_id), _row(Kind.TASK, "alone", "OPEN", TaskData())]

    rows = left("1", plan, a, b)
    desk.same("digests", [len(digest_of(one, plan)) for one in (a, b)], [16, 16])
    found = continued(plan, plan, rows)
    desk.same(
        "the same plan",
        {name: (one.entity_id, one.state) for name, one in found.items()},
        {name: (f"1.{name}", Task.IN_PROGRESS) for name in "ab"},
    )
    heirs = {"1", "1.a", "1.b", "s-a", "s-b", "1.run", "1.job", "1.w"}
    desk.same("who goes on", set(heirs_of(plan, rows)), heirs)
    desk.same(
        "of nothing", (set(heirs_of(plan, [])), continued(plan, plan, left("1", plan, a, b, ended=True))), (set(), {})
    )
    more = TaskConfig(id="c", agent="y", prompt="more")
    desk.same("a plan with more", sorted(continued(planned(a, b, more), plan, rows)), ["a", "b"])
    for changed in (
        planned(a, b.model_copy(update={"agent": "y"})),
        planned(a, b.model_copy(update={"prompt": "other"})),
        planned(a, b.model_copy(update={"depends_on": ()})),
        planned(a, b.model_copy(update={"acceptance": ()})),
        planned(a, b.model_copy(update={"priority": 7})),
        planned(a),
    ):
        desk.same("another plan", continued(changed, changed, rows), {})
    both = [*left("1", plan, a, b), *left("2", plan, a)]
    desk.same("the newest", [one.entity_id for one in continued(plan, plan, both).values()], ["2.a"])
    other = planned(a.model_copy(update={"prompt": "x"}))
    mixed = [*left("1", plan, a, b), *left("2", other, *other.tasks)]
    desk.same("the newest that it goes on with", sorted(continued(plan, plan, mixed)), ["a", "b"])
    trees = {into: planned(a, b, workspace="worktree", merge_into=into) for into in ("", "main", "dev")}
    for into, one in trees.items():
        found_in = [name for name, each in trees.items() if continued(each, each, left("1", one, a, b))]
        desk.same(f"worktrees for {into!r}", found_in, [into])
        desk.same("in place", continued(plan, plan, left("1", one, a, b)), {})
    aside = planned(a, b, merge_into="dev")
    desk.same("a branch that nobody merges into", sorted(continued(aside, aside, rows)), ["a", "b"])
    _splits(desk, planned, left, a)


def _splits(desk: Desk, planned: Any, left: Any, a: TaskConfig) -> None:
    """What was split while it ran stands in the journal; a part whose split is not on record is not counted."""
    plan = planned(a)
    part = TaskConfig(id="a.1", agent="x", prompt="a part")
    rows = left("1", plan, a)
    whole = msgspec.json.decode(rows[1].data, type=TaskData)
    data = TaskData(workstream="1", name="a.1", digest=digest_of(part, plan), part_of="a")
    below = _row(Kind.TASK, "1.a.1", "OPEN", data)
    desk.same("a split that is not on record", sorted(continued(plan, plan, [*rows, below])), ["a"])
    parts = (part.model_dump(mode="json", exclude_defaults=True),)
    split = msgspec.structs.replace(rows[1], data=msgspec.json.encode(msgspec.structs.replace(whole, parts=parts)))
    both = [rows[0], split, below, *rows[2:]]
    desk.same("one that is", sorted(continued(plan, plan, both)), ["a", "a.1"])
    other = msgspec.structs.replace(below, data=msgspec.json.encode(msgspec.structs.replace(data, digest="x")))
    desk.same("with another part", continued(plan, plan, [rows[0], split, other, *rows[2:]]), {})


async def conversations(desk: Desk) -> None:
    """A session loses nothing where its agent has none to lose, or where the conversation can be loaded by an agent of
    the same kind; one that has each prompt for itself loses nothing between two."""
    words = ("acp", "command", "inprocess", "zed")
    states = [*Session]
    for number in range(60):
        chance = desk.chance.below(number)
        adapter, before = chance.choice(words, "adapter"), chance.choice(words, "before")
        state, loads = chance.choice(states, "state"), chance.happens(0.6, "loads")
        phase = chance.choice((None, *Agent), "agent")
        data = SimpleNamespace(resume_id="name" if loads else None, adapter=afresh(before))
        agent: Any = None if phase is None else SimpleNamespace(state=phase, data=data)
        session: Any = SimpleNamespace(state=state)
        none = phase in (None, Agent.STARTING)
        between = adapter in ("command", "inprocess") and state.value not in ("Running", "Interrupting")
        wanted = none or (loads and adapter == before) or between
        given = loses_nothing(AgentProfile(name="a", adapter=adapter), session, agent)
        desk.same(f"{adapter} after {before}, {state}, {phase}, loads {loads}", given, wanted)


ENDS: Final[dict[str, list[str]]] = {
    "PLANNED": ["rejected"],
    "OPEN": ["cancelled"],
    "BLOCKED": ["cancelled"],
    "WAITING_FOR_SUBTASKS": ["cancelled"],
    "PENDING_APPROVAL": ["cancelled"],
    "CLAIMED": ["unclaimed", "cancelled"],
    "IN_PROGRESS": ["orphaned", "recovery_failed"],
    "ORPHANED": ["recovery_failed"],
    "DONE": ["closed"],
    "FAILED": [],
}
"""How a task ends that nobody takes up."""


async def ends(desk: Desk) -> None:
    """Work that nobody takes up is ended, each by its own table; at once where nothing is to go on."""
    for how in ("restart", "stop"):
        house = House(desk)
        house.judged = False  # nobody is born in the middle of a life
        async with house.open() as sup:
            tree, cause = sup.tree, Cause(actor="me")
            tree.birth(
                WORKSTREAM_KIND,
                "w",
                parent_id=None,
                state=workstream.Workstream.VALIDATING,
                data=workstream.WorkstreamData(tasks=1),
                cause=cause,
            )
            tree.birth(
                WORKSTREAM_KIND,
                "v",
                parent_id=None,
                state=workstream.Workstream.EXECUTING,
                data=workstream.WorkstreamData(tasks=1),
                cause=cause,
            )
            for state in ENDS:
                data = TaskData(workstream="w", name=state, claimed_by="s")
                tree.birth(TASK_KIND, state, parent_id=None, state=Task[state], data=data, cause=cause)
            tree.birth(TASK_KIND, "alone", parent_id=None, state=Task.OPEN, data=TaskData(), cause=cause)
            tree.birth(RUN_KIND, "r1", parent_id="OPEN", state=run.Run.IN_PROGRESS, data=run.RunData(), cause=cause)
            tree.birth(RUN_KIND, "r2", parent_id="FAILED", state=run.Run.CIRCUIT_OPEN, data=run.RunData(), cause=cause)
            tree.birth(RUN_KIND, "r3", parent_id="OPEN", state=run.Run.CIRCUIT_OPEN, data=run.RunData(), cause=cause)
            tree.birth(JOB_KIND, "j", parent_id="OPEN", state=job.Job.RUNNING, data=job.JobData(), cause=cause)
            for state in ("INITIALIZING", "IDLE", "BUSY"):
                tree.birth(
                    WORKER_KIND,
                    f"k{state}",
                    parent_id="w",
                    state=worker.Worker[state],
                    data=worker.WorkerData(),
                    cause=cause,
                )
            await sup.ledger.flush()
            left = house.left()
            for one in [*tree.entities]:
                tree.bury(one)
        left.judged = False
        settings = Settings(recovery=RecoveryConfig(sessions=how))
        async with left.open(settings) as sup:
            waits = {*ENDS, "w", "v", "r1", "r2", "r3", "j", "kINITIALIZING", "kIDLE", "kBUSY"}
            desk.same(f"{how}: what waits", set(sup.inherited.work), waits if how == "restart" else set())
            if how == "restart":
                desk.same("what a run finds", {*sup.inherited.rows}, {*waits, "alone"})
        wanted = {
            **ENDS,
            "alone": ["cancelled"],
            "w": ["validation_failed"],
            "v": ["user_cancelled"],
            "r1": ["cancelled"],
            "r2": [],
            "r3": ["cancelled"],
            "j": ["user_cancelled"],
            "kINITIALIZING": ["registration_complete", "shutdown_requested"],
            "kIDLE": ["shutdown_requested"],
            "kBUSY": ["health_check_timeout", "shutdown_requested"],
        }
        journal = left.store.log.after(0, 10_000)
        for name, events in wanted.items():
            new = [one for one in journal if one.entity_id == name and one.outcome == "transition"]
            desk.same(f"{how}: the end of {name}", [one.event for one in new], events)
            desk.same(f"{how}: by whom", {one.actor for one in new} <= {"recovery"}, True)
        order = [one.entity_id for one in journal if one.outcome == "transition"]
        kinds = ["w", "j", "kIDLE", "r1", "OPEN"]  # the whole first: nobody goes on with a part, where it is cut short
        desk.same(f"{how}: the order of ends", sorted(kinds, key=order.index), kinds)


async def trusts(desk: Desk) -> None:
    """The newest fact tells of all; a success is counted once for each task; without a policy nobody is judged."""
    for number in range(LOGS):
        chance = desk.chance.below(number)
        records: list[LifecycleEvent] = []
        rows, at = [], 0
        for name in (f"t{one}" for one in range(chance.integer(0, 5, "tasks"))):
            for place in range(chance.integer(0, 3, name)):
                at += chance.integer(1, 4, name, place)
                what = chance.choice(("success", "violation", "other"), "what", name, place)
                event = STANDING if what != "other" else "Noted"
                fact = {"agent": "x", "what": what, "standings": told({"x": Standing(successes=at)})}
                records.append(_record(at, event, "fact", entity_type="task", entity_id=name, metadata=fact))
            state = chance.choice(("CLOSED", "FAILED", "IN_PROGRESS"), "state", name)
            rows.append(_row(Kind.TASK, name, state, ended=state == "CLOSED", changed_at=at + 0.5))
        rows.append(_row(Kind.SESSION, "s", changed_at=99.0))
        facts = [one for one in records if one.event == STANDING]
        noted: list[Any] = []
        trust = Trust(_Clock(), lambda *fact, noted=noted: noted.append(fact))
        trust.policy = (
            AccessPolicy(decay_s=50.0, initial={"y": Level.TRUSTED}) if chance.happens(0.8, "judged") else None
        )
        await trust.recall(Journal(records), rows)
        newest = max(facts, key=lambda one: one.seq, default=None)
        wanted = {"x": Standing(successes=newest.seq // 10)} if newest is not None else {}
        desk.same("standings", trust.standings, wanted)
        _go_on(desk, trust, noted, rows, {one.entity_id for one in facts if one.metadata["what"] == "success"})
    trust = Trust(_Clock(), lambda *fact: None)
    for broken in ({"standings": {"x": 7}}, {"agent": "x"}):
        await trust.recall(
            Journal([_record(1, STANDING, "fact", entity_id="t", metadata=broken)]), [_row(Kind.TASK, "t", "OPEN")]
        )
        desk.same("facts that cannot be read", trust.standings, {})


async def told_of_trust(desk: Desk) -> None:
    """Whoever watches the log is warned of each change of a level, up or down, and of nothing else."""
    trust = Trust(_Clock(), lambda *fact: None)
    trust.policy = AccessPolicy(decay_s=50.0)
    wanted: list[tuple[object, object]] = []
    with hearing(of_trust) as heard:
        for step in range(STANDINGS):
            level, chance = trust.level("x"), desk.chance.below(step)
            if chance.happens(0.85, "well"):
                trust.success("x", f"t{step}", Cause(actor="me"))
            else:
                trust.violation("x", f"t{step}", Cause(actor="me"), "it lied")
            wanted += [("x", trust.level("x").value)] if trust.level("x") is not level else []
    desk.same("what is worth a warning", [(told["agent"], told["level"]) for _, told in heard], wanted)


class _Clock(Clock):
    def __init__(self) -> None:
        return None

    def now(self) -> float:
        return 1000.0


def _go_on(desk: Desk, trust: Trust, noted: list[Any], rows: Sequence[EntityRow], counted: set[str]) -> None:
    """The next successes and violations."""
    policy, cause = trust.policy, Cause(actor="me")
    first = trust.standings.get("x", Standing())
    rights = (trust.rights("x"), trust.rights("y"))
    wanted = (None, None) if policy is None else (policy.rights[first.level], policy.rights[Level.TRUSTED])
    desk.same("rights", rights, wanted)
    desk.same("how far", trust.level("y"), Level.TRUSTED if policy is not None else Level.UNTRUSTED)
    live = [one for one in rows if one.kind == Kind.TASK and one.state == "IN_PROGRESS"]
    for row in live:
        before = len(noted)
        for _ in range(2):
            trust.success("x", row.id, cause)
        desk.same(f"counted for {row.id}", len(noted) - before, int(policy is not None and row.id not in counted))
    before = len(noted)
    trust.success("x", "new", cause)
    trust.violation("y", "new", cause, "it lied")
    trust.violation("y", "new", cause, "again")
    if policy is None:
        desk.same("nobody is judged", (len(noted), trust.level("x")), (0, first.level))
        return
    news = [(task, name, told_of["agent"], told_of["what"]) for task, name, _, told_of, _ in noted[before:]]
    lies = [("new", STANDING, "y", "violation")] * 2
    desk.same("facts", news, [("new", STANDING, "x", "success"), *lies])
    desk.same(
        "why", ["it lied" in noted[-2][4], "again" in noted[-1][4], noted[before][4].endswith(":")], [True, True, False]
    )
    desk.same("after two violations", trust.standings["y"].violations, (1000.0, 1000.0))
    desk.same("all of them", msgspec.convert(noted[-1][3]["standings"], dict[str, Standing]), trust.standings)
    desk.same("a level lower, each", trust.level("y") is Level.TRUSTED, False)


PASTS = (pasts, calls, rests, runs, conversations, ends, trusts, told_of_trust)
