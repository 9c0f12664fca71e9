"""Lines of the live table: their order, words, colours and number."""

from __future__ import annotations

import pytest

from supervisor.cli.run_table import Group, RunTable, TableLine, fit
from supervisor.diagnostics.state_times import time_of_day
from supervisor.policies.budgets import Amounts
from supervisor.ports import EntityRow
from tests.cli.live_kit import agent, record, row, run, session, stream, task, turn

RETRY = "at once: supervisor retry r1#a"


def table_of(*rows: EntityRow) -> RunTable:
    table = RunTable()
    table.take([], rows)
    return table


def lines_of(*rows: EntityRow) -> list[TableLine]:
    return table_of(*rows).lines(now=3.0)


def drawn(table: RunTable, width: int, height: int = 30) -> list[str]:
    return [row.plain for row in fit(table.lines(now=3.0), width=width, height=height, now=3.0)]


# ------------------------------------------------------------------------------------------- sign of life and cost
def test_the_last_sign_of_life_and_the_cost_are_shown() -> None:
    """A wide terminal shows for each session the time since its last output or record, and what it has cost; the
    headline has the cost of the run."""
    table = table_of(stream(2), task("a", "IN_PROGRESS", claimed_by="a"), session("a"), session("b"))
    table.active_at = {"a": 2.5}
    table.used = {"a": Amounts(cost_usd=0.25), "r1": Amounts(cost_usd=0.5), "b": Amounts(input_tokens=30)}
    heading, *lines = drawn(table, 100)
    assert heading.split() == ["SESSION", "STATE", "AGE", "SEEN", "COST", "DOING"]
    assert [line.split()[-4:] for line in lines] == [["0", "s", "0.2500", "USD"], ["1", "s", "30", "tokens"]]
    assert table.headline().endswith(", 0.5000 USD")
    assert drawn(table, 79)[0].split() == ["SESSION", "STATE", "AGE", "DOING"]


def test_a_column_without_values_is_left_out() -> None:
    """The table has no column for the cost if no session has a cost."""
    assert drawn(table_of(session("a")), 100)[0].split() == ["SESSION", "STATE", "AGE", "SEEN", "DOING"]


# --------------------------------------------------------------------------------------------------------- order
def test_what_runs_comes_first() -> None:
    """Sessions that run come first, then what waits for a person or a time, then tasks that wait for other tasks or a
    worker."""
    lines = lines_of(
        task("queued", "OPEN", born=1),
        run("queued", "PENDING", born=2),
        task("asked", "PLANNED", born=3),
        task("delayed", "OPEN", born=4),
        run("delayed", "RETRYING", attempts=1, delay_s=4.0, born=5),
        task("works", "IN_PROGRESS", claimed_by="works", born=6),
        session("works", born=7),
        session("cools", "CoolingDown", born=8, last_error="broken"),
        task("over", "CLOSED", born=9),
    )
    assert [(one.group, one.name) for one in lines] == [
        (Group.RUNS, "works"),
        (Group.WAITS, "cools"),
        (Group.WAITS, "r1#asked"),
        (Group.WAITS, "r1#delayed"),
        (Group.QUEUED, "r1#queued"),
    ]


def test_children_stand_below_their_parent_indented() -> None:
    """A child session is below its parent, indented by two columns for each level, whatever the order of the births."""
    parents = {"a": None, "b": None, "a/x": "a", "b/y": "b", "a/x/z": "a/x", "a/w": "a"}
    rows = [session(one, parent=above, born=number) for number, (one, above) in enumerate(parents.items())]
    assert [one.name for one in lines_of(*rows)] == ["a", "  a/x", "    a/x/z", "  a/w", "b", "  b/y"]


def test_what_has_ended_is_one_line_of_counts() -> None:
    """Ended sessions and tasks have no lines; the tasks are counted by their outcomes."""
    states = ["CLOSED", "CLOSED", "FAILED", "CANCELLED"]
    rows = [task(f"t{number}", state, ended=state != "FAILED") for number, state in enumerate(states)]
    table = table_of(stream(4), *rows, session("t0", "Stopped", ended=True, outcome="completed"))
    ended = table.ended()
    assert ended is not None
    assert ended.plain == "ended: 2 completed, 1 failed, 1 cancelled"
    assert [str(span.style) for span in ended.spans] == ["green", "red", "yellow"]
    assert table.lines(now=3.0) == []
    assert table.headline() == "run r1 of plan: executing, 2 of 4 tasks completed, 1 failed, 1 cancelled"
    assert table_of(session("a")).ended() is None
    assert table_of(session("a")).headline() == ""


