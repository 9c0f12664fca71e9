"""Builder of logs for tests of modules that read logs: the state machines fill in the fields of each record, unless the
test overrides them."""

from __future__ import annotations

from typing import Any

import msgspec

from supervisor.diagnostics.event_replay import KINDS, Mismatch, event_of, step_of
from supervisor.lifecycles.types import LifecycleEvent


class Log:
    """Builder of a list of records, in order. These arguments of its methods override the state machine: ``to``,
    ``source``, ``cause_id``, ``monotonic_s``, ``as_seq``."""

    def __init__(self) -> None:
        self.records: list[LifecycleEvent] = []
        self._now = 100.0
        self._entities: dict[str, list[Any]] = {}

    # ------------------------------------------------------------------ records
    def born(self, kind: str, entity_id: str, *, cause: int | None = None, to: str = "", **data: Any) -> int:
        """Append the first record of an entity, and return the record's number."""
        table = KINDS[kind]
        state = table.states.get(to, table.machine.initial[-1 if kind == "task" else 0])
        known = msgspec.convert(data, table.data)
        metadata = msgspec.to_builtins(known)
        self._entities[entity_id] = [kind, state, known, 0]
        return self._add(entity_id, "Born", "born", "", to or state.value, metadata, {"cause_id": cause})

    def tell(self, entity_id: str, event: str, *, to: str = "", source: str = "", **facts: Any) -> int:
        """Append a transition, whose target the machine decides unless *to* is given; *facts* are fields of the record
        or of its metadata. Return the record's number."""
        described = {name: facts.pop(name) for name in tuple(facts) if name in _FIELDS}
        metadata = {**facts, **({"abort_id": described["abort_id"]} if "abort_id" in described else {})}
        if event not in _NAMING:
            metadata.pop("abort_id", None)
        kind, state, data, _ = self._entities[entity_id]
        self._now = described.pop("at", self._now)
        number = self._add(
            entity_id, event, "transition", source or state.value, to or state.value, metadata, described
        )
        try:
            step = step_of(KINDS[kind], state, data, event_of(KINDS[kind], self.records[-1]))
        except Mismatch:
            if not to:
                raise
            self._entities[entity_id][1] = KINDS[kind].states[to]
            return number
        target = to or step.state.value
        self._entities[entity_id][1:3] = [KINDS[kind].states[target], step.data]
        self.records[-1] = msgspec.structs.replace(self.records[-1], to_status=target)
        return number

    def fact(self, entity_id: str, event: str, *, outcome: str = "fact", to: str = "", **facts: Any) -> int:
        """Append a record that is no transition, and return the record's number."""
        described = {name: facts.pop(name) for name in tuple(facts) if name in _FIELDS}
        status = to or self._entities[entity_id][1].value
        return self._add(entity_id, event, outcome, "", status, facts, described)

    def _add(
        self, entity_id: str, event: str, outcome: str, source: str, to: str, metadata: Any, described: dict[str, Any]
    ) -> int:
        entity = self._entities[entity_id]
        entity[3] += 1
        self._now += 0.001
        facts = {"actor": "host", "monotonic_s": self._now, "entity_seq": entity[3], **described}
        record = LifecycleEvent(
            seq=facts.pop("as_seq", len(self.records) + 1),
            timestamp=self._now,
            entity_type=entity[0],
            entity_id=entity_id,
            event=event,
            outcome=outcome,
            from_status=source,
            to_status=to,
            metadata=metadata,
            **facts,
        )
        self.records.append(record)
        return record.seq

    # ------------------------------------------------------------------ whole chapters
    def request(self, session: str, request_id: str = "r1", *, once: bool = False) -> int:
        """Append the records of a prompt to a session at rest, and of the turn that opens."""
        asked = self.tell(session, "TurnRequested", request_id=request_id, prompt="p", once=once)
        self.open_turn(session, asked, request_id)
        return self.tell(session, "WorktreeReady", path="/", cause_id=asked)

    def open_turn(self, session: str, cause: int, request_id: str = "r1") -> str:
        turn = str(self._entities[session][2].turn_id)
        self.born("turn", turn, cause=cause, id=turn, session_id=session)
        self.tell(turn, "task_claimed", request_id=request_id, cause_id=cause)
        return turn

    def launch(self, session: str, agent: str, *, messages: int = 0, adapter: str = "test") -> int:
        """Append the records from the finished prompt to the state Running, with a new agent."""
        wanted = self.tell(session, "PromptReady", prompt="p", messages=messages)
        self.born("agent", agent, cause=wanted, id=agent, session_id=session, adapter=adapter)
        return self.ready(session, agent)

    def ready(self, session: str, agent: str) -> int:
        data = self._entities[session][2]
        self.tell(session, "AgentLaunched", incarnation=data.incarnation, agent_id=agent)
        started = self.tell(session, "SessionStarted", seq=1, incarnation=data.incarnation, agent_id=agent)
        for phase in ("launched", "ready"):
            self.tell(data.turn_id, "agent_spawned", incarnation=data.incarnation, phase=phase, cause_id=started)
        self.tell(agent, "agent_ready", cause_id=started)
        return started

    def running(self, session: str = "s", **limits: Any) -> None:
        """Append the records of a session whose agent works on the first prompt."""
        self.session(session, **limits)
        self.request(session, f"{session}:r1")
        self.launch(session, f"{session}:a1")

    def session(self, session: str, cause: int | None = None, **limits: Any) -> int:
        return self.born("session", session, cause=cause, id=session, agent="a", limits=limits)

    def call(self, turn: str, number: int, call_id: str = "") -> int:
        call_id = call_id or f"c{number}"
        return self.tell(turn, "tool_started", number=number, call_id=call_id, title="a call")

    def succeed(self, session: str, turn: str, agent: str) -> int:
        """Append the records of a successful end of the turn of a running session."""
        word = self.tell(turn, "verify_requested", verdict={"exit": "Success"})
        self.tell(session, "SessionExited", incarnation=self.incarnation(session), verdict=OK, cause_id=word)
        self.tell(agent, "task_finished", cause_id=word)
        done = self.tell(turn, "task_completed", cause_id=word)
        reaped = self.tell(turn, "agent_reaped", cause_id=done)
        return self.tell(session, "TurnReaped", turn_id=turn, completed=True, cause_id=reaped)

    def fail(self, session: str, turn: str, *, at: float | None = None) -> int:
        """Append the records of a failure of the turn of a running session."""
        failed = self.tell(turn, "task_failed", verdict=ERROR, **({} if at is None else {"at": at}))
        incarnation = self.incarnation(session)
        exited = self.tell(session, "SessionExited", incarnation=incarnation, verdict=ERROR, cause_id=failed)
        self.tell(turn, "agent_reaped", cause_id=failed)
        return exited

    def abort(self, log_of: str, target: str, scope: str, **more: Any) -> str:
        """Append the record of an abort, and return the abort's id."""
        abort_id = f"abort-{len(self.records) + 1}"
        self.fact(log_of, "AbortRecord", abort_id=abort_id, id=abort_id, scope=scope, target=target, **more)
        return abort_id

    def cross(self, log_of: str, abort_id: str, edge: str, ruled_by: str, *, after: str = "", cause: int) -> int:
        before = after or abort_id
        name = f"{before}/{edge}"
        scope = "sibling" if edge == "tool_to_sibling" else "session"
        told = {"id": name, "parent_record": before, "policy_edge": edge, "ruled_by": ruled_by, "scope": scope}
        return self.fact(log_of, "AbortRecord", abort_id=abort_id, cause_id=cause, **told)

    def stop(self, session: str, abort_id: str | None = None, cause: int | None = None) -> int:
        """Append the record of the stop of a session; if the cause is an abort of siblings, the session is stopped as a
        sibling."""
        scope = self.records[cause - 1].metadata.get("scope") if cause is not None else None
        over = "sibling_aborted" if scope == "sibling" else "aborted"
        more = {"abort_id": abort_id, "cause_id": cause, "transition_reason": over}
        return self.tell(session, "OperatorStop", reason="stop", **more)

    def end(self, session: str, cause: int, *, rung: str = "request", **lies: Any) -> int:
        return self.tell(session, "Ended", rung=rung, took_s=0.0, cause_id=cause, **lies)

    def exit(self, agent: str, cause: int | None = None) -> int:
        return self.tell(agent, "agent_exited", cause_id=cause)

    def incarnation(self, session: str) -> int:
        return int(self._entities[session][2].incarnation)


OK = {"exit": "Success"}
ERROR = {"exit": "Error", "error": "it broke"}
_FIELDS = frozenset({"at", "as_seq", "cause_id", "actor", "abort_id", "monotonic_s", "entity_seq", "transition_reason"})
_NAMING = frozenset({"OperatorStop", "tool_completed", "task_failed", "agent_exited"})
"""Events that have the id of an abort among their fields."""
