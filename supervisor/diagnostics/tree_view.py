"""Current state from the journal's rows: the tree of entities, and the list of ``supervisor ps``. Pure.

Rows come in, values for a renderer come out; *now* is an argument. Entities of the newest plan run come first; within a
plan run they stand in the order of birth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from supervisor.diagnostics.outcomes import Outcomes, data_of
from supervisor.diagnostics.state_times import StateTimes, time_of_day
from supervisor.diagnostics.task_status import TaskStatus
from supervisor.diagnostics.visual_state import AgentStateThresholds, VisualState, visual_state
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import AbortReason, Ending, Kind, SessionLimits
from supervisor.policies.budgets import Amounts
from supervisor.ports import EntityRow

NOTHING: Final[Mapping[str, Amounts]] = {}
NEVER: Final[Mapping[str, float]] = {}
STAYING: Final = (Kind.SESSION, Kind.TASK, Kind.WORKSTREAM)
"""Kinds of entities that are shown after they have ended, too: in the current tree, and in the tree at an earlier
record."""


# --------------------------------------------------------------------------------------------------------- tree
class Node(msgspec.Struct, frozen=True, kw_only=True):
    """An entity, or an open tool call, with everything below it. ``outcome`` is the word for the end of a task, a
    session or a plan run, ``""`` before the end. ``supervised`` is false for an entity that had not ended when its
    supervisor died: its state is that of this moment. ``used`` is the reported usage of the node and all below it.
    ``ending`` is the stage in which the termination of a session is, and its deadline; ``None`` before and after.
    ``silent_s`` is the time in seconds since the last sign of life of a living session, or of the session that works on
    a task: output of its agent, or a record; ``None`` for other entities."""

    id: str
    kind: str
    state: str
    note: str = ""
    outcome: str = ""
    ended: bool = False
    supervised: bool = True
    used: dict[str, Any] | None = None
    ending: Ending | None = None
    silent_s: float | None = None
    children: tuple[Node, ...] = ()


def newest_run_first(rows: Iterable[EntityRow]) -> list[EntityRow]:
    """Return the rows in the order of birth, but those of a later plan run before those of an earlier one. A plan run
    begins with the birth of its workstream."""
    ordered: list[list[EntityRow]] = [[]]
    for row in sorted(rows, key=lambda row: row.born_seq):
        if row.kind == Kind.WORKSTREAM:
            ordered.append([])
        ordered[-1].append(row)
    return [row for one in reversed(ordered) for row in one]


def tree(
    rows: Iterable[EntityRow],
    used: Mapping[str, Amounts] = NOTHING,
    times: StateTimes | None = None,
    options: str = "",
    *,
    now: float = 0.0,
    active_at: Mapping[str, float] = NEVER,
    supervised: bool = True,
) -> tuple[Node, ...]:
    """Return the root nodes, those of the newest plan run first. An entity whose parent is not among *rows* is a root.
    *used* is usage by entity id; *times* are the times of entities that wait for a time, and *now* is the Unix time at
    which the tree is read; *active_at* is the time at which each session last produced output; *options* are added to
    the commands in the texts; *supervised*: a supervisor runs."""
    ordered = newest_run_first(rows)
    notes = Notes(ordered, times or StateTimes(), options, now=now)
    signs = SignsOfLife(ordered, active_at, notes.data)
    known = {row.id for row in ordered}
    below: dict[str, list[EntityRow]] = {}
    for row in ordered:
        parent = row.parent_id if row.parent_id in known and row.parent_id != row.id else ""
        below.setdefault(parent or "", []).append(row)
    made: dict[str, Node] = {}
    for row in reversed(_parents_first(below)):  # iterative: a chain of delegations may be thousands deep
        made[row.id] = _node(
            row,
            tuple(made[one.id] for one in below.get(row.id, ())),
            notes,
            used.get(row.id),
            signs.silent_s(row, now) if now else None,
            supervised=supervised,
        )
    return tuple(made[row.id] for row in below.get("", ()))


def _parents_first(below: Mapping[str, list[EntityRow]]) -> list[EntityRow]:
    order = list(below.get("", ()))
    for row in order:
        order += below.get(row.id, ())
    return order


def _node(
    row: EntityRow,
    children: tuple[Node, ...],
    notes: Notes,
    used: Amounts | None,
    silent_s: float | None,
    *,
    supervised: bool,
) -> Node:
    data = notes.data[row.id]
    calls = () if row.ended else _call_nodes(row, data.get("open") or ())
    waiting = () if row.ended else waiting_permissions(data)
    permissions = tuple(
        Node(id=permission_id(row, one), kind="permission", state=notes.permission(row, one), note=one["title"])
        for one in waiting
    )
    return Node(
        id=row.id,
        kind=row.kind,
        state=row.state,
        note=notes.of(row, data),
        outcome=notes.outcomes.of(row),
        ended=row.ended,
        supervised=supervised or row.ended,
        used=used.as_record if used is not None else None,
        ending=ending_of(data),
        silent_s=silent_s,
        children=(*calls, *permissions, *children),
    )


def _call_nodes(row: EntityRow, calls: Sequence[dict[str, Any]]) -> tuple[Node, ...]:
    """Return the open calls of a turn as nodes; a call nested in another open call is a child of that call."""
    numbers = {call["number"] for call in calls}
    below: dict[int, list[Node]] = {}
    for call in reversed(calls):  # a call is younger than the one that it is made within
        within = call.get("within") or 0
        inner = tuple(reversed(below.pop(call["number"], ())))
        node = Node(
            id=f"{row.id}:c{call['number']}", kind="tool", state="open", note=str(call.get("title", "")), children=inner
        )
        below.setdefault(within if within in numbers and within < call["number"] else 0, []).append(node)
    return tuple(reversed(below.get(0, ())))


def waiting_permissions(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the permission requests of a turn that wait for a person."""
    return [request for request in data.get("asking") or () if request.get("asked")]


