"""The commands that only read: ``ps``, ``tree``, ``events``, ``why``, ``logs`` and ``validate``.

They read the state directory, whether a supervisor runs on it or not, and never write to it. Only following events
asks the running supervisor, since it knows first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from supervisor.causality import Explanation, ps, tool_calls, tree, why
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import follow_from
from supervisor.ports import EntityRow
from supervisor.surfaces.calling import is_running, request
from supervisor.surfaces.failure import BadInput, NotRunning
from supervisor.surfaces.render import (
    event_line,
    json_line,
    json_text,
    printable,
    ps_text,
    report_text,
    tree_text,
    why_text,
)
from supervisor.validate import split_lines, validate_lines
from supervisor.vocabulary import Kind, LifecycleEvent

__all__ = [
    "ended",
    "follow_events",
    "read_events",
    "read_logs",
    "read_ps",
    "read_tree",
    "read_why",
    "validate_file",
]

Say = Callable[[str], None]
"""Prints text, and a newline."""

_CHUNK_BYTES: Final = 1 << 16
_LOOK_AGAIN_S: Final = 0.2


@contextmanager
def _journal(state_dir: Path) -> Iterator[tuple[StateDir, JournalReader]]:
    state = StateDir.open(state_dir, create=False)
    with JournalReader(state.journal) as reader:
        yield state, reader


# ------------------------------------------------------------------------------------------------- what there is
def read_ps(state_dir: Path, say: Say, *, all_of_it: bool, as_json: bool) -> None:
    """One line for each session, and for each agent and turn that has not ended."""
    with _journal(state_dir) as (state, reader):
        rows = _wanted(reader.entities(), all_of_it)
    seen = ps(rows, now=time.time(), active_at=_spoken(state, rows))
    say(json_text(seen) if as_json else ps_text(seen))


def read_tree(state_dir: Path, say: Say, *, all_of_it: bool, as_json: bool) -> None:
    """Sessions under their parents, with their agents, turns and open tool calls."""
    with _journal(state_dir) as (_, reader):
        nodes = tree(_wanted(reader.entities(), all_of_it))
    if as_json:
        say(json_text(nodes))
    else:
        say(tree_text(nodes) or "nothing has been started yet")


def _wanted(rows: Iterable[EntityRow], all_of_it: bool) -> list[EntityRow]:
    return [row for row in rows if all_of_it or not row.ended or row.kind in (Kind.SESSION, Kind.TASK)]


def _spoken(state: StateDir, rows: Iterable[EntityRow]) -> dict[str, float]:
    """When each living session last said something: its transcript is written at once."""
    live = [row.id for row in rows if row.kind == Kind.SESSION and not row.ended]
    return {one: spoken for one in live if (spoken := _changed_at(state.transcript(one))) is not None}


def _changed_at(transcript: Path) -> float | None:
    parts = transcript.parent.glob(f"{transcript.name}*")
    return max((part.stat().st_mtime for part in parts if part.exists()), default=None)


def ended(state_dir: Path, entity_id: str) -> bool | None:
    """Whether a session, turn or tool call has ended as far as the journal knows; ``None`` if it knows none."""
    with _journal(state_dir) as (_, reader):
        row = reader.entity(entity_id)
        if row is not None:
            return row.ended
        turn = reader.entity(entity_id.rpartition(":")[0])
    if turn is None or entity_id not in tool_calls(turn):
        return None
    return entity_id not in {one.id for node in tree([turn]) for one in node.children}


# ------------------------------------------------------------------------------------------------------- events
def read_events(state_dir: Path, entity_id: str | None, say: Say, *, after: int, follow: bool, as_json: bool) -> int:
    """Print what the journal holds; the number of the last record.

    Raises:
        BadInput: nothing of that id is recorded, and nothing of it is waited for.
    """
    last = after
    with _journal(state_dir) as (_, reader):
        if entity_id is not None and not follow and reader.entity(entity_id) is None:
            raise BadInput(_unknown(entity_id))
        for event in reader.events(entity_id, after_seq=after):
            say(_event(event, as_json))
            last = event.seq
    return last


def _event(event: LifecycleEvent, as_json: bool) -> str:
    return json_line(event) if as_json else event_line(event)


async def follow_events(state_dir: Path, entity_id: str | None, say: Say, *, after: int, as_json: bool) -> None:
    """Print events as they happen, until the supervisor ends; at once if there is none."""
    asked = {"do": "follow", "after": after, "entity": entity_id}
    try:
        async with aclosing(request(StateDir(state_dir).control_socket, asked)) as answers:
            async for answer in answers:
                say(json_line(answer["event"]) if as_json else event_line(_decoded(answer["event"])))
    except NotRunning:
        return


def _decoded(event: Any) -> LifecycleEvent:
    import msgspec

    return msgspec.convert(event, LifecycleEvent)


def read_why(state_dir: Path, entity_id: str, say: Say, *, as_json: bool) -> None:
    """Print the chain of causes.

    Raises:
        BadInput: no record is about that id.
    """
    with _journal(state_dir) as (_, reader):
        events = list(reader.events())
    explanation = _explained(events, entity_id)
    say(json_text(explanation) if as_json else why_text(explanation))


def _explained(events: list[LifecycleEvent], entity_id: str) -> Explanation:
    """A task may be named as its plan names it."""
    for one in (entity_id, f"task:{entity_id}"):
        with suppress(LookupError):
            return why(events, one)
    raise BadInput(_unknown(entity_id))


def _unknown(entity_id: str) -> str:
    return f"nothing has the id {entity_id!r}; `supervisor ps --all` shows the ids"


# --------------------------------------------------------------------------------------------------------- logs
def _pause() -> None:
    time.sleep(_LOOK_AGAIN_S)


def read_logs(
    state_dir: Path,
    entity_id: str,
    say: Say,
    *,
    follow: bool,
    as_json: bool,
    pause: Callable[[], None] = _pause,
) -> None:
    """Print the transcript of a session (or of the one that an agent, turn or call belongs to).

    With *follow* it goes on until the session has ended, or the supervisor.

    Raises:
        BadInput: there is no such session.
    """
    with _journal(state_dir) as (state, reader):
        session = _session_of(reader, entity_id)
        lines = _Lines(state.transcript(session), session, say, as_json)
        going_on = follow
        while going_on:
            going_on = _goes_on(reader, state, session)  # asked first: what was said before the end is still read
            lines.more()
            if going_on:
                pause()
        lines.end()


def _session_of(reader: JournalReader, entity_id: str) -> str:
    row = reader.entity(entity_id)
    session = (
        _claimed_by(reader, entity_id) if row is not None and row.kind == Kind.TASK else entity_id.partition(":")[0]
    )
    found = reader.entity(session)
    if found is None or found.kind != Kind.SESSION:
        raise BadInput(_unknown(entity_id))
    return found.id


def _claimed_by(reader: JournalReader, task_id: str) -> str:
    """The session that worked on a task last; the task's own id if none ever did."""
    claims = [one.metadata["by"] for one in reader.events(task_id) if one.metadata.get("by")]
    return str(claims[-1]) if claims else task_id


