"""Backlog: a directory of files that a daemon takes as submissions, each of them a plan or one task.

Theory of operation
-------------------
A file moves by ``rename`` alone, so that the directory it is in says what is left to do, also after a kill::

    open/NAME      whoever has a plan renames it to here: from then on the file is complete
    claimed/NAME   this daemon takes it: read, submit with a key of its name and content, wait for the end of the run
    closed/NAME    the run has ended; or the file was bad, and closed/NAME.error says why

The key makes the submission happen once, however often a daemon is killed: the journal knows the run of the key. A kill
before the run is on the disk leaves the file in ``claimed/`` without a run, and the next daemon submits it. A file with
name and content of an earlier one starts nothing, and gets an error that names the run.

The service looks at the directory every ``LOOK_S`` seconds, which costs a system call or two. A directory that cannot
be read or written is logged once, and looked at again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec

from supervisor.daemon.daemon import Daemon
from supervisor.plans.daemon_control import PlanRequest
from supervisor.plans.source import BYTES_MAX, BadPlan, read_source
from supervisor.ports.logs import get_logger
from supervisor.ports.secure_files import make_private, write_private
from supervisor.runtime.entity import Refused

LOOK_S: Final = 1.0
"""Seconds between two looks at the directory."""
BY: Final = "backlog"
"""Name under which the submissions are recorded."""

_log = get_logger()


class _Bad(Exception):
    """Error: nothing is started of a file; the message is for the file beside it."""


class BacklogDirectory:
    """The backlog of *daemon* in *folder*. Agents of a file work in *workdir*, unless the file says otherwise."""

    def __init__(self, folder: Path, workdir: Path, daemon: Daemon) -> None:
        self._open, self._claimed, self._closed = (folder / name for name in ("open", "claimed", "closed"))
        self._workdir, self._daemon = workdir, daemon
        self._runs: dict[str, str] = {}
        """Runs of the files in ``claimed/``, by the name of the file."""
        self._problem = ""

    async def run(self) -> None:
        """Take files until the daemon ends."""
        while not self._daemon.ending.is_set():
            try:
                await self._look()
                self._problem = ""
            except (OSError, Refused) as error:  # Refused: no plan is taken now, as without disk space
                if str(error) != self._problem:
                    self._problem = str(error)
                    _log.warning("the backlog waits", folder=str(self._open.parent), why=self._problem)
            with anyio.move_on_after(LOOK_S):
                await self._daemon.ending.wait()

    async def _look(self) -> None:
        """Take the files that are there, and put those away whose runs have ended."""
        for folder in (self._open, self._claimed, self._closed):
            make_private(folder)
        for name in _names(self._claimed):
            if name not in self._runs:  # of an earlier daemon, or no plan could be taken
                await self._take(name, is_new=False)
        for name in _names(self._open):
            if name not in self._runs:  # else a file of that name is at work: this one waits
                await anyio.to_thread.run_sync(_move, self._open / name, self._claimed / name)
                await self._take(name, is_new=True)
        for name, run in list(self._runs.items()):
            if await self._daemon.has_ended(run):
                await anyio.to_thread.run_sync(self._close, name)
                del self._runs[name]

    async def _take(self, name: str, *, is_new: bool) -> None:
        """Submit the claimed file *name*, or find its run."""
        try:
            request = await anyio.to_thread.run_sync(self._request, name)
            assert request.key is not None
            run = self._daemon.run_of(request.key)
            if run and is_new:
                raise _Bad(f"{name}: run {run} was begun with a file of this name and content; use another name")
            self._runs[name] = run or (await self._daemon.submit(request)).run
        except (_Bad, BadPlan, ValueError) as error:
            _log.warning("a file of the backlog is bad", file=name, why=str(error))
            await anyio.to_thread.run_sync(self._close, name, str(error))

    def _request(self, name: str) -> PlanRequest:
        """Return the request for the claimed file *name*.

        Raises:
            _Bad, BadPlan: the file is no plan and no task.
            OSError: the file cannot be read now.
        """
        path = self._claimed / name
        content = _content(path)
        digest = hashlib.sha256(content).hexdigest()[:16]
        data = read_source(Path(name), content).data
        text = content.decode("utf-8-sig")
        if isinstance(data, Mapping) and "tasks" not in data:
            text = msgspec.json.encode(_plan_of(data)).decode()
        return PlanRequest(text=text, source=name, directory=str(self._workdir), key=f"{BY}:{digest}:{name}", by=BY)

    def _close(self, name: str, error: str = "") -> None:
        """Move a claimed file to ``closed/``, with *error* beside it. The error is there first, so that no bad file is
        closed without."""
        number, closed = 1, name
        while os.path.lexists(self._closed / closed):
            number += 1
            closed = f"{name}.{number}"
        if error:
            write_private(self._closed / f"{closed}.error", f"{error}\n")
        with suppress(FileNotFoundError):  # somebody has removed it
            _move(self._claimed / name, self._closed / closed)


def _plan_of(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a plan of one task, with the agents of the daemon's configuration."""
    name = task.get("id")
    return {"tasks": [task], **({"workstream": name} if isinstance(name, str) else {})}


def _names(folder: Path) -> list[str]:
    """Return the names of the files in *folder*, in order; hidden ones are not complete."""
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def _content(path: Path) -> bytes:
    """Return the content of a regular file, at most a byte more than a plan may have.

    Raises:
        _Bad: the file is a link, a directory, a device or a pipe.
        OSError: the file cannot be read.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise _Bad(f"{path.name}: is not a regular file; rename a file into place")
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(BYTES_MAX + 1)
    except PermissionError as error:
        raise _Bad(f"{path.name}: cannot be read: {error.strerror}; make it readable for the daemon") from None


def _move(source: Path, target: Path) -> None:
    """Rename a file durably."""
    os.rename(source, target)
    for folder in (source.parent, target.parent):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
