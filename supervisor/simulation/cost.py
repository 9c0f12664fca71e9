"""Cost of a run: wasted turns and tokens, and the number of sessions that each failure ended.

Turns and ends of sessions are read from durable records. Tokens are counted when a simulated agent reports using them.
A token is wasted unless the turn that used the token is completed.
"""

from __future__ import annotations

import msgspec

from supervisor.lifecycles.types import LifecycleEvent


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a run, summed over all its sessions.

    ``turns`` counts launched turns, ``wasted_turns`` the launched turns that did not complete; tokens likewise.
    ``reached`` has, for each abort and each failure that ended a session, the number of other sessions that ended by
    that abort or failure.
    """

    turns: int
    wasted_turns: int
    tokens: int
    wasted_tokens: int
    reached: tuple[int, ...]


class OutcomeCounts(msgspec.Struct):
    """Outcomes of a run as customers and operators see them: prompts by outcome, sessions started, and the time that
    work stood still after a lost turn."""

    completed: int = 0
    failed: int = 0
    aborted: int = 0
    lost: int = 0
    sessions: int = 0
    resumed: int = 0
    """Number of sessions that a customer continued under another supervisor."""
    unanswered: int = 0
    """Number of prompts that customers wanted and that were never completed."""
    recoveries_s: list[float] = []
    """Seconds from the loss of a customer's turn to the same customer's next completed turn, for each loss."""
    unrecovered: int = 0
    """Number of losses of turns that no completed turn of the same customer followed."""
    reached: list[int] = []
    """Number of sessions that each abort ended, abort by abort."""


class CostMeter:
    """Meter that counts the cost of one run while the run goes on."""

    def __init__(self) -> None:
        self._launched: set[str] = set()
        self._completed: set[str] = set()
        self._working: set[str] = set()
        """Sessions with a turn that may still complete."""
        self._open: dict[str, int] = {}
        """Tokens used by turns that may still complete, by session."""
        self._useful = 0
        self._used = 0
        self._origins: dict[int, int] = {}
        """Sequence number of the abort or failure that a record follows from, by the record's sequence number."""
        self._reached: dict[int, set[str]] = {}
        """Sessions that each abort or failure ended, besides the target or failed session, by the sequence number of
        the abort or failure."""
        self._about: dict[int, str] = {}

    def spend(self, session_id: str, tokens: int) -> None:
        """Count tokens that an agent of the session has used."""
        self._used += tokens
        if session_id in self._working:
            self._open[session_id] = self._open.get(session_id, 0) + tokens

    def record(self, record: LifecycleEvent) -> None:
        """Take in a durable record."""
        if record.entity_type == "turn" and record.outcome == "transition":
            self._turn(record)
        if record.cause_id in self._origins or record.event == "AbortRecord" or record.to_status == "Stopped":
            self._trace(record)

    def cost(self) -> Cost:
        """Return the cost of the run so far."""
        return Cost(
            turns=len(self._launched),
            wasted_turns=len(self._launched - self._completed),
            tokens=self._used,
            wasted_tokens=self._used - self._useful,
            reached=tuple(len(one) for one in self._reached.values()),
        )

    # ------------------------------------------------------------------ turns
    def _turn(self, record: LifecycleEvent) -> None:
        turn_id, session_id = record.entity_id, record.entity_id.rpartition(":")[0]
        match record.to_status:
            case "SPAWNING":
                self._launched.add(turn_id)
                self._working.add(session_id)
            case "COMPLETING":
                self._completed.add(turn_id)
                self._useful += self._settled(session_id)
            case "FAILED":
                self._settled(session_id)

    def _settled(self, session_id: str) -> int:
        self._working.discard(session_id)
        return self._open.pop(session_id, 0)

    # ------------------------------------------------------------------ how far it reached
    def _trace(self, record: LifecycleEvent) -> None:
        """Attribute a record to the abort or failure that the record follows from, and count a session that ends by
        it."""
        origin = self._origins.get(record.cause_id or 0)
        if origin is None and _begins(record):
            origin = record.seq
            self._reached[origin] = set()
            self._about[origin] = str(record.metadata.get("target", record.entity_id))
        if origin is None:
            return
        self._origins[record.seq] = origin
        if _ends(record) and record.entity_id != self._about[origin]:
            self._reached[origin].add(record.entity_id)


def _ends(record: LifecycleEvent) -> bool:
    return record.entity_type == "session" and record.to_status == "Stopped" != record.from_status


def _begins(record: LifecycleEvent) -> bool:
    """Whether the record is an abort, or the failure of a whole session. The close of a session counts as neither."""
    if record.event == "AbortRecord":
        return True
    return _ends(record) and (record.event != "OperatorStop" or record.metadata.get("outcome") == "aborted")
