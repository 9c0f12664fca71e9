"""Checker of timers and terminations in virtual time: a timer fires at its exact time, and a termination takes the time
of its termination stages.

A timer is set when the record that starts the timer is durable, and ends with the state that started it. The timer's
event names that record as its cause, so each timer is checked against its own due time: it may fire no earlier, and no
later than the grain to which the run rounds timers, plus the time that the machine has slept since. A timer that has
not fired by the time of later records was lost. A timer that falls due while the machine sleeps fires after a grace
period for messages that arrived meanwhile.

A backoff outlives its supervisor: it is measured from its own record by the journal's clock. The time limit of a turn
outlives the supervisor, too: the turn that repeats a lost request times out when the lost turn would have.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from actors.machine import Step
from actors.timers import GRACE_S, LATE_S
from supervisor.diagnostics.invariants.shadow_state import RECOVERY
from supervisor.lifecycles.effects import StartTimer
from supervisor.lifecycles.types import LifecycleEvent, StageBudgets, TerminationStage
from supervisor.policies.stage_deadlines import EXITING_S

Say = Callable[[str, str, str], None]
ROUNDING_S = 1e-5
"""Tolerance for sums of floats, some of them Unix times, in seconds."""
MENDED_S = 10.0
"""Seconds after a disk's recovery within which the supervisor notices it: the slowest commit (8 s), and a margin."""
BACKOFF = "BackoffElapsed"
TURN = "turn"
"""Name of the timer that limits the time of a turn."""
LOST = "orphan_recovered"
STARTING_S = 60.0
"""Seconds that a supervisor may take at its start to read its journal and end the entities that it stops: several
commits of the slowest disk."""
GIVEN_UP_S = 5.0
"""Seconds, in addition to the termination stages, that a loaded machine may need before a cancel scope is abandoned
(``supervisor.sessions.termination``)."""


class _Timer(NamedTuple):
    """Running timer: its entity, its event, and its due time (the run's seconds)."""

    due_s: float
    set_s: float
    seq: int
    entity_id: str
    event: str
    lasting: bool
    due_at: float = 0.0
    """Due time by the journal's clock, counted from the timer's record."""
    late_s: float = 0.0
    """Seconds by which the timer may be late: a starting supervisor sets the timer after reading its journal."""
    passed_on: bool = True
    """Whether the turn that repeats a lost turn is given the rest of this time."""


class _End(NamedTuple):
    """Termination under way: its start (the run's seconds), and whether it was shortened or may have less time."""

    began_s: float
    pressed: bool


