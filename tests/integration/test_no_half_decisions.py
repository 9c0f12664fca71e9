"""Check that no crash leaves half of a decision: after every append of the journal, a task, its task run and its job
agree.

Each plan runs on a journal that copies its content after each append, and each append has as few records as possible.
For each copy another supervisor continues the plan, as after a kill -9 at that append. Whether the entities agree is
read from the journal's rows alone, after each append of the first supervisor and of each later one.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors import failpoint
from supervisor.host.api import Supervisor
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles.types import Kind, NoSuchEntity
from supervisor.plans import AgentConfig, Plan
from supervisor.ports import Append, EntityRow
from supervisor.runtime.entity import Refused
from supervisor.work.plan_runner import PlanRunner
from tests.support import data_of, quick_settings, taking_over, wait_for_record
from tests.task_fit import GOING, misfits

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

BOUNDS = quick_settings(ladder={"request_s": 0.1, "cancel_s": 0.1}, max_total_errors=9, max_consecutive_errors=9)
QUICK = {"base_retry_delay": 0, "max_retry_delay": 0, "max_attempts": 2, "circuit_breaker": {"enabled": False}}
ONCE = "test -e tried || { touch tried; exit 1; }"
"""Shell command as a prompt, whose first attempt fails and whose second succeeds."""

WORK = frozenset({Kind.TASK, Kind.RUN, Kind.JOB})


def newest(rows: Sequence[EntityRow], kind: Kind, task: EntityRow) -> EntityRow | None:
    found = [row for row in rows if row.kind == kind and row.parent_id == task.id]
    return max(found, key=lambda row: row.born_seq, default=None)


def halves(rows: Sequence[EntityRow]) -> Iterator[str]:
    """Yield a sentence for each task whose state does not agree with that of its task run or its job."""
    for task in [row for row in rows if row.kind == Kind.TASK]:
        run, job = newest(rows, Kind.RUN, task), newest(rows, Kind.JOB, task)
        if run is None:
            yield f"{task.id} has no run"
            continue
        for words in misfits(task.state, run.state, job.state if job is not None else ""):
            yield f"{task.id}: {words}"


def without_worker(rows: Sequence[EntityRow]) -> Iterator[str]:
    """Yield a sentence for each job that is running on a worker that is not busy."""
    states = {row.id: row.state for row in rows}
    for row in [row for row in rows if row.kind == Kind.JOB and row.state == "running"]:
        if states[data_of(row).worker_id] != "busy":
            yield f"{row.id} runs on {data_of(row).worker_id}, which is {states[data_of(row).worker_id]}"


class CheckedJournal(MemoryJournal):
    """Journal that checks after each append that the entities agree; it saves a copy of its content after each append
    with a record of a task, a task run or a job."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.kept, self.found = list[MemoryStore](), list[str]()

    async def append(self, batch: Sequence[Append]) -> None:
        await super().append(batch)
        rows = await self.entities()
        first_life = without_worker(rows) if self.generation == 1 else ()
        events = [f"{one.record.entity_id} {one.record.event}" for one in batch]
        self.found += [f"{words}, after {events}" for words in (*halves(rows), *first_life)]
        if any(one.record.entity_type in WORK for one in batch):
            self.kept.append(copy.deepcopy(self._store))


def plan_of(*tasks: dict[str, Any]) -> Plan:
    settings = {"limits": BOUNDS.limits, "policy": BOUNDS.policy, "drain_s": BOUNDS.drain_s}
    agents = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}
    listed = [{"agent": "sh", "prompt": "true", "max_retries": 0, **one} for one in tasks]
    recovery = {"orphans": "open", "sessions": "restart"}
    wanted = {"agents": agents, "tasks": listed, "task_lifecycle": QUICK, "recovery": recovery, **settings}
    return Plan.model_validate(wanted)


Operator = Callable[[PlanRunner], Awaitable[object]]


def gives(*commands: tuple[str, str, str, int]) -> Operator:
    """Return an operator function that sends each of *commands*, (verb, task, event, number), as soon as the log of
    ``a`` has that number of records of the event."""

    async def give(runner: PlanRunner) -> None:
        for verb, task, after, number in commands:
            await wait_for_record(Supervisor(runner.plan_run.sup), after, "r1#a", number=number)
            on = (["a person"],) if verb == "block" else ()
            with suppress(NoSuchEntity, Refused):  # an earlier supervisor has carried it out
                await getattr(runner.commands, verb)(task, *on, by="operator", reason="enough")

    return give


