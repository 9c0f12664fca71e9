"""Validation of a transitions.jsonl: valid logs, and every kind of invalid line."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from actors.machine import Machine
from supervisor.diagnostics.event_replay import KINDS
from supervisor.diagnostics.validate import LINE_BYTES_MAX, Problem, Report, split_lines, validate_lines
from supervisor.journal.jsonl import transition_line
from supervisor.lifecycles import MACHINES
from supervisor.lifecycles.types import LifecycleEvent

AT = "2024-01-15T10:30:00.000Z"
LATER = "2024-01-15T10:30:00.001Z"
EARLIER = "2024-01-15T10:29:59.999Z"

ABSENT: Any = object()


def line(
    machine: str, entity_id: str, source: str, trigger: str, target: str, metadata: Any = ABSENT, /, **fields: Any
) -> bytes:
    """Return one line of a transition log; a field given as ABSENT is left out. The severity is that of the table, and
    a job that runs has a worker, unless the test gives others."""
    severities = KINDS[machine].severities if machine in KINDS and source != target else {}
    if metadata is ABSENT:
        metadata = {"worker_id": "w1"} if (machine, target) == ("job", "running") else {}
    facts = {
        "timestamp": AT,
        "event_type": f"{machine}_state_transition",
        "severity": severities.get(target, "info"),
        "entity_id": entity_id,
        "from_state": source,
        "to_state": target,
        "trigger": trigger,
        "metadata": metadata,
    } | fields
    return json.dumps({name: value for name, value in facts.items() if value is not ABSENT}).encode() + b"\n"


def job(entity_id: str, *states: str, metadata: Any = ABSENT) -> list[bytes]:
    """Return the lines of a job that passes through *states*; *metadata* belongs to the last line."""
    triggers = {
        ("pending", "queued"): "scheduler_assigned",
        ("queued", "running"): "worker_started",
        ("running", "validating"): "execution_completed",
        ("running", "retrying"): "execution_failed",
        ("running", "failed"): "execution_failed",
        ("retrying", "queued"): "retry_delay_elapsed",
        ("validating", "completed"): "validation_passed",
    }
    steps = list(itertools.pairwise(states))
    lines = [line("job", entity_id, source, triggers[source, target], target) for source, target in steps]
    if metadata is not ABSENT:
        source, target = steps[-1]
        worker = {"worker_id": "w1"} if target == "running" else {}
        lines[-1] = line("job", entity_id, source, triggers[source, target], target, worker | metadata)
    return lines


DONE = ("pending", "queued", "running", "validating", "completed")


def problems(lines: Iterable[bytes | str]) -> list[tuple[int, str | None, str]]:
    return [(one.line, one.field, one.message) for one in validate_lines(lines).problems]


def the_problem(lines: Iterable[bytes | str]) -> tuple[int, str | None, str]:
    """Return the only problem of *lines*; several problems, or none, fail the test."""
    (one,) = problems(lines)
    return one


START = line("job", "j1", "pending", "scheduler_assigned", "queued")


# ------------------------------------------------------------------------------------------------- what is good
def test_empty_log_is_good() -> None:
    """A log without lines is valid."""
    assert validate_lines([]) == Report(lines=0, entities=0, problems=[])


def test_good_log_is_good() -> None:
    """The report counts lines and entities; the same id in two machines is two entities."""
    lines = [*job("x", *DONE), line("task", "x", "OPEN", "claimed", "CLAIMED", seq=7, cause_id=6, abort_id=None)]
    assert validate_lines(lines) == Report(lines=5, entities=2, problems=[])


def path_to(machine: Machine[Any, Any], goal: Any) -> list[tuple[str, str, str]]:
    """Return a shortest path of transitions from an initial state of *machine* to *goal*."""
    paths: dict[Any, list[tuple[str, str, str]]] = {state: [] for state in machine.initial}
    queue = list(machine.initial)
    for state in queue:
        for one in machine.rules:
            if one.source is state and one.target not in paths:
                paths[one.target] = [*paths[state], (one.source.value, one.on.name(), one.target.value)]
                queue.append(one.target)
    return paths[goal]


@pytest.mark.parametrize("name", MACHINES)
def test_every_edge_of_every_table_is_accepted(name: str) -> None:
    """A line for any transition that a table allows, extensions and self loops included, is valid."""
    machine = MACHINES[name]
    for number, one in enumerate(machine.rules):
        steps = [*path_to(machine, one.source), (one.source.value, one.on.name(), one.target.value)]
        assert problems(line(name, f"e{number}", *step) for step in steps) == []


@pytest.mark.parametrize("name", MACHINES)
def test_every_other_edge_is_refused(name: str) -> None:
    """A line for a transition that the table does not allow is one problem, whose text names the machine and the
    transition."""
    machine = MACHINES[name]
    edges = {(one.source, one.on.name(), one.target) for one in machine.rules}
    for source in machine.states:
        before = [line(name, "e", *step) for step in path_to(machine, source)]
        for trigger in machine.events:
            for target in machine.states:
                if before and (source, trigger, target) not in edges:
                    number, field, message = the_problem(
                        [*before, line(name, "e", source.value, trigger, target.value)]
                    )
                    assert (number, field) == (len(before) + 1, "trigger")
                    assert message.startswith(f"{name}: '{trigger}' does not take {source.value} to {target.value}; ")


def test_lines_of_the_journal_are_good() -> None:
    """The lines that the journal makes of its own records are valid."""
    steps = [("OPEN", "claimed", "CLAIMED"), ("CLAIMED", "started", "IN_PROGRESS"), ("IN_PROGRESS", "failed", "FAILED")]
    records = [
        LifecycleEvent(
            seq=seq,
            timestamp=1705314600.0 + seq / 10,
            monotonic_s=float(seq),
            entity_type="task",
            entity_id="t1",
            entity_seq=seq,
            event=trigger,
            from_status=source,
            to_status=target,
            severity=KINDS["task"].severities.get(target, "info"),
            reason="because",
            cause_id=seq - 1 or None,
        )
        for seq, (source, trigger, target) in enumerate(steps, 1)
    ]
    assert problems(msgspec.json.encode(transition_line(one)) + b"\n" for one in records) == []


def test_lines_may_be_text_and_need_no_newline() -> None:
    """``validate_lines`` accepts text or bytes, and a last line without a newline."""
    assert problems([START.decode()]) == []
    assert problems([START.strip()]) == []
    assert problems([START.strip() + b"\r\n"]) == []


# ------------------------------------------------------------------------------------------------- what is a line
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\n", "empty"),
        (b"   \n", "empty"),
        (b"null\n", "a JSON NoneType, not an object"),
        (b"[1, 2]\n", "a JSON list, not an object"),
        (b'"text"\n', "a JSON str, not an object"),
        (b"{\n", "not JSON: "),
        (b'{"seq": NaN}\n', "not JSON: "),
        (b'{"seq": 1e999}\n', "not JSON: "),
        (b"{} {}\n", "not JSON: "),
        (b"[" * 200_000 + b"\n", "not JSON: "),
        (b'{"trigger": "\xff"}\n', "not UTF-8: "),
        ('{"trigger": "\ud800"}\n', "not UTF-8: "),
        (b'{"trigger": "' + b"x" * LINE_BYTES_MAX + b'"}\n', f"longer than {LINE_BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_line(text: bytes | str, words: str) -> None:
    """A line that is not a JSON object in UTF-8 within the limit is one problem, and the lines around it are read."""
    number, field, message = the_problem([START, text, *job("j2", "pending", "queued")])
    assert (number, field) == (2, None)
    assert message.startswith(words)


def test_line_of_the_longest_length_is_read() -> None:
    """A line of exactly the limit, without its newline, is read."""
    blank = len(line("job", "j", "pending", "scheduler_assigned", "queued", {"note": ""})) - 1
    whole = line("job", "j", "pending", "scheduler_assigned", "queued", {"note": "x" * (LINE_BYTES_MAX - blank)})
    assert len(whole) == LINE_BYTES_MAX + 1
    assert problems([whole]) == []
    assert problems(split_lines([whole])) == []


def test_torn_last_line_is_named() -> None:
    """An incomplete last line without a newline is reported as torn, with a newline as not JSON."""
    number, field, message = the_problem([START, START[:40]])
    assert (number, field) == (2, None)
    assert message.startswith("torn last line")
    assert the_problem([START, START[:40] + b"\n"])[2].startswith("not JSON")


def test_only_the_last_line_can_be_torn() -> None:
    """An incomplete line that is not the last one is reported as not JSON, not as torn."""
    words = [message.partition(":")[0] for _, _, message in problems(["{", "{", "{"])]
    assert words == ["not JSON", "not JSON", "torn last line, it was never written whole"]


def test_a_line_may_have_a_mebibyte() -> None:
    """The limit of a line is one MiB."""
    assert LINE_BYTES_MAX == 1048576


def test_lines_are_read_one_at_a_time() -> None:
    """Validating a log of 50 MB takes less than 5 MB of memory."""
    lines = (b"%06d" % number + b"x" * 100_000 + b"\n" for number in range(500))
    tracemalloc.start()
    try:
        report = validate_lines(lines)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.lines, len(report.problems)) == (500, 500)
    assert peak_bytes < 5_000_000


def test_split_lines_is_what_a_file_would_give() -> None:
    """``split_lines`` yields the same lines however the bytes were divided into chunks."""
    text = START + b"\n" + START + START[:30]
    for size in (1, 7, len(START), len(text)):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert list(split_lines(chunks)) == text.splitlines(keepends=True)


def test_split_lines_cuts_what_is_too_long() -> None:
    """``split_lines`` cuts a line far beyond the limit just above the limit, and yields the next line unchanged."""
    chunks = [*[b"x" * 4096] * 1024, b"\n" + START]
    long, short = split_lines(chunks)
    assert (len(long), short) == (LINE_BYTES_MAX + 2, START)
    assert the_problem(split_lines(chunks))[:2] == (1, None)


def test_split_lines_cuts_a_line_that_comes_in_pieces() -> None:
    """``split_lines`` cuts a line beyond the limit also if the line arrives in pieces, or has no newline."""
    assert list(split_lines([b"abc", b"defgh\n", b"ij"], bytes_max=5)) == [b"abcdef\n", b"ij"]
    assert list(split_lines([b"ab", b"cd", b"ef", b"gh"], bytes_max=5)) == [b"abcdef"]


def test_problems_are_bounded() -> None:
    """Problems beyond ``problems_max`` are counted in the report, but not stored."""
    report = validate_lines([b"{\n"] * 10, problems_max=3)
    assert ([one.line for one in report.problems], report.omitted, report.lines) == ([1, 2, 3], 7, 10)


def test_problem_is_a_value() -> None:
    """A Problem has the number of the line, the field and the text."""
    assert validate_lines([b"{}\n"]).problems[0] == Problem(1, "timestamp", "missing")


# ------------------------------------------------------------------------------------------------------- the schema
REQUIRED = ["timestamp", "event_type", "severity", "entity_id", "from_state", "to_state", "trigger", "metadata"]


@pytest.mark.parametrize("field", REQUIRED)
@pytest.mark.parametrize(("value", "words"), [(ABSENT, "missing"), (None, "must not be null")])
def test_required_fields(field: str, value: Any, words: str) -> None:
    """A line in which one of the eight required fields is missing or null is a problem of that field."""
    assert (1, field, words) in problems(
        [line("job", "j1", "pending", "scheduler_assigned", "queued", **{field: value})]
    )


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        *[(field, 7, "must be a non-empty string, is 7") for field in [*REQUIRED[:-1], "abort_id"]],
        *[(field, "", "must be a non-empty string, is ''") for field in [*REQUIRED[:-1], "abort_id"]],
        ("metadata", [], "must be an object, is a list of 0"),
        ("severity", "fatal", "'fatal' is none of info, warning, error, critical"),
        ("to_state", "QUEUED", "job has no state 'QUEUED'; it has pending, queued, running, "),
        ("from_state", "PENDING", "job has no state 'PENDING'; it has pending, queued, running, "),
        ("event_type", "gizmo_state_transition", "'gizmo_state_transition' is none of task_state_transition, "),
        ("timestamp", "2024-01-15T10:30:00Z", "'2024-01-15T10:30:00Z' is not a time such as "),
        ("timestamp", "2024-01-15T10:30:00.000+00:00", "'2024-01-15T10:30:00.000+00:00' is not a time such as "),
        ("timestamp", "2024-02-30T10:30:00.000Z", "'2024-02-30T10:30:00.000Z' is not a time such as "),
        ("timestamp", "２０２４-01-15T10:30:00.000Z", "'２０２４-01-15T10:30:00.000Z' is not a time such as "),
        ("colour", "red", "unknown field; known are timestamp, "),
        ("seq", "1", "must be an integer from 1 to 9223372036854775807, is '1'"),
        ("seq", 0, "must be an integer from 1 to 9223372036854775807, is 0"),
        ("seq", True, "must be an integer from 1 to 9223372036854775807, is True"),
        ("seq", 1.5, "must be an integer from 1 to 9223372036854775807, is 1.5"),
        ("seq", 10**400, "must be an integer from 1 to 9223372036854775807, is an integer of 1329 bits"),
        ("cause_id", 1, "must be less than the line's seq: 1 in no seq"),
    ],
)
def test_fields_of_the_wrong_kind(field: str, value: Any, words: str) -> None:
    """A value of the wrong type or form is one problem, whose text says which values the field may have."""
    number, where, message = the_problem(
        [line("job", "j1", "pending", "scheduler_assigned", "queued", **{field: value})]
    )
    assert (number, where) == (1, field)
    assert message.startswith(words)


def test_the_name_of_an_unknown_field_is_cut() -> None:
    """A problem shows at most sixty characters of the name of an unknown field."""
    found = the_problem([line("job", "j1", "pending", "scheduler_assigned", "queued", **{"x" * 61: 1})])
    assert found[1] == "x" * 60


def test_names_in_messages_are_short() -> None:
    """Values and names of 100,000 characters are shortened in the text of a problem."""
    text = "x" * 100_000
    for field in ("event_type", "severity", "trigger", text):
        for one in validate_lines([line("job", "j1", "pending", "x", "queued", **{field: text})]).problems:
            assert len(one.message) + len(one.field or "") < 600


# -------------------------------------------------------------------------------------------------------- the order
def test_timestamps_do_not_go_back() -> None:
    """Timestamps of successive lines may be equal; a time before the latest one so far is a problem."""
    times = [AT, AT, LATER, EARLIER, AT, LATER]
    lines = [
        line("job", f"j{n}", "pending", "scheduler_assigned", "queued", timestamp=at) for n, at in enumerate(times)
    ]
    assert problems(lines) == [
        (4, "timestamp", f"goes back: {EARLIER} after {LATER}"),
        (5, "timestamp", f"goes back: {AT} after {LATER}"),
    ]


def test_seq_rises() -> None:
    """The numbers (``seq``) of successive lines must rise, but may have gaps."""
    lines = [line("job", f"j{n}", "pending", "scheduler_assigned", "queued", seq=n) for n in (2, 5)]
    assert problems([*lines, START]) == []
    again = line("job", "k", "pending", "scheduler_assigned", "queued", seq=5)
    assert the_problem([*lines, again]) == (3, "seq", "must rise: 5 after 5")


def test_cause_comes_before() -> None:
    """A line's ``cause_id`` must be less than its own ``seq``."""
    own = line("job", "j", "pending", "scheduler_assigned", "queued", seq=3, cause_id=3)
    assert the_problem([own]) == (1, "cause_id", "must be less than the line's seq: 3 in 3")


