"""Checker of the replies to aborts and to answers of permission requests, compared with durable records.

The receipt of an abort must agree with the records. A permission request is answered once and in time, and an accepted
answer is the one on record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from supervisor.lifecycles.types import AbortScope, LifecycleEvent
from supervisor.policies.abort_plan import Receipt
from supervisor.ports import Append

Say = Callable[[str, str, str], None]
ROUNDING_S = 1e-5
"""Tolerance for sums of floats, in seconds."""
KNOWN_S = 10.0
"""Seconds of the longest commit (8 s) and a margin: a record that became durable in a failed commit is unknown until
the disk recovers."""


class AbortTarget(NamedTuple):
    """Target of an abort: the sessions and tool calls that must have ended when the reply comes. ``beside``: a parent;
    the sessions count only while they are its children."""

    target: str
    sessions: tuple[str, ...]
    calls: tuple[str, ...]
    beside: str | None = None


class _OpenPermission(NamedTuple):
    """Permission request that an operator may answer: its start and its deadline, in the run's seconds."""

    since_s: float
    due_s: float


class ReplyChecker:
    """Checker of the replies that the host receives in one run, compared with records."""

    def __init__(
        self, say: Say, now: Callable[[], float], slept_since: Callable[[float], float], grain_s: float
    ) -> None:
        self._say, self._now, self._slept_since, self._grain_s = say, now, slept_since, grain_s
        self._states: dict[str, str] = {}
        self._stopped_by: dict[str, str | None] = {}
        """Abort that stopped each session."""
        self._parents: dict[str, str | None] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._ended: set[str] = set()
        self._adapters: dict[str, str] = {}
        """Adapter of each session's agents."""
        self._open_calls: dict[str, dict[str, str]] = {}
        """Open tool calls of each turn: a map from id to the agent's name for the call."""
        self._begun: dict[str, set[str]] = {}
        """Tool calls of each turn on record: open, returned or refused."""
        self._asking: dict[str, _OpenPermission | None] = {}
        """Waiting permission requests by id, with start and deadline; ``None`` if no operator may answer."""
        self._permitted: dict[str, tuple[str, str | None]] = {}
        """Decider (as operator or deadline) and option of each answer."""
        self._joined: set[tuple[str, str | None]] = set()
        """Sessions that were already ending when an abort reached them, with the id of the abort."""
        self._last: dict[str, tuple[str, float]] = {}
        """Termination stage and seconds of each session's end, from the session's last record."""

    # ------------------------------------------------------------------ the disk
    def disk_was_down(self, seconds: float) -> None:
        """Note an outage of the disk that has ended. Permission requests in commits that failed, but became durable all
        the same, are known only from now on, so their deadlines move."""
        since_s = self._now() - seconds - KNOWN_S
        for permission, asking in self._asking.items():
            if asking is not None and asking.since_s >= since_s:
                self._asking[permission] = asking._replace(due_s=asking.due_s + seconds + KNOWN_S)

    def wrote(self, one: Append, at_s: float) -> None:
        """Process a durable append. *at_s* is the time of the record, by the run's clock."""
        record = one.record
        if record.entity_type == "session":
            self._session(one)
        elif record.entity_type == "agent" and record.outcome == "born":
            self._adapters[record.metadata["session_id"]] = record.metadata["adapter"]
        elif record.event in ("PermissionRequested", "PermissionAnswered") and record.outcome == "transition":
            self._permission(record, at_s)
        elif record.event == "tool_started":
            call = f"{record.entity_id}:c{record.metadata.get('number')}"
            self._begun.setdefault(record.entity_id, set()).add(call)
            if record.outcome == "transition":
                self._open_calls.setdefault(record.entity_id, {})[call] = str(record.metadata.get("call_id"))
        elif record.event == "tool_completed" and record.outcome == "transition":
            self._close_call(record.entity_id, str(record.metadata.get("call_id")))
        elif one.ended and record.entity_type == "turn":
            for permission in [one for one in self._asking if one.startswith(f"{record.entity_id}:p")]:
                self._say("one_answer", permission, "its turn is over, and nobody has answered it")
                del self._asking[permission]
            self._open_calls.pop(record.entity_id, None)
            self._begun.pop(record.entity_id, None)

    def _permission(self, record: LifecycleEvent, at_s: float) -> None:
        """Check that a permission is requested once, and answered once and in time; its time starts when the request is
        durable."""
        told = record.metadata
        permission = f"{record.entity_id}:p{told['number']}"
        if record.event == "PermissionRequested":
            if permission in self._asking or permission in self._permitted:
                self._say("one_answer", permission, "is asked for twice")
            since_s = self._now()
            self._asking[permission] = _OpenPermission(since_s, since_s + told["within_s"]) if told["asked"] else None
        else:
            if permission not in self._asking:
                self._say("one_answer", permission, f"is answered by {told['by']}, and waits for no answer")
            asking = self._asking.pop(permission, None)
            if asking is not None and told["by"] == "operator":
                self._check_in_time(permission, asking, at_s)
            self._permitted[permission] = (told["by"], told["option"])

    def _check_in_time(self, permission: str, asking: _OpenPermission, at_s: float) -> None:
        late_s = at_s - asking.due_s - self._slept_since(asking.since_s)
        if late_s > self._grain_s + ROUNDING_S:
            self._say("punctual", permission, f"is answered {late_s:g} s after its time")

    def permission_answered(self, permission: str, option: str | None) -> None:
        """Check an accepted answer to a permission request: the record must have the same option, and no other operator
        may have been accepted for the request."""
        if self._permitted.get(permission) != ("operator", option):
            words = f"was said to be answered {option!r}; on record {self._permitted.get(permission)}"
            self._say("one_answer", permission, words)
        self._permitted[permission] = ("told", None)

    def _session(self, one: Append) -> None:
        session_id = one.record.entity_id
        self._states[session_id] = one.state
        if one.record.event == "OperatorStop" and one.record.from_status != "Stopped":
            self._stopped_by[session_id] = one.record.abort_id
        if one.record.event == "AbortJoined":
            self._joined.add((session_id, one.record.abort_id))
        if self._parents.get(session_id) != one.parent_id:
            self._children.get(self._parents.get(session_id) or "", {}).pop(session_id, None)
        self._parents[session_id] = one.parent_id
        if one.ended:
            self._ended.add(session_id)
            told = one.record.metadata
            self._last[session_id] = (str(told.get("rung")), float(told.get("took_s", 0.0)))
            self._children.get(one.parent_id or "", {}).pop(session_id, None)
        elif one.parent_id is not None:
            self._children.setdefault(one.parent_id, {})[session_id] = None

    def is_stopped(self, session_id: str) -> bool:
        """Return whether the session is stopped on record."""
        return self._states.get(session_id) == "Stopped"

    def has_begun(self, call: str) -> bool:
        """Return whether a tool call of a living turn is on record; if not, its first record is still on its way."""
        return call in self._begun.get(call.rpartition(":c")[0], ())

    def _close_call(self, turn_id: str, name: str) -> None:
        calls = self._open_calls.get(turn_id, {})
        for call, known in calls.items():
            if known == name:
                del calls[call]
                return

    def _is_open(self, call: str) -> bool:
        return call in self._open_calls.get(call.rpartition(":c")[0], ())

    # ------------------------------------------------------------------ aborts
    def want_abort(self, target: str, scope: AbortScope) -> AbortTarget:
        """Return the sessions and tool calls that must have ended when the reply to the abort comes, according to the
        records so far."""
        session_id = target.partition(":")[0]
        match scope:
            case AbortScope.TOOL:
                every = (one for calls in self._open_calls.values() for one in calls)
                calls = [one for one in every if one == target or one.startswith(f"{target}:")]
                return AbortTarget(target, (), tuple(calls))
            case AbortScope.SESSION:
                return AbortTarget(target, (session_id,) if session_id in self._states else (), ())
            case AbortScope.SIBLING:
                return AbortTarget(target, self._siblings(session_id), (), self._parents.get(session_id))

    def _siblings(self, session_id: str) -> tuple[str, ...]:
        """Return the siblings of a session whose parent is alive."""
        parent = self._parents.get(session_id)
        if parent is None or session_id in self._ended or self._states.get(parent) == "Stopped":
            return ()
        return tuple(one for one in self._children.get(parent, ()) if one != session_id)

    def abort_answered(self, wanted: AbortTarget, receipt: Receipt, waited: Collection[str] = ()) -> None:
        """Check the receipt of an abort: its targets must be stopped on record, or were already ending. Not checked if
        the receipt says that the disk was down, or had not confirmed by the deadline. *waited*: nodes for whose last
        record the abort waits."""
        if receipt.outage is not None or (receipt.recorded_at is None and not receipt.already_ended):
            return
        if receipt.already_ended and wanted.sessions == (wanted.target,) and wanted.target not in self._ended:
            state = self._states.get(wanted.target)
            self._say("one_answer", wanted.target, f"was said to have ended already, and is {state} on record")
        if receipt.already_ended and wanted.sessions != (wanted.target,):
            return  # the call or the session that it was aimed at had ended: nobody else is its business
        for session_id in wanted.sessions:
            adopted = wanted.beside is not None and self._parents.get(session_id) != wanted.beside
            joined = self._has_joined(session_id, receipt.abort_id)
            if self._states.get(session_id) != "Stopped" and not (adopted or joined):
                words = f"the abort of {wanted.target} was answered, and it is {self._states.get(session_id)} on record"
                self._say("one_answer", session_id, words)
        named = {one.id for one in receipt.nodes}
        for session_id in wanted.sessions:
            if self._stopped_by.get(session_id) == receipt.abort_id and session_id not in named:
                self._say("one_answer", session_id, f"was ended by {receipt.abort_id}, whose receipt does not name it")
        for node in receipt.nodes:
            whole = node.kind == "tool" and node.how != "scope"
            if whole and self._adapters.get(node.id.partition(":")[0]) == "inprocess":
                self._say("tool_stays_tool", node.id, f"ran within our process, and its end was {node.how!r}")
            last = self._last.get(node.id)
            if node.rung and last is not None and last != (node.rung, node.took_s):
                self._say(
                    "one_answer", node.id, f"{receipt.abort_id} says {node.rung}, {node.took_s} s; on record {last}"
                )
            elif node.kind == "session" and node.outcome == "ended" and node.id in waited and last is None:
                self._say("recorded", node.id, f"the receipt of {receipt.abort_id} is recorded; its end is not")
        for call in wanted.calls:  # of those of a session, some may have returned already; their results are on the way
            meant = call in named or (call == wanted.target and not self._ends_otherwise(call, receipt))
            if self._is_open(call) and not receipt.already_ended and meant:
                self._say("one_answer", call, f"the abort of {wanted.target} was answered, and this call is open")

    def _has_joined(self, session_id: str, abort_id: str) -> bool:
        """Return whether the session was already ending when that abort reached the session: according to its own
        record, or to that of an ancestor that was ending."""
        above: str | None = session_id
        while above is not None and (above, abort_id) not in self._joined:
            above = self._parents.get(above)
        return above is not None

    def _ends_otherwise(self, call: str, receipt: Receipt) -> bool:
        """Return whether the session of a tool call ends by another cause than this abort; the call then ends with the
        session. The abort names the child sessions that the call had started and that outlive their parent."""
        session_id = call.partition(":")[0]
        return self.is_stopped(session_id) and self._stopped_by.get(session_id) != receipt.abort_id
