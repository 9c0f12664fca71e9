"""Replicas: copies of the journals of other hosts, as journals of their own, so that every reader can read them.

A replica lies in ``fleet/hosts/HOST/EPOCH/journal.db`` of the state directory. ``replica.json`` beside the epochs says
which of them is shown, and how far the one that is being written has come: a new epoch is shown when it has what the
host's journal had at its beginning, and the former one is removed then.

Everything that is here can be read again from the log, which has each host's present epoch from its first batch: a
replica that is damaged, or has missed a batch, is made again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from supervisor.fleet.batches import BadBatch, Batch, appends_of, decode_batch
from supervisor.fleet.options import NAME
from supervisor.fleet.ports import EngineUnavailable, Entry, EventLog
from supervisor.fleet.replica_files import (
    EPOCH,
    ReplicaState,
    home_of,
    journal_of,
    read_replica_state,
    replicated_hosts,
)
from supervisor.journal.sqlite import SqliteJournal
from supervisor.ports import JournalError, JournalUnavailable
from supervisor.ports.logs import get_logger
from supervisor.ports.secure_files import make_private, write_private

_POSITION: Final = "position"

_log = get_logger()


class Replicas:
    """Replicas in *folder*, which belongs to the host *own*; must be closed."""

    def __init__(self, log: EventLog, folder: Path, own: str) -> None:
        self._log, self._folder, self._own = log, folder, own
        self._open: dict[str, SqliteJournal] = {}
        self.states: dict[str, ReplicaState] = {
            host: read_replica_state(folder, host) for host in replicated_hosts(folder)
        }
        self._number = _read_number(folder / _POSITION)
        """Number of the last entry that was taken."""
        self._is_checked = False
        """Whether the log is known to be the one that the number is from."""

    async def step(self) -> bool:
        """Take the next entry of the log; return whether there was one.

        Raises:
            EngineUnavailable: the engine does not answer.
            JournalError, OSError: the replica cannot be written; the entry is taken again.
        """
        try:
            if not self._is_checked:
                if await self._log.end() < self._number:  # its streams were deleted, and made again
                    self._number = 0
                self._is_checked = True
            entry = await self._log.following(self._number)
        except EngineUnavailable:
            self._is_checked = False
            raise
        if entry is None:
            return False
        if entry.key != self._own and NAME.fullmatch(entry.key):
            await self._take(entry)
        self._number = entry.number
        write_private(self._folder / _POSITION, str(self._number))
        return True

    async def _take(self, entry: Entry) -> None:
        state = self.states.setdefault(entry.key, ReplicaState())
        make_private(home_of(self._folder, entry.key))
        try:
            batch = _read_batch(entry)
            if batch.epoch == state.epoch and batch.number <= state.number:
                return  # taken before, when the position was not written any more
            is_next = batch.number == state.number + 1 if batch.epoch == state.epoch else batch.number == 1
            if is_next:
                await self._add(entry, batch)
                return
        except BadBatch as error:
            self._report(entry.key, str(error))
            return
        except JournalUnavailable:
            raise
        except JournalError as error:  # damaged, of another version, or with a gap
            _log.warning("the replica of a host is made again", host=entry.key, why=str(error))
        await self._make_again(entry)

    async def _make_again(self, entry: Entry) -> None:
        """Read all entries of a host again, up to *entry*."""
        host = entry.key
        await self._forget(host)
        self.states[host] = ReplicaState(shown=self.states[host].shown)
        number = 0
        try:
            while number < entry.number and (found := await self._log.following(number, host)) is not None:
                batch = _read_batch(found)
                if batch.number == 1 or batch.epoch == self.states[host].epoch:
                    await self._add(found, batch)
                number = found.number
        except JournalUnavailable:
            raise
        except (BadBatch, JournalError) as error:
            self._report(host, str(error))
            return
        if not self.states[host].epoch:
            self._report(host, "the beginning of its records is missing; restart the daemon there")

    async def _add(self, entry: Entry, batch: Batch) -> None:
        """Write a batch into the epoch that it belongs to, and show the epoch once it is complete."""
        host, state = entry.key, self.states[entry.key]
        if batch.epoch != state.epoch:
            await self._forget(host)
            await anyio.to_thread.run_sync(self._remove, host, [batch.epoch])  # what a kill has left of it
            state.epoch, state.until = batch.epoch, batch.until
        journal = await self._opened(host, state.epoch)
        await journal.append(appends_of(batch, journal.last_seq))
        state.number, state.position, state.stored_at, state.problem = batch.number, batch.last, entry.stored_at, ""
        is_new = state.shown != state.epoch and state.position >= state.until
        if is_new:
            state.shown = state.epoch
        self._write(host, state)
        if is_new:
            others = [one for one in _epochs(home_of(self._folder, host)) if one != state.epoch]
            await anyio.to_thread.run_sync(self._remove, host, others)

    async def _opened(self, host: str, epoch: str) -> SqliteJournal:
        if host not in self._open:
            path = journal_of(self._folder, host, epoch)
            make_private(path.parent)
            self._open[host] = await SqliteJournal.open(path, jsonl=None)
        return self._open[host]

    async def _forget(self, host: str) -> None:
        """Close the journal of a host."""
        if (journal := self._open.pop(host, None)) is not None:
            try:
                await journal.close()
            except JournalError as error:
                _log.warning("the replica of a host was not closed in order", host=host, why=str(error))

    def _report(self, host: str, problem: str) -> None:
        state = self.states[host]
        if state.problem != problem:
            _log.error("the records of a host cannot be shown", host=host, why=problem)
        state.problem = problem
        self._write(host, state)

    def _write(self, host: str, state: ReplicaState) -> None:
        write_private(home_of(self._folder, host) / "replica.json", msgspec.json.encode(state).decode())

    def _remove(self, host: str, epochs: list[str]) -> None:
        for epoch in epochs:
            shutil.rmtree(home_of(self._folder, host) / epoch, ignore_errors=True)

    async def close(self) -> None:
        for host in list(self._open):
            await self._forget(host)


def _read_batch(entry: Entry) -> Batch:
    batch = decode_batch(entry.body or b"")
    if not EPOCH.fullmatch(batch.epoch):
        raise BadBatch(f"an entry of the log is no batch of records: its epoch is {batch.epoch[:40]!r}")
    return batch


def _epochs(home: Path) -> Iterator[str]:
    return (one.name for one in home.iterdir() if EPOCH.fullmatch(one.name))


def _read_number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0  # every entry is looked at again; those that are in a replica are skipped