def test_entity_begins_in_a_first_state() -> None:
    """An entity whose first line does not begin in an initial state is a problem."""
    found = the_problem([line("job", "j1", "queued", "worker_started", "running")])
    assert found == (1, "from_state", "'j1' begins in queued; a job begins in pending")


def test_entity_goes_on_where_it_was() -> None:
    """A line that does not begin in the state in which the entity's last line ended is one problem."""
    lines = [START, *job("j1", *DONE)[2:]]
    assert the_problem(lines) == (2, "from_state", "is running, but 'j1' was last in queued")


def test_entity_cannot_go_back_on_its_own() -> None:
    """A repeated line of an entity is a problem."""
    lines = [*job("j1", *RUNNING), job("j1", *RUNNING)[1]]
    assert the_problem(lines) == (3, "from_state", "is queued, but 'j1' was last in running")


def test_nothing_leaves_a_terminal_state() -> None:
    """A transition out of a terminal state is a problem, unless it is an extension that the table has."""
    number, field, message = the_problem(
        [*job("j1", *DONE), line("job", "j1", "completed", "worker_started", "running")]
    )
    assert (number, field) == (5, "trigger")
    assert "completed is terminal; allowed in completed: nothing" in message
    steps = [*path_to(MACHINES["task"], MACHINES["task"].states[-1])]
    assert steps[-1][2] == "PENDING_APPROVAL"
    steps.append(("PENDING_APPROVAL", "approval_granted", "CLOSED"))
    assert problems(line("task", "t1", *step) for step in steps) == []