def _goes_on(reader: JournalReader, state: StateDir, session: str) -> bool:
    row = reader.entity(session)
    return row is not None and not row.ended and is_running(state.control_socket)


class _Lines:
    """The lines of a transcript, as they are finished."""

    def __init__(self, path: Path, session: str, say: Say, as_json: bool) -> None:
        self._path, self._session, self._say, self._as_json = path, session, say, as_json
        self._offset, self._held = 0, ""

    def more(self) -> None:
        text, self._offset = follow_from(self._path, self._offset)
        *lines, self._held = (self._held + text).split("\n")
        for line in lines:
            self._show(line)

    def end(self) -> None:
        self.more()
        if self._held:
            self._show(self._held)

    def _show(self, line: str) -> None:
        self._say(json_line({"session": self._session, "line": line}) if self._as_json else printable(line))


# --------------------------------------------------------------------------------------------------- validation
def validate_file(path: Path, say: Say, *, as_json: bool) -> bool:
    """Check a log; whether it is valid.

    Raises:
        BadInput: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            report = validate_lines(split_lines(iter(lambda: file.read(_CHUNK_BYTES), b"")))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}; give the path of a .jsonl file") from None
    if as_json:
        say(json_text({"file": str(path), "valid": not report.problems, "report": report}))
    else:
        say(report_text(str(path), report))
    return not report.problems
