"""What a dead supervisor left in the journal: who is alive there, what it still owes, and what its log tells of it.

Only reading happens here, and folding of what was read: a session's place and policy, how often it crashed of late, the
conversation that its agent could load, and the abort that was under way. Everything is computed from records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec

from actors.machine import Event
from supervisor.diagnostics.event_replay import KINDS
from supervisor.lifecycles.effects import SupervisorEffect, decode_effect
from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.types import (
    AbortPolicy,
    AbortReason,
    AbortScope,
    CancelMode,
    Kind,
    LifecycleEvent,
    TransitionReason,
)
from supervisor.policies.abort_request import CAUSES_MAX, LaterCause
from supervisor.policies.budgets import Amounts, SpentBudget
from supervisor.ports import NO_WORKSPACE, EntityRow, Journal, JournalError, WorkspaceSpec
from supervisor.runtime.entity import Entity, Lifecycle
from supervisor.runtime.entity_types import (
    AGENT_KIND,
    JOB_KIND,
    RUN_KIND,
    SESSION_KIND,
    TASK_KIND,
    TURN_KIND,
    WORKER_KIND,
    WORKSTREAM_KIND,
)
from supervisor.runtime.journal_writer import JournalWriter
from supervisor.sessions.monitor_registry import RecordedUsage

__all__ = [
    "LOST",
    "PLACED",
    "RESUMED",
    "RecordedOutcome",
    "RecoveredEffect",
    "SessionHistory",
    "at_rest",
    "crossed_from",
    "due_of",
    "entity_of",
    "is_own",
    "is_stalled",
    "left_over",
    "past_of",
    "used_in",
    "used_meanwhile",
]

PLACED = "Placed"
"""The fact that says how a session differs from what its parent, or the settings, would have given it."""
RESUMED = "Resumed"
"""The fact that a session goes on under another supervisor."""
LOST = "ActorLost"
"""The fact that a session's actor crashed: whoever waited was told so, and it never goes on."""

LIFECYCLES: dict[str, Lifecycle] = {
    Kind.SESSION: SESSION_KIND,
    Kind.TURN: TURN_KIND,
    Kind.AGENT: AGENT_KIND,
    Kind.TASK: TASK_KIND,
    Kind.RUN: RUN_KIND,
    Kind.JOB: JOB_KIND,
    Kind.WORKSTREAM: WORKSTREAM_KIND,
    Kind.WORKER: WORKER_KIND,
}
CLAIMED_BY = 8
"""Records of a turn: it is claimed for its prompt right after its birth, unless an abort names it before."""
_TOLD = (Kind.SESSION, Kind.TURN, Kind.AGENT)
"""Whom an effect can have something to tell."""


class RecoveredEffect(NamedTuple):
    """An effect that is owed: by whom, under which id, and the record that wanted it."""

    effect_id: str
    entity_id: str
    seq: int
    effect: SupervisorEffect

    @classmethod
    def of(cls, row: tuple[str, str, bytes]) -> RecoveredEffect:
        effect_id, entity_id, payload = row
        return cls(effect_id, entity_id, int(effect_id.partition(".")[0]), decode_effect(payload, _event_of))


def _event_of(name: str, fields: Any) -> Event:
    kind = next(kind for one in _TOLD if (kind := KINDS[one].events.get(name)) is not None)
    event: Event = msgspec.convert(fields, kind)
    return event


def entity_of(row: EntityRow, journal_writer: JournalWriter) -> Entity:
    """The entity as its row has it: its state, its data, and the number of its last record.

    Raises:
        JournalError: no entity can be like that.
    """
    try:
        kind = KINDS[row.kind]
        data, state = msgspec.json.decode(row.data, type=kind.data), kind.states[row.state]
    except (msgspec.MsgspecError, KeyError) as wrong:
        words = f"the journal's entity {row.id!r} is damaged ({wrong}); restore a copy or use another --state-dir"
        raise JournalError(words) from None
    entity = Entity(LIFECYCLES[row.kind], row.id, row.parent_id, state, data, journal_writer)
    entity.entity_seq = row.entity_seq
    entity.born_seq, entity.born_at, entity.changed_at = row.born_seq, row.born_at, row.changed_at
    return entity