def permission_id(turn: EntityRow, request: Mapping[str, Any]) -> str:
    """Return the id with which a permission request of a turn is answered."""
    return f"{turn.id}:p{request['number']}"


def tool_calls(row: EntityRow) -> tuple[str, ...]:
    """Return the ids of all calls that a turn has made so far, ended ones too."""
    return tuple(f"{row.id}:c{number}" for number in range(1, int(data_of(row).get("calls") or 0) + 1))


class Notes:
    """Texts for people about the entities *rows*, beside their states. *times* are the times of entities that wait for
    a time; *options* are added to the commands in the texts; *now* is the Unix time at which the texts are read."""

    def __init__(self, rows: Sequence[EntityRow], times: StateTimes, options: str = "", *, now: float = 0.0) -> None:
        self._times, self._options, self.now = times, options, now
        self.data = {row.id: data_of(row) for row in rows}
        """Stored data of the entities, each decoded once."""
        self._turns = {row.parent_id: self.data[row.id] for row in rows if row.kind == Kind.TURN and not row.ended}
        self.task_status = TaskStatus(rows, times, options)
        self.outcomes = Outcomes(rows, self.data)

    def of(self, row: EntityRow, data: Mapping[str, Any]) -> str:
        """Return the text about an entity; ``""`` if its state says everything."""
        parts: list[Any]
        match row.kind:
            case Kind.SESSION:
                errors = data.get("total_errors") or 0
                counted = f"{errors} error{'' if errors == 1 else 's'}" if errors else ""
                parts = [self.outcomes.of(row), self.of_session(row, data), self.reason_of(row, data), counted]
            case Kind.AGENT:
                pid, status = data.get("pid"), data.get("status")
                parts = [f"pid {pid}" if pid else "", "" if status is None else f"exit status {status}"]
            case Kind.TURN:
                verdict = data.get("verdict") or {}
                waiting = () if row.ended else waiting_permissions(data)
                parts = [*(self.permission(row, one) for one in waiting), verdict.get("error")]
            case Kind.TRIGGER:
                runs = " and ".join(str(one["run"]) for one in data.get("running") or ())
                queued = len(data.get("queue") or ())
                going_on = "" if row.ended or not runs else f"{runs} {'go' if ' ' in runs else 'goes'} on"
                parts = [data.get("source"), going_on, f"{queued} waiting" if queued and not row.ended else ""]
            case _:
                parts = [self.task_status.note(row)]
        return ", ".join(str(part) for part in parts if part)

    def of_session(self, row: EntityRow, data: Mapping[str, Any]) -> str:
        """Return a text about the step that a session waits for, and until when."""
        if row.ended:
            return ""
        since = self._times.entered(row)
        ends, has_turn = self._times.ends(row.id), row.state in (Session.RUNNING.value, Session.INTERRUPTING.value)
        if ends is not None and has_turn and is_woken(data, ends, self.now):
            return f"silent, aborted at {time_of_day(ends)} unless it shows progress"
        match row.state:
            case Session.INITIALIZING.value:
                return f"prepares its workspace since {time_of_day(since)}" if data.get("current") else NO_PROMPT_YET
            case Session.SPAWNING.value:
                return f"its agent starts, until {time_of_day(since + limits_of(data).spawn_deadline_s)} at the latest"
            case Session.COOLING_DOWN.value:
                if self.task_status.is_delayed(row.id):  # the line of the task has the time
                    return ""
                return f"launches no agent before {time_of_day(self.task_status.cools_until(row))}"
            case Session.INTERRUPTING.value:
                return f"its turn is interrupted, until {time_of_day(since + limits_of(data).grace_s)} at the latest"
            case Session.STOPPED.value:
                ending = ending_of(data)
                if ending is None:
                    return "is ending"
                until = f" until {time_of_day(ending.deadline)}" if ending.deadline is not None else ""
                return f"is ending, stage {ending.stage}{until}"
        return ""

    def reason_of(self, row: EntityRow, data: Mapping[str, Any]) -> str:
        """Return the reason for the end of a session, or the error because of which it is tried again. An error from
        before the session's agent has started again is over, and is left out."""
        is_over = data.get("outcome") or row.state == Session.COOLING_DOWN.value or data.get("consecutive_errors")
        return self.outcomes.reason(row) if is_over else ""

    def time_out(self, session: EntityRow) -> str:
        """Return a text about the time-out of the turn of a silent agent; ``""`` if another text says until when the
        agent has."""
        due = self._times.unix(self._turns.get(session.id, {}).get("due_s"))
        if due is None or self.of_session(session, self.data[session.id]):
            return ""
        return f"silent, its turn times out at {time_of_day(due)}"

    def permission(self, turn: EntityRow, request: Mapping[str, Any]) -> str:
        """Return a text about a permission request: until when it waits, and the command that answers it."""
        one = permission_id(turn, request)
        due = self._times.due(one)
        until = "" if due is None else f" until {time_of_day(due)}"
        return f"waits for a human{until}: supervisor answer {one} allow{self._options}"


