"""``supervisor validate``: check a log line by line, or a journal record by record.

A ``transitions.jsonl`` is checked as text: schema, order, legality, the invariants of spec 004. A journal or a state
directory is checked as records: the chain of their hashes, and every invariant that records can show. Nothing is
written, and a supervisor may run meanwhile: an entity that has not ended is not a violation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from supervisor.cli.options import PATH, examples, json_option, say
from supervisor.cli.rendering import json_text, report_text
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput
from supervisor.diagnostics.invariants import RecordChecker, Violation
from supervisor.diagnostics.validate import Report, split_lines, validate_lines
from supervisor.embedding.journals import open_file
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.redaction import printable
from supervisor.ports import Damage
from supervisor.ports.input_files import open_input

VIOLATIONS_MAX: Final = 1000
"""Number of violations that are listed; the others are only counted."""
_CHUNK_BYTES: Final = 1 << 16
_CHAIN: Final = "chain"
"""Name under which damage found by the hashes is reported; it is no invariant of the records."""
_SUFFIX: Final = ".db"
_MAGIC: Final = b"SQLite format 3\0"


class CheckedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check of a journal's records; ``omitted`` counts the violations beyond the limit."""

    records: int
    entities: int
    violations: list[Violation]
    omitted: int = 0


# ----------------------------------------------------------------------------------------------------- which it is
def journal_at(path: Path) -> Path:
    """Return *path* if it is a journal, or the path of the journal in the state directory *path*.

    Raises:
        BadInput: there is no journal, or this user may not read it.
        StateDirError: the directory cannot be used.
    """
    try:
        is_directory = path.is_dir()
        journal = StateDir(path).journal if is_directory else path
        journal.stat()
    except (FileNotFoundError, NotADirectoryError):
        words = "give the path of a journal.db, or of a state directory in which `supervisor run` has run"
        raise BadInput(f"{path}: no journal there; {words}") from None
    except OSError as error:
        raise _unreadable(path, error, "of a journal.db, or of a state directory") from None
    return StateDir.open(path, create=False).journal if is_directory else journal


@click.command("validate", epilog=examples("supervisor validate .sdd"))
@click.argument("file", type=PATH, metavar="FILE")
@json_option
def validate(file: Path, as_json: bool) -> int:
    """FILE is a transitions.jsonl (checks schema, order, legality, invariants of work), a journal.db, or a state
    directory (checks every invariant that records can show). Exit status 1: there are problems."""
    report: Report | CheckedRecords
    if (lines := _read_lines(file)) is not None:
        report, valid, text = lines, not lines.problems, report_text(str(file), lines)
    else:
        file = journal_at(file)
        report = records = _checked_journal(file)
        valid, text = not records.violations, _report_text(str(file), records)
    say(json_text({"file": str(file), "valid": valid, "report": report}) if as_json else text)
    return DONE if valid else WORK_FAILED


def _read_lines(path: Path) -> Report | None:
    """Check a log and return the result, or ``None`` if the file is not a log. The file is opened once, since data read
    from a pipe cannot be read again."""
    try:
        with open_input(path) as file:
            if path.suffix == _SUFFIX or file.peek(len(_MAGIC)).startswith(_MAGIC):  # no log, however damaged it is
                return None
            return validate_lines(split_lines(iter(lambda: file.read(_CHUNK_BYTES), b"")))
    except IsADirectoryError:
        return None
    except OSError as error:
        raise _unreadable(path, error, "of a .jsonl file, of a journal.db, or of a state directory") from None


def _unreadable(path: Path, error: OSError, which: str) -> BadInput:
    owner = "run the command as its owner, or " if isinstance(error, PermissionError) else ""
    return BadInput(f"{path}: cannot be read: {error.strerror}; {owner}give the path {which}")


# --------------------------------------------------------------------------------------------------------- records
def _checked_journal(path: Path) -> CheckedRecords:
    with open_file(path) as file:
        return check_records(file.events(archived=True), as_violations(file.find_damage()), whole=not file.is_part)


def as_violations(damage: Sequence[Damage]) -> list[Violation]:
    """Return the damage that ``supervisor journal check`` finds as violations: for each file the first record and the
    first entity that differ from their hashes, or another problem."""
    found = []
    for seq, entity_id, problem in damage:
        if seq is not None:
            words = "it is not what was written"
            found.append(Violation(invariant=_CHAIN, entity_id="journal", seq=seq, message=words))
        if entity_id is not None:
            words = "it is not as its last record left it"
            found.append(Violation(invariant=_CHAIN, entity_id=entity_id, seq=None, message=words))
        if seq is None and entity_id is None:
            found.append(Violation(invariant=_CHAIN, entity_id="journal", seq=None, message=problem))
    return found


def check_records(
    records: Iterator[LifecycleEvent], found: Sequence[Violation] = (), *, whole: bool = True
) -> CheckedRecords:
    """Check the invariants over *records*; return the result, which begins with the violations in *found*. Missing
    records are violations only if every session has ended. If the records are not the *whole* journal, only the
    invariants of each entity's own log are checked."""
    checker, number = RecordChecker(whole=whole), 0
    kept = list(found)
    omitted = 0
    for record in records:
        number += 1
        for one in checker.check(record):
            omitted += len(kept) >= VIOLATIONS_MAX
            kept += [one] if len(kept) < VIOLATIONS_MAX else []
    missing = checker.finish(quiescent=checker.all_ended) if whole else []
    room = VIOLATIONS_MAX - len(kept)
    return CheckedRecords(
        records=number,
        entities=len(checker.shadows),
        violations=[*kept, *missing[:room]],
        omitted=omitted + len(missing[room:]),
    )


def violation_line(one: Violation) -> str:
    """Return a violation as a line for people: record, invariant, entity, and text."""
    where = f"record {one.seq}" if one.seq is not None else "at the end"
    return f"{where}: {one.invariant}: {printable(one.entity_id)}: {printable(one.message)}"


def _report_text(name: str, report: CheckedRecords) -> str:
    counted = f"{report.records} records, {report.entities} entities"
    if not report.violations:
        return f"{name}: valid ({counted})" if report.records else f"{name}: valid, but it holds no record"
    more = f", the last {report.omitted} not shown" if report.omitted else ""
    lines = [f"{name}: {violation_line(one)}" for one in report.violations]
    return "\n".join([*lines, f"{name}: {len(lines) + report.omitted} violations in {counted}{more}"])
