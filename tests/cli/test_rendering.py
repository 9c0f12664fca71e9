"""Rendering of values as text: the text is complete, has one line for each value, and never contains an escape sequence
of an agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.cli.rendering import (
    columns,
    duration,
    event_line,
    json_text,
    plan_text,
    ps_text,
    receipt_text,
    report_text,
    tree_json,
    tree_text,
)
from supervisor.cli.results import results_json, results_text
from supervisor.cli.why import why_text
from supervisor.diagnostics.causal_trace import Annotation, Explanation, RecordRole, SpineStep
from supervisor.diagnostics.tool_calls import ToolCallIndex
from supervisor.diagnostics.tree_view import EntityLine, Node
from supervisor.diagnostics.validate import Problem, Report
from supervisor.lifecycles.types import AbortScope, LifecycleEvent, StageBudgets
from supervisor.policies.abort_plan import (
    AbortPlan,
    Crossing,
    EndingNode,
    NodeReceipt,
    PlannedNode,
    PlannedProcess,
    ProcessFate,
    Receipt,
    SparedNode,
    call_deadlines,
    session_deadlines,
)
from supervisor.policies.redaction import printable
from supervisor.work.results import PlanResult, TaskResult

EVIL = "a\x1b[31mred\x07\nb\u202e"


def event(**more: object) -> LifecycleEvent:
    fields = {
        "seq": 7,
        "timestamp": 0.0,
        "monotonic_s": 0.0,
        "entity_type": "session",
        "entity_id": "lead",
        "entity_seq": 1,
        "event": "OperatorStop",
        "from_status": "Running",
        "to_status": "Stopped",
        **more,
    }
    return LifecycleEvent(**fields)  # type: ignore[arg-type]


def turn(name: str, to: str, **metadata: object) -> LifecycleEvent:
    return event(entity_type="turn", entity_id="lead:t1", event=name, to_status=to, metadata=metadata)


# ------------------------------------------------------------------------------------------------------- pieces
def test_nothing_an_agent_says_reaches_the_terminal_raw() -> None:
    """``printable`` escapes escape sequences, bells, newlines and direction marks; letters of every script stay."""
    assert printable(EVIL) == r"a\u001b[31mred\u0007\nb\u202e"
    assert printable("Grüße, 世界 …") == "Grüße, 世界 …"


@pytest.mark.parametrize(
    "text",
    [
        event_line(event(entity_id=EVIL, reason=EVIL, metadata={"title": EVIL})),
        tree_text([Node(id=EVIL, kind="session", state="Running", note=EVIL)]),
        tree_text([Node(id="c1", kind="tool", state="open", note=EVIL)]),
        ps_text(
            [EntityLine(id=EVIL, kind="session", state="x", visual=None, age_s=1, parent=EVIL, ended=False, note=EVIL)]
        ),
        receipt_text(Receipt(abort_id="a", target=EVIL, scope=AbortScope.TOOL, reason=EVIL, already_ended=False)),
        report_text("f", Report(lines=1, entities=1, problems=[Problem(1, None, EVIL)])),
    ],
    ids=["event", "tree", "call", "ps", "receipt", "report"],
)
def test_every_text_is_made_printable(text: str) -> None:
    """Every line of each kind of rendered text is printable, even with control characters in ids, titles and
    reasons."""
    assert all(line.isprintable() for line in text.split("\n"))
    assert "\\u001b" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.001, "0.00 s"), (9.5, "9.50 s"), (12.9, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    """A short duration is printed in hundredths of a second, a long one in its two largest units."""
    assert duration(seconds) == text


def test_columns_are_aligned() -> None:
    """In a rendered table every cell except the last is as wide as the widest of its column, and no line ends in
    blanks."""
    assert columns(("A", "B"), [("long", "x"), ("s", "")]) == "A     B\nlong  x\ns"


# ------------------------------------------------------------------------------------------------------- events
def test_an_event_is_one_line_with_its_reasons() -> None:
    """The line of a transition shows both states, the reason, the abort and the actor."""
    line = event_line(
        event(abort_id="abort-3", abort_reason="user_interrupt", actor="operator:me", reason="enough is enough")
    )
    assert line.endswith(
        "     7  session lead             OperatorStop  Running -> Stopped  [user_interrupt]"
        "  abort abort-3  by operator:me: enough is enough"
    )


def test_an_event_that_changes_nothing_says_so() -> None:
    """The line of a refused event shows the state once, and that the event was refused."""
    assert "OperatorStop  in Stopped  (refused)" in event_line(event(outcome="refused", from_status=""))


def test_a_tool_call_is_told_with_its_title() -> None:
    """The line of a record about a tool call shows the call's number and title."""
    line = event_line(turn("tool_started", "TOOL_USE", number=1, title="sleep 60", call_id="x"))
    assert 'tool_started  c1 "sleep 60"  ' in line
    assert "title=" not in line