def is_woken(session: Mapping[str, Any], ends: float | None, now: float) -> bool:
    """Return whether the liveness policy has sent the agent of a session a message that no turn has answered yet, and
    the session is still to be aborted at the Unix time *ends* (``None``: not known). A session that is alive after that
    time has shown progress: the turn that answers is at work."""
    sent = any(one.get("blamed") == AbortReason.TIMEOUT for one in session.get("inbox") or ())
    return sent and (ends is None or now < ends)


def ending_of(data: Mapping[str, Any]) -> Ending | None:
    """Return the stage in which the termination of a session is, from its data; ``None`` if the session is not being
    ended."""
    ending = data.get("ending")
    return None if ending is None else msgspec.convert(ending, Ending)


def limits_of(session: Mapping[str, Any]) -> SessionLimits:
    """Return the limits of a session from its data; the defaults where an older journal does not have them."""
    return msgspec.convert(session.get("limits") or {}, SessionLimits)


NO_PROMPT_YET: Final = "idle, waits for its first prompt"
"""Text about a session that a program has started and not prompted yet: its state is ``Initializing`` until then."""


# ----------------------------------------------------------------------------------------------------------- ps
class EntityLine(msgspec.Struct, frozen=True, kw_only=True):
    """Line of ``supervisor ps``. ``age_s`` is the time in seconds from birth to *now*, or to the entity's end;
    ``outcome``, ``supervised``, ``ending`` and ``silent_s`` are those of :class:`Node`; ``used`` is the reported usage
    of the entity and everything below it."""

    id: str
    kind: str
    state: str
    visual: str | None
    age_s: float
    parent: str | None
    ended: bool
    pid: int | None = None
    note: str = ""
    outcome: str = ""
    supervised: bool = True
    ending: Ending | None = None
    silent_s: float | None = None
    used: Amounts | None = None


