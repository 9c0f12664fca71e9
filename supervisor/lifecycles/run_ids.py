"""Ids of plan runs and of their tasks: how they are made, and how they are read.

A *run*, one execution of a plan, has the id ``r`` with the next free number of the state directory: ``r1``, ``r2``. No
task and no session may have such a name (``is_run_id``). Everything that belongs to one run has an id that begins with
the id of the run::

    r7                  the run
    r7#fix              its task ``fix``
    r7#fix:run          the task run of the first claim; the next one is r7#fix:run-2
    r7#fix:job          the job of that task run

A shell needs no quotes for these ids, since ``#`` begins a comment only at the beginning of a word. Sessions keep the
names of their tasks (``fix``, ``fix-2``), which are unique in a state directory. After ``RUN#TASK``, as after the name
of a session, a slash begins the name of a child session, and a colon a turn or a call.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from supervisor.lifecycles.types import InvalidArgument

RUN_PREFIX: Final = "r"
"""Beginning of the id of a run; a number follows."""
_RUN: Final = re.compile(rf"{RUN_PREFIX}[1-9][0-9]*")
_GIVEN: Final = re.compile(r"(?:(?P<run>[^#/:]*)#)?(?P<name>[^#/:]*)(?P<below>[/:].*)?", re.DOTALL)


def is_run_id(text: str) -> bool:
    """Return whether *text* has the form of the id of a run."""
    return _RUN.fullmatch(text) is not None


def id_of_task(run: str, name: str) -> str:
    """Return the id of the task *name* of a run."""
    return f"{run}#{name}"


def run_of(entity_id: str) -> str:
    """Return the run that the id of a run, or of something that belongs to it, begins with: ``r7`` for ``r7#fix``."""
    return entity_id.partition("#")[0]


def name_of_task(entity_id: str) -> str:
    """Return the name in the plan of the task that an id is about: ``fix`` for ``r7#fix`` and for ``r7#fix:run``. An id
    of another form is returned as it is."""
    given = _GIVEN.fullmatch(entity_id)
    return given["name"] if given is not None and given["run"] else entity_id


class GivenId(NamedTuple):
    """Id that a user has given: ``run`` is the id of the run, ``""`` if none was given; ``name`` the name of a task or
    session; ``below`` the rest, from the first slash or colon on."""

    run: str
    name: str
    below: str

    @property
    def task_id(self) -> str:
        """The id of the task that is meant; only if a run was given."""
        return id_of_task(self.run, self.name)

    @property
    def is_task_run_or_job(self) -> bool:
        """Whether the id is that of a task run or a job, and not of something that a session of the task has made."""
        return self.below.startswith((":run", ":job"))


def read_id(text: str, run: str = "") -> GivenId:
    """Read an id that a user has given, with the run that was given beside the id (``--run``).

    Raises:
        InvalidArgument: the run has not the form of the id of a run, or *run* and the run in *text* differ, or *text*
            lacks the task, or has a second ``#``.
    """
    if run and not is_run_id(run):
        raise InvalidArgument(f"run: {run!r} is not the id of a run; give one like r1")
    given = _GIVEN.fullmatch(text)
    if given is None:
        raise InvalidArgument(f"id: {text!r} is not an id; give a name like fix, or RUN#TASK like r1#fix")
    if given["run"] is None:
        return GivenId(run, given["name"], given["below"] or "")
    if not given["name"] or not is_run_id(given["run"]):
        raise InvalidArgument(f"id: {text!r} is not RUN#TASK; give a run and a task, like r1#fix")
    if run and run != given["run"]:
        raise InvalidArgument(f"run: {run!r} is not the run in {text!r}; give one of them")
    return GivenId(given["run"], given["name"], given["below"] or "")


def ambiguous_task(name: str, runs: Collection[str]) -> InvalidArgument:
    """Return the error for the name of a task that several running *runs* have."""
    ids = " or ".join(id_of_task(run, name) for run in runs)
    return InvalidArgument(f"{name!r} is a task of {len(runs)} running plans; give {ids}")
