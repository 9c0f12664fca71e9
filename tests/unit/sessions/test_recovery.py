"""Parts of the recovery: what a restart reads from a journal, and what follows from that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles.agent import Agent, AgentData
from supervisor.lifecycles.effects import OpenTurn
from supervisor.lifecycles.entity_types import AGENT_KIND, SESSION_KIND, TURN_KIND
from supervisor.lifecycles.events import BackoffElapsed, PromptReady, SessionExited, SessionStarted
from supervisor.lifecycles.session import SESSION, Session, backoff_ms
from supervisor.lifecycles.session_data import Request, SessionData
from supervisor.lifecycles.task import Task, TaskData
from supervisor.lifecycles.task_run import TaskRunData
from supervisor.lifecycles.turn import Turn, TurnData
from supervisor.lifecycles.types import AbortPolicy, CancelMode, Exit, LifecycleEvent, SessionLimits, Verdict
from supervisor.lifecycles.workstream import WorkstreamData
from supervisor.plans import AcceptanceConfig, AgentConfig, Plan, Settings, TaskConfig
from supervisor.plans.earlier_runs import continued, digest_of, find_earlier_runs, grown, resumed_ids
from supervisor.plans.splitting import plain_subtasks, with_subtasks
from supervisor.plans.tasks import every_task
from supervisor.ports import EntityRow
from supervisor.ports.agent_profile import AgentProfile
from supervisor.runtime.entity import Entity
from supervisor.sessions.journal_state import SessionHistory, due_of
from supervisor.sessions.journal_state import past_of as read_past
from supervisor.sessions.restore import LOSS, loses_nothing
from supervisor.work.end_of_work import at_rest, left_over, let_go
from supervisor.work.previous_run import find_previous_run
from tests.unit.journal.test_journal import entry

AGENTS = {"a": AgentConfig(adapter="command", command=("true",))}


# ---------------------------------------------------------------------------------------------------- the table
@pytest.mark.parametrize("state", [Session.SPAWNING, Session.RUNNING])
def test_a_loss_is_charged_to_nobody(state: Session) -> None:
    """A turn that ended with its supervisor cools down without a change of its error counters, also one error before
    the threshold."""
    limits = SessionLimits(max_consecutive_errors=2, max_total_errors=4)
    data = SessionData(id="s", agent="a", limits=limits, incarnation=3, consecutive_errors=1, total_errors=3)
    step = SESSION.step(state, data, SessionExited(incarnation=3, verdict=LOSS))
    assert step.state is Session.COOLING_DOWN
    assert (step.data.consecutive_errors, step.data.total_errors, step.data.concluded) == (1, 3, 3)


def test_its_time_goes_on_in_the_turn_that_asks_again() -> None:
    """The time left of a turn that was lost with its supervisor is used by the turn that repeats its request, also
    after another loss or a failed launch before the agent starts; a later try has its own time."""
    data = SessionData(id="s", agent="a", incarnation=3, current=Request(id="r1", prompt="do"))
    state, opened, kept = Session.RUNNING, list[tuple[float | None, ...]](), list[tuple[float | None, ...]]()
    failed = Verdict(exit=Exit.ERROR, error="bad")
    ends = [(LOSS, 70.0, False), (LOSS, None, False), (failed, None, False), (failed, None, True), (LOSS, 90.0, True)]
    for verdict, due_s, started in ends:
        if started:
            state, data, *_ = SESSION.step(state, data, SessionStarted(incarnation=data.incarnation, seq=1))
        most_s = None if due_s is None else due_s + 5_000.0
        exited = SessionExited(incarnation=data.incarnation, verdict=verdict, due_s=due_s, most_s=most_s)
        state, data, *_ = SESSION.step(state, data, exited)
        kept.append((data.due_s, data.most_s))
        state, data, effects, _ = SESSION.step(state, data, BackoffElapsed())
        opened += [(one.due_s, one.most_s) for one in effects if isinstance(one, OpenTurn)]
        state, data, *_ = SESSION.step(state, data, PromptReady(prompt="do"))
    assert kept == opened == [*[(70.0, 5_070.0)] * 3, (None, None), (90.0, 5_090.0)]


def test_who_was_being_interrupted_has_a_time_of_his_own() -> None:
    """A turn after an interrupted turn has its own time, also if the interrupted turn ended with its supervisor."""
    data = SessionData(id="s", agent="a", incarnation=3, current=Request(id="r1", prompt="do"))
    step = SESSION.step(Session.INTERRUPTING, data, SessionExited(incarnation=3, verdict=LOSS, due_s=70.0))
    assert [one.due_s for one in step.effects if isinstance(one, OpenTurn)] == [None]


@pytest.mark.anyio
@pytest.mark.parametrize(("ran", "due_s"), [(True, 12.0), (False, None)])
async def test_a_turn_that_does_not_know_its_deadline_has_one(ran: bool, due_s: float | None) -> None:
    """The deadline of a turn whose data have none, as in earlier versions, follows from the record by which the turn
    began to run."""
    store, turn = MemoryStore(), {"entity_type": "turn", "event": "agent_spawned", "outcome": "transition"}
    store.write([entry(1, 1, "s:t1", **turn, to_status="SPAWNING", monotonic_s=1.0)])
    if ran:
        store.write([entry(2, 2, "s:t1", **turn, to_status="RUNNING", monotonic_s=2.0)])
    data = TurnData(id="s:t1", session_id="s", timeout_s=10.0)
    entity = Entity(TURN_KIND, "s:t1", "s", Turn.RUNNING, data, None)  # type: ignore[arg-type]  # nothing is recorded
    assert await due_of(MemoryJournal(store), entity) == due_s


def test_without_an_error_the_backoff_is_the_first_one() -> None:
    """Without an error in a row the backoff is two seconds, as after one error."""
    assert backoff_ms(0, SessionLimits()) == backoff_ms(1, SessionLimits()) == 2_000


# ---------------------------------------------------------------------------------------------------- who goes on
def agent(adapter: str, state: Agent, resume_id: str | None = None) -> Entity:
    data = AgentData(id="s:a1", session_id="s", adapter=adapter, resume_id=resume_id)
    return Entity(AGENT_KIND, "s:a1", "s", state, data, None)  # type: ignore[arg-type]  # nothing is recorded


def session(state: Session) -> Entity:
    return Entity(SESSION_KIND, "s", None, state, SessionData(id="s", agent="a"), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("adapter", "state", "had", "goes_on"),
    [
        ("acp", Session.RUNNING, agent("acp", Agent.WORKING, "u1"), True),
        ("acp", Session.RUNNING, agent("acp", Agent.WORKING), False),
        ("acp", Session.SESSION_COMPLETE, agent("acp", Agent.IDLE), False),
        ("acp", Session.SPAWNING, agent("acp", Agent.STARTING), True),
        ("acp", Session.COOLING_DOWN, None, True),
        ("command", Session.RUNNING, agent("acp", Agent.WORKING, "u1"), False),
        ("command", Session.RUNNING, agent("command", Agent.WORKING), False),
        ("inprocess", Session.SESSION_COMPLETE, agent("inprocess", Agent.IDLE), True),
        ("inprocess", Session.INTERRUPTING, agent("inprocess", Agent.WORKING), False),
    ],
)
def test_who_loses_nothing(adapter: str, state: Session, had: Entity | None, goes_on: bool) -> None:
    """A session loses nothing if the same adapter can load its agent's conversation, or if it has none."""
    assert loses_nothing(AgentProfile(name="a", adapter=adapter), session(state), had) is goes_on