class TimerChecker:
    """Checker of the timers of entities, and of the terminations of sessions.

    Args:
        say: reports a violation: the invariant, the entity, and the message.
        now: the run's clock, in seconds.
        slept_since: returns the seconds that the machine has slept since a time.
        ladder: the budgets of the sessions' termination stages.
        grain_s: timers of the run are rounded up to multiples of this number of seconds.
    """

    def __init__(
        self,
        say: Say,
        now: Callable[[], float],
        slept_since: Callable[[float], float],
        ladder: StageBudgets,
        grain_s: float,
    ) -> None:
        self._say, self._now, self._slept_since = say, now, slept_since
        self._ladder, self._grain_s = ladder, grain_s
        self._timers: dict[str, dict[int, _Timer]] = {}
        self._due: list[_Timer] = []
        self._ends: dict[str, _End] = {}
        self._joined: set[str] = set()
        """Sessions whose termination another abort joined before the termination's record: the request was in the
        session's mailbox."""
        self._allowed: dict[str, float] = {}
        """Time limit of the next turn of a session whose last turn was lost (seconds of the journal's clock)."""
        self._within_s: dict[str, float] = {}
        """Deadline in seconds of each abort."""
        self._pauses: list[tuple[float, float]] = []
        """Times and lengths of the sleeps of the machine."""
        self._outages: list[tuple[float, float]] = []
        """Times at which the disk recovered, and the lengths of the outages."""

    def forget(self, offset_s: float) -> None:
        """Drop the timers of a supervisor that has ended, except backoffs and the time limits of lost turns.
        *offset_s*: seconds by which the next supervisor's clock is ahead of the run's."""
        for turn_id in self._timers:
            self._lose(turn_id)
        going_on = [one for timers in self._timers.values() for one in timers.values() if one.event == BACKOFF]
        self._timers.clear()
        self._due.clear()
        self._ends.clear()
        self._joined.clear()
        for one in going_on:
            due_s = max(one.due_at - offset_s, self._now())
            self._set(one._replace(due_s=due_s, set_s=self._now(), late_s=STARTING_S))

    def _set(self, timer: _Timer) -> None:
        self._timers.setdefault(timer.entity_id, {})[timer.seq] = timer
        heapq.heappush(self._due, timer)

    def slept(self, seconds: float) -> None:
        """Note that the machine sleeps for so many seconds from now on."""
        self._pauses.append((self._now(), seconds))

    def disk_was_down(self, seconds: float) -> None:
        """Note that the disk was down for so many seconds until now."""
        self._outages.append((self._now(), seconds))

    # ------------------------------------------------------------------ timers
    def running(self, entity_id: str) -> int:
        """Return the number of running timers of an entity."""
        return len(self._timers.get(entity_id, ()))

    def stepped(self, record: LifecycleEvent, step: Step[Any, Any]) -> None:
        """Process a durable transition: the transition ends the timers of the state that the entity leaves, and sets
        other timers."""
        self._follow(record)
        if record.from_status != record.to_status:
            self._leave(record.entity_id)
        for effect in step.effects:
            if type(effect) is StartTimer:
                set_s = self._now()
                name = type(effect.event).name()
                due_at = record.monotonic_s + effect.delay_s
                due_s = set_s + effect.delay_s
                if effect.name == TURN:
                    self._check_allowed(record.entity_id, due_at, record.monotonic_s)
                    self._void_deadline(record.entity_id)
                self._set(_Timer(due_s, set_s, record.seq, record.entity_id, name, effect.lasting, due_at))
        if record.to_status in ("FAILED", "VERIFYING"):  # the deadline of a turn is that of its agent's work
            self._timers.pop(record.entity_id, None)

    # ------------------------------------------------------------------ the time of a turn that was lost
    def _lose(self, turn_id: str) -> None:
        """Store the rest of a lost turn's time limit for its session."""
        for timer in self._timers.get(turn_id, {}).values():
            if timer.lasting and timer.passed_on:
                self._allowed[_session_of(turn_id)] = timer.due_at

    def _follow(self, record: LifecycleEvent) -> None:
        """Drop the stored rest of a time limit if the turn ended in another way than by a loss, or was interrupted: the
        next turn is then no repetition."""
        if record.from_status == record.to_status:
            return
        if record.to_status == "FAILED" and record.transition_reason == LOST:
            self._lose(record.entity_id)
        elif record.to_status in ("FAILED", "COMPLETING"):
            self._allowed.pop(_session_of(record.entity_id), None)
        elif record.from_status == "Interrupting":
            self._allowed.pop(record.entity_id, None)
            self._supersede(record.entity_id)

    def _supersede(self, session_id: str) -> None:
        """Note that the session did not wait for the turn that it interrupted: a turn that is lost later is another
        turn."""
        for turn_id in [one for one in self._timers if _session_of(one) == session_id]:
            timers = self._timers[turn_id]
            self._timers[turn_id] = {seq: one._replace(passed_on=False) for seq, one in timers.items()}

    def _check_allowed(self, turn_id: str, due_at: float, now_at: float) -> None:
        allowed_at = self._allowed.pop(_session_of(turn_id), due_at)
        late_s = due_at - max(allowed_at, now_at)
        if abs(late_s) > ROUNDING_S:
            words = "its time is over {:.6f} s {} than that of the turn which was lost"
            self._say("punctual", turn_id, words.format(abs(late_s), "later" if late_s > 0 else "sooner"))

    def _void_deadline(self, turn_id: str) -> None:
        """Drop the timer that an extension of the turn's time replaces."""
        timers = self._timers.get(turn_id)
        if timers:
            self._timers[turn_id] = {seq: one for seq, one in timers.items() if not one.lasting}

    def _leave(self, entity_id: str) -> None:
        timers = self._timers.get(entity_id)
        if timers:
            self._timers[entity_id] = {seq: one for seq, one in timers.items() if one.lasting}

    def heard(self, record: LifecycleEvent, at_s: float) -> None:
        """Process a record before its effects: check the timer that the record belongs to, and the timers that should
        have fired before. *at_s*: time of the record, by the run's clock."""
        timers = self._timers.get(record.entity_id)
        if timers and record.actor == record.entity_id and record.cause_id in timers:
            timer = timers[record.cause_id]
            if timer.event == record.event:
                del timers[record.cause_id]
                self._check_instant(timer, at_s)
        self._check_overdue(at_s)

    def _check_instant(self, timer: _Timer, at_s: float) -> None:
        late_s = at_s - timer.due_s
        if late_s < -ROUNDING_S:
            self._say("punctual", timer.entity_id, f"{timer.event} comes {-late_s:.6f} s before its time")
        elif late_s > self._spare_s(timer) + timer.late_s:
            self._say("punctual", timer.entity_id, f"{timer.event} comes {late_s:.6f} s after its time")
        elif not timer.late_s:
            self._check_heard_first(timer, at_s)

    def _check_heard_first(self, timer: _Timer, at_s: float) -> None:
        """Check that a timer that fell due during a sleep of the machine fires after the grace period for messages that
        arrived. (Not checked for a timer with several sleeps in its time, nor for one that was due at the very start of
        the sleep: the latter may have fired before.)"""
        pauses = [(began_s, slept_s) for began_s, slept_s in self._pauses if began_s + slept_s > timer.set_s]
        if len(pauses) != 1:
            return
        began_s, slept_s = pauses[0]
        woke_s = began_s + slept_s
        missed = began_s + ROUNDING_S < timer.due_s and self._latest_s(timer) < woke_s - LATE_S - self._grain_s
        if missed and at_s < woke_s + GRACE_S - ROUNDING_S:
            words = f"nobody ran for {slept_s:.6f} s, and {timer.event} comes {at_s - woke_s:.6f} s after that"
            self._say("punctual", timer.entity_id, f"{words}; {GRACE_S:g} s are for what came in")

    def _spare_s(self, timer: _Timer) -> float:
        """Return the seconds by which a timer may be late: rounding, and sleeps since the timer was set.

        A lasting timer stands still while the disk is down. A timer that was taken over is set when the continuation
        of its entity is on record, which waits for the disk, too.
        """
        spare_s = self._grain_s + ROUNDING_S + self._slept_since(timer.set_s - ROUNDING_S)
        return spare_s + (self._outages_of(timer) if timer.lasting or timer.late_s else 0.0)

    def _latest_s(self, timer: _Timer) -> float:
        """Return the latest due time of a timer if the machine does not sleep: a lasting timer stands still while the
        disk is down."""
        return timer.due_s + (self._outages_of(timer) if timer.lasting else 0.0)

    def _outages_of(self, timer: _Timer) -> float:
        """Return the seconds for which the disk was down since the timer was set."""
        return sum(lasted_s + MENDED_S for end_s, lasted_s in self._outages if end_s >= timer.set_s)

    def _check_overdue(self, at_s: float) -> None:
        """Report the timers that should have fired: everything that happened before *at_s* is on record by now."""
        while self._due and self._due[0].due_s + self._due[0].late_s < at_s - self._grain_s - ROUNDING_S:
            timer = heapq.heappop(self._due)
            pending = self._timers.get(timer.entity_id, {}).get(timer.seq)
            if pending is not None and timer.late_s + timer.due_s + self._spare_s(timer) < at_s:
                del self._timers[timer.entity_id][timer.seq]
                self._say("punctual", timer.entity_id, f"{timer.event} was due {at_s - timer.due_s:.6f} s ago")

    # ------------------------------------------------------------------ ends
    def ending(self, record: LifecycleEvent, at_s: float) -> None:
        """Process a record about the end of a session, or the record of an abort with its deadline."""
        if record.event == "AbortRecord":
            self._within_s[str(record.abort_id)] = float(record.metadata["deadline_s"])
            return
        end = self._ends.get(record.entity_id)
        if record.outcome == "transition" and record.to_status == "Stopped" and record.from_status != "Stopped":
            child, hurried = "/" in record.entity_id, bool(record.metadata.get("now"))
            brief = self._within_s.get(str(record.abort_id), inf) < self._ladder.total_s
            joined = record.entity_id in self._joined
            self._ends[record.entity_id] = _End(at_s, child or hurried or brief or joined)
            self._joined.discard(record.entity_id)
        elif end is None:
            if record.event == "AbortJoined":
                self._joined.add(record.entity_id)
        elif record.event in ("OperatorStop", "AbortJoined"):
            self._ends[record.entity_id] = end._replace(pressed=True)
        elif record.event == "Ended" and record.outcome == "transition" and record.actor != RECOVERY:
            del self._ends[record.entity_id]
            self._check_rung(record, end, at_s)

    def _check_rung(self, record: LifecycleEvent, end: _End, at_s: float) -> None:
        """Check the termination stage and the duration of a session's termination."""
        ladder, rung, took_s = self._ladder, str(record.metadata["rung"]), float(record.metadata["took_s"])
        if took_s < -ROUNDING_S or took_s > at_s - end.began_s + ROUNDING_S:
            whole_s = at_s - end.began_s
            self._say("punctual", record.entity_id, f"its end took {took_s:.6f} s of the {whole_s:.6f} s there were")
        request_s = ladder.request_s
        most_s = {
            TerminationStage.REQUEST: request_s,
            TerminationStage.CANCEL: ladder.total_s + GIVEN_UP_S,
            TerminationStage.TERMINATE: ladder.total_s + GIVEN_UP_S,
            TerminationStage.EXITING: ladder.total_s + ladder.kill_s + 3 * GIVEN_UP_S + EXITING_S,
        }.get(TerminationStage(rung), ladder.total_s + ladder.kill_s + 2 * GIVEN_UP_S)
        least_s = {
            TerminationStage.CANCEL: request_s,
            TerminationStage.TERMINATE: request_s,
            TerminationStage.ABANDON: ladder.total_s + GIVEN_UP_S + ladder.kill_s + GIVEN_UP_S,
        }.get(TerminationStage(rung), 0.0)
        spare_s = 3 * self._grain_s + ROUNDING_S + self._unheard_s(end)
        if took_s > most_s + spare_s:
            self._say("punctual", record.entity_id, f"ended by {rung} after {took_s:.6f} s, of at most {most_s:g} s")
        if not end.pressed and took_s < least_s - ROUNDING_S:
            self._say("punctual", record.entity_id, f"ended by {rung} after {took_s:.6f} s, of at least {least_s:g} s")

    def _unheard_s(self, end: _End) -> float:
        """Return the seconds by which a termination may seem longer because the machine slept from the exact time at
        which a stage ended: the timer of that stage fired unnoticed. (For a shortened termination these times are
        unknown.)"""
        ladder, near_s = self._ladder, self._grain_s + ROUNDING_S
        kill_at_s = end.began_s + ladder.total_s + GIVEN_UP_S
        rung_at = (end.began_s + ladder.request_s, kill_at_s, kill_at_s + ladder.kill_s + GIVEN_UP_S)
        began = [(at_s, slept_s) for at_s, slept_s in self._pauses if at_s >= end.began_s - near_s]
        return sum(
            slept_s for at_s, slept_s in began if end.pressed or any(abs(at_s - one) <= near_s for one in rung_at)
        )


def _session_of(turn_id: str) -> str:
    return turn_id.rpartition(":t")[0]
