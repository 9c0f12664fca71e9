"""Tests of the execution of a task in one process: phases, the claim that is carried out, and interruptions."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from supervisor.lifecycles.task import Unclaimed
from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.plans.tasks import TaskConfig
from supervisor.work.leases import Claim
from supervisor.work.task_execution import ActiveClaim, Checkpoint, Phase, TaskExecution, checkpoint_after

pytestmark = pytest.mark.anyio

CLAIM = Claim("t", "worker:local", 1, float("inf"))


def execution(**more: Any) -> TaskExecution:
    """Return the execution of a task without an entity, so that no supervisor is needed."""
    supervisor: Any = None
    return TaskExecution(supervisor, TaskConfig(**{"id": "t", "agent": "a", "prompt": "do it", **more}))


# ------------------------------------------------------------------------------------------------------------ phases
async def test_a_claim_leads_to_attempt_and_back_to_idle() -> None:
    """A claim that ends without a result brings the task back to phase IDLE."""
    one = execution()
    assert (one.phase, one.active) == (Phase.IDLE, None)

    active = one.begin_claim(CLAIM)
    assert (one.phase, one.active, one.claim) == (Phase.ATTEMPT, active, CLAIM)

    one.end_claim()
    assert (one.phase, one.active) == (Phase.IDLE, None)
    assert one.claim is CLAIM, "the worker has a slot reserved until the claim is given back"


@pytest.mark.parametrize("phase", [Phase.ENDING, Phase.SETTLED])
async def test_a_claim_that_ends_its_task_does_not_make_it_idle(phase: Phase) -> None:
    """A task that ended while it was carried out stays ended when its attempt runner releases it."""
    one = execution()
    one.begin_claim(CLAIM)
    one.phase = phase
    one.end_claim()

    assert one.phase is phase
    assert one.is_over


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.FOLLOWED, Phase.ATTEMPT])
async def test_a_task_may_be_begun_until_its_end_begins(phase: Phase) -> None:
    """Only a task that is being ended, or is settled, counts as over; in the other phases it may be begun."""
    one = execution()
    one.phase = phase

    assert not one.is_over


async def test_an_imported_task_is_settled_with_its_former_result() -> None:
    """A task closed by the resumed run has no entity, and takes session, job and result from that run."""
    one = execution()
    one.import_closed("task:t", "t", "job:t", "completed", "")

    assert (one.phase, one.is_imported, one.is_opened) == (Phase.SETTLED, True, False)
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
    item = one.backlog_item("workstream:p", "shell:sh", tasks)
    assert (item.id, item.plan, item.provider) == ("task:t", "workstream:p", "shell:sh")
    assert (item.depends_on, item.after) == (("task:a",), ("task:c",))


# ----------------------------------------------------------------------------------------------------- interruptions
async def test_an_interruption_cancels_the_attempt() -> None:
    """An interruption cancels the attempt; it is not reported as done before the runner has taken the task away."""
    active = ActiveClaim()
    interruption = active.interrupt("taken away by ann")
    with active.scope:
        await anyio.sleep_forever()

    assert active.scope.cancelled_caught
    assert not interruption.done.is_set()


async def test_two_interruptions_of_one_attempt_are_one() -> None:
    """Two callers that interrupt one attempt have the same interruption object, with the reason of the latest
    request."""
    active = ActiveClaim()
    first = active.interrupt("taken away by ann")
    second = active.interrupt("blocked by bob", ("task:x",))

    assert first is second
    assert (first.why, first.blocked_on) == ("blocked by bob", ("task:x",))


async def test_the_loss_of_the_worker_overrides_a_block() -> None:
    """If the worker is lost after a request to block the task, the interruption says that the worker was lost."""
    active = ActiveClaim()
    interruption = active.interrupt("blocked by bob", ("task:x",))
    active.interrupt("its worker was lost", lost=True)

    assert interruption.lost
    assert interruption.blocked_on == ("task:x",)


async def test_a_runner_that_lets_go_answers_everybody() -> None:
    """A runner that releases a task wakes every waiting command, even if no event took the task away."""
    active = ActiveClaim()
    interruption = active.interrupt("taken away by ann")
    active.release()

    assert active.decided.is_set()
    assert active.released.is_set()
    assert interruption.done.is_set()
    assert interruption.event is None


async def test_an_interruption_that_was_met_keeps_its_event() -> None:
    """The event of an interruption that was carried out stays after the release of the claim."""
    active = ActiveClaim()
    interruption = active.interrupt("taken away by ann")
    interruption.event = Unclaimed(reason=interruption.why)
    active.release()

    assert isinstance(interruption.event, Unclaimed)


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