def test_every_record_of_a_call_says_which() -> None:
    """A record that names a tool call only by the agent's id for it is printed with the call's number and title."""
    calls = ToolCallIndex()
    records = [
        turn("tool_started", "TOOL_USE", number=2, call_id="call-7", title="make test"),
        turn("ProcessStarted", "TOOL_USE", tool="lead:t1:c2", pid=7),
        turn("tool_completed", "RUNNING", call_id="call-7", outcome="failed"),
    ]
    assert ['c2 "make test"  ' in event_line(one, calls.label(one)) for one in records] == [True] * 3
    told = why_text(explained(records[2], entity_id="lead:t1:c2"), records)
    assert 'tool_completed  c2 "make test"' in told


def test_what_is_about_no_known_call_names_none() -> None:
    """Records of other turns, of unknown calls and of no call are printed without a call."""
    calls = ToolCallIndex()
    calls.take(turn("tool_started", "TOOL_USE", number=1, call_id="x", title="t"))
    others = [
        turn("tool_completed", "RUNNING", call_id="y"),
        turn("ProcessStarted", "TOOL_USE", tool="lead:t2:c1"),
        turn("task_claimed", "CLAIMING", request_id="r"),
        event(metadata={"number": 1}),
    ]
    assert [calls.label(one) for one in others] == [""] * 4


def test_nothing_is_told_twice() -> None:
    """The line of a record prints a reason that is in two fields once, and the first record of an entity without the
    word "born"."""
    twice = event_line(event(transition_reason="sibling_aborted", abort_reason="sibling_aborted"))
    assert "[sibling_aborted]" in twice
    born = event_line(event(event="Born", outcome="born", from_status="", to_status="OPEN"))
    assert born.endswith("Born  -> OPEN")


@pytest.mark.parametrize("name", ["lead", "lead/documentation", "a/very/long/line/of/delegations"])
def test_an_id_is_apart_from_the_event(name: str) -> None:
    """In the line of a record an id of any length is followed by two blanks."""
    assert f" {name}  " in event_line(event(entity_id=name))


def explained(*records: LifecycleEvent, entity_id: str = "lead", **more: Any) -> Explanation:
    steps = tuple(SpineStep(role=RecordRole.CAUSE, record=one) for one in records)
    fields: dict[str, Any] = {"sentence": "", "root": records[0], "roots": 1, "missing": None, "steps": steps, **more}
    return Explanation(entity_id=entity_id, **fields)


def test_why_begins_with_the_root() -> None:
    """The text of ``why`` begins with the root cause and its actor, has one line for each record, and names a missing
    record."""
    records = (event(seq=1, actor="ann"), event(seq=2), event(seq=3))
    whole = why_text(explained(*records))
    torn = why_text(explained(*records, root=None, roots=0, missing=9))
    assert whole.splitlines()[0] == "why lead: 1 root, OperatorStop by ann"
    assert [line.split()[::2][:2] for line in whole.splitlines()[1:]] == [["┌", "1"], ["├", "2"], ["└", "3"]]
    assert "does not hold record 9" in torn
    assert "does not hold" not in whole


def test_why_shows_branches_below_their_step() -> None:
    """The text of ``why`` shows annotations of a record, such as a policy edge, below that record, with the role of
    each."""
    edge = Annotation(role=RecordRole.EDGE, record=event(seq=2, event="AbortRecord"))
    stage = Annotation(
        role=RecordRole.STAGE, record=event(seq=5, event="Ended", metadata={"rung": "kill", "took_s": 0.5})
    )
    later = Annotation(role=RecordRole.LATER, record=event(seq=6, event="OperatorStop"))
    steps = (
        SpineStep(role=RecordRole.ROOT, record=event(seq=1), branches=(edge,)),
        SpineStep(role=RecordRole.END, record=event(seq=3), branches=(stage, later)),
    )
    lines = why_text(explained(event(seq=1), steps=steps)).splitlines()[1:]
    assert [line[:14].rstrip() for line in lines if line[0] != " "] == [
        "┌ " + lines[0][2:14],
        "│   └─ policy",
        "└ " + lines[2][2:14],
    ]
    assert [line[4:].split(":")[0] for line in lines[3:]] == ["├─ stage", "└─ later cause"]
    assert "stage=kill  took_s=0.5" in lines[3]