def test_life_goes_on_after_an_unknown_state() -> None:
    """A line with an unknown state is one problem, and the next line of its entity is accepted."""
    lines = [line("job", "j1", "pending", "scheduler_assigned", "waiting"), *job("j1", *DONE)[1:]]
    assert the_problem(lines)[:2] == (1, "to_state")


# ------------------------------------------------------------------------------------------- invariants of spec 004
QUEUED = ("pending", "queued")
RUNNING = (*QUEUED, "running")


@pytest.mark.parametrize(
    ("lines", "field", "words"),
    [
        (
            job("j1", *RUNNING, "validating", metadata={"worker_id": "w1"}),
            "metadata.worker_id",
            "a validating job has no worker, this one has 'w1'",
        ),
        (
            job("j1", *RUNNING, "retrying", metadata={"retry_count": 3, "max_retries": 2}),
            "metadata.retry_count",
            "3 exceeds max_retries 2",
        ),
        (
            job("j1", *QUEUED, metadata={"retry_count": -1}),
            "metadata.retry_count",
            "must be an integer from 0 to 9223372036854775807, is -1",
        ),
        (
            job("j1", *RUNNING, metadata={"created_at": LATER, "started_at": AT}),
            "metadata.started_at",
            f"'{AT}' is before created_at '{LATER}'",
        ),
        (
            job("j1", *RUNNING, metadata={"created_at": 1, "started_at": AT}),
            "metadata.started_at",
            "created_at and started_at must be in one form, both numbers or both ISO 8601",
        ),
        (
            job("j1", *QUEUED, metadata={"created_at": 10**400}),
            "metadata.created_at",
            "an integer of 1329 bits is neither a number nor an ISO 8601 time with a zone",
        ),
        (
            job("j1", *QUEUED, metadata={"depends_on": ["j0"]}),
            "metadata.depends_on",
            "a queued job waits for nothing, but 'j0' is not in this log",
        ),
        (
            job("j1", *QUEUED, metadata={"depends_on": [["j0"]]}),
            "metadata.depends_on",
            "must be a list of job ids, holds a list of 1",
        ),
    ],
)
def test_invariants_of_a_job(lines: list[bytes], field: str, words: str) -> None:
    """The last line violates an invariant about a job's worker, retries, times or dependencies, and is the one
    problem."""
    assert the_problem(lines) == (len(lines), field, words)


