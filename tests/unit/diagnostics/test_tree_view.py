"""The tree that ``tree`` prints and the list that ``ps`` prints, made from entity rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from supervisor.diagnostics.state_times import STALLED, StateTimes, time_of_day
from supervisor.diagnostics.tree_view import Node, ps, tool_calls, tree
from supervisor.ports import EntityRow
from tests.cli.live_kit import record


def row(number: int, kind: str, entity: str, parent: str | None = None, **more: Any) -> EntityRow:
    fields: dict[str, Any] = {"state": "Running", "ended": False, "born_at": float(number), "changed_at": number + 0.5}
    fields |= more
    data = msgspec.json.encode(fields.pop("data", {}))
    return EntityRow(kind=kind, id=entity, parent_id=parent, data=data, entity_seq=1, born_seq=number, **fields)


ROWS = [
    row(3, "turn", "lead:t1", "lead", data={"open": [{"number": 2, "call_id": "x", "title": "sleep 60"}], "calls": 2}),
    row(1, "session", "lead", data={"last_error": "broken", "total_errors": 2, "consecutive_errors": 1}),
    row(2, "agent", "lead:a1", "lead", state="working", data={"pid": 7}),
    row(4, "session", "lead/docs", "lead", ended=True, data={"outcome": "completed"}),
    row(5, "session", "other"),
]


def shape(nodes: tuple[Node, ...]) -> Any:
    return [(node.id, shape(node.children)) if node.children else node.id for node in nodes]


def test_the_tree_has_sessions_with_what_is_below_them() -> None:
    """In the tree agents, turns and child sessions are below their session in the order of birth, open calls below
    their turn."""
    expected = [("lead", ["lead:a1", ("lead:t1", ["lead:t1:c2"]), "lead/docs"]), "other"]
    assert shape(tree(ROWS)) == expected
    call = tree(ROWS)[0].children[1].children[0]
    assert (call.kind, call.state, call.note) == ("tool", "open", "sleep 60")


def test_the_tree_says_what_one_wants_to_know() -> None:
    """The note of a node in the tree shows a session's errors or outcome and an agent's pid."""
    lead = tree(ROWS)[0]
    notes = {node.id: node.note for node in (lead, *lead.children)}
    assert notes == {"lead": "broken, 2 errors", "lead:a1": "pid 7", "lead:t1": "", "lead/docs": "completed"}


def test_an_orphan_is_a_root() -> None:
    """An entity whose parent is missing from the rows, or is the entity itself, is a root of the tree."""
    rows = [row(1, "session", "a/b", "a"), row(2, "session", "loop", "".join(["lo", "op"]))]
    assert shape(tree(rows)) == ["a/b", "loop"]


def test_a_deep_tree_needs_no_recursion() -> None:
    """A chain of ten thousand child sessions is made into a tree, without recursion."""
    rows = [row(n, "session", f"s{n}", f"s{n - 1}" if n > 1 else None) for n in range(1, 10_001)]
    depth, nodes = 0, tree(rows)
    while nodes:
        depth, nodes = depth + 1, nodes[0].children
    assert depth == 10_000


def test_calls_of_a_turn_are_counted() -> None:
    """``tool_calls`` returns an id for each call that a turn has made, open or not."""
    assert tool_calls(ROWS[0]) == ("lead:t1:c1", "lead:t1:c2")
    assert tool_calls(ROWS[1]) == ()
    assert tool_calls(row(1, "turn", "t", data={"calls": 3})) == ("t:c1", "t:c2", "t:c3")


def test_ps_tells_ages_up_to_the_end() -> None:
    """``ps`` shows the age of a living entity until now, and of an ended one until its last change."""
    seen = {one.id: one for one in ps(ROWS, now=10.0)}
    assert (seen["lead"].age_s, seen["lead/docs"].age_s) == (9.0, 0.5)
    assert [one.id for one in ps(ROWS, now=10.0)] == ["lead", "lead:a1", "lead:t1", "lead/docs", "other"]


@pytest.mark.parametrize(
    ("now", "said", "visual"), [(10.0, {}, "RUNNING"), (400.0, {}, "STALLED"), (400.0, {"lead": 399.0}, "RUNNING")]
)
def test_ps_sees_an_agent_as_a_person_would(now: float, said: dict[str, float], visual: str) -> None:
    """``ps`` shows the visual state of an agent, and of its session, by the last activity of the session; none for a
    session without an agent."""
    seen = {one.id: one.visual for one in ps(ROWS, now=now, active_at=said)}
    assert (seen["lead:a1"], seen["lead"], seen["other"]) == (visual, visual, None)


@pytest.mark.parametrize(
    ("agent", "turn", "task", "visual"),
    [
        ("working", {"open": [{"number": 1, "title": "git -C x commit -m 'merge it'"}]}, "IN_PROGRESS", "MERGING"),
        ("working", {"open": [{"number": 1, "title": "cd x && git push origin"}]}, "IN_PROGRESS", "MERGING"),
        ("working", {"open": [{"number": 1, "title": "(/usr/bin/git --no-pager merge;)"}]}, "IN_PROGRESS", "MERGING"),
        ("working", {"open": [{"number": 1, "title": "git status"}]}, "IN_PROGRESS", "RUNNING"),
        ("working", {"open": [{"number": 1, "title": "git -C push status; push"}]}, "IN_PROGRESS", "RUNNING"),
        ("working", {"open": [{"number": 1, "title": "git -/" * 100_000}]}, "IN_PROGRESS", "RUNNING"),
        ("idle", {"open": []}, "DONE", "MERGING"),
        ("dead", {"open": []}, "DONE", "MERGING"),
        ("dead", {"open": []}, "CLOSED", "DEAD"),
        ("working", {"asking": [{"number": 1, "title": "rm x", "asked": True}]}, "IN_PROGRESS", "IDLE"),
        ("working", {"asking": [{"number": 1, "title": "rm x", "asked": False}]}, "IN_PROGRESS", "RUNNING"),
        ("starting", {"open": []}, "CLAIMED", "SPAWNING"),
    ],
)
def test_the_status_of_an_agent_is_derived(agent: str, turn: dict[str, Any], task: str, visual: str) -> None:
    """An agent is merging while a call of it runs git commit, merge or push, or while its work is merged; it is idle
    while it waits for a person."""
    rows = [
        row(1, "task", "task:a", state=task, data={"claimed_by": "a"}),
        row(2, "session", "a"),
        row(3, "agent", "a:a1", "a", state=agent, data={"pid": 7}),
        row(4, "turn", "a:t1", "a", data=turn),
    ]
    seen = {one.id: one.visual for one in ps(rows, now=5.0)}
    assert (seen["a:a1"], seen["a"]) == (visual, visual)


def test_the_thresholds_are_those_of_the_session() -> None:
    """The seconds until an agent counts as dead at its start, as stalled, or as stuck in a merge are limits of its
    session."""
    limits = {"spawn_deadline_s": 2.0, "stall_threshold_s": 3.0, "merging_stall_s": 4.0}
    call = {"open": [{"number": 1, "title": "git push"}]}
    for state, turn, now, visual in (
        ("starting", {}, 4.9, "SPAWNING"),
        ("starting", {}, 5.0, "DEAD"),
        ("working", {}, 6.9, "RUNNING"),
        ("working", {}, 7.5, "STALLED"),
        ("working", call, 8.4, "MERGING"),
        ("working", call, 8.5, "STALLED"),
    ):
        rows = [
            row(2, "session", "a", data={"limits": limits}),
            row(3, "agent", "a:a1", "a", state=state, data={"pid": 7}),
            row(4, "turn", "a:t1", "a", data=turn),
        ]
        assert {one.id: one.visual for one in ps(rows, now=now)}["a"] == visual, (state, now)


def test_the_newest_run_comes_first() -> None:
    """The tree and ``ps`` show the entities of a later plan run before those of an earlier one, each in the order of
    birth."""
    rows = [row(1, "session", "host"), row(2, "workstream", "w1"), row(3, "session", "a")]
    rows += [row(4, "workstream", "w2"), row(5, "session", "a-2"), row(6, "session", "b")]
    expected = ["w2", "a-2", "b", "w1", "a", "host"]
    assert [one.id for one in tree(rows)] == expected
    assert [one.id for one in ps(rows, now=9.0)] == expected


def test_what_waits_says_until_when_and_what_to_type() -> None:
    """The notes of a permission request, a start, an interruption and a backoff show their ends; a permission also
    shows the command that answers it."""
    times = StateTimes()
    asked = {"number": 1, "asked": True, "within_s": 300.0}
    times.take(record("turn", "a:t1", "PermissionRequested", "TOOL_USE", at=100.0, **asked))
    times.take(record("session", "c", "SessionExited", "CoolingDown", at=200.0))
    rows = [
        row(1, "turn", "a:t1", "a", data={"asking": [{"number": 1, "title": "rm x", "asked": True}]}),
        row(2, "session", "b", state="Spawning", changed_at=100.0),
        row(3, "session", "c", state="CoolingDown", changed_at=250.0, data={"consecutive_errors": 2}),
        row(4, "session", "d", state="Interrupting", changed_at=100.0),
        row(5, "session", "e", state="Initializing", changed_at=100.0, data={"current": {"id": "r"}}),
        row(6, "session", "f", state="Stopped", data={"outcome": "aborted"}),
    ]
    notes = {one.id: one.note for one in ps(rows, now=300.0, times=times)}
    assert notes == {
        "a:t1": f"waits for a human until {time_of_day(400.0)}: supervisor answer a:t1:p1 allow",
        "b": f"its agent starts, until {time_of_day(160.0)} at the latest",
        "c": f"launches no agent before {time_of_day(204.0)}",
        "d": f"its turn is interrupted, until {time_of_day(110.0)} at the latest",
        "e": f"prepares its workspace since {time_of_day(100.0)}",
        "f": "aborted, is ending",
    }


def test_a_woken_agent_is_stalled_until_it_would_have_been_aborted() -> None:
    """An agent that was woken, and whose session lives after the time of its abort, works: it is not STALLED, and no
    past time is shown."""
    times = StateTimes()
    times.take(record("session", "a", STALLED, "Running", at=100.0, step="wake", ends_in_s=60.0))
    rows = [
        row(1, "session", "a", data={"inbox": [{"blamed": "timeout"}]}),
        row(2, "agent", "a:a1", "a", state="working", data={"pid": 7}),
    ]
    silent = f"silent, aborted at {time_of_day(160.0)} unless it shows progress"
    for now, seen in ((159.0, ("STALLED", silent)), (161.0, ("RUNNING", ""))):
        line = next(one for one in ps(rows, now=now, active_at={"a": now}, times=times) if one.id == "a")
        assert (line.visual, line.note) == seen
        assert tree(rows, times=times, now=now)[0].note == seen[1]


@pytest.mark.parametrize("kind", ["turn", "agent"])
def test_what_happens_below_a_session_is_its_activity(kind: str) -> None:
    """A change of a turn or an agent counts as activity of its session for the visual state."""
    rows = [
        row(1, "session", "lead", state="Running"),
        row(2, "agent", "lead:a1", "lead", state="working", data={"pid": 7}),
        row(3, kind, "lead:x", "lead", changed_at=399.0),
    ]
    seen = {one.id: one.visual for one in ps(rows, now=400.0)}
    assert seen["lead:a1"] == "RUNNING"
    assert {one.id: one.visual for one in ps(rows[:2], now=400.0)}["lead:a1"] == "STALLED"


def test_a_clock_that_was_set_back_makes_nothing_younger_than_new() -> None:
    """The age that ``ps`` shows is never negative, also if the clock was set back."""
    assert [one.age_s for one in ps(ROWS[:1], now=1.0)] == [0.0]


@pytest.mark.parametrize(
    ("kind", "data", "note"),
    [
        ("session", {"total_errors": 1}, "1 error"),
        ("session", {"total_errors": 0, "outcome": "completed"}, "completed"),
        ("agent", {"pid": 7, "status": 0}, "pid 7, exit status 0"),
        ("agent", {"status": -9}, "exit status -9"),
        ("turn", {"verdict": {"error": "slow"}}, "slow"),
        ("turn", {"verdict": None}, ""),
        ("task", {"outcome": "completed", "pid": 7}, ""),
    ],
)
def test_a_note_is_what_matters_for_its_kind(kind: str, data: dict[str, Any], note: str) -> None:
    """A note shows a session's errors or outcome, an agent's pid and exit status, or a turn's error."""
    assert ps([row(1, kind, "x", data=data)], now=2.0)[0].note == note


def test_calls_of_what_has_ended_are_not_open() -> None:
    """The tree shows no open calls below a turn that has ended."""
    rows = [row(1, "turn", "t", ended=True, data={"open": [{"number": 1}], "calls": 1})]
    assert shape(tree(rows)) == ["t"]


@pytest.mark.parametrize(("parent", "child"), [("a", "b"), ("b", "a")])
def test_a_child_may_have_any_name(parent: str, child: str) -> None:
    """The parent of an entity is read from its row, not derived from its id."""
    assert shape(tree([row(1, "session", parent), row(2, "session", child, parent)])) == [(parent, [child])]


def test_calls_stand_below_the_call_that_they_are_made_within() -> None:
    """In the tree a nested call is below its enclosing call if the enclosing call is open, else below its turn."""
    within = {1: 0, 2: 1, 3: 1, 4: 3, 6: 5}
    open_calls = [{"number": number, "call_id": f"x{number}", "within": one} for number, one in within.items()]
    (turn,) = tree([row(1, "turn", "t", data={"open": open_calls})])
    assert shape((turn,)) == [("t", [("t:c1", ["t:c2", ("t:c3", ["t:c4"])]), "t:c6"])]