def ps(
    rows: Iterable[EntityRow],
    *,
    now: float,
    active_at: Mapping[str, float] = NEVER,
    times: StateTimes | None = None,
    used: Mapping[str, Amounts] = NOTHING,
    options: str = "",
    supervised: bool = True,
) -> tuple[EntityLine, ...]:
    """Return one line per row, those of the newest plan run first. *active_at* is the time at which each session last
    produced output; *times* are the times of entities that wait for a time; *used* is usage by entity id; *options* are
    added to the commands in the texts; *supervised*: a supervisor runs."""
    ordered = newest_run_first(rows)
    times = times or StateTimes()
    notes = Notes(ordered, times, options, now=now)
    visual_states = VisualStates(ordered, now, active_at, times, notes.data)
    signs = SignsOfLife(ordered, active_at, notes.data)

    def note(row: EntityRow, data: Mapping[str, Any], visual: VisualState | None) -> str:
        is_silent = visual is VisualState.STALLED and row.kind == Kind.SESSION
        return ", ".join(filter(None, (notes.of(row, data), notes.time_out(row) if is_silent else "")))

    return tuple(
        EntityLine(
            id=row.id,
            kind=row.kind,
            state=row.state,
            visual=visual.value if visual else None,
            age_s=max(0.0, (row.changed_at if row.ended else now) - row.born_at),
            parent=row.parent_id,
            ended=row.ended,
            pid=data.get("pid"),
            note=note(row, data, visual),
            outcome=notes.outcomes.of(row),
            supervised=supervised or row.ended,
            ending=ending_of(data),
            silent_s=signs.silent_s(row, now),
            used=used.get(row.id),
        )
        for row in ordered
        for data, visual in [(notes.data[row.id], visual_states.of(row))]
    )