IDLE = line("worker", "w1", "initializing", "registration_complete", "idle", {"max_concurrent_tasks": 1})
BUSY = line("worker", "w1", "idle", "task_assigned", "busy", {"active_tasks": 1})
BY_W1 = {"worker_id": "w1"}


@pytest.mark.parametrize(
    ("lines", "field", "words"),
    [
        (
            [IDLE, *job("j1", *RUNNING, metadata=BY_W1), *job("j2", *RUNNING, metadata=BY_W1)],
            "metadata.worker_id",
            "worker 'w1' has 2 tasks; max_concurrent_tasks is 1",
        ),
        (
            [IDLE, BUSY, line("worker", "w1", "busy", "task_completed", "idle", {"active_tasks": 1})],
            "metadata.active_tasks",
            "a worker in idle holds no task, this one 1",
        ),
        (
            [line("worker", "w1", "initializing", "registration_complete", "idle", {"max_concurrent_tasks": 0})],
            "metadata.max_concurrent_tasks",
            "must be an integer from 1 to 9223372036854775807, is 0",
        ),
    ],
)
def test_invariants_of_a_worker(lines: list[bytes], field: str, words: str) -> None:
    """The last line violates an invariant of a worker, more tasks than slots or a task while idle, and is the one
    problem."""
    assert the_problem(lines) == (len(lines), field, words)