def at_rest(rows: Sequence[EntityRow]) -> set[str]:
    """What is left as it is: tasks that have failed and are not tried again, and their runs, once nothing of their
    workstream goes on."""
    live = {row.id for row in rows if row.kind == Kind.WORKSTREAM and not row.ended}
    failed = [row for row in rows if (row.kind, row.state) == (Kind.TASK, "FAILED")]
    tasks = {row.id for row in failed if msgspec.json.decode(row.data, type=TaskData).workstream not in live}
    runs = (row for row in rows if (row.kind, row.state) == (Kind.RUN, "CIRCUIT_OPEN"))
    return tasks | {row.id for row in runs if row.parent_id in tasks}


def left_over(rows: Sequence[EntityRow]) -> set[str]:
    """What nobody can go on with: of workstreams that had ended before all of theirs had, the tasks, the sessions that
    hold them, and the runs, jobs and workers."""
    over = {row.id for row in rows if row.kind == Kind.WORKSTREAM and row.ended}
    held = {row.id: msgspec.json.decode(row.data, type=TaskData) for row in rows if row.kind == Kind.TASK}
    holders = {task_id: data.claimed_by for task_id, data in held.items() if data.workstream in over}
    ids, owners = {*holders, *holders.values()}, {*holders, *over}
    return {row.id for row in rows if not row.ended and (row.id in ids or row.parent_id in owners)}


class RecordedOutcome(NamedTuple):
    """How a prompt ended, and the record that says so."""

    outcome: str
    error: str
    seq: int


