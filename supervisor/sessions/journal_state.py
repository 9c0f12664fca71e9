"""Read the state that a dead supervisor left in the journal: live entities, pending effects, histories of sessions.

The history of a session consists of the facts that are in its log, but not in its data: policy and workspace, recent
crashes, the conversation that its agent could load, the abort that was under way. This module writes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from actors.machine import Event
from supervisor.diagnostics.event_replay import KINDS
from supervisor.lifecycles.effects import SupervisorEffect, decode_effect
from supervisor.lifecycles.entity_types import LIFECYCLES
from supervisor.lifecycles.record_ids import id_before, record_of_effect
from supervisor.lifecycles.types import (
    ACTOR_LOST,
    BEGINNING,
    OWN_ABORTS,
    AbortPolicy,
    AbortReason,
    AbortScope,
    CancelMode,
    Kind,
    LifecycleEvent,
    RecordId,
    TransitionReason,
)
from supervisor.policies.abort_request import CAUSES_MAX, LaterCause
from supervisor.policies.budgets import Amounts, SpentBudget
from supervisor.ports import NO_WORKSPACE, EntityRow, Journal, JournalError, WorkspaceSpec
from supervisor.runtime.entity import Entity, EntityActor
from supervisor.runtime.journal_writer import JournalWriter
from supervisor.sessions.monitor_registry import RecordedUsage

PLACED = "Placed"
"""Name of the fact with a session's settings that differ from those of its parent, or from the supervisor's
settings."""
RESUMED = "Resumed"
"""Name of the fact that a session is continued by another supervisor."""

CLAIMED_BY = 8
"""Number of first records of a turn that are searched for its claim: a turn is claimed for its prompt right after its
first record, unless an abort names the turn before."""
_RECEIVERS = (Kind.SESSION, Kind.TURN, Kind.AGENT)
"""Kinds of entities to which an effect can send an event."""


class RecoveredEffect(NamedTuple):
    """A pending effect: its id, its entity, the number of the record that it follows from, and the effect itself."""

    effect_id: str
    entity_id: str
    seq: RecordId
    effect: SupervisorEffect

    @classmethod
    def of(cls, row: tuple[str, str, bytes]) -> RecoveredEffect:
        effect_id, entity_id, payload = row
        return cls(effect_id, entity_id, record_of_effect(effect_id), decode_effect(payload, _event_of))


def _event_of(name: str, fields: Any) -> Event:
    kind = next(kind for one in _RECEIVERS if (kind := KINDS[one].events.get(name)) is not None)
    event: Event = msgspec.convert(fields, kind)
    return event


def entity_of(row: EntityRow, journal_writer: JournalWriter) -> Entity:
    """Make an entity from its row in the journal.

    Raises:
        JournalError: the row's kind, state or data are invalid.
    """
    try:
        kind = KINDS[row.kind]
        data, state = msgspec.json.decode(row.data, type=kind.data), kind.states[row.state]
    except (msgspec.MsgspecError, KeyError) as wrong:
        words = f"the journal's entity {row.id!r} is damaged ({wrong}); restore a copy or use another state directory"
        raise JournalError(words) from None
    lifecycle = LIFECYCLES[row.kind]
    make = EntityActor if lifecycle.has_actor else Entity
    entity = make(lifecycle, row.id, row.parent_id, state, data, journal_writer)
    entity.continue_log(row)
    return entity


class RecordedOutcome(NamedTuple):
    """Outcome of a prompt, with the number of the record of that outcome."""

    outcome: str
    error: str
    seq: RecordId


class SessionHistory:
    """Facts about a session that are only in its log, not in its data."""

    def __init__(self) -> None:
        self.policy: AbortPolicy | None = None
        self.mode = CancelMode.WAIT_COMPLETED
        self.workspace_spec = NO_WORKSPACE
        self.started_by: str | None = None
        """Tool call that requested the start of the session, if any."""
        self.requests = 0
        self.crashes: tuple[float, ...] = ()
        """Times (monotonic seconds) at which the agent crashed after a successful start."""
        self.entered_seq, self.entered_s = BEGINNING, 0.0
        """Number of the record that brought the session into its present state, and the time of that record."""
        self.born_by: RecordId | None = None
        self.joined_seq = BEGINNING
        """Number of the record by which the session got its present parent."""
        self.directory: str | None = None
        """Working directory of the session; ``None`` if it was not ready."""
        self.resume_id: str | None = None
        self.interrupted = False
        self.open_calls: tuple[str, ...] = ()
        """Titles of the calls that were open when an agent was ended in its turn."""
        self.aborts: list[LifecycleEvent] = []
        """Records of aborts of this session, policy edges included, that may not have reached all of their targets. The
        record of an abort that reaches only this session is removed when the session's stop is recorded."""
        self.later: tuple[LaterCause, ...] = ()
        """Aborts that came while the session was already terminating."""
        self.lost = False
        self.budget = RecordedUsage()
        """Amounts used, and budget scopes."""
        self.counted_seq = BEGINNING
        """Number of the newest record with the usage of the session's budget scopes."""
        self.once: dict[str, bool] = {}
        """For each prompt, oldest first, whether it may be tried only once."""
        self._retries: dict[str, int | None] = {}
        """For each prompt the number of further failures after which it is tried again; ``None`` as the limits say."""
        self.spent = False
        """True if a prompt has failed that its requester does not want to be tried again."""
        self._succeeded = ""
        """Turn whose agent was the last to report success."""
        self.answer: RecordedOutcome | None = None
        """Outcome of the last prompt that may be tried only once, if that prompt has ended; other prompts do
        not count."""

    def apply(self, record: LifecycleEvent, asked: str | None = None) -> None:
        """Apply the next record of the session's log. *asked* is the prompt whose turn the record ends; ``None`` stands
        for the last prompt."""
        match record.outcome:
            case "born":
                self.born_by, self.joined_seq = record.cause_id, record.seq
                self._enter(record)
            case "fact":
                self._fact(record)
            case "transition":
                self._moved(record, asked)

    def depends_on_prompt(self, record: LifecycleEvent) -> bool:
        """Return whether the meaning of *record* depends on its prompt: another waiting prompt may be allowed a
        different number of tries."""
        is_limited = any(self.once.values()) or any(left is not None for left in self._retries.values())
        return (_is_failure(record) or record.event == "TurnReaped") and is_limited

    def _is_once(self, asked: str | None) -> bool:
        return self.once.get(next(reversed(self.once), "") if asked is None else asked, False)

    def _spend_retry(self, asked: str | None) -> bool:
        """Use up a retry of a prompt; return whether none was left."""
        request_id = next(reversed(self.once), "") if asked is None else asked
        left = self._retries.get(request_id)
        if left is not None:
            self._retries[request_id] = max(left - 1, 0)
        return left == 0

    def _enter(self, record: LifecycleEvent) -> None:
        self.entered_seq, self.entered_s = record.seq, record.monotonic_s

    def _fact(self, record: LifecycleEvent) -> None:
        fact = record.metadata
        match record.event:
            case "Placed":
                self.mode = CancelMode(fact["mode"])
                self.policy = msgspec.convert(fact["policy"], AbortPolicy | None)
                self.workspace_spec = msgspec.convert(fact.get("place", {}), WorkspaceSpec)
            case "Adopted":
                self.joined_seq = record.seq
                if "policy" in fact:  # not in records of earlier versions
                    self.policy = msgspec.convert(fact["policy"], AbortPolicy)
            case "Resumed":
                self.resume_id, self.interrupted = fact["resume_id"], fact["interrupted"]
                self.open_calls = tuple(fact.get("open_calls", ()))
            case "AgentCrashed":
                self.resume_id, self.interrupted = fact["resume_id"], True
                self.open_calls = tuple(fact["open_calls"])
            case "AgentReclaimed":
                self.resume_id = fact["resume_id"]
            case "AbortRecord" if fact["scope"] != AbortScope.TOOL:
                self.aborts.append(record)
            case "AbortJoined":
                self._join(record)
            case _ if record.event == ACTOR_LOST:
                self.lost = True
            case "Usage" | "Budgeted" | "ModelTrouble":
                self.budget = self.budget.apply(fact)
                self.counted_seq = record.seq if "scopes" in fact else self.counted_seq
            case "BudgetSpent":
                self.budget = self.budget._replace(spent=(SpentBudget(**fact), record.seq))

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
                self._retries[request_id] = record.metadata.get("retries")
                self.answer = None if once else self.answer
            case "TurnReaped" if not record.metadata["completed"] and record.metadata["turn_id"] == self._succeeded:
                pass  # its work was rejected: the request had been replied to when the agent was done
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
            case "SessionExited" if record.to_status == "SessionComplete":
                self._succeeded, self.open_calls = record.actor, ()
            case "SessionExited" if _is_crash(record):
                self.spent = self._spend_retry(asked) or self._is_once(asked) or _is_final(record)
                self.crashes = self.crashes if self.spent else (*self.crashes, record.monotonic_s)
            case "SessionExited" if _is_failure(record):
                self.spent = self._spend_retry(asked)
            case "OperatorStop" | "FatalError":
                self.aborts = [one for one in self.aborts if not is_own(one)]
                if record.from_status == record.to_status:
                    self._join(record)


