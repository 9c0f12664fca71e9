"""Check that the states of a task, its task run and its job fit each other, as they must after every decision."""

from __future__ import annotations

from collections.abc import Iterator

GOING = frozenset({"PLANNED", "OPEN", "CLAIMED", "IN_PROGRESS", "WAITING_FOR_SUBTASKS", "BLOCKED"})
"""States of a task that has not ended, and whose run and job may still move."""
PASSING = {"run": frozenset({"FAILED", "TIMEOUT"}), "task": frozenset({"ORPHANED"})}
"""States that a decision passes, and never rests in (rule 35)."""
RUN_ENDS = frozenset({"COMPLETED", "SKIPPED", "CANCELLED"})
JOB_ENDS = frozenset({"completed", "failed", "cancelled"})
JOBS_OF_RUN = {
    "IN_PROGRESS": {"running", "queued"},
    "VALIDATING": {"validating"},
    "COMPLETED": {"completed"},
    "SKIPPED": {"", "cancelled"},
    "CANCELLED": {"", "cancelled", "failed"},
}
"""States that a job may have while its task run is in the state of the key; ``""`` stands for no job."""
JOBS_OF_OTHERS = {"", "pending", "queued", "running", "retrying", "failed"}
"""States of a job whose task run is in any other state: it may also wait."""


def misfits(task: str, run: str, job: str) -> Iterator[str]:
    """Yield a sentence for each pair of states that do not fit each other; *job* is ``""`` if there is none."""
    rests = run == "CIRCUIT_OPEN" and task == "FAILED"
    if (run in RUN_ENDS) is not (task not in GOING) and not rests:
        yield f"the task is {task}, and its run {run}"
    # A task that failed while its job waited has no attempt that the job could have failed with.
    if job not in JOBS_OF_RUN.get(run, JOBS_OF_OTHERS) and not (rests and job == "cancelled"):
        yield f"the run is {run}, and its job {job}"
    if job and (job in JOB_ENDS) is not (task not in GOING):
        yield f"the task is {task}, and its job {job}"
    if run in PASSING["run"] or task in PASSING["task"]:
        yield f"the task is {task} and its run {run}: states that are only passed"
