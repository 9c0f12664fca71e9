"""Invariants of error counters: counts a session's errors again, and checks the reaction at a threshold and the restart
intensity.

The two counters, their resets and the backoff are those of spec 003; the limits are those that the session had at its
birth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.diagnostics.invariants.catalogue import ReportViolation
from supervisor.diagnostics.invariants.shadow_state import SessionShadow
from supervisor.lifecycles.effects import SendPrompt
from supervisor.lifecycles.types import PROVIDER_TROUBLE, Exit, LifecycleEvent, TransitionReason

_GIVEN_UP = "restart limit exceeded"
"""Beginning of the message of a session that stops because of too many restarts."""
ROUNDING_S = 1e-6
"""Tolerance in seconds, since times are sums of floats."""


class ErrorCounterInvariants:
    """Checker of the error counters of every session."""

    def __init__(self, report: ReportViolation) -> None:
        self._report = report

    # ------------------------------------------------------------------ resets
    def started(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        if shadow.data is not None and shadow.data.limits.stable_after_s <= 0:
            shadow.consecutive = 0
        if step is not None and any(type(one) is SendPrompt for one in step.effects):
            shadow.prompted = record.metadata.get("incarnation", 0)
        self._compare(shadow)

    def stable(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        shadow.consecutive = 0
        self._compare(shadow)

    # ------------------------------------------------------------------ exits
    def exited(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        verdict = record.metadata.get("verdict") or {}
        success = verdict.get("exit") == Exit.SUCCESS.value
        match record.from_status:
            case "Running" if success:
                shadow.consecutive = 0
            case "Running" | "Spawning" if verdict.get("transition_reason") == TransitionReason.ORPHAN_RECOVERED:
                if record.to_status != "CoolingDown":
                    self._report(
                        "counted_right", shadow.id, f"goes to {record.to_status} for the loss of its supervisor"
                    )
            case "Spawning" if verdict.get("transition_reason") == TransitionReason.SHORTAGE:
                if record.to_status != "CoolingDown":
                    self._report("counted_right", shadow.id, f"goes to {record.to_status} for want of descriptors")
            case "Running" if _is_providers(verdict, shadow):
                if record.to_status != "CoolingDown":
                    self._report("counted_right", shadow.id, f"goes to {record.to_status} for its provider's trouble")
            case "Running" | "Spawning":
                self._charge(record, shadow)
        self._compare(shadow)

    def _charge(self, record: LifecycleEvent, shadow: SessionShadow) -> None:
        incarnation = record.metadata.get("incarnation", 0)
        if incarnation <= shadow.charged:
            self._report("counted_right", shadow.id, f"the failure of incarnation {incarnation} is charged twice")
        shadow.charged, shadow.at_failure = incarnation, record.monotonic_s
        shadow.consecutive += 1
        shadow.total += 1
        if shadow.data is None:
            return
        limits = shadow.data.limits
        spent = shadow.consecutive >= limits.max_consecutive_errors or shadow.total >= limits.max_total_errors
        expected = "Stopped" if spent else "CoolingDown"
        if record.to_status != expected:
            counted = f"{shadow.consecutive} errors in a row, {shadow.total} in all"
            self._report("counted_right", shadow.id, f"goes to {record.to_status} after {counted}, not to {expected}")
        if (
            record.from_status == "Running" and shadow.prompted == incarnation and not shadow.data.spent
        ):  # that is the run's
            period_s = limits.restarts_within_s
            shadow.crashes = [at for at in shadow.crashes if record.monotonic_s - at <= period_s + ROUNDING_S]
            shadow.crashes.append(record.monotonic_s)

    def _compare(self, shadow: SessionShadow) -> None:
        if shadow.lost or shadow.data is None:
            return
        data = shadow.data
        if (data.consecutive_errors, data.total_errors) != (shadow.consecutive, shadow.total):
            theirs = f"{data.consecutive_errors} in a row, {data.total_errors} in all"
            self._report("counted_right", shadow.id, f"counts {theirs}; it was {shadow.consecutive} and {shadow.total}")
            shadow.consecutive, shadow.total = data.consecutive_errors, data.total_errors

    # ------------------------------------------------------------------ before a new launch
    def tried_again(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        """Check a restart after a backoff: the wait was long enough, and the restart intensity allows a restart. The
        window of the intensity ends where the backoff began, not at the present time."""
        if shadow.data is None:
            return
        limits = shadow.data.limits
        began = record.monotonic_s - _backoff_s(shadow.consecutive, limits)
        if began < shadow.at_failure - ROUNDING_S:
            waited_s = record.monotonic_s - shadow.at_failure
            self._report(
                "counted_right", shadow.id, f"tries again after {waited_s:g} s, sooner than its backoff allows"
            )
        within = sum(began - at <= limits.restarts_within_s - ROUNDING_S for at in shadow.crashes)
        if within > limits.restarts_max:
            self._report(
                "counted_right", shadow.id, f"starts again after {within} failures; {limits.restarts_max} may be"
            )

    def given_up(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        """Check that a session that stopped for too many restarts had too many."""
        if shadow.data is None or not str(record.metadata.get("message")).startswith(_GIVEN_UP):
            return
        if len(shadow.crashes) <= shadow.data.limits.restarts_max:
            most = shadow.data.limits.restarts_max
            self._report("counted_right", shadow.id, f"is given up after {len(shadow.crashes)} failures; {most} may be")

    def launches(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        if shadow.data is None:
            return
        limits = shadow.data.limits
        if shadow.consecutive >= limits.max_consecutive_errors or shadow.total >= limits.max_total_errors:
            counted = f"{shadow.consecutive} errors in a row, {shadow.total} in all"
            self._report("counted_right", shadow.id, f"launches again after {counted}")


def _is_providers(verdict: Mapping[str, Any], shadow: SessionShadow) -> bool:
    """Return whether the model's provider is to blame for the end of a turn that was requested once."""
    problem = (verdict.get("model") or {}).get("problem")
    asked = shadow.data.current if shadow.data is not None else None
    return problem in PROVIDER_TROUBLE and asked is not None and asked.once


def _backoff_s(errors: int, limits: Any) -> float:
    """Return the backoff after that many errors in a row, in seconds: ``min(2000 * 2^(n-1), 60000)`` ms (spec 003),
    with the session's own limits."""
    doubled = limits.backoff_base_ms * 2 ** min(max(errors - 1, 0), 32)
    return float(min(doubled, limits.backoff_cap_ms)) / 1000
