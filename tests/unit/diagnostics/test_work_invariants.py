"""Invariants of jobs, workers and workstreams, and the functions that read the values in their records."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.diagnostics.work_invariants import (
    INTEGER_MAX,
    WorkInvariants,
    count_of,
    is_text,
    moment_of,
    name_of,
    shortened,
)

Lines = list[tuple[str, str, str, dict[str, Any]]]


def found(*lines: tuple[str, str, str, dict[str, Any]]) -> list[tuple[int, str | None, str]]:
    """Return the violations found in these transitions, each with the number of its transition, from 1."""
    problems: list[tuple[int, str | None, str]] = []
    number = 0

    def say(field: str | None, words: str) -> None:
        problems.append((number, field, words))

    work = WorkInvariants(say)
    for machine, entity_id, state, metadata in lines:
        number += 1
        work.check(machine, entity_id, state, metadata)
    return problems


def job(entity_id: str, state: str, **metadata: Any) -> tuple[str, str, str, dict[str, Any]]:
    return "job", entity_id, state, ({"worker_id": "w"} if state == "running" else {}) | metadata


def worker(state: str, **metadata: Any) -> tuple[str, str, str, dict[str, Any]]:
    return "worker", "w", state, metadata


def stream(state: str) -> tuple[str, str, str, dict[str, Any]]:
    return "workstream", "s", state, {}


# ------------------------------------------------------------------------------------------------------------ values
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 60, repr("x" * 60)),
        ("x" * 61, repr("x" * 60 + "…")),
        ([1, 2], "a list of 2"),
        ({"a": 1}, "an object of 1"),
        (INTEGER_MAX, str(INTEGER_MAX)),
        (-INTEGER_MAX, str(-INTEGER_MAX)),
        (INTEGER_MAX + 1, "an integer of 64 bits"),
        (-INTEGER_MAX - 1, "an integer of 64 bits"),
        (1.5, "1.5"),
        (None, "None"),
        (True, "True"),
    ],
)
def test_a_value_is_shown_short(value: object, text: str) -> None:
    """``shortened`` cuts texts beyond 60 characters, and replaces lists, objects and integers beyond 63 bits by their
    size."""
    assert shortened(value) == text


def test_the_largest_number_is_that_of_63_bits() -> None:
    """INTEGER_MAX is the largest integer of 63 bits."""
    assert INTEGER_MAX == 9223372036854775807


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        (0, 0.0),
        (-2.5, -2.5),
        (INTEGER_MAX, float(INTEGER_MAX)),
        (-INTEGER_MAX, float(-INTEGER_MAX)),
        (INTEGER_MAX * 4, None),
        (-INTEGER_MAX * 4, None),
        (True, None),
        (None, None),
        ([], None),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:01:00+01:00", 60.0),
        ("1970-01-01T00:01:00", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_a_moment_is_a_number_or_a_time_with_a_zone(value: object, moment: float | None) -> None:
    """``moment_of`` accepts a number or an ISO 8601 time with a zone, and returns ``None`` for any other value."""
    assert moment_of(value) == moment


@pytest.mark.parametrize(
    ("value", "count", "complains"),
    [
        (None, None, False),
        (2, 2, False),
        (3, 3, False),
        (INTEGER_MAX, INTEGER_MAX, False),
        (1, None, True),
        (INTEGER_MAX + 1, None, True),
        (2.0, None, True),
        (True, None, True),
        ("2", None, True),
    ],
)
def test_a_count_has_bounds(value: object, count: int | None, complains: bool) -> None:
    """``count_of`` accepts an integer from *least* to INTEGER_MAX; any other value is reported with its field."""
    said: list[str | None] = []
    assert count_of({"n": value}, "n", lambda field, words: said.append(field), least=2) == count
    assert said == (["n"] if complains else [])


@pytest.mark.parametrize(
    ("value", "name", "complains"), [(None, None, False), ("a", "a", False), ("", None, True), (7, None, True)]
)
def test_a_name_says_something(value: object, name: str | None, complains: bool) -> None:
    """``name_of`` returns ``None`` for a missing id; an empty id, or an id that is no text, is reported with its
    field."""
    said: list[str | None] = []
    assert name_of({"n": value}, "n", lambda field, words: said.append(field)) == name
    assert said == (["n"] if complains else [])
    assert is_text(value) is (name is not None)


# -------------------------------------------------------------------------------------------------------------- jobs
def test_the_last_retry_is_allowed() -> None:
    """A job may retry as often as ``max_retries`` says, by the limit that its records gave last; one more is a
    violation."""
    assert found(job("j", "retrying", retry_count=2, max_retries=2)) == []
    assert found(job("j", "retrying", retry_count=1, max_retries=3)) == []
    lines = [job("j", "queued", max_retries=0), job("j", "running", max_retries=3), job("j", "retrying", retry_count=3)]
    assert found(*lines) == []
    assert found(*lines, job("j", "retrying", retry_count=4)) == [
        (4, "metadata.retry_count", "4 exceeds max_retries 3")
    ]


def test_times_of_a_job_may_be_equal() -> None:
    """Creation, start and completion of a job may have the same time."""
    assert found(job("j", "completed", created_at=1, started_at=1, completed_at=1)) == []
    lines = [job("j", "queued", created_at=1), job("j", "running", started_at=1), job("j", "completed", completed_at=1)]
    assert found(*lines) == []


def test_each_time_is_compared_with_the_one_before() -> None:
    """The completion time of a job is compared with its start time, or, without a start time, with its creation
    time."""
    said = found(job("j", "completed", created_at=3, started_at=2, completed_at=1))
    assert said == [
        (1, "metadata.started_at", "2 is before created_at 3"),
        (1, "metadata.completed_at", "1 is before started_at 2"),
    ]
    said = found(job("j", "completed", created_at=3, completed_at=1))
    assert said == [(1, "metadata.completed_at", "1 is before created_at 3")]


def test_a_disorder_of_times_is_said_once() -> None:
    """Times of a job that are in the wrong order are reported once, not again at the job's later transitions."""
    lines = [job("j", "queued", created_at=3), job("j", "running", started_at=2), job("j", "validating")]
    assert [number for number, _, _ in found(*lines)] == [2]


