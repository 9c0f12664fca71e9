"""``supervisor journal``: check it, compact it, export it, whether a supervisor runs on it or not.

A check and an export only read. A compaction is done by the supervisor that runs, asked through its control socket, and
else here, under its lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import click
import msgspec

from supervisor.cli.options import PATH, json_option, say, state_dir_option
from supervisor.cli.rendering import json_text
from supervisor.cli.sessions import send_request
from supervisor.cli.validate import journal_at
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput, NotRunning, WorkFailed
from supervisor.journal.archive import compacting
from supervisor.journal.database import open_database
from supervisor.journal.history import Checked, History, checked
from supervisor.journal.jsonl import transition_line
from supervisor.journal.reader import JournalReader
from supervisor.journal.schema import explaining
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Compacted, JournalError, Retention

__all__ = ["journal"]

_encode = msgspec.json.Encoder().encode


@click.group("journal")
def journal() -> None:
    """Check, compact or export the journal of a state directory."""


def _which(command: Any) -> Any:
    return click.argument("path", type=PATH, metavar="[JOURNAL]", required=False)(state_dir_option(command))


# ---------------------------------------------------------------------------------------------------------- check
@journal.command("check")
@_which
@json_option
def _check(path: Path | None, state_dir: Path, as_json: bool) -> int:
    """Check everything: pages, the chain of hashes, entities, the snapshot.

    JOURNAL is a journal.db, an archive, or a state directory; without it, that of --state-dir, with all its archives.
    A start verifies only what came after the last snapshot, unless the machine was booted since. Damage is exit status
    1.
    """
    found = list(_checked(path or state_dir))
    sound = all(one.problem is None for one in found)
    say(json_text({"sound": sound, "files": found}) if as_json else "\n".join(map(_checked_text, found)))
    return DONE if sound else WORK_FAILED


def _checked(path: Path) -> Iterator[Checked]:
    journal = journal_at(path)
    if not path.is_dir():
        JournalReader(journal).close()  # there is one, or the error says what there is
        yield checked(path)
        return
    with History(journal) as history:
        yield from history.check()


def _checked_text(one: Checked) -> str:
    if one.problem is not None:
        return f"{one.file}: {one.problem}"
    elsewhere = f", {one.gaps} ranges of records are elsewhere" if one.gaps else ""
    if not one.records and not one.gaps:
        return f"{one.file}: sound, but it holds no record"
    return f"{one.file}: sound ({one.records} records, {one.entities} entities{elsewhere})"


# -------------------------------------------------------------------------------------------------------- compact
@journal.command("compact")
@click.option("--keep-s", type=click.FloatRange(min=0), metavar="SECONDS", help="Keep what ended since then.")
@click.option("--records-max", type=click.IntRange(min=1), metavar="N", help="Keep at most so many records.")
@state_dir_option
@json_option
def _compact(keep_s: float | None, records_max: int | None, state_dir: Path, as_json: bool) -> None:
    """Move what ended long ago from the journal to the archive.

    The supervisor that runs does it, and meanwhile goes on; by default as its plan's retention says. Without one it is
    done here. What is given counts alone: --keep-s without --records-max has no bound in records.
    """
    if keep_s is not None and not isfinite(keep_s):
        raise BadInput(f"--keep-s: {keep_s} is no time; give seconds, 0 or more")
    given = keep_s is not None or records_max is not None
    retention = Retention(keep_s=keep_s, records_max=records_max) if given else None
    state = StateDir.open(state_dir, create=False)
    try:
        answer = send_request(state_dir, {"do": "compact", "retention": msgspec.to_builtins(retention)})
        told = msgspec.convert(answer["compacted"], Compacted)
    except NotRunning:
        told = _compacted(state, retention or Retention())
    say(json_text(told) if as_json else _moved(told))


def _compacted(state: StateDir, retention: Retention) -> Compacted:
    if not state.journal.exists():
        raise BadInput(f"no journal at {state.journal}: run `supervisor run` there first, or give --state-dir")
    with state.lock():
        database = open_database(state.journal, state.transitions)
        told = Compacted()
        try:
            for _, now_told in compacting(database, state.archive, retention, time.time()):
                told = now_told
            if told.records:
                with explaining(state.journal):
                    database.db.execute("VACUUM")  # a running supervisor fills the free pages instead
        except JournalError as error:  # it was opened: what is wrong now is no bad input
            raise WorkFailed(str(error)) from error
        finally:
            database.close()
    return told


def _moved(told: Compacted) -> str:
    left = f"the journal has {told.records_left} records of {told.entities_left} entities"
    if not told.archives:
        return f"nothing to move: {left}"
    return f"moved {told.records} records of {told.entities} entities to {', '.join(told.archives)}; {left}"


# --------------------------------------------------------------------------------------------------------- export
@journal.command("export")
@_which
@click.option("--out", type=PATH, metavar="FILE", help="Write to this file, which must not be there yet.")
@json_option
def _export(path: Path | None, out: Path | None, state_dir: Path, as_json: bool) -> None:
    """Write every transition as a line of JSON, in the format of transitions.jsonl; archived ones too."""
    with History(journal_at(path or state_dir)) as history:
        lines = _lines(history.events())
        if out is None:
            for line in lines:
                say(line)
            return
        try:
            count = _written(out, lines)
        except FileExistsError:
            raise BadInput(f"--out: {out} is there already; name another file, or move it away") from None
        except OSError as error:
            raise BadInput(f"--out: {out} cannot be written: {error.strerror}; name another file") from None
    told: dict[str, Any] = {"file": str(out), "lines": count}
    say(json_text(told) if as_json else f"{out}: {count} transitions")


def _written(out: Path, lines: Iterable[str]) -> int:
    """All of them, or no file: a part of a log looks like all of one."""
    count = 0
    with out.open("x", encoding="utf-8") as file:
        try:
            for line in lines:
                file.write(f"{line}\n")
                count += 1
            file.flush()
        except BaseException:
            out.unlink()
            raise
    return count


def _lines(events: Iterable[LifecycleEvent]) -> Iterator[str]:
    timestamp = ""
    for record in events:
        if record.outcome == "transition":
            line = transition_line(record, not_before=timestamp)
            timestamp = line.timestamp
            yield _encode(line).decode()