@pytest.mark.parametrize(
    ("adapter", "verdict", "goes_on"),
    [
        ("command", Verdict(exit=Exit.SUCCESS), True),
        ("command", Verdict(exit=Exit.ERROR), False),
        ("command", None, False),
        ("acp", Verdict(exit=Exit.SUCCESS), False),
    ],
)
def test_who_has_each_prompt_for_itself_loses_nothing_when_it_was_done(
    adapter: str, verdict: Verdict | None, goes_on: bool
) -> None:
    data = TurnData(id="s:t1", session_id="s", verdict=verdict)
    turn = Entity(TURN_KIND, "s:t1", "s", Turn.VERIFYING, data, None)  # type: ignore[arg-type]  # nothing is recorded
    profile, had = AgentProfile(name="a", adapter=adapter), agent(adapter, Agent.WORKING)
    assert loses_nothing(profile, session(Session.RUNNING), had, turn) is goes_on


# ---------------------------------------------------------------------------------------------------- a session's past
def past_of(*records: Mapping[str, Any]) -> SessionHistory:
    past = SessionHistory()
    for seq, one in enumerate(records, 1):
        known: dict[str, Any] = {
            "timestamp": 0.0,
            "monotonic_s": float(seq),
            "entity_type": "session",
            "entity_id": "s",
        }
        past.apply(msgspec.convert({**known, "seq": seq, "entity_seq": seq, **one}, LifecycleEvent))
    return past