def test_one_form_of_time_is_used() -> None:
    """A job with one time as a number and another as a text is a violation, in either order."""
    for first, second in ((1, "1970-01-01T00:00:02Z"), ("1970-01-01T00:00:01Z", 2)):
        said = found(job("j", "running", created_at=first, started_at=second))
        assert [field for _, field, _ in said] == ["metadata.started_at"]


def test_a_bad_time_hides_no_good_one() -> None:
    """An invalid time of a job is reported, and the job's other times are still compared."""
    said = found(job("j", "completed", created_at="then", started_at=2, completed_at=1))
    assert [field for _, field, _ in said] == ["metadata.created_at", "metadata.completed_at"]


def test_a_dependency_must_be_completed() -> None:
    """A queued job with a dependency that is not completed, or that has no record, is one violation for each
    dependency."""
    waits = job("j", "queued", depends_on=["a", "b"])
    assert found(job("a", "completed"), job("b", "completed"), waits) == []
    lines = [job("a", "failed"), waits, job("j", "queued")]
    assert found(*lines) == [
        (2, "metadata.depends_on", "a queued job waits for nothing, but 'a' is failed"),
        (2, "metadata.depends_on", "a queued job waits for nothing, but 'b' is not in this log"),
    ]


def test_dependencies_may_be_told_before_the_job_is_queued() -> None:
    """The dependencies in a job's records are checked only when the job is queued."""
    waits = job("j", "pending", depends_on=["a"])
    assert found(waits) == []
    assert [number for number, _, _ in found(waits, job("j", "queued"))] == [2]
    assert found(waits, job("a", "completed"), job("j", "queued")) == []


# ----------------------------------------------------------------------------------------------------------- workers
def test_every_slot_may_be_taken() -> None:
    """A worker may have as many running jobs or tasks as slots; one more is a violation."""
    slots = worker("idle", max_concurrent_tasks=2)
    jobs = [job(name, "running", worker_id="w") for name in "abc"]
    assert found(slots, worker("busy", active_tasks=2), *jobs[:2]) == []
    assert found(slots, *jobs) == [(4, "metadata.worker_id", "worker 'w' has 3 tasks; max_concurrent_tasks is 2")]
    assert [number for number, _, _ in found(slots, worker("busy", active_tasks=3))] == [2]


def test_a_job_that_runs_on_is_one_task() -> None:
    """A running job with two records takes one slot of its worker, and a job that moved to another worker takes
    none."""
    slots = worker("idle", max_concurrent_tasks=1)
    assert found(slots, job("a", "running", worker_id="w"), job("a", "running", worker_id="w")) == []
    moved = [job("a", "running", worker_id="w"), job("a", "running", worker_id="v"), job("b", "running", worker_id="w")]
    assert found(slots, *moved) == []


