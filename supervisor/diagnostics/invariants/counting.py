"""Counting: a session's errors by a model of our own, what follows at a threshold, and how often it may start again.

The two counters, their resets and the backoff are those of spec 003; limits are the session's own, as it was born.
"""

from __future__ import annotations

from typing import Any

from supervisor.diagnostics.invariants.catalogue import Say
from supervisor.diagnostics.invariants.shadow_state import SessionBook
from supervisor.lifecycles.effects import SendPrompt
from supervisor.lifecycles.types import Exit, LifecycleEvent, TransitionReason

__all__ = ["Counting"]

_GIVEN_UP = "restart limit exceeded"
"""How the runtime begins to say so."""
ROUNDING_S = 1e-6
"""Times are sums of floats."""


class Counting:
    """The counters of every session."""

    def __init__(self, say: Say) -> None:
        self._say = say

    # ------------------------------------------------------------------ resets
    def started(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        if book.data is not None and book.data.limits.stable_after_s <= 0:
            book.consecutive = 0
        if step is not None and any(type(one) is SendPrompt for one in step.effects):
            book.prompted = record.metadata.get("incarnation", 0)
        self._compare(book)

    def stable(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        book.consecutive = 0
        self._compare(book)

    # ------------------------------------------------------------------ exits
    def exited(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        verdict = record.metadata.get("verdict") or {}
        success = verdict.get("exit") == Exit.SUCCESS.value
        match record.from_status:
            case "Running" if success:
                book.consecutive = 0
            case "Running" | "Spawning" if verdict.get("transition_reason") == TransitionReason.ORPHAN_RECOVERED:
                if record.to_status != "CoolingDown":
                    self._say("counted_right", book.id, f"goes to {record.to_status} for the loss of its supervisor")
            case "Spawning" if verdict.get("transition_reason") == TransitionReason.SHORTAGE:
                if record.to_status != "CoolingDown":
                    self._say("counted_right", book.id, f"goes to {record.to_status} for want of descriptors")
            case "Running" | "Spawning":
                self._charge(record, book)
        self._compare(book)

    def _charge(self, record: LifecycleEvent, book: SessionBook) -> None:
        incarnation = record.metadata.get("incarnation", 0)
        if incarnation <= book.charged:
            self._say("counted_right", book.id, f"the failure of incarnation {incarnation} is charged twice")
        book.charged, book.at_failure = incarnation, record.monotonic_s
        book.consecutive += 1
        book.total += 1
        if book.data is None:
            return
        limits = book.data.limits
        spent = book.consecutive >= limits.max_consecutive_errors or book.total >= limits.max_total_errors
        expected = "Stopped" if spent else "CoolingDown"
        if record.to_status != expected:
            counted = f"{book.consecutive} errors in a row, {book.total} in all"
            self._say("counted_right", book.id, f"goes to {record.to_status} after {counted}, not to {expected}")
        if (
            record.from_status == "Running" and book.prompted == incarnation and not book.data.spent
        ):  # that is the run's
            period_s = limits.restarts_within_s
            book.crashes = [at for at in book.crashes if record.monotonic_s - at <= period_s + ROUNDING_S]
            book.crashes.append(record.monotonic_s)

    def _compare(self, book: SessionBook) -> None:
        if book.lost or book.data is None:
            return
        data = book.data
        if (data.consecutive_errors, data.total_errors) != (book.consecutive, book.total):
            theirs = f"{data.consecutive_errors} in a row, {data.total_errors} in all"
            self._say("counted_right", book.id, f"counts {theirs}; it was {book.consecutive} and {book.total}")
            book.consecutive, book.total = data.consecutive_errors, data.total_errors

    # ------------------------------------------------------------------ before a new launch
    def tried_again(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        """The backoff is over: was it long enough, and may it start again at all? The window ends where it began, no
        later than now."""
        if book.data is None:
            return
        limits = book.data.limits
        began = record.monotonic_s - _backoff_s(book.consecutive, limits)
        if began < book.at_failure - ROUNDING_S:
            waited_s = record.monotonic_s - book.at_failure
            self._say("counted_right", book.id, f"tries again after {waited_s:g} s, sooner than its backoff allows")
        within = sum(began - at <= limits.restarts_within_s - ROUNDING_S for at in book.crashes)
        if within > limits.restarts_max:
            self._say("counted_right", book.id, f"starts again after {within} failures; {limits.restarts_max} may be")

    def given_up(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        """It was stopped for too many restarts: were they?"""
        if book.data is None or not str(record.metadata.get("message")).startswith(_GIVEN_UP):
            return
        if len(book.crashes) <= book.data.limits.restarts_max:
            most = book.data.limits.restarts_max
            self._say("counted_right", book.id, f"is given up after {len(book.crashes)} failures; {most} may be")

    def launches(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        if book.data is None:
            return
        limits = book.data.limits
        if book.consecutive >= limits.max_consecutive_errors or book.total >= limits.max_total_errors:
            counted = f"{book.consecutive} errors in a row, {book.total} in all"
            self._say("counted_right", book.id, f"launches again after {counted}")


def _backoff_s(errors: int, limits: Any) -> float:
    """``min(2000 * 2^(n-1), 60000)`` ms for n errors in a row, with the session's own figures (spec 003)."""
    doubled = limits.backoff_base_ms * 2 ** min(max(errors - 1, 0), 32)
    return float(min(doubled, limits.backoff_cap_ms)) / 1000