def is_own(abort: LifecycleEvent) -> bool:
    """Return whether the abort ends the session that its record names, rather than other sessions because of that
    session."""
    return abort.metadata["scope"] == AbortScope.SESSION and abort.metadata["policy_edge"] is None


def _is_crash(record: LifecycleEvent) -> bool:
    """Return whether *record* says that the agent failed after a start and is started again; false if its supervisor
    died."""
    return _is_failure(record) and record.from_status == "Running"


def _is_failure(record: LifecycleEvent) -> bool:
    """Return whether *record* says that the agent, or its start, has failed and is tried again; false if the supervisor
    died, or the machine lacked a resource at the start."""
    uncharged = [TransitionReason.ORPHAN_RECOVERED]
    uncharged += [TransitionReason.SHORTAGE] if record.from_status == "Spawning" else []
    is_tried_again = record.event == "SessionExited" and record.to_status == "CoolingDown"
    return is_tried_again and record.transition_reason not in uncharged


def _is_final(record: LifecycleEvent) -> bool:
    """Return whether the record ends a turn because of a final error of the model's API."""
    verdict = record.metadata.get("verdict") or {}
    return bool((verdict.get("model") or {}).get("final"))


async def past_of(journal: Journal, session_id: str) -> SessionHistory:
    """Read the whole log of a session, and return its history."""
    past = SessionHistory()
    async for page in _pages(journal, session_id):
        for record in page:
            past.apply(record, await _asked_of(journal, record.actor) if past.depends_on_prompt(record) else None)
    past.started_by = await _call_of(journal, past.born_by)
    return past


