"""Ids of runs and tasks, as they are made and as a user gives them."""

from __future__ import annotations

import pytest

from supervisor.lifecycles.run_ids import GivenId, ambiguous_task, id_of_task, is_run_id, name_of_task, read_id
from supervisor.lifecycles.types import InvalidArgument


def test_an_id_of_a_run_is_r_and_a_number() -> None:
    """Only ``r`` followed by a number without leading zeros is the id of a run."""
    assert all(map(is_run_id, ("r1", "r10", "r207")))
    assert not any(map(is_run_id, ("r", "r0", "r01", "run-1", "r1#fix", "R1", "r1.5", "r-1", "")))


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("fix", GivenId("", "fix", "")),
        ("r7#fix", GivenId("r7", "fix", "")),
        ("r7#fix:t1:c1", GivenId("r7", "fix", ":t1:c1")),
        ("r7#fix/docs:t1", GivenId("r7", "fix", "/docs:t1")),
        ("fix-2/docs:t1:c1", GivenId("", "fix-2", "/docs:t1:c1")),
        ("lead/~/deep", GivenId("", "lead", "/~/deep")),
        ("r7", GivenId("", "r7", "")),
    ],
)
def test_an_id_is_read_as_run_name_and_what_is_below(text: str, given: GivenId) -> None:
    """The run stands before ``#``; a child session begins with a slash, a turn or a call with a colon."""
    assert read_id(text) == given


def test_a_run_may_be_given_beside_the_task() -> None:
    """The run is given in the id, beside the id, or in both, if they agree."""
    assert read_id("fix:t1", "r7") == read_id("r7#fix:t1") == read_id("r7#fix:t1", "r7")
    assert read_id("fix", "r7").task_id == id_of_task("r7", "fix") == "r7#fix"


@pytest.mark.parametrize(
    ("text", "run", "words"),
    [
        ("r1#fix", "r2", "run: 'r2' is not the run in 'r1#fix'; give one of them"),
        ("fix", "plan", "run: 'plan' is not the id of a run; give one like r1"),
        ("plan#fix", "", "id: 'plan#fix' is not RUN#TASK; give a run and a task, like r1#fix"),
        ("r1#", "", "id: 'r1#' is not RUN#TASK"),
        ("#fix", "", "id: '#fix' is not RUN#TASK"),
        ("r1#a#b", "", "id: 'r1#a#b' is not an id"),
    ],
)
def test_an_id_of_a_wrong_form_is_refused_with_the_fix(text: str, run: str, words: str) -> None:
    """An id that names no task of a run is refused with field, value and fix."""
    with pytest.raises(InvalidArgument) as refused:
        read_id(text, run)
    assert str(refused.value).startswith(words)


def test_the_ids_of_a_task_run_and_a_job_have_the_name_of_the_task() -> None:
    """The name of a task is found in the ids of all that belongs to the task; other ids are left as they are."""
    ids = ("r7#fix", "r7#fix:run", "r7#fix:job-2")
    assert {name_of_task(one) for one in ids} == {"fix"}
    assert [read_id(one).is_task_run_or_job for one in ids] == [False, True, True]
    assert [name_of_task(one) for one in ("fix-2", "worker:local", "r7")] == ["fix-2", "worker:local", "r7"]


def test_an_ambiguous_name_is_told_with_the_ids_to_give() -> None:
    """The error names each of the tasks in the form in which it can be given."""
    assert str(ambiguous_task("fix", ["r1", "r4"])) == "'fix' is a task of 2 running plans; give r1#fix or r4#fix"