class SignsOfLife:
    """Times of the last signs of life of sessions, from the rows of the sessions, their agents, turns and tasks, whose
    stored data is *data*: the last record, or, in *active_at*, the last output."""

    def __init__(
        self, rows: Iterable[EntityRow], active_at: Mapping[str, float], data: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._data = data
        self._last_at = dict(active_at)
        self._living: set[str] = set()
        for row in rows:
            session = row.id if row.kind == Kind.SESSION else row.parent_id or ""
            self._last_at[session] = max(self._last_at.get(session, 0.0), row.changed_at)
            if row.kind == Kind.SESSION and not row.ended:
                self._living.add(row.id)

    def silent_s(self, row: EntityRow, now: float) -> float | None:
        """Return the seconds until *now* since the last sign of life of a living session, or of the living session that
        holds a task; ``None`` for other entities."""
        session = row.id
        if row.kind == Kind.TASK and not row.ended:
            session = str(self._data[row.id].get("claimed_by") or "")
        return max(0.0, now - self._last_at[session]) if session in self._living else None


# ----------------------------------------------------------------------------------------------- visual states
_GIT_STATUS: Final = {"commit": "committing", "merge": "merging", "rebase": "merging", "push": "pushing"}
_GIT_VALUED: Final = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--attr-source"})
"""Options of git, before its command, that have a value as the next argument (manual page of git 2.43)."""
_WORD: Final = re.compile(r"[^\s;&|()'\"`]+|[;&|()]")
"""Pattern of an argument or an operator of the shell."""


def _git_status(title: str) -> str:
    """Return the status of an agent while a call with this title runs: ``pushing`` for ``cd x && git -C y push``, or
    ``""`` if the title runs none of these commands of git. One pass over the words, since an agent writes the title."""
    is_git = is_value = False
    for word in _WORD.findall(title):
        if is_value:
            is_value = False
        elif is_git and word.startswith("-"):
            is_value = word in _GIT_VALUED
        elif is_git and word in _GIT_STATUS:
            return _GIT_STATUS[word]
        else:
            is_git = word.rpartition("/")[2] == "git"
    return ""


class VisualStates:
    """Visual states of agents, from the rows of their sessions, turns and tasks.

    The status of an agent (spec 000) is derived, since no protocol has one: ``waiting`` while a permission request
    waits for a person; ``committing``, ``merging`` or ``pushing`` while an open call runs that command of git, or while
    the supervisor merges the agent's work. In the last case the agent counts as working, although its turn is over.
    """

    def __init__(
        self,
        rows: Iterable[EntityRow],
        now: float,
        active_at: Mapping[str, float],
        times: StateTimes,
        data: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._now, self._times, self._data = now, times, data
        self._active_at = dict(active_at)
        self._sessions: dict[str, Mapping[str, Any]] = {}
        self._status: dict[str, str] = {}
        self._merging: set[str] = set()
        self._woken: set[str] = set()
        self._agents: dict[str, EntityRow] = {}
        for row in rows:
            self._add(row, data[row.id])

    def _add(self, row: EntityRow, data: Mapping[str, Any]) -> None:
        session = row.id if row.kind == Kind.SESSION else row.parent_id or ""
        at = row.changed_at
        match row.kind:
            case Kind.SESSION:
                self._sessions[row.id] = data
                if is_woken(data, self._times.ends(row.id), self._now):
                    self._woken.add(row.id)
            case Kind.AGENT:
                self._agents[session] = row
            case Kind.TASK if row.state == Task.DONE.value:
                self._merging.add(str(data.get("claimed_by")))
            case Kind.TURN if not row.ended:
                if waiting_permissions(data):
                    at, self._status[session] = self._now, "waiting"
                elif status := next(filter(None, (_git_status(one["title"]) for one in data.get("open") or ())), ""):
                    self._status[session] = status
        self._active_at[session] = max(self._active_at.get(session, 0.0), at)

    def of(self, row: EntityRow) -> VisualState | None:
        """Return the visual state of an agent, or of the newest agent of a session; ``None`` for other entities, and
        for a session without an agent."""
        agent = self._agents.get(row.id) if row.kind == Kind.SESSION else row if row.kind == Kind.AGENT else None
        if agent is None:
            return None
        session, pid = agent.parent_id or "", self._data[agent.id].get("pid")
        limits, status = limits_of(self._sessions.get(session, {})), self._status.get(session, "")
        state = agent.state
        if session in self._merging and agent is self._agents.get(session):
            state, status = "working", "merging"
        elif state == "working" and status == "waiting":
            state, status = "idle", ""  # a status of waiting needs a pid, and in-process agents have none
        elif state != "working":
            status = ""
        thresholds = AgentStateThresholds(
            stall_threshold_s=limits.stall_threshold_s,
            spawn_timeout_s=limits.spawn_deadline_s,
            merging_stall_s=limits.merging_stall_s,
        )
        last_active_at = self._active_at.get(session)
        return visual_state(
            state,
            spawned_at=agent.born_at,
            now=self._now,
            last_heartbeat_at=last_active_at,
            pid=pid,
            status=status,
            woken=session in self._woken,
            thresholds=thresholds,
        )