async def used_in(journal: Journal, session_id: str, after_seq: RecordId = BEGINNING) -> dict[str, Amounts]:
    """Return the usage of each budget scope that a session counts in, from the records of its log after *after_seq*."""
    used: dict[str, Amounts] = {}
    async for page in _pages(journal, session_id, after_seq):
        facts = (record.metadata for record in page if record.event in ("Usage", "Budgeted"))
        for one in (one for fact in facts for one in fact.get("scopes", ())):
            _at_least(used, one["id"], msgspec.convert(one["used"], Amounts))
    return used


def _at_least(used: dict[str, Amounts], scope_id: str, amounts: Amounts) -> None:
    """Raise the usage of a budget scope to at least *amounts*: each record has the whole usage of the scope
    until then."""
    used[scope_id] = used.get(scope_id, Amounts()).at_least(amounts)


async def used_meanwhile(
    journal: Journal, pasts: Mapping[str, SessionHistory], rows: Sequence[EntityRow]
) -> dict[str, Amounts]:
    """Return the usage of the live sessions' budget scopes that is recorded only in the logs of ended sessions.

    A session counts in the budget scopes of the sessions above it, and may count in any budget scope of the host.
    Records of an ended session matter if they are newer than the last usage record (``counted_seq``) of the live
    sessions in that budget scope.

    Args:
        pasts: histories of the live sessions.
        rows: rows of all sessions, ended ones included.
    """
    known: dict[str, RecordId] = {}
    for past in pasts.values():
        for one in past.budget.scopes:
            known[one["id"]] = max(past.counted_seq, known.get(one["id"], BEGINNING))
    if not known:
        return {}
    anywhere = sorted(seq for scope_id, seq in known.items() if scope_id not in pasts)[:1]
    news_from, used = dict[str, RecordId](), dict[str, Amounts]()
    for row in sorted(rows, key=lambda row: row.born_seq):  # parents come first
        above = row.parent_id or ""
        since = [*anywhere, *(one[above] for one in (known, news_from) if above in one)]
        if since:
            news_from[row.id] = min(since)
        if since and row.ended:
            for scope_id, amounts in (await used_in(journal, row.id, min(since))).items():
                _at_least(used, scope_id, amounts)
    return used


