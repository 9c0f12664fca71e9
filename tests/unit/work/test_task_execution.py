"""Tests of the execution of a task in one process: what it needs, and where its next run begins."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.plans.tasks import TaskConfig
from supervisor.work.task_execution import Checkpoint, TaskExecution, checkpoint_after

pytestmark = pytest.mark.anyio


def execution(**more: Any) -> TaskExecution:
    """Return the execution of a task without an entity, so that no supervisor is needed."""
    supervisor: Any = None
    return TaskExecution(supervisor, TaskConfig(**{"id": "t", "agent": "a", "prompt": "do it", **more}))


# ------------------------------------------------------------------------------------------------------------ claims
async def test_an_imported_task_is_settled_with_its_former_result() -> None:
    """A task closed by the resumed run has no entity, and takes session, job and result from that run."""
    one = execution()
    one.import_closed("task:t", "t", "job:t", "completed", "")

    assert (one.is_imported, one.is_opened) == (True, False)
    assert (one.id, one.completed_job) == ("task:t", "job:t")
    assert one.result is not None
    assert one.is_met


async def test_a_task_needs_its_dependencies_and_the_task_of_its_condition() -> None:
    """The task named in a condition must be settled before; only a dependency must also be completed. A task that was
    closed by the resumed run is not waited for."""
    one = execution(depends_on=("a", "b"), when={"task": "c", "outcome": "failed"})
    tasks = {name: execution(id=name) for name in "abc"}
    for each in (one, *tasks.values()):
        each.earlier_id = f"task:{each.name}"
    tasks["b"].is_imported = True

    assert one.needed == ("a", "b", "c")
    item = one.backlog_item("workstream:p", "", "shell:sh", tasks)
    assert (item.id, item.plan, item.provider) == ("task:t", "workstream:p", "shell:sh")
    assert (item.depends_on, item.after) == (("task:a",), ("task:c",))


def test_files_of_runs_in_two_directories_do_not_overlap() -> None:
    """Owned files of a run with a directory of its own are compared with that directory."""
    one = execution(files=("src", "."))
    one.earlier_id = "task:t"
    assert one.backlog_item("workstream:p", "", "shell:sh", {}).files == ("src", ".")
    assert one.backlog_item("workstream:p", "/home/me/a", "shell:sh", {}).files == ("home/me/a/src", "home/me/a/.")


# ------------------------------------------------------------------------------------------------------- checkpoints
SAVED = TaskRunData(saved_in=TaskRun.FAILED, saved_as="c0ffee", resumed_from="run:t-1", resumed_at="beef")
RESUMED = TaskRunData(resumed_from="run:t-1", resumed_at="beef")


@pytest.mark.parametrize(
    ("state", "data", "rollback", "expected"),
    [
        (TaskRun.FAILED, SAVED, False, Checkpoint("run:t", "c0ffee")),
        (TaskRun.CANCELLED, SAVED, False, Checkpoint("run:t", "c0ffee")),
        (TaskRun.FAILED, SAVED, True, Checkpoint("run:t-1", "beef")),
        (TaskRun.FAILED, RESUMED, False, Checkpoint("run:t-1", "beef")),
        (TaskRun.FAILED, TaskRunData(), False, None),
        (TaskRun.COMPLETED, SAVED, False, None),
    ],
)
async def test_the_next_run_begins_with_the_last_work_that_was_kept(
    state: TaskRun, data: TaskRunData, rollback: bool, expected: Checkpoint | None
) -> None:
    """The next run begins from this run's checkpoint, or, if its work is rolled back, from the checkpoint that it began
    from."""
    assert checkpoint_after("run:t", state, data, rollback=rollback) == expected