# ------------------------------------------------------------------------------------------------- what there is
def test_a_tree_is_drawn() -> None:
    """A tree is drawn with branches for its levels; a call is shown with its title."""
    call = Node(id="lead:t1:c1", kind="tool", state="open", note="sleep 60")
    turn = Node(id="lead:t1", kind="turn", state="TOOL_USE", children=(call,))
    child = Node(id="lead/docs", kind="session", state="Stopped", note="completed")
    nodes = [Node(id="lead", kind="session", state="Running", children=(turn, child)), child]
    assert tree_text(nodes).splitlines() == [
        "lead  session Running",
        "├─ lead:t1  turn TOOL_USE",
        '│  └─ lead:t1:c1 "sleep 60"',
        "└─ lead/docs  session Stopped  (completed)",
        "lead/docs  session Stopped  (completed)",
    ]


def test_a_deep_tree_is_drawn() -> None:
    """A tree of 3,000 levels is drawn, since the drawing does not recurse."""
    node = Node(id="x", kind="session", state="Running")
    for _ in range(3000):
        node = Node(id="x", kind="session", state="Running", children=(node,))
    assert len(tree_text([node]).splitlines()) == 3001
    assert tree_json([node]).count('"kind":"session"') == 3001


def test_a_tree_as_json_is_its_nodes() -> None:
    """A tree as JSON has all fields of its nodes, indented."""
    call = Node(id="lead:t1:c1", kind="tool", state="open", note="sleep 60")
    turn = Node(id="lead:t1", kind="turn", state="TOOL_USE", children=(call,))
    nodes = [Node(id="lead", kind="session", state="Running", children=(turn,)), call]
    assert tree_json(nodes) == json_text(nodes)
    assert tree_json([]) == json_text([])


# ------------------------------------------------------------------------------------------------------- aborts
PLAN = AbortPlan(
    target="lead",
    scope=AbortScope.SESSION,
    nodes=(
        PlannedNode(
            id="lead/docs",
            kind="session",
            scope=AbortScope.SESSION,
            edge=None,
            due=session_deadlines(StageBudgets()),
            processes=(PlannedProcess(owner="lead/docs:a1", pid=7), PlannedProcess(owner="lead/docs:t1:c1", pid=8)),
        ),
        PlannedNode(id="lead", kind="session", scope=AbortScope.SIBLING, edge="tool_to_sibling"),
    ),
    already_ended=False,
    deadline_s=18.0,
    id="0",
    crossings=(Crossing(edge="tool_to_sibling", ruled_by="lead/x", scope=AbortScope.SIBLING),),
    ending=(EndingNode(id="lead/old"),),
    spared=(SparedNode(id="lead/free", parent=None),),
)
RECEIPT = Receipt(
    abort_id="abort-1",
    target="lead",
    scope=AbortScope.SESSION,
    reason="enough",
    already_ended=False,
    nodes=(NodeReceipt(id="lead", kind="session", outcome="ended", rung="terminate", took_s=0.25),),
    processes=(ProcessFate(owner="lead:a1", pid=7, status=-15, ended_by="terminate", killed=2, survivors=0),),
    killed_at=1.0,
)


def test_a_plan_names_every_node_and_the_edge_it_is_reached_over() -> None:
    """The text of an abort plan shows the nodes that would end, their order and deadlines, the pids, the policy edges,
    and the plan's id."""
    text = plan_text(PLAN)
    lines = [line.split() for line in text.splitlines()]
    assert "would end 2 within 18 s; nothing was done; plan 0" in text
    assert lines[2][:6] == ["session", "lead/docs", "scope", "session", "asked", "for"]
    assert lines[2][6:] == ["wait_completed", "10/15/17/18", "s", "7", "8"]
    assert lines[3][4:6] == ["tool_to_sibling", "wait_completed"]


def test_the_plan_of_a_calls_abort_has_the_stages_of_a_call() -> None:
    """The text of an abort plan for a tool call shows the two stages that a call has: the request to the agent, and the
    kill of the call's processes."""
    call = PlannedNode(id="a:t1:c1", kind="tool", scope=AbortScope.TOOL, edge=None, due=call_deadlines(StageBudgets()))
    line = plan_text(msgspec.structs.replace(PLAN, scope=AbortScope.TOOL, nodes=(call,))).splitlines()[2]
    assert "  1/-/-/11 s" in line


def test_a_plan_names_what_it_joins_and_spares() -> None:
    """The text of an abort plan names crossings to other levels, sessions that are ending already, and sessions that
    live on."""
    text = plan_text(PLAN)
    assert "crosses to scope sibling over tool_to_sibling, the policy of lead/x" in text
    assert "joins lead/old, which is ending already" in text
    assert "spares lead/free (its cancel mode is abandon): it lives on as a root" in text


def test_a_receipt_accounts_for_everything() -> None:
    """The text of an abort receipt shows nodes with their stages, processes with their ends, the survivors, and whether
    the abort is recorded."""
    text = receipt_text(RECEIPT)
    assert "session lead: ended at the stage terminate after 0.25 s" in text
    assert "process 7 of lead:a1: ended by terminate, status -15, 2 below it killed" in text
    assert "survivors: 0; all ended at" in text
    assert "not recorded yet" in text