@pytest.mark.parametrize("state", ["idle", "shutdown"])
def test_a_worker_at_rest_has_no_running_jobs(state: str) -> None:
    """A worker that becomes idle or shuts down with running jobs or active tasks is a violation; unresponsive is
    none."""
    running = [job(name, "running", worker_id="w") for name in "ab"]
    words = f"worker 'w' goes to {state}, but 2 of its jobs run"
    assert found(*running, worker(state)) == [(3, "to_state", words)]
    assert [field for _, field, _ in found(worker(state, active_tasks=1))] == ["metadata.active_tasks"]
    assert found(*running, job("a", "retrying"), job("b", "failed"), worker(state, active_tasks=0)) == []
    assert found(*running, worker("unresponsive")) == []


# ------------------------------------------------------------------------------------------------------- workstreams
@pytest.mark.parametrize(
    ("state", "wrong"),
    [
        ("planned", True),
        ("ready", False),
        ("executing", False),
        ("validating", False),
        ("completed", True),
        ("failed", True),
        ("cancelled", True),
    ],
)
def test_jobs_run_while_their_workstream_does(state: str, wrong: bool) -> None:
    """A job that runs in a workstream that is planned, completed, failed or cancelled is a violation."""
    assert found(stream(state), job("a", "queued", workstream_id="s")) == []
    said = found(stream(state), job("a", "running", workstream_id="s"))
    assert said == ([(2, "to_state", f"a job runs, but its workstream 's' is {state}")] if wrong else [])


def jobs_in(**states: str) -> Lines:
    return [job(name, state, workstream_id="s") for name, state in states.items()]


@pytest.mark.parametrize(
    ("jobs", "state", "words"),
    [
        (jobs_in(a="pending", b="queued"), "ready", None),
        (jobs_in(a="pending", b="running", c="completed"), "ready", "ready, but 2 of its 3 jobs have started"),
        (jobs_in(a="pending", b="running"), "executing", None),
        (jobs_in(a="pending", b="queued"), "executing", "executing, but none of its 2 jobs has started"),
        (jobs_in(a="completed", b="completed"), "validating", None),
        (
            jobs_in(a="completed", b="completed", c="failed"),
            "validating",
            "validating, but only 2 of its 3 jobs are completed",
        ),
        (jobs_in(a="completed", b="completed"), "completed", None),
        (jobs_in(a="completed", b="queued"), "completed", "completed, but only 1 of its 2 jobs are completed"),
        (jobs_in(a="completed", b="failed"), "failed", None),
        (jobs_in(a="queued", b="running"), "cancelled", None),
        (jobs_in(), "completed", None),
        (jobs_in(a="queued"), "completed", "completed, but only 0 of its 1 jobs are completed"),
        (jobs_in(a="pending"), "cancelled", None),
        (jobs_in(a="completed"), "ready", "ready, but 1 of its 1 jobs have started"),
        (jobs_in(a="completed"), "executing", None),
    ],
)
def test_a_workstream_agrees_with_its_jobs(jobs: Lines, state: str, words: str | None) -> None:
    """The state of a workstream must agree with the states of its jobs."""
    assert found(*jobs, stream(state)) == ([(len(jobs) + 1, "to_state", words)] if words else [])


def test_a_job_is_counted_where_it_is_now() -> None:
    """A job counts in its workstream with its current state only, not with its earlier states."""
    lines = [job("a", "queued"), job("a", "running", workstream_id="s"), job("a", "completed")]
    assert found(*lines, stream("validating"), stream("completed")) == []


@pytest.mark.parametrize("state", ["ready", "executing", "validating", "completed", "failed", "cancelled"])
def test_a_critical_failure_ends_the_workstream(state: str) -> None:
    """After the failure of a critical job its workstream may only fail or be cancelled."""
    lines = [
        job("a", "running", workstream_id="s", critical=True),
        job("a", "failed"),
        job("b", "failed", workstream_id="s", critical=True),
    ]
    words = f"{state}, but 2 critical jobs failed; then it must fail"
    assert (words in [one for _, _, one in found(*lines, stream(state))]) is (state not in ("failed", "cancelled"))