def test_worker_that_released_its_job_may_rest() -> None:
    """A job that is no longer running frees the slot of its worker, which may take another job or become idle."""
    over = line("worker", "w1", "busy", "task_completed", "idle", {"active_tasks": 0})
    first = [*job("j1", *RUNNING, metadata=BY_W1), line("job", "j1", "running", "worker_lost", "retrying")]
    assert problems([IDLE, BUSY, *first, *job("j2", *RUNNING, metadata=BY_W1)]) == []
    assert problems([IDLE, BUSY, *first, over]) == []


STREAM = {"workstream_id": "s1"}
READY = line("workstream", "s1", "planned", "all_tasks_created", "ready")
EXECUTING = line("workstream", "s1", "ready", "first_task_started", "executing")
VALIDATING = line("workstream", "s1", "executing", "all_tasks_completed", "validating")
COMPLETED = line("workstream", "s1", "validating", "validation_passed", "completed")
CANCELLED = line("workstream", "s1", "executing", "user_cancelled", "cancelled")
FAILED = line("workstream", "s1", "executing", "critical_task_failed", "failed")


def member(entity_id: str, *states: str, **facts: Any) -> list[bytes]:
    """Return the lines of a job, of which the last one names the workstream s1."""
    return job(entity_id, *states, metadata=STREAM | facts)