async def carry_out(workdir: Path, store: MemoryStore, plan: Plan, operator: Operator | None) -> CheckedJournal:
    """Run *plan* to its end on a supervisor, or continue it from *store*; assert that the entities agreed after every
    append."""
    (workdir / "tried").unlink(missing_ok=True)
    journal = CheckedJournal(store)
    async with taking_over(journal, workdir, agents=plan.agents, settings=plan.settings) as sup:
        runner = PlanRunner(sup.core)

        async def run() -> None:
            await runner.run(plan)
            runner.note_reported("the test has it")
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            if operator is not None:
                while not runner.begun.is_set():
                    await anyio.lowlevel.checkpoint()
                group.start_soon(operator, runner)
    assert journal.found == []
    left = [f"{row.id} {row.state}" for row in store.entities.values() if row.kind == Kind.TASK and row.state in GOING]
    assert left == []
    for row in [row for row in store.entities.values() if row.kind == Kind.TASK]:
        events = [one for one in store.logs[row.id].after(0, 10_000) if one.outcome == "transition"]
        letters = [one for one in events if one.event == "DeadLettered"]
        failures = [one for one in events if one.to_status == "FAILED" and one not in letters]
        assert len(letters) <= len(failures)  # each is told once
    return journal


FALSE = [{"command": ["false"]}]
LONG = plan_of({"id": "a", "prompt": "sleep 60"})
PLANS: dict[str, tuple[Plan, Operator | None]] = {
    "verified and merged": (plan_of({"id": "a", "acceptance": [{"command": ["true"]}]}), None),
    "rejected, tried again, failed": (plan_of({"id": "a", "acceptance": FALSE, "max_retries": 1}), None),
    "failed, tried again, done": (plan_of({"id": "a", "prompt": ONCE}), None),
    "failed for good, the next one blocked": (
        plan_of({"id": "a", "prompt": "false"}, {"id": "b", "depends_on": ["a"]}),
        None,
    ),
    "skipped": (plan_of({"id": "a", "when": {"file_exists": "none"}, "subtasks": [{"id": "a1", "agent": "sh"}]}), None),
    "split": (plan_of({"id": "a", "subtasks": [{"id": "a1", "agent": "sh", "prompt": "true"}]}), None),
    "split, the whole rejected": (
        plan_of({"id": "a", "acceptance": FALSE, "subtasks": [{"id": "a1", "agent": "sh", "prompt": "true"}]}),
        None,
    ),
    "split, a part failed": (
        plan_of({"id": "a", "subtasks": [{"id": "a1", "agent": "sh", "prompt": "false", "max_retries": 0}]}),
        None,
    ),
    "cancelled": (LONG, gives(("cancel", "a", "started", 1))),
    "taken away, then cancelled": (LONG, gives(("requeue", "a", "started", 1), ("cancel", "a", "started", 2))),
    "blocked, unblocked, then cancelled": (
        LONG,
        gives(("block", "a", "started", 1), ("unblock", "a", "blocked", 1), ("cancel", "a", "started", 2)),
    ),
    "tried again, and the next one rejected": (
        plan_of({"id": "a", "prompt": "false"}, {"id": "b", "approval": "before"}),
        gives(("retry", "a", "DeadLettered", 1), ("reject", "b", "DeadLettered", 2)),
    ),
    "approved": (plan_of({"id": "a", "approval": "after"}), gives(("approve", "a", "approval_requested", 1))),
    "denied": (plan_of({"id": "a", "approval": "after"}), gives(("reject", "a", "approval_requested", 1))),
}


@pytest.mark.parametrize("name", PLANS)
async def test_a_crash_at_any_append_leaves_no_half(tmp_path: Path, name: str) -> None:
    plan, operator = PLANS[name]
    with failpoint.controlled_by(lambda point, subject: point == "ledger.batch_of_one"):
        first = await carry_out(tmp_path, MemoryStore(), plan, operator)
        assert len(first.kept) >= 3
        for left in first.kept:
            await carry_out(tmp_path, left, plan, operator)