def test_critical_jobs_are_counted_once() -> None:
    """Each critical job that failed is counted once in its workstream, whatever its earlier states."""
    jobs = [*jobs_in(a="completed"), job("b", "failed", workstream_id="s", critical=True)]
    assert [words for _, _, words in found(*jobs, stream("validating"))] == [
        "validating, but only 1 of its 2 jobs are completed",
        "validating, but 1 critical jobs failed; then it must fail",
    ]
    for before in ("completed", "cancelled", "running", "failed"):
        late = [job("b", before, workstream_id="s", critical=True), job("b", "failed")]
        said = [words for _, _, words in found(*late, stream("executing"))]
        assert said == ["executing, but 1 critical jobs failed; then it must fail"]


def test_a_critical_job_that_is_tried_again_has_not_failed() -> None:
    """A critical job that completed after a failure, or whose ``critical`` is not ``true``, is no critical failure."""
    again = [job("a", "failed", workstream_id="s", critical=True), job("a", "completed")]
    assert found(*again, stream("completed")) == []
    for mark in (False, 1, "true", None):
        failed = [job("a", "failed", workstream_id="s", critical=mark), job("b", "running", workstream_id="s")]
        assert found(*failed, stream("executing")) == []


def test_a_job_stays_in_its_workstream() -> None:
    """A job whose records name another workstream than before is a violation."""
    assert (
        found(job("a", "queued", workstream_id="s"), job("a", "running"), job("a", "failed", workstream_id="s")) == []
    )
    lines = [job("a", "queued", workstream_id="s"), job("a", "completed", workstream_id="t")]
    words = "changed from 's' to 't'; a job stays in one"
    assert found(*lines, stream("completed")) == [(2, "metadata.workstream_id", words)]


# ------------------------------------------------------------------------------------------------------ every state
STATES = ("pending", "queued", "running", "validating", "completed", "failed", "retrying", "cancelled")


@pytest.mark.parametrize("state", STATES)
def test_only_a_running_job_has_a_worker(state: str) -> None:
    """A job that names a worker must be running, a job that stops running frees its slot."""
    runs = state == "running"
    assert [field for _, field, _ in found(job("a", state, worker_id="w"))] == ["metadata.worker_id"] * (not runs)
    assert [field for _, field, _ in found(job("a", state, worker_id=None))] == ["metadata.worker_id"] * runs
    slots = worker("idle", max_concurrent_tasks=1)
    after = {"worker_id": "other"} if runs else {}
    moved = [job("a", "running", worker_id="w"), job("a", state, **after), job("b", "running", worker_id="w")]
    assert [number for number, _, _ in found(slots, *moved)] == []


@pytest.mark.parametrize("state", STATES)
def test_only_a_completed_dependency_is_satisfied(state: str) -> None:
    """A queued job is valid only if the job that it depends on is completed."""
    said = found(job("a", state), job("b", "queued", depends_on=["a"]))
    words = f"a queued job waits for nothing, but 'a' is {state}"
    assert said == ([] if state == "completed" else [(2, "metadata.depends_on", words)])


@pytest.mark.parametrize("state", [one for one in STATES if one != "queued"])
def test_only_a_queued_job_is_asked_for_its_dependencies(state: str) -> None:
    """The dependencies of a job are checked only in the state queued, but must be a list in every state."""
    assert found(job("a", state, depends_on=["x"])) == []
    assert [field for _, field, _ in found(job("a", state, depends_on="x"))] == ["metadata.depends_on"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("phase", ["ready", "executing", "validating", "completed", "failed", "cancelled"])
def test_a_workstream_of_one_job(phase: str, state: str) -> None:
    """A workstream of one job may be ready, executing, validating or completed only if the job's state fits."""
    right = {
        "ready": state in ("pending", "queued"),
        "executing": state not in ("pending", "queued"),
        "validating": state == "completed",
        "completed": state == "completed",
        "failed": True,
        "cancelled": True,
    }
    assert len(found(job("a", state, workstream_id="s"), stream(phase))) == (not right[phase])


@pytest.mark.parametrize("state", ["idle", "busy", "unresponsive", "shutdown", "initializing"])
def test_only_a_worker_at_rest_must_hold_nothing(state: str) -> None:
    """An idle worker, or one that has shut down, must have no running job and no active task; other workers may."""
    said = found(job("a", "running", worker_id="w"), worker(state, active_tasks=1))
    assert len(said) == (2 if state in ("idle", "shutdown") else 0)