def test_its_place_is_on_record() -> None:
    """A session's own policy and cancel mode are restored from its record Placed."""
    policy = AbortPolicy(tool_to_sibling=True)
    told = {"mode": "try", "policy": msgspec.to_builtins(policy)}
    past = past_of({"event": "Placed", "outcome": "fact", "metadata": told})
    assert (past.policy, past.mode) == (policy, CancelMode.TRY)


def test_what_ruled_it_rules_it_when_it_is_adopted() -> None:
    """A child session whose policy came from its parent keeps that policy after the parent's end, by the record
    Adopted."""
    policy = AbortPolicy(tool_to_sibling=True)
    placed = {"mode": "abandon", "policy": None}
    adopted = {"left": "p", "parent": None, "mode": "abandon", "policy": msgspec.to_builtins(policy)}
    past = past_of(
        {"event": "Placed", "outcome": "fact", "metadata": placed},
        {"event": "Adopted", "outcome": "fact", "metadata": adopted},
    )
    assert past.policy == policy


def test_its_crashes_are_counted_again() -> None:
    """A failure after a start counts against the restart limit, the loss of a supervisor does not."""
    failed = {"event": "SessionExited", "from_status": "Running", "to_status": "CoolingDown"}
    past = past_of(
        failed, {**failed, "transition_reason": "orphan_recovered"}, {**failed, "to_status": "SessionComplete"}
    )
    assert past.crashes == (1.0,)


def test_retries_of_a_prompt_are_counted_again() -> None:
    """A failure after which a prompt is not tried again is no crash that the session starts again from; a failed start
    of the agent has used up a retry, too."""
    requested = {"event": "TurnRequested", "metadata": {"request_id": "s:r1", "retries": 1}}
    no_start = {"event": "SessionExited", "from_status": "Spawning", "to_status": "CoolingDown"}
    failed = {**no_start, "from_status": "Running"}
    assert (past_of(requested, failed).spent, past_of(requested, no_start).spent) == (False, False)
    past = past_of(requested, no_start, failed)
    assert (past.spent, past.crashes) == (True, ())


@pytest.mark.parametrize(("turn_id", "outcome"), [("s:t1", None), ("s:t2", "failed")])
def test_a_rejected_turn_is_no_outcome(turn_id: str, outcome: str | None) -> None:
    """A turn that had succeeded and was rejected has no outcome for the next attempt, whose prompt may not be on record
    yet; a turn that failed by itself has."""
    requested = {"event": "TurnRequested", "outcome": "transition", "metadata": {"request_id": "s:r1", "once": True}}
    done = {"event": "SessionExited", "from_status": "Running", "to_status": "SessionComplete", "actor": "s:t1"}
    reaped = {
        "event": "TurnReaped",
        "from_status": "SessionComplete",
        "to_status": "SessionComplete",
        "metadata": {"turn_id": turn_id, "completed": False, "error": "no"},
    }
    answer = past_of(requested, done, reaped).answer
    assert (answer.outcome if answer is not None else None) == outcome


def test_a_conversation_outlives_two_crashes() -> None:
    """A conversation that one restart was to load is loaded by the next restart, unless an agent was ready in
    between."""
    resumed = {"event": "Resumed", "outcome": "fact", "metadata": {"resume_id": "u1", "interrupted": True}}
    started = {"event": "SessionStarted", "from_status": "Spawning", "to_status": "Running"}
    assert (past_of(resumed).resume_id, past_of(resumed).interrupted) == ("u1", True)
    assert (past_of(resumed, started).resume_id, past_of(resumed, started).interrupted) == (None, False)


def test_an_abort_that_was_not_heard_is_found() -> None:
    """An abort without a recorded stop of the session is found for recovery; with a recorded stop it is not."""
    asked = aborted("session")
    stopped = {"event": "OperatorStop", "from_status": "Running", "to_status": "Stopped"}
    assert [one.seq for one in past_of(asked).aborts] == [1]
    assert past_of(asked, stopped).aborts == []


