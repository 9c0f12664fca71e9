"""Tests of the history of tasks: what counts for which task, its bounds, and history that does not fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from supervisor.journal.memory import MemoryJournal
from supervisor.lifecycles.types import RecordId
from supervisor.lifecycles.workstream import WorkstreamData
from supervisor.ports import EntityRow, JournalDamaged, Reader
from supervisor.work.plan_histories import read_history
from supervisor.work.task_history import RUNS_MAX, SAMPLES_MAX, Durations, RecordedTask, TaskHistory


def past(task: str, took_s: float, **given: Any) -> RecordedTask:
    usual = {"outcome": "completed", "agent": "a", "size": "large", "launches": 1, "tokens": 10, "cost_usd": 0.5}
    return msgspec.convert({"id": task, "attempt_s": took_s, **usual, **given}, RecordedTask)


def test_a_task_learns_from_itself_first() -> None:
    """The times of the task itself count from five on, before that the times of all tasks with its agent and size;
    those of another agent, or of another size, never do."""
    history = TaskHistory([past("t", 1.0), past("u", 2.0), past("t", 3.0, agent="b"), past("t", 4.0, size="small")])
    assert history.durations("t", "a", "large") == Durations((1.0, 2.0), "of large tasks of this plan with a")
    for took_s in (5.0, 6.0, 7.0, 8.0):
        history.note("t", "a", "large", took_s)
    assert history.durations("t", "a", "large") == Durations((1.0, 5.0, 6.0, 7.0, 8.0), "of this task")
    assert history.durations("new", "a", "large").seconds == (1.0, 2.0, 5.0, 6.0, 7.0, 8.0)
    assert history.durations("t", "c", "large") == Durations()


def test_only_completed_tasks_with_a_size_count() -> None:
    """A task that failed, and a task without a size, are in the history, and change no limit."""
    history = TaskHistory(
        [past("t", 1.0, outcome="failed"), past("t", 0.0, outcome="aborted"), past("t", 2.0, size="")]
    )
    assert [one.outcome for one in history.of_task("t")] == ["failed", "aborted", "completed"]
    assert history.durations("t", "a", "large") == history.durations("t", "a", "") == Durations()


def test_the_memory_is_bounded() -> None:
    """Only the latest times of a task, and the newest runs of it, are kept."""
    history = TaskHistory(past("t", float(number)) for number in range(1, SAMPLES_MAX + 4))
    assert history.durations("t", "a", "large").seconds == tuple(float(one) for one in range(4, SAMPLES_MAX + 4))
    assert len(history.of_task("t")) == RUNS_MAX


# ---------------------------------------------------------------------------------------------------- what is wrong
class Results:
    """Reader of a journal with these results of runs of a plan, by run."""

    def __init__(self, **results: dict[str, Any]) -> None:
        self._results = results

    def entities(self, **_: Any) -> list[EntityRow]:
        data = msgspec.json.encode(WorkstreamData(name="plan", tasks=1))
        return [row_of(run, number, data) for number, run in enumerate(self._results)]

    def events(self, run: str, **_: Any) -> list[SimpleNamespace]:
        told = [
            SimpleNamespace(event="Born", metadata={}),
            SimpleNamespace(event="Result", metadata=self._results[run]),
        ]
        return told[: 1 + bool(self._results[run])]


def row_of(run: str, number: int, data: bytes) -> EntityRow:
    return EntityRow(
        kind="workstream",
        id=run,
        parent_id=None,
        state="completed",
        data=data,
        entity_seq=1,
        ended=True,
        born_seq=RecordId(number),
        born_at=0.0,
        changed_at=0.0,
    )


def test_a_result_of_another_version_teaches_nothing() -> None:
    """Runs whose results lack what the history needs are named in a single warning, with their state directory;
    the other runs teach. A run without a result was given up, and a run that only merged a task has not done it."""
    good = {"tasks": [msgspec.to_builtins(past("t", 5.0)), msgspec.to_builtins(past("u", 0.0, launches=0))]}
    old = {"tasks": [{"id": "t", "outcome": "completed", "launches": 1, "tokens": 0, "cost_usd": 0.0}]}
    reader: Any = Results(**{f"r{number}": old for number in range(1, 8)}, r8=good, r9={})
    history = read_history(reader, "plan", where=".sdd")
    assert history.durations("t", "a", "large").seconds == (5.0,)
    assert history.of_task("u") == ()
    (words,) = history.warnings
    start = (
        "runs r1, r2, r3, r4, r5 and others teach nothing: their results in the journal of .sdd do not fit this version"
    )
    assert words == f"{start} (Object missing required field `agent` - at `$.tasks[0]`)"


def test_only_the_newest_runs_are_read() -> None:
    """Of more than twenty runs, those that began last count."""
    runs = {f"r{number}": {"tasks": [msgspec.to_builtins(past("t", float(number)))]} for number in range(1, 31)}
    reader: Any = Results(**runs)
    assert read_history(reader, "plan", where="").durations("t", "a", "large").seconds == tuple(
        map(float, range(11, 31))
    )
    assert read_history(reader, "other", where="").of_task("t") == ()


class Archived:
    """Reader of a journal whose archives are damaged."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def entities(self, *, archived: bool = False, **given: Any) -> Any:
        if archived:
            raise JournalDamaged("/s/archive/journal-000001.db is not there: put the file back")
        return self._reader.entities(**given)


async def _nothing(*_: Any) -> Any:
    for one in ():
        yield one


def test_an_archive_that_is_missing_is_named() -> None:
    """If an archive is missing, the journal alone teaches, and a warning names the file."""
    with MemoryJournal().reader(_nothing) as reader:
        history = read_history(Archived(reader), "plan", where=".sdd")
    assert history.warnings == [
        "runs in archives teach nothing: /s/archive/journal-000001.db is not there: put the file back"
    ]
