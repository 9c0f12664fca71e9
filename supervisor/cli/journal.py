"""``supervisor journal``: check, compact and export a journal, with or without a running supervisor.

A check and an export only read. A compaction is done by the running supervisor, requested through its control socket,
or else by this process under the supervisor's lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import click
import msgspec

from supervisor.cli.options import PATH, examples, json_option, say, state_dir_option
from supervisor.cli.rendering import json_text
from supervisor.cli.sessions import send_request
from supervisor.cli.validate import journal_at
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput, NotRunning, WorkFailed
from supervisor.control.requests import Compact
from supervisor.embedding.journals import check_files, compact_files, open_file
from supervisor.journal.jsonl import transition_line
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Compacted, CompactionFailed, FileCheck, Retention

_encode = msgspec.json.Encoder().encode


@click.group("journal", epilog=examples("supervisor journal check", "supervisor journal export --out log.jsonl"))
def journal() -> None:
    pass


def _which(command: Any) -> Any:
    return click.argument("path", type=PATH, metavar="[JOURNAL]", required=False)(state_dir_option(command))


# ---------------------------------------------------------------------------------------------------------- check
@journal.command("check", epilog=examples("supervisor journal check"))
@_which
@json_option
def _check(path: Path | None, state_dir: Path, as_json: bool) -> int:
    """Check everything: pages, the chain of hashes, entities, the snapshot.

    JOURNAL is a journal.db, an archive, or a state directory; by default the journal of --state-dir with all its
    archives. A start verifies only what came after the last snapshot, unless the machine was rebooted since. Exit
    status 1: damage was found.
    """
    where = path or state_dir
    found = list(check_files(journal_at(where), archives=where.is_dir()))
    sound = all(one.problem is None for one in found)
    say(json_text({"sound": sound, "files": found}) if as_json else "\n".join(map(_checked_text, found)))
    return DONE if sound else WORK_FAILED


def _checked_text(one: FileCheck) -> str:
    if one.problem is not None:
        return f"{one.file}: {one.problem}"
    elsewhere = f", {one.gaps} ranges of records are elsewhere" if one.gaps else ""
    if not one.records and not one.gaps:
        return f"{one.file}: sound, but it holds no record"
    return f"{one.file}: sound ({one.records} records, {one.entities} entities{elsewhere})"


# -------------------------------------------------------------------------------------------------------- compact
@journal.command("compact", epilog=examples("supervisor journal compact --keep-s 86400"))
@click.option("--keep-s", type=click.FloatRange(min=0), metavar="SECONDS", help="Keep what ended within this time.")
@click.option("--records-max", type=click.IntRange(min=1), metavar="N", help="Keep at most this many records.")
@state_dir_option
@json_option
def _compact(keep_s: float | None, records_max: int | None, state_dir: Path, as_json: bool) -> None:
    """Move entities that ended long ago from the journal to the archive.

    A running supervisor does it and continues its work; otherwise this command does it. The default is the retention of
    the plan. Given options replace it: --keep-s without --records-max sets no limit in records.
    """
    if keep_s is not None and not isfinite(keep_s):
        raise BadInput(f"--keep-s: {keep_s} is not a duration; give seconds, 0 or more")
    state = StateDir.open(state_dir, create=False)
    try:
        answer = send_request(state_dir, Compact(keep_s=keep_s, records_max=records_max))
        compacted = msgspec.convert(answer["compacted"], Compacted)
    except NotRunning:
        given = keep_s is not None or records_max is not None
        compacted = _compacted(state, Retention(keep_s=keep_s, records_max=records_max) if given else Retention())
    say(json_text(compacted) if as_json else _moved(compacted))


def _compacted(state: StateDir, retention: Retention) -> Compacted:
    if not state.journal.exists():
        raise BadInput(f"no journal at {state.journal}: run `supervisor run` there first, or name another directory")
    with state.lock():
        try:
            return compact_files(state, retention, time.time())
        except CompactionFailed as error:
            raise WorkFailed(str(error)) from error


def _moved(compacted: Compacted) -> str:
    left = f"the journal has {compacted.records_left} records of {compacted.entities_left} entities"
    if not compacted.archives:
        return f"nothing to move: {left}"
    return (
        f"moved {compacted.records} records of {compacted.entities} entities to {', '.join(compacted.archives)}; {left}"
    )


# --------------------------------------------------------------------------------------------------------- export
@journal.command("export", epilog=examples("supervisor journal export --out log.jsonl"))
@_which
@click.option("--out", type=PATH, metavar="FILE", help="Write to this file, which must not exist.")
@json_option
def _export(path: Path | None, out: Path | None, state_dir: Path, as_json: bool) -> None:
    """Write every transition as a line of JSON in the format of transitions.jsonl, including archived ones."""
    with open_file(journal_at(path or state_dir)) as file:
        lines = _lines(file.events(archived=True))
        if out is None:
            for line in lines:
                say(line)
            return
        try:
            count = _written(out, lines)
        except FileExistsError:
            raise BadInput(f"--out: {out} exists; name another file, or move it away") from None
        except OSError as error:
            raise BadInput(f"--out: {out} cannot be written: {error.strerror}; name another file") from None
    written: dict[str, Any] = {"file": str(out), "lines": count}
    say(json_text(written) if as_json else f"{out}: {count} transitions")


def _written(out: Path, lines: Iterable[str]) -> int:
    """Write all lines or no file at all: a part of a log would look like a whole log."""
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