def test_tasks_of_an_earlier_plan_run_are_not_counted() -> None:
    """Of the tasks in the journal only those of the running workstream are counted."""
    old = row("task", "r2#old", "FAILED", "r2", workstream="r2", name="old")
    ended = table_of(stream(1), old, task("a", "CLOSED")).ended()
    assert ended is not None
    assert ended.plain == "ended: 1 completed"


# --------------------------------------------------------------------------------------------------------- words
@pytest.mark.parametrize(
    ("state", "agent_state", "turn_data", "task_state", "expected"),
    [
        ("Spawning", "starting", {}, "CLAIMED", ("◔", "SPAWNING", "yellow")),
        ("Running", "working", {}, "IN_PROGRESS", ("●", "RUNNING", "green")),
        ("Running", "working", {"open": [{"number": 1, "title": "git push"}]}, "IN_PROGRESS", ("⇄", "MERGING", "blue")),
        ("SessionComplete", "dead", {}, "DONE", ("⇄", "MERGING", "blue")),
        ("SessionComplete", "dead", {}, "IN_PROGRESS", ("○", "SessionComplete", "cyan")),
        ("CoolingDown", "dead", {}, "IN_PROGRESS", ("○", "CoolingDown", "yellow")),
    ],
)
def test_a_session_shows_its_visual_state(
    state: str, agent_state: str, turn_data: dict[str, object], task_state: str, expected: tuple[str, str, str]
) -> None:
    """The line of a session has the symbol of the visual state of its agent, and its name and colour while the agent
    works; else the state of the session."""
    (line,) = lines_of(
        task("a", task_state, claimed_by="a"), session("a", state), agent("a", agent_state), turn("a", **turn_data)
    )
    assert (line.indicator, line.state, line.style) == expected


@pytest.mark.parametrize(("outcome", "style"), [("completed", "green"), ("failed", "red"), ("aborted", "yellow")])
def test_a_session_that_ends_shows_its_outcome(outcome: str, style: str) -> None:
    """The line of a session that is ending has its outcome instead of the state ``Stopped``, and the outcome's
    colour."""
    (line,) = lines_of(session("a", "Stopped", outcome=outcome), agent("a", "dead"))
    assert (line.indicator, line.state, line.style, line.doing) == ("○", outcome, style, "is ending")


def test_a_line_shows_open_calls_else_the_last_output() -> None:
    """The line of a session shows the open calls of its turn; without open calls the last line of the agent's
    output."""
    calls = [{"number": 1, "title": "make"}, {"number": 3, "title": "ls"}]
    table = table_of(session("a"), turn("a", open=calls))
    table.last_lines["a"] = "thinking"
    assert table.lines(now=3.0)[0].doing == 't1:c1 "make", t1:c3 "ls"'
    table.take([], [turn("a", open=[])])
    assert table.lines(now=3.0)[0].doing == "thinking"


def test_a_line_says_what_is_waited_for_until_when_and_what_to_type() -> None:
    """A permission, a delay before the next attempt, a check, a merge and an approval each show what is waited for, and
    where possible until when, and the command that ends the wait."""
    asked = {"number": 1, "title": "rm x", "asked": True}
    table = table_of(session("a"), agent("a"), turn("a", asking=[asked]))
    event = record("turn", "a:t1", "PermissionRequested", "TOOL_USE", number=1, asked=True, within_s=300.0, at=100.0)
    table.take([event], [])
    (line,) = table.lines(now=3.0)
    until = time_of_day(400.0)
    assert (line.group, line.state) == (Group.RUNS, "IDLE")
    assert line.doing == f"waits for a human until {until}: supervisor answer a:t1:p1 allow (rm x)"

    held = task("a", "IN_PROGRESS", claimed_by="a")
    delayed = run("a", "RETRYING", attempts=2, failures=2, delay_s=4.0, last_error="exit status 3")
    (line,) = lines_of(held, delayed, session("a", "CoolingDown"), agent("a", "dead"))
    words = f"attempt 2 of 5 ended, the next one comes not before {time_of_day(6.0)} ({RETRY}), exit status 3"
    assert (line.group, line.doing) == (Group.WAITS, words)

    (line,) = lines_of(held, run("a", "VALIDATING", attempts=1), session("a", "SessionComplete"))
    assert line.doing == f"its work is checked since {time_of_day(2.0)}"
    (line,) = lines_of(task("a", "DONE", claimed_by="a"), session("a", "SessionComplete"))
    assert line.doing == "its work is being merged"
    (line,) = lines_of(task("a", "PENDING_APPROVAL", claimed_by="a"))
    assert (line.group, line.doing) == (Group.WAITS, "its result waits to be approved: supervisor approve r1#a")