def rest(entity_id: str, *states: str) -> list[bytes]:
    """Return the lines of a job after the line that queued the job."""
    return job(entity_id, *states)[1:]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*member("a", *RUNNING), READY], "ready, but 1 of its 1 jobs have started"),
        (
            [READY, *member("a", *RUNNING, "failed", critical=True), EXECUTING],
            "executing, but 1 critical jobs failed; then it must fail",
        ),
        (
            [READY, *member("a", *QUEUED), *rest("a", *RUNNING), EXECUTING, CANCELLED, *member("b", *RUNNING)],
            "a job runs, but its workstream 's1' is cancelled",
        ),
    ],
)
def test_invariants_of_a_workstream(lines: list[bytes], words: str) -> None:
    """The last line contradicts the state of the workstream or of its jobs, and is the one problem."""
    assert the_problem(lines) == (len(lines), "to_state", words)


def test_workstream_that_agrees_with_its_jobs_is_good() -> None:
    """A workstream that completes with all its jobs is valid, and so is one that fails with a critical job."""
    started = [*member("a", *QUEUED), READY, *rest("a", *RUNNING), EXECUTING]
    ended = [*rest("a", *DONE)[1:], *member("b", *DONE), VALIDATING, COMPLETED]
    assert problems([*started, *ended]) == []
    assert problems([*started, *member("b", *RUNNING, "failed", critical=True), FAILED]) == []


def test_job_is_counted_once_however_many_lines_it_has() -> None:
    """An illegal line of a job that has ended does not change the counts of its workstream."""
    again = line("job", "a", "failed", "worker_started", "failed", STREAM)
    lines = [READY, *member("a", *RUNNING, "failed", critical=True), again, EXECUTING]
    assert problems(lines)[1:] == [(len(lines), "to_state", "executing, but 1 critical jobs failed; then it must fail")]


def test_cost_of_a_line_does_not_grow_with_the_log() -> None:
    """The dependencies of a job are checked at its first queued line, not again at each illegal line after it."""
    waits = [f"d{number}" for number in range(100)]
    first = job("j1", *QUEUED, metadata={"depends_on": waits})
    again = line("job", "j1", "queued", "no_such_trigger", "queued")
    found = problems([*first, *[again] * 50])
    assert [field for _, field, _ in found] == ["metadata.depends_on"] * 100 + ["trigger"] * 50