def test_what_had_ended_is_no_error() -> None:
    """The texts of an abort plan and of a receipt for an ended target are the same, and name the sessions that have the
    target's name now."""
    plan = AbortPlan(target="t", scope=AbortScope.TOOL, nodes=(), already_ended=True, deadline_s=1, id="0")
    gone = Receipt(abort_id="", target="t", scope=AbortScope.TOOL, reason="", already_ended=True)
    words = "abort of t, scope tool: it had already ended, nothing was done"
    assert plan_text(plan) == receipt_text(gone) == words
    now = f"{words}; running under that name now: t-2, t-3"
    assert plan_text(plan, ["t-2", "t-3"]) == receipt_text(gone, ["t-2", "t-3"]) == now


def test_json_is_the_record_itself() -> None:
    """The JSON of an abort receipt has all its fields."""
    assert json.loads(json_text(RECEIPT))["processes"][0]["ended_by"] == "terminate"


# --------------------------------------------------------------------------------------------------- validation
def test_a_report_names_line_and_field() -> None:
    """The text of a validation report has a line ``file:line: field: problem`` for each problem, and a count at the
    end; without problems it says that the file is valid."""
    problems = [Problem(3, "seq", "must rise"), Problem(4, None, "not JSON")]
    lines = report_text("f.jsonl", Report(lines=9, entities=2, problems=problems, omitted=5)).splitlines()
    assert lines[:2] == ["f.jsonl:3: seq: must rise", "f.jsonl:4: not JSON"]
    assert lines[2] == "f.jsonl: 7 problems in 9 lines, 2 entities, the last 5 not shown"
    assert report_text("f.jsonl", Report(lines=9, entities=2, problems=[])) == "f.jsonl: valid (9 lines, 2 entities)"


def test_a_report_counts_as_people_do() -> None:
    """Counts in a validation report use the singular for 1; an empty file is valid."""
    one = report_text("f", Report(lines=1, entities=1, problems=[Problem(1, None, "not JSON")])).splitlines()[-1]
    assert one == "f: 1 problem in 1 line, 1 entity"
    assert report_text("f", Report(lines=0, entities=0, problems=[])) == "f: valid, but it holds no line"


# ------------------------------------------------------------------------------------------------------- the run
MORE = ("on its branch is more",)
RESULT = TaskResult(
    *("build", "build-2", "failed", "broken", 1.5, "supervisor/build-2", MORE, 2, 350, 0.25, "broken\n1\n2"),
    agent="coder",
    size="large",
    attempt_s=1.25,
)


def test_results_are_a_table_and_an_object() -> None:
    """The results of a run, as text and as JSON, show for each task its outcome, use, session, error and remarks, and
    why the run failed; the text names the command that prints the output of the agent."""
    result = PlanResult({"build": RESULT}, run="r1")
    _, row, *lines = results_text(result, Path("my dir")).splitlines()
    assert row.split() == ["r1#build", "failed", "2", "1.50", "s", "0.2500", "USD", "build-2"]
    assert lines == [
        "",
        "build failed: broken",
        "    | 1",
        "    | 2",
        "    on its branch is more",
        "    supervisor logs r1#build --state-dir 'my dir'",
        "",
        "the run failed: of 1 task 1 failed (build)",
    ]
    told = json.loads(results_json(result))
    assert told == {
        "run": "r1",
        "ok": False,
        "outcome": "failed",
        "error": "of 1 task 1 failed (build)",
        "output": "",
        "tasks": [
            {
                "id": "build",
                "session_id": "build-2",
                "outcome": "failed",
                "error": "broken",
                "took_s": 1.5,
                "unmerged": "supervisor/build-2",
                "remarks": ["on its branch is more"],
                "launches": 2,
                "tokens": 350,
                "cost_usd": 0.25,
                "findings": "broken\n1\n2",
                "agent": "coder",
                "size": "large",
                "attempt_s": 1.25,
                "worked_s": 0.0,
            },
        ],
        "workers": [],
    }


def test_a_run_that_succeeded_names_the_command_that_prints_the_output() -> None:
    """Below the table stands the command for the first task with a session; remarks are kept."""
    done = RESULT._replace(outcome="completed", error="", launches=0, cost_usd=0.0)
    _, row, *lines = results_text(PlanResult({"build": done}, run="r1")).splitlines()
    assert row.split() == ["r1#build", "completed", "-", "1.50", "s", "350", "tokens", "build-2"]
    assert lines == ["build: on its branch is more", "", "what the agents wrote: supervisor logs r1#build"]
