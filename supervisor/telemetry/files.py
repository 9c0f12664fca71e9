"""Files of telemetry: a line of JSON in ``metrics/`` and one in ``traces/`` for each session, task and abort that ends.

The files are an export for programs that read files; the journal and its archives are the one history, and nothing
reads these files back. ``docs/how-to/telemetry.md`` has the fields.

Activities wait in memory for a thread, which makes their lines and writes them, since neither an abort nor a record may
wait for that; at most ``WAITING_MAX`` of them. A line that finds no room, or that cannot be written, is lost: a failing
disk is logged once, until lines are written again, and then, or at the end, the number of lost lines is. A file that a
line would make larger than ``FILE_BYTES_MAX`` is renamed first: ``metrics.jsonl`` to ``metrics.1.jsonl``,
and so on; ``FILES_MAX`` files are kept.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

from supervisor.ports.logs import get_logger
from supervisor.ports.secure_files import PRIVATE_FILE, make_private
from supervisor.telemetry.activities import Activity, ActivityKind

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
FILES_MAX: Final = 5
WAITING_MAX: Final = 5_000
VERSION: Final = 1
"""Version of the fields, in each line."""

_LISTED: Final = {
    ActivityKind.SESSION: "turns",
    ActivityKind.TASK: "states",
    ActivityKind.ABORT: "ends",
}
"""Kinds of activities that have a line, and the name of the list in the line of ``traces/``."""
_log = get_logger()
_encode = msgspec.json.Encoder().encode


def metrics_line(activity: Activity) -> dict[str, Any]:
    """Return the line of ``metrics/``: figures only."""
    line = _head(activity) | {"took_s": round(activity.took_s, 6)}
    match activity.kind:
        case ActivityKind.SESSION:
            return line | {
                "turns": activity.turns,
                "tool_calls": activity.calls,
                "used": activity.used.as_record,
                "stage": activity.stage,
                "survivors": activity.survivors,
            }
        case ActivityKind.TASK:
            return line | {"claims": activity.turns}
        case _:
            return line | {"scope": activity.name, "stage": activity.stage, "survivors": activity.survivors}


def traces_line(activity: Activity, trace_id: str) -> dict[str, Any]:
    """Return the line of ``traces/``: what was done, and when."""
    line = _head(activity) | {
        "began_at": activity.began_at,
        "above": activity.above or None,
        "trace_id": trace_id or None,
    }
    if activity.kind is ActivityKind.ABORT:
        line |= {"scope": activity.name, "target": activity.target, "reason": activity.reason}
    elif activity.abort_id:
        line |= {"abort": activity.abort_id}
    if activity.is_found:
        line |= {"continued": True}
    return line | {_LISTED[activity.kind]: activity.parts, "left_out": activity.parts_left_out}


def _head(activity: Activity) -> dict[str, Any]:
    return {
        "v": VERSION,
        "kind": activity.kind.value,
        "id": activity.id,
        "agent": activity.agent or None,
        "plan": activity.plan or None,
        "outcome": activity.outcome,
        "error": activity.error or None,
        "ended_at": activity.ended_at,
    }


class TelemetryFiles:
    """The files of one supervisor, in two folders of its state directory. ``write`` is called in a thread."""

    def __init__(self, metrics: Path, traces: Path) -> None:
        self._metrics, self._traces = metrics / "metrics.jsonl", traces / "traces.jsonl"
        self._waiting: deque[tuple[Activity, str]] = deque()
        self._left_out = 0
        """Number of lines that have found no room since the last write."""
        self._lost = 0
        """Number of lost lines that the log does not have yet."""
        self._is_failing = False

    def add(self, activity: Activity, trace_id: str = "") -> bool:
        """Add an activity that has ended, whose lines are written later; return whether it has lines."""
        if activity.kind not in _LISTED:
            return False
        if len(self._waiting) >= WAITING_MAX:
            self._left_out += 2
        else:
            self._waiting.append((activity, trace_id))
        return True

    def write(self, *, is_last: bool = False) -> int:
        """Write the lines that wait, and return how many were lost since the last call."""
        found: dict[Path, list[bytes]] = {self._metrics: [], self._traces: []}
        lost, self._left_out = self._left_out, 0
        while self._waiting:
            activity, trace_id = self._waiting.popleft()
            found[self._metrics].append(_encode(metrics_line(activity)) + b"\n")
            found[self._traces].append(_encode(traces_line(activity, trace_id)) + b"\n")
        failed, problem = None, ""
        for path, lines in found.items():
            try:
                if lines:
                    _append(path, b"".join(lines))
            except OSError as error:
                lost, failed, problem = lost + len(lines), path, str(error)
        if failed is not None and not self._is_failing:
            fix = f"let this user write {failed.parent}, and free space on its disk; or set telemetry.files to false"
            _log.warning("a telemetry file cannot be written: its lines are left out", why=problem, fix=fix)
        self._lost += lost
        if self._lost and (failed is None or is_last):
            _log.warning("lines of the telemetry files were left out", lost_lines=self._lost)
            self._lost = 0
        self._is_failing = failed is not None
        return lost


def _append(path: Path, data: bytes) -> None:
    """Append *data* to the file, which is made if it does not exist, and renamed first if it is too large."""
    make_private(path.parent)
    if path.exists() and path.stat().st_size + len(data) > FILE_BYTES_MAX:
        _rotate(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, PRIVATE_FILE), "wb") as file:
        file.write(data)


def _rotate(path: Path) -> None:
    for number in range(FILES_MAX - 1, 0, -1):
        older = path.with_name(f"{path.stem}.{number - 1}.jsonl") if number > 1 else path
        if older.exists():
            older.replace(path.with_name(f"{path.stem}.{number}.jsonl"))