@pytest.mark.parametrize(
    "abort", [("sibling", None), ("session", "sibling_to_session"), ("sibling", "tool_to_sibling")]
)
def test_an_abort_of_others_stands(abort: tuple[str, str | None]) -> None:
    """The stop of a session does not settle an abort of its siblings or parent; the record of its last parent tells
    which sessions these are."""
    asked = aborted(*abort)
    stopped = {"event": "OperatorStop", "from_status": "Running", "to_status": "Stopped"}
    adopted = {"event": "Adopted", "outcome": "fact"}
    past = past_of(asked, stopped, adopted)
    assert ([one.seq for one in past.aborts], past.joined_seq) == ([1], 3)


def aborted(scope: str, edge: str | None = None) -> dict[str, Any]:
    """Return the fields of the record of an abort, or of a policy edge that the abort crosses."""
    return {"event": "AbortRecord", "outcome": "fact", "metadata": {"scope": scope, "id": "x", "policy_edge": edge}}


class Compacted(MemoryJournal):
    """Journal whose first record is in an archive."""

    async def events(
        self, *, entity_id: str | None = None, after_seq: int = 0, limit: int = 10_000
    ) -> list[LifecycleEvent]:
        return await super().events(entity_id=entity_id, after_seq=max(after_seq, 1), limit=limit)


@pytest.mark.anyio
@pytest.mark.parametrize(("journal", "call"), [(MemoryJournal, "p:t1:c1"), (Compacted, None)])
async def test_who_asked_for_it_is_its_cause_or_nobody(journal: type[MemoryJournal], call: str | None) -> None:
    """``started_by`` is the call in the record that caused the session's birth, or ``None`` if that record is
    archived."""
    store = MemoryStore()
    for seq, turn in ((1, "p:t1"), (2, "q:t1")):
        more = {"entity_type": "turn", "event": "tool_started", "metadata": {"number": seq}}
        store.write([entry(seq, 1, turn, **more)])
    store.write([entry(3, 1, "p/c", event="Born", outcome="born", cause_id=1)])
    assert (await read_past(journal(store), "p/c")).started_by == call


# ---------------------------------------------------------------------------------------------------- plans
def plan_of(**prompts: str) -> Plan:
    tasks = tuple(TaskConfig(id=name, agent="a", prompt=prompt) for name, prompt in prompts.items())
    return Plan(agents=AGENTS, tasks=tasks)


def row_of(kind: str, entity_id: str, state: str, data: object, *, ended: bool = False) -> EntityRow:
    return EntityRow(
        kind=kind,
        id=entity_id,
        parent_id=None,
        state=state,
        data=msgspec.json.encode(data),
        entity_seq=1,
        ended=ended,
        born_seq=1,
        born_at=0.0,
        changed_at=0.0,
    )


def rows_of(plan: Plan, stream: str, *states: str, ended: bool = False) -> list[EntityRow]:
    """Return the rows of a workstream and of its tasks in these states."""
    rows = [row_of("workstream", stream, "executing", WorkstreamData(name="plan", tasks=len(states)), ended=ended)]
    for task, state in zip(plan.tasks, states, strict=True):
        holder = task.id if state != "OPEN" else ""
        data = TaskData(workstream=stream, name=task.id, digest=digest_of(task, plan), claimed_by=holder)
        rows.append(row_of("task", f"r1#{task.id}", state, data, ended=state == "CLOSED"))
    return rows


def test_a_plan_continues_its_interrupted_run() -> None:
    """``continued`` returns the tasks of an interrupted run by name; sessions that claimed one of them are resumed
    too."""
    plan = plan_of(one="1", two="2", three="3")
    rows = rows_of(plan, "1.1", "CLOSED", "IN_PROGRESS", "OPEN")
    assert {name: task.state.value for name, task in continued(plan, plan, rows).items()} == {
        "one": "CLOSED",
        "two": "IN_PROGRESS",
        "three": "OPEN",
    }
    assert resumed_ids(plan, rows) == {"r1#one", "r1#two", "r1#three", "one", "two", "1.1"}


def test_what_has_failed_rests_once_its_workstream_has_ended() -> None:
    """A failed task is at rest only if its workstream has ended; otherwise it may be tried again."""
    plan = plan_of(one="1")
    assert at_rest(rows_of(plan, "1.1", "FAILED", ended=True)) == {"r1#one"}
    assert at_rest(rows_of(plan, "1.1", "FAILED")) == set()