async def crossed_from(journal: Journal, turn_id: str) -> list[LifecycleEvent]:
    """Return the records of policy edges that aborts of a turn's tool calls crossed."""
    return [
        record
        async for page in _pages(journal, turn_id)
        for record in page
        if record.event == "AbortRecord" and record.metadata["policy_edge"] is not None
    ]


async def own_abort_of(journal: Journal, session_id: str) -> AbortReason | None:
    """Return the reason for which the runtime ended a session by a limit; ``None`` if another abort requested the end
    of the session, too."""
    first: LifecycleEvent | None = None
    others: set[str | None] = set()
    async for page in _pages(journal, session_id):
        for record in page:
            match record.event:
                case "OperatorStop" if record.from_status != record.to_status:
                    first = record
                case "OperatorStop" | "AbortJoined":  # a stop that shortens the termination, or comes late
                    others.add(record.abort_id)
    if first is None or first.abort_reason not in OWN_ABORTS:
        return None
    # A stop that is no abort, as of a shutdown, only shortens the deadline.
    return AbortReason(first.abort_reason) if others <= {None, first.abort_id} else None


async def _asked_of(journal: Journal, turn_id: str) -> str | None:
    """Return the id of the prompt of a turn; ``None`` if the id is not the id of a turn, or the turn is in an
    archive."""
    first = await journal.events(entity_id=turn_id, limit=CLAIMED_BY)
    return next((str(one.metadata["request_id"]) for one in first if one.event == "task_claimed"), None)


async def due_of(journal: Journal, turn: Entity) -> float | None:
    """Return the time at which a turn times out (monotonic seconds), for data of earlier versions, which lack that
    time: computed from the record by which the turn began to run. Return ``None`` if it has not begun."""
    began_s: float | None = None
    async for page in _pages(journal, turn.id):
        for record in page:
            if (record.outcome, record.event, record.to_status) == ("transition", "agent_spawned", "RUNNING"):
                began_s = record.monotonic_s
    return None if began_s is None else began_s + turn.data.timeout_s


async def records_of(journal: Journal, entity_id: str | None = None) -> list[LifecycleEvent]:
    """Return all records of one entity, or of all entities, however many there are. (The function returns a list, since
    a generator that is left halfway is finished by the garbage collector.)"""
    return [record async for page in _pages(journal, entity_id) for record in page]


async def _pages(
    journal: Journal, entity_id: str | None, after: RecordId = BEGINNING
) -> AsyncIterator[Sequence[LifecycleEvent]]:
    while page := await journal.events(entity_id=entity_id, after_seq=after):
        after = page[-1].seq
        yield page


async def _call_of(journal: Journal, seq: RecordId | None) -> str | None:
    """Return the tool call that began with record *seq*; ``None`` if that is another record, or was archived."""
    for one in await journal.events(after_seq=id_before(seq), limit=1) if seq else ():
        if one.seq == seq and one.event == "tool_started":
            return f"{one.entity_id}:c{one.metadata['number']}"
    return None
