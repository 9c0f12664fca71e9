"""Comparison of a killed supervisor's acknowledgements with its journal, and with the files that its agents wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.diagnostics.validate import validate_lines
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import LifecycleEvent
from tests.support import check_records


class Fault(NamedTuple):
    """Fault that a crash test finds, of the kind ``lost`` (an acknowledgement), ``twice`` (an effect), ``left`` (a
    process) or ``illegal`` (a record)."""

    kind: str
    words: str


def acknowledgements(output: bytes) -> list[dict[str, Any]]:
    """Return the complete lines of a victim's output, decoded from JSON."""
    return [json.loads(line) for line in output.split(b"\n")[:-1]]


class JournalAudit:
    """Check of the acknowledgements of one state directory against its journal, over all of its supervisors."""

    def __init__(self, state_dir: Path, workdir: Path) -> None:
        self._state = StateDir(state_dir)
        self._effects = workdir / "effects"
        self._promised: list[dict[str, Any]] = []

    def promise(self, acknowledged: Sequence[dict[str, Any]]) -> None:
        self._promised += acknowledged

    def check(self) -> list[Fault]:
        """Check everything that was ever acknowledged in this state directory, and return the faults; called after a
        recovery."""
        with JournalReader(self._state.journal) as journal:
            events = list(journal.events())
            rows = journal.entities()
        faults = [*self._lost(events), *self._twice(events)]
        try:
            check_records(events, rows, [], refused=True)
        except AssertionError as error:
            faults.append(Fault("illegal", str(error).splitlines()[0][:300]))
        lines = self._state.transitions.read_bytes().splitlines(keepends=True)
        faults += [Fault("illegal", str(problem)[:300]) for problem in validate_lines(lines).problems]
        return faults

    def _lost(self, events: list[LifecycleEvent]) -> Iterator[Fault]:
        ids = {one.entity_id for one in events}
        messages = {one.metadata.get("message_id") for one in events}
        aborts = {one.abort_id for one in events}
        prompts = "\n".join(one.metadata.get("prompt", "") for one in events if one.event == "TurnRequested")
        completed = Counter(one.entity_id.rpartition(":")[0] for one in events if one.event == "task_completed")
        settled = {one.seq: one.entity_id for one in events}
        told = set[tuple[str, int]]()  # an answer whose telling was not on record is told again, by the next supervisor
        for one in self._promised:
            match one:
                case {"ack": "session", "id": what} if what not in ids:
                    yield Fault("lost", f"session {what}")
                case {"ack": "message", "id": what} if what not in messages:
                    yield Fault("lost", f"message {what}")
                case {"ack": "abort", "id": what, "recorded": True} if what not in aborts:
                    yield Fault("lost", f"abort {what}")
                case {"ack": "prompt", "key": what} if f"echo {what} " not in prompts:
                    yield Fault("lost", f"prompt {what}")
                case {"ack": "prompt" | "result", "session": what, "outcome": "completed", "seq": seq}:
                    told.add((what, seq))
                    if settled.get(seq) != what:
                        yield Fault("lost", f"answer {seq} of {what}")
        for who, count in Counter(who for who, _ in told).items():
            if count > completed[who]:
                yield Fault("lost", f"{count - completed[who]} completed turns of {who}")

    def _twice(self, events: list[LifecycleEvent]) -> Iterator[Fault]:
        """Yield a fault for each key that was written to the effects file more often than calls are on record; a key
        stands for one call of one prompt."""
        tries = Counter[str]()
        sessions: dict[str, list[str]] = {}
        for one in events:
            if one.event == "TurnRequested":
                sessions.setdefault(one.entity_id, []).append(one.metadata.get("prompt", ""))
            if one.event == "tool_started":
                tries[one.entity_id.partition(":")[0]] += 1
        left = self._effects.read_text().split() if self._effects.exists() else []
        for key, count in Counter(left).items():
            who = next((name for name, said in sessions.items() if any(f"echo {key} " in one for one in said)), "")
            if count > 1 and tries[who] < count:
                yield Fault("twice", f"{key} was done {count} times, {who} has {tries[who]} calls on record")
