"""Rows and records of a plan run for tests of the live view, and a terminal that shows what was written to it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import EntityRow

STREAM = "r1"
_ESCAPE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


def row(kind: str, entity: str, state: str, parent: str | None = None, **data: Any) -> EntityRow:
    """Return the row of an entity that was born at 1.0 and changed at 2.0."""
    ended = bool(data.pop("ended", False))
    born = int(data.pop("born", 1))
    return EntityRow(
        kind=kind,
        id=entity,
        parent_id=parent,
        state=state,
        data=msgspec.json.encode(data),
        entity_seq=1,
        ended=ended,
        born_seq=born,
        born_at=1.0,
        changed_at=2.0,
    )


def stream(tasks: int, state: str = "executing") -> EntityRow:
    return row("workstream", STREAM, state, name="plan", tasks=tasks)


def task(name: str, state: str, **data: Any) -> EntityRow:
    return row("task", f"r1#{name}", state, STREAM, workstream=STREAM, name=name, **data)


def run(name: str, state: str, **data: Any) -> EntityRow:
    return row("run", f"r1#{name}:run", state, f"r1#{name}", **{"max_attempts": 5, **data})


def session(name: str, state: str = "Running", parent: str | None = None, **data: Any) -> EntityRow:
    return row("session", name, state, parent, **data)


def turn(name: str, **data: Any) -> EntityRow:
    return row("turn", f"{name}:t1", "TOOL_USE", name, **data)


def agent(name: str, state: str = "working", **data: Any) -> EntityRow:
    return row("agent", f"{name}:a1", state, name, pid=7, **data)


def record(kind: str, entity: str, event: str, to: str, *, before: str = "x", **more: Any) -> LifecycleEvent:
    """Return the record of a transition at 2.0; *more* are its metadata, and its ``reason``, ``at`` and ``outcome``."""
    reason, at, outcome = more.pop("reason", ""), more.pop("at", 2.0), more.pop("outcome", "transition")
    return LifecycleEvent(
        seq=1,
        timestamp=at,
        monotonic_s=at,
        entity_type=kind,
        entity_id=entity,
        entity_seq=1,
        event=event,
        from_status=before,
        to_status=to,
        outcome=outcome,
        reason=reason,
        metadata=more,
    )


class Terminal:
    """Terminal that interprets what rich writes: lines, cursor movement upwards, and erased lines.

    ``lines`` are all lines since the beginning; the screen shows the last *height* of them.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.lines = [""]
        self._row = self._column = 0

    @property
    def screen(self) -> list[str]:
        return self.lines[-self.height :]

    def feed(self, text: str) -> None:
        while text:
            if found := _ESCAPE.match(text):
                self._control(found[1], found[2])
                text = text[found.end() :]
            else:
                self._put(text[0])
                text = text[1:]

    def _control(self, parameter: str, command: str) -> None:
        if command == "A":
            top = len(self.lines) - self.height
            self._row = max(0, top, self._row - int(parameter or 1))  # no terminal moves above its screen
        elif command == "K":
            self.lines[self._row] = ""
        else:
            assert command in "mhl", f"the terminal does not know {command}"

    def _put(self, char: str) -> None:
        if char == "\r":
            self._column = 0
            return
        if char == "\n" or self._column == self.width:
            self._row, self._column = self._row + 1, 0
            self.lines += [""] * (self._row + 1 - len(self.lines))
        if char != "\n":
            line = self.lines[self._row]
            self.lines[self._row] = f"{line[: self._column]:{self._column}}{char}{line[self._column + 1 :]}"
            self._column += 1