@pytest.mark.parametrize("ended", [True, False])
def test_what_a_workstream_had_when_it_ended_is_left_over(ended: bool) -> None:
    """The open tasks of an ended workstream, the sessions that hold them, and their runs are left over; of a live
    workstream none is."""
    plan = plan_of(one="1", two="2", three="3")
    rows = rows_of(plan, "1.1", "CLOSED", "IN_PROGRESS", "OPEN", ended=ended)
    rows += [row_of("session", one, "Running", SessionData(id=one, agent="a")) for one in ("two", "another")]
    rows += [msgspec.structs.replace(row_of("run", "r1#two:run", "IN_PROGRESS", TaskRunData()), parent_id="r1#two")]
    assert left_over(rows) == ({"r1#two", "r1#three", "two", "r1#two:run"} if ended else set())


@pytest.mark.parametrize(
    ("state", "holder", "is_let_go"),
    [
        (Task.CLAIMED, "s", False),
        (Task.IN_PROGRESS, "s", False),
        (Task.WAITING_FOR_SUBTASKS, "s", False),
        (Task.WAITING_FOR_SUBTASKS, "", True),  # taken away, and then split
        (Task.DONE, "s", False),
        (Task.PENDING_APPROVAL, "s", False),  # its session rests, and is closed as usual
        (Task.CLOSED, "s", False),
        (Task.OPEN, "", True),
        (Task.BLOCKED, "s", True),
        (Task.FAILED, "s", True),
        (Task.CANCELLED, "s", True),
    ],
)
def test_a_session_is_let_go_by_the_state_of_its_task(state: Task, holder: str, is_let_go: bool) -> None:
    """A session is not resumed if the state of the task, or the end of its claim, means that the session is to end."""
    data = TaskData(claimed_by=holder, last_claimed_by="s", claims=1)
    assert let_go([row_of("task", "r1#one", state.value, data)]) == ({"s"} if is_let_go else set())
    assert let_go([row_of("task", "r1#one", state.value, TaskData())]) == set()


def test_a_plan_may_have_grown() -> None:
    """A plan with an added task continues its interrupted run."""
    rows = rows_of(plan_of(one="1"), "1.1", "IN_PROGRESS")
    assert list(continued(plan_of(one="1", two="2"), Settings(), rows)) == ["one"]


@pytest.mark.parametrize("plan", [plan_of(one="another"), plan_of(two="1")])
def test_another_plan_continues_nothing(plan: Plan) -> None:
    """A plan with a changed or a removed task does not continue the run."""
    assert continued(plan, plan, rows_of(plan_of(one="1"), "1.1", "IN_PROGRESS")) == {}


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (plan_of(one="1", two="2"), ""),
        (plan_of(one="1", two="other"), "changed in the plan: two"),
        (plan_of(one="other"), "not in the plan any more: two; changed in the plan: one"),
        (plan_of(one="other", two="other"), "every task is changed in the plan, or its workspace or merge_into is"),
    ],
)
def test_the_reason_why_a_run_is_not_continued_is_told(now: Plan, why: str) -> None:
    """The newest run of a plan counts its tasks by state, and names the difference to another plan."""
    rows = rows_of(plan_of(one="1", two="2"), "r2", "CLOSED", "IN_PROGRESS")
    earlier = find_earlier_runs(rows).by_name["plan"]
    assert earlier.words == "run r2 (executing: 1 completed, 1 open)"
    assert earlier.rest == "two (IN_PROGRESS)"
    assert earlier.why_not_continued(now, now) == why


def test_a_changed_task_is_done_again_with_what_depends_on_it() -> None:
    """A resumed run keeps closed tasks whose entry is unchanged, unless they depend on a task that has changed."""
    named = [("base", ()), ("lone", ()), ("top", ("base",)), ("tip", ("top",))]
    tasks = [TaskConfig(id=one, agent="a", prompt=one, depends_on=needed) for one, needed in named]
    rows = rows_of(Plan(agents=AGENTS, tasks=tuple(tasks)), "r1", *["CLOSED"] * 4)
    plan = Plan(agents=AGENTS, tasks=(tasks[0].model_copy(update={"prompt": "other"}), *tasks[1:]))
    previous = find_previous_run(plan, plan, rows)
    assert previous is not None
    assert previous.has_rest
    assert (list(previous.closed), list(previous.changed)) == (["lone"], ["base", "top", "tip"])
    again = ", ".join(f"{one} (changed in the plan)" for one in ("base", "top", "tip"))
    assert previous.words == f"1 completed and not done again; done again: {again}"


