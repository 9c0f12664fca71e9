"""Journals on disk that no supervisor of this process owns: they are read, checked and compacted from here.

No other module outside of ``supervisor.journal`` opens a journal by its path, but for the supervisor that owns it
(``runtime``). Commands and other interfaces have a :class:`supervisor.ports.Reader`, from here or from
``Supervisor.reader``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from supervisor.control.error_messages import NotRunning
from supervisor.journal.archive import compact_database
from supervisor.journal.database import open_database
from supervisor.journal.history import History, check_file
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId
from supervisor.policies.argument_checks import check_types
from supervisor.ports import Compacted, CompactionFailed, FileCheck, JournalError, Reader, Retention


@contextmanager
def open_reader(state_dir: Path | str) -> Iterator[Reader]:
    """Read the journal of a state directory and its archives, whether or not a supervisor runs there. The
    journal is not changed, and a supervisor is never delayed.

    Args:
        state_dir: the state directory, such as ``.sdd``.

    Raises:
        TypeError: *state_dir* is no path.
        StateDirError: there is no state directory, or this user may not read it.
        JournalError: there is no journal, the journal is of another version, or the file is no journal.
    """
    check_types(str, Path, state_dir=state_dir)
    with read_state(StateDir.open(Path(state_dir), create=False)) as reader:
        yield reader


def read_state(state: StateDir) -> History:
    """Return the reader of a state directory that is open, a context manager.

    Raises:
        JournalError: as for :func:`open_reader`.
    """
    return History(state.journal, follow=partial(_follow, state))


async def _follow(
    state: StateDir, entity_id: str | None = None, after_seq: RecordId = BEGINNING
) -> AsyncGenerator[LifecycleEvent, None]:
    """Receive records from the running supervisor, past ones first; without a supervisor, only read these.

    Raises:
        ControlError: the supervisor was killed, or does not reply.
    """
    from supervisor.control.client import request  # here, since these import an event loop and the models of requests
    from supervisor.control.requests import Follow

    try:
        async with aclosing(request(state.control_socket, Follow(after=after_seq, id=entity_id))) as replies:
            async for reply in replies:
                yield msgspec.convert(reply["event"], LifecycleEvent)
    except NotRunning:
        with History(state.journal) as history:
            for event in history.events(entity_id, after_seq):
                yield event


def open_file(path: Path) -> History:
    """Return the reader of the journal or archive at *path*, a context manager. Beside the methods of ``Reader``, the
    object has what only files have: checks, and effects.

    Raises:
        JournalError: the file does not exist, is of another version, or is no journal.
    """
    return History(path)


def check_files(path: Path, *, archives: bool) -> Iterator[FileCheck]:
    """Check the journal or archive at *path*, and with *archives* every archive of the journal.

    Raises:
        JournalError: as for :func:`open_file`.
    """
    with History(path) as history:
        yield from history.check() if archives else [check_file(path)]


def compact_files(state: StateDir, retention: Retention, now: float) -> Compacted:
    """Compact the journal of a state directory whose lock the caller holds, and give the freed space back to the disk.
    *now* is Unix time.

    Raises:
        JournalError: the journal cannot be opened.
        CompactionFailed: the journal was opened, and the compaction did not finish.
    """
    with closing(open_database(state.journal, state.transitions)) as database:
        try:
            return compact_database(database, state.archive, retention, now)
        except JournalError as error:
            raise CompactionFailed(str(error)) from error