class SessionHistory:
    """What a session's log tells that its data does not keep."""

    def __init__(self) -> None:
        self.policy: AbortPolicy | None = None
        self.mode = CancelMode.WAIT_COMPLETED
        self.workspace_spec = NO_WORKSPACE
        self.started_by: str | None = None
        """The tool call that asked for it."""
        self.requests = 0
        self.crashes: tuple[float, ...] = ()
        """When it failed after a start (monotonic seconds)."""
        self.entered_seq, self.entered_s = 0, 0.0
        """The record that brought it into its state, and when."""
        self.born_by: int | None = None
        self.joined_seq = 0
        """The record by which it came to its present parent."""
        self.directory: str | None = None
        """Where it works, if it had that already."""
        self.resume_id: str | None = None
        self.interrupted = False
        self.aborts: list[LifecycleEvent] = []
        """The aborts that name it and that may not have reached all of their targets, and the edges of policies that
        they crossed. What is for itself is over once it is told to end."""
        self.later: tuple[LaterCause, ...] = ()
        """Who else has wanted its end, since that was under way."""
        self.lost = False
        self.budget = RecordedUsage()
        """What it has used, and what bounds it."""
        self.counted_seq = 0
        """The newest record that tells what was used of its scopes."""
        self.once: dict[str, bool] = {}
        """Whether each prompt is tried once, oldest first."""
        self.spent = False
        """The one try of a prompt has failed."""
        self.answer: RecordedOutcome | None = None
        """How the last prompt that is tried once ended, if that is over: whoever else has asked since."""

    def apply(self, record: LifecycleEvent, asked: str | None = None) -> None:
        """The next record of its log. *asked*: the prompt whose turn fails, or is over, by it; ``None``: the last one,
        as far as is known."""
        match record.outcome:
            case "born":
                self.born_by, self.joined_seq = record.cause_id, record.seq
                self._enter(record)
            case "fact":
                self._fact(record)
            case "transition":
                self._moved(record, asked)

    def depends_on_prompt(self, record: LifecycleEvent) -> bool:
        """Whether it does what that record means: another prompt may wait that is tried another way."""
        return (_is_crash(record) or record.event == "TurnReaped") and any(self.once.values())

    def _is_once(self, asked: str | None) -> bool:
        return self.once.get(next(reversed(self.once), "") if asked is None else asked, False)

    def _enter(self, record: LifecycleEvent) -> None:
        self.entered_seq, self.entered_s = record.seq, record.monotonic_s

    def _fact(self, record: LifecycleEvent) -> None:
        told = record.metadata
        match record.event:
            case "Placed":
                self.mode = CancelMode(told["mode"])
                self.policy = msgspec.convert(told["policy"], AbortPolicy | None)
                self.workspace_spec = msgspec.convert(told.get("place", {}), WorkspaceSpec)
            case "Adopted":
                self.joined_seq = record.seq
                if "policy" in told:  # earlier versions did not say so
                    self.policy = msgspec.convert(told["policy"], AbortPolicy)
            case "Resumed":
                self.resume_id, self.interrupted = told["resume_id"], told["interrupted"]
            case "AbortRecord" if told["scope"] != AbortScope.TOOL:
                self.aborts.append(record)
            case "AbortJoined":
                self._join(record)
            case "ActorLost":
                self.lost = True
            case "Usage" | "Budgeted" | "ModelTrouble":
                self.budget = self.budget.apply(told)
                self.counted_seq = record.seq if "scopes" in told else self.counted_seq
            case "BudgetSpent":
                self.budget = self.budget._replace(spent=(SpentBudget(**told), record.seq))

    def _join(self, record: LifecycleEvent) -> None:
        known = {one.abort_id for one in self.later}
        if record.abort_id is not None and record.abort_id not in known and len(known) < CAUSES_MAX:
            self.later = (*self.later, LaterCause(abort_id=record.abort_id, reason=record.reason))

    def _moved(self, record: LifecycleEvent, asked: str | None) -> None:
        if record.from_status != record.to_status:
            self._enter(record)
        match record.event:
            case "TurnRequested":
                request_id = str(record.metadata["request_id"])
                self.requests = max(self.requests, int(request_id.rpartition(":r")[2]))
                self.once.pop(request_id, None)
                self.once[request_id] = once = bool(record.metadata.get("once"))
                self.answer = None if once else self.answer
            case "TurnReaped" if record.from_status == "SessionComplete" or self.spent:
                self.spent = False
                how = "completed" if record.metadata["completed"] else "failed"
                if record.metadata["completed"]:
                    self.budget = self.budget._replace(troubles=0)
                if self._is_once(asked):
                    self.answer = RecordedOutcome(how, str(record.metadata["error"]), record.seq)
            case "WorktreeReady":
                self.directory = str(record.metadata["path"])
            case "SessionStarted":
                self.resume_id, self.interrupted = None, False
            case "SessionExited" if _is_crash(record):
                self.spent = self._is_once(asked) or _is_final(record)
                self.crashes = self.crashes if self.spent else (*self.crashes, record.monotonic_s)
            case "OperatorStop" | "FatalError":
                self.aborts = [one for one in self.aborts if not is_own(one)]
                if record.from_status == record.to_status:
                    self._join(record)


def is_own(abort: LifecycleEvent) -> bool:
    """Whether it is the session that it names which it ends, and not others for its sake."""
    return abort.metadata["scope"] == AbortScope.SESSION and abort.metadata["policy_edge"] is None


def _is_crash(record: LifecycleEvent) -> bool:
    """Whether it failed after a start, and tries again: not by the loss of its supervisor."""
    edge = (record.event, record.from_status, record.to_status)
    lost = record.transition_reason == TransitionReason.ORPHAN_RECOVERED
    return edge == ("SessionExited", "Running", "CoolingDown") and not lost


def _is_final(record: LifecycleEvent) -> bool:
    """Whether it tells of a turn whose model failed for good."""
    verdict = record.metadata.get("verdict") or {}
    return bool((verdict.get("model") or {}).get("final"))


async def past_of(journal: Journal, session_id: str) -> SessionHistory:
    """Read a session's whole log."""
    past = SessionHistory()
    async for page in _pages(journal, session_id):
        for record in page:
            past.apply(record, await _asked_of(journal, record.actor) if past.depends_on_prompt(record) else None)
    past.started_by = await _call_of(journal, past.born_by)
    return past