def test_a_later_attempt_is_named_with_the_output() -> None:
    """From the second attempt on, the line of a session begins with the attempt."""
    held = task("a", "IN_PROGRESS", claimed_by="a")
    for attempts, words in ((1, "hello"), (2, "attempt 2 of 5, hello")):
        table = table_of(
            held, run("a", "IN_PROGRESS", attempts=attempts, failures=attempts - 1), session("a"), agent("a")
        )
        table.last_lines["a"] = "hello"
        assert table.lines(now=3.0)[0].doing == words


def test_failing_providers_are_alerts() -> None:
    """A provider whose breaker is open is an alert that says why and until when."""
    table = table_of(stream(1))
    told = {"provider": "x", "circuit": "open", "free_at_s": 60.0, "reason": "busy"}
    table.take([record("task", "r1#a", "ProviderBreaker", "OPEN", at=0.0, outcome="fact", **told)], [])
    assert table.alerts() == [f"the provider x fails (busy): no agent is launched before {time_of_day(60.0)}"]


# -------------------------------------------------------------------------------------------------------- layout
def test_a_narrow_table_cuts_what_is_done_and_never_the_state() -> None:
    """On a terminal of 60 columns every session has one line with its whole state; long names lose their middle, and
    the text of the column DOING its end."""
    names = [f"a-long-name-of-a-task-with-the-number-{number}" for number in (1, 2)]
    table = table_of(*(session(name, "SessionComplete") for name in names))
    table.last_lines |= dict.fromkeys(names, "a long story that goes on and on and on and on and on and on")
    lines = drawn(table, 60)
    assert len(lines) == 3
    assert all("SessionComplete" in line and line.endswith("…") and len(line) <= 60 for line in lines[1:])
    assert ["number-1" in lines[1], "number-2" in lines[2]] == [True, True]


def test_what_to_type_is_wrapped_and_not_cut() -> None:
    """On a narrow terminal the text that says what to type goes on in the next rows, below its column."""
    lines = drawn(table_of(task("a-task-with-a-name", "PLANNED")), 60)
    assert len(lines) == 4
    assert all(line.startswith(" " * 36) for line in lines[2:])
    assert "supervisor approve r1#a-task-with-a-name" in " ".join(line.strip() for line in lines)


@pytest.mark.parametrize(
    ("height", "last"),
    [
        (8, "… 9 more rows: 2 waiting, 7 queued (all: supervisor ps)"),
        (4, "… 13 more rows: 4 running, 2 waiting, 7 queued (all: supervisor ps)"),
        (20, "r1#t6"),
        (1, "… 15 more rows: 6 running, 2 waiting, 7 queued (all: supervisor ps)"),
    ],
)
def test_hidden_rows_are_counted(height: int, last: str) -> None:
    """A table that does not fit ends with the number of the lines that are hidden, by what they wait for; the table is
    never higher than asked for."""
    rows = [session(f"s{number}", born=number) for number in range(6)]
    rows += [task(f"p{number}", "PLANNED", born=10 + number) for number in range(2)]
    rows += [task(f"t{number}", "OPEN", born=20 + number) for number in range(7)]
    lines = drawn(table_of(*rows), 100, height)
    assert len(lines) <= height
    assert lines[-1].strip().startswith(last)


def test_a_long_queue_is_cut_on_a_high_terminal_too() -> None:
    """Of the tasks that wait for other tasks or a worker eight have lines, and the others are counted."""
    lines = drawn(table_of(*(task(f"t{number:02}", "OPEN", born=number) for number in range(40))), 100, 60)
    assert len(lines) == 10
    assert lines[-1].strip() == "… 32 more rows: 32 queued (all: supervisor ps)"


def test_wide_characters_are_wrapped_by_columns() -> None:
    """A text of characters that take two columns each is wrapped and loses no character; a name keeps its end."""
    request = "\u5b57" * 30
    line = TableLine(Group.WAITS, "\u540d" * 20 + "-2", "Running", 0.0, request, wraps=True)
    rows = fit([line], width=70, height=10, now=3.0)
    assert "".join(row.plain for row in rows).count("\u5b57") == 30
    assert all(row.cell_len <= 70 for row in rows)
    assert "\u540d-2 " in rows[1].plain