WHERE = ({}, {"workspace": "worktree"}, {"workspace": "worktree", "merge_into": "main"})


@pytest.mark.parametrize("then", WHERE, ids=str)
@pytest.mark.parametrize("now", WHERE, ids=str)
def test_a_run_goes_on_where_its_work_is(then: dict[str, str], now: dict[str, str]) -> None:
    """A run continues only with the same kind of workspace and target branch, since its work lies there."""
    plan = plan_of(one="1")
    rows = rows_of(plan.model_copy(update=then), "1.1", "DONE")
    assert bool(continued(plan, plan.model_copy(update=now), rows)) is (then == now)
    assert bool(resumed_ids(plan.model_copy(update=now), rows)) is (then == now)


@pytest.mark.anyio
async def test_worktrees_that_nobody_sees_to_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A supervisor that uses plain directories logs the worktrees that an earlier supervisor left, and does not remove
    them."""
    left = tmp_path / "sd" / "worktrees" / "one"
    left.mkdir(parents=True)
    async with open_supervisor(tmp_path / "sd", workdir=tmp_path):
        pass
    assert str(left) in caplog.text
    assert left.is_dir()


@pytest.mark.parametrize("state", ["CLOSED", "FAILED", "CANCELLED"])
def test_a_run_that_is_over_is_not_continued(state: str) -> None:
    """A plan whose workstream has ended starts a new run."""
    plan = plan_of(one="1")
    assert continued(plan, plan, rows_of(plan, "1.1", state, ended=True)) == {}


def split_rows(plan: Plan, *parts: TaskConfig) -> list[EntityRow]:
    """Return the rows of a run whose first task was split into *parts*, which are born already."""
    whole = with_subtasks(plan, {plan.tasks[0].id: parts})
    (first, *rest) = plan.tasks
    data = TaskData(
        workstream="1.1",
        name=first.id,
        digest=digest_of(first, plan),
        parts=plain_subtasks(parts),
    )
    born = [
        TaskData(workstream="1.1", name=one.id, digest=digest_of(one, plan), part_of=f"r1#{first.id}")
        for one in whole.tasks[0].subtasks
    ]
    rows = rows_of(plan.model_copy(update={"tasks": tuple(rest)}), "1.1", *["OPEN"] * len(rest))
    rows.append(row_of("task", f"r1#{first.id}", "WAITING_FOR_SUBTASKS", data))
    return rows + [row_of("task", f"r1#{one.name}", "OPEN", one) for one in born]


PART = TaskConfig(id="part", prompt="do it", acceptance=(AcceptanceConfig(file_exists="x"),))


def test_what_a_task_was_split_into_goes_on() -> None:
    """Subtasks of a recorded split are continued, although no plan file has them, and are added to the plan."""
    plan = plan_of(one="1", two="2")
    found = continued(plan, plan, split_rows(plan, PART))
    assert set(found) == {"one", "two", "part"}
    (first, second) = grown(plan, found)
    assert [one.task.id for one in every_task(first.tasks)] == ["one", "two"]
    assert [one.task.id for one in every_task(second.tasks)] == ["one", "part", "two"]


def test_what_a_task_was_split_into_must_fit() -> None:
    """A split is not continued if the plan has another task of a subtask's id, or lacks a subtask's agent."""
    plan = plan_of(one="1")
    rows = split_rows(plan, PART)
    assert continued(plan_of(one="1", part="2"), plan, rows) == {}
    other = plan.model_copy(update={"agents": {**plan.agents, "other": next(iter(plan.agents.values()))}})
    assert continued(plan, plan, split_rows(other, TaskConfig(id="part", agent="other"))) == {}


def test_of_two_interrupted_runs_the_newer_one_goes_on() -> None:
    """Of two interrupted runs of a plan only the newer one is continued."""
    plan = plan_of(one="1")
    rows = rows_of(plan, "1.1", "OPEN") + rows_of(plan, "2.1", "OPEN")
    assert [task.data.workstream for task in continued(plan, plan, rows).values()] == ["2.1"]