async def used_in(journal: Journal, session_id: str, after_seq: int = 0) -> dict[str, Amounts]:
    """What was used of each scope that a session counts in, as far as its log tells behind that record."""
    used: dict[str, Amounts] = {}
    async for page in _pages(journal, session_id, after_seq):
        told = (record.metadata for record in page if record.event in ("Usage", "Budgeted"))
        for one in (one for metadata in told for one in metadata.get("scopes", ())):
            _at_least(used, one["id"], msgspec.convert(one["used"], Amounts))
    return used


def _at_least(used: dict[str, Amounts], scope_id: str, amounts: Amounts) -> None:
    """At least so much was used of a scope: every record tells of all that was, until then."""
    used[scope_id] = used.get(scope_id, Amounts()).at_least(amounts)


async def used_meanwhile(
    journal: Journal, pasts: Mapping[str, SessionHistory], rows: Sequence[EntityRow]
) -> dict[str, Amounts]:
    """What the sessions among *rows* that have ended tell of the scopes of those that live (*pasts*), and that these
    have not told since: each counts in those of the sessions above it, and may count in any that is no session's."""
    known: dict[str, int] = {}
    for past in pasts.values():
        for one in past.budget.scopes:
            known[one["id"]] = max(past.counted_seq, known.get(one["id"], 0))
    if not known:
        return {}
    anywhere: float = min((seq for scope_id, seq in known.items() if scope_id not in pasts), default=inf)
    news_from, used = dict[str, float](), dict[str, Amounts]()
    for row in sorted(rows, key=lambda row: row.born_seq):  # parents come first
        above = row.parent_id or ""
        news_from[row.id] = least = min(anywhere, known.get(above, inf), news_from.get(above, inf))
        if row.ended and least != inf:
            for scope_id, amounts in (await used_in(journal, row.id, int(least))).items():
                _at_least(used, scope_id, amounts)
    return used


async def crossed_from(journal: Journal, turn_id: str) -> list[LifecycleEvent]:
    """The edges of policies that aborts of a turn's calls crossed."""
    return [
        record
        async for page in _pages(journal, turn_id)
        for record in page
        if record.event == "AbortRecord" and record.metadata["policy_edge"] is not None
    ]


async def is_stalled(journal: Journal, session_id: str) -> bool:
    """Whether a session was ended since nothing was heard of its agent, and nobody else wanted that."""
    first: LifecycleEvent | None = None
    others: set[str | None] = set()
    async for page in _pages(journal, session_id):
        for record in page:
            match record.event:
                case "OperatorStop" if record.from_status != record.to_status:
                    first = record
                case "OperatorStop" | "AbortJoined":  # one who hurries that end, and one who is late for it
                    others.add(record.abort_id)
    if first is None or first.abort_reason != AbortReason.TIMEOUT:
        return False
    return others <= {None, first.abort_id}  # who is no abort, as a shutdown is none, only hurries it


async def _asked_of(journal: Journal, turn_id: str) -> str | None:
    """The prompt that this turn was for; ``None``: it is no turn, or went to an archive."""
    first = await journal.events(entity_id=turn_id, limit=CLAIMED_BY)
    return next((str(one.metadata["request_id"]) for one in first if one.event == "task_claimed"), None)


async def due_of(journal: Journal, turn: Entity) -> float | None:
    """When a turn times out whose data do not say so, as those of earlier versions (the journal's seconds): its log has
    when it began to run. ``None``: it has not."""
    began_s: float | None = None
    async for page in _pages(journal, turn.id):
        for record in page:
            if (record.outcome, record.event, record.to_status) == ("transition", "agent_spawned", "RUNNING"):
                began_s = record.monotonic_s
    return None if began_s is None else began_s + turn.data.timeout_s


async def _pages(journal: Journal, entity_id: str, after: int = 0) -> AsyncIterator[Sequence[LifecycleEvent]]:
    while page := await journal.events(entity_id=entity_id, after_seq=after):
        after = page[-1].seq
        yield page


async def _call_of(journal: Journal, seq: int | None) -> str | None:
    """The tool call that this record began, if it is such a record and is still in the journal."""
    for one in await journal.events(after_seq=seq - 1, limit=1) if seq else ():
        if one.seq == seq and one.event == "tool_started":
            return f"{one.entity_id}:c{one.metadata['number']}"
    return None
