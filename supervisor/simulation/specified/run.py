"""A run: its attempts, what is charged to it, its delays, its circuit and its probes (spec 002)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from supervisor.simulation.specified.copy import Copy, Effects, Meta

__all__ = ["RunCopy"]

OVER = frozenset({"COMPLETED", "SKIPPED", "CANCELLED"})
COUNTED = ("attempts", "failures", "same_error", "probes", "delay_s", "permanent", "probe", "last_signature")
SAVED = ("saved_in", "saved_attempt", "saved_as", "resumed_from", "resumed_at")
EVERYWHERE = frozenset(
    {
        "PENDING",
        "IN_PROGRESS",
        "VALIDATING",
        "FAILED",
        "RETRYING",
        "CIRCUIT_OPEN",
        "HALF_OPEN",
        "TIMEOUT",
    }
)


class RunCopy(Copy):
    """One run."""

    cells: ClassVar[Mapping[str, frozenset[str]]] = {
        "executor_started": frozenset({"PENDING"}),
        "skipped": frozenset({"PENDING"}),
        "cancelled": EVERYWHERE,
        "execution_completed": frozenset({"IN_PROGRESS"}),
        "execution_failed": frozenset({"IN_PROGRESS"}),
        "execution_timed_out": frozenset({"IN_PROGRESS"}),
        "tests_passed": frozenset({"VALIDATING"}),
        "tests_failed": frozenset({"VALIDATING"}),
        "retry_decided": frozenset({"FAILED", "TIMEOUT"}),
        "backoff_completed": frozenset({"RETRYING"}),
        "circuit_opened": frozenset({"RETRYING"}),
        "cooldown_expired": frozenset({"CIRCUIT_OPEN"}),
        "probe_started": frozenset({"HALF_OPEN"}),
        "probe_failed": frozenset({"HALF_OPEN"}),
        "manual_reset": frozenset({"CIRCUIT_OPEN"}),
        "checkpoint_saved": EVERYWHERE - {"PENDING"},
        "turn_settling": frozenset({"IN_PROGRESS"}),
    }

    def __init__(self, state: str, data: Meta) -> None:
        super().__init__(state, data)
        self.limits = data
        self.attempts, self.failures, self.same_error, self.probes = (int(data[one]) for one in COUNTED[:4])
        self.delay_s: float = data["delay_s"]
        self.permanent, self.probe = bool(data["permanent"]), bool(data["probe"])
        self.last_signature: str = data["last_signature"]
        self.saved_in, self.saved_attempt, self.saved_as = (data[one] for one in SAVED[:3])
        self.resumed_from, self.resumed_at = (data[one] for one in SAVED[3:])

    def knows(self, event: str, meta: Meta) -> bool:
        if not super().knows(event, meta):
            return False
        match event:
            case "executor_started":
                return not meta["waiting_for"]
            case "skipped":
                return bool(meta["final"])
            case "cooldown_expired":
                return not self.permanent and self.probes < self.limits["probes_max"]
        return True

    def take(self, event: str, meta: Meta) -> Effects:
        effects = super().take(event, meta)
        self.over = self.state in OVER
        return effects

    def differs(self, data: Any) -> str:
        here = [getattr(self, name) for name in (*COUNTED, *SAVED)]
        there = msgspec.to_builtins([getattr(data, name) for name in (*COUNTED, *SAVED)])
        return f"{there} of {here}" if here != there else ""

    # ------------------------------------------------------------------ attempts
    def on_executor_started(self, meta: Meta) -> Effects:
        return self._attempt()

    def on_backoff_completed(self, meta: Meta) -> Effects:
        return self._attempt()

    def on_probe_started(self, meta: Meta) -> Effects:
        self.probe = True
        return self._attempt()

    def _attempt(self) -> Effects:
        self.state, self.attempts, self.delay_s = "IN_PROGRESS", self.attempts + 1, 0.0
        return []

    # ------------------------------------------------------------------ ends of attempts
    def on_execution_completed(self, meta: Meta) -> Effects:
        return self._goes("VALIDATING")

    def on_execution_failed(self, meta: Meta) -> Effects:
        if meta["charged"]:
            self._charge(meta)
            self.permanent = self.permanent or meta["category"] == "permanent"
        return self._goes("FAILED")

    def on_execution_timed_out(self, meta: Meta) -> Effects:
        self._charge(meta)
        return self._goes("TIMEOUT")

    def _charge(self, meta: Meta) -> None:
        """One failure; the same error is one whose signature came last."""
        signature = meta["signature"] or meta["error"]
        again = self.failures > 0 and signature == self.last_signature
        self.same_error = self.same_error + 1 if again else 1
        self.failures, self.last_signature = self.failures + 1, signature

    def on_tests_passed(self, meta: Meta) -> Effects:
        self.probe = False
        return self._goes("COMPLETED")

    def on_tests_failed(self, meta: Meta) -> Effects:
        self.failures, self.permanent = self.failures + 1, True
        return self._goes("FAILED")

    # ------------------------------------------------------------------ decisions
    def on_retry_decided(self, meta: Meta) -> Effects:
        limits = self.limits
        spent = self.failures >= limits["max_attempts"] or self.same_error > limits["max_error_repeats"]
        if not (spent or self.permanent or self.probe):
            self.delay_s = self._delay_s(meta["jitter"])
            return self._goes("RETRYING")
        if self.state == "TIMEOUT":
            return self._goes("FAILED")
        self.probe = False
        return self._goes("CIRCUIT_OPEN")

    def _delay_s(self, jitter: float) -> float:
        """``min(cap, base * 2^(failures - 1))``, give or take a quarter, and the cap again; nothing was charged, no
        delay."""
        if not self.failures:
            return 0.0
        share, cap_s, base_s = (float(self.limits[one]) for one in ("jitter", "max_delay_s", "base_delay_s"))
        delay_s = min(cap_s, base_s * 2.0 ** (self.failures - 1))
        return min(cap_s, delay_s * max(1.0 - share, min(jitter, 1.0 + share)))

    def on_circuit_opened(self, meta: Meta) -> Effects:
        return self._goes("CIRCUIT_OPEN")

    def on_cooldown_expired(self, meta: Meta) -> Effects:
        self.probes += 1
        return self._goes("HALF_OPEN")

    def on_probe_failed(self, meta: Meta) -> Effects:
        self.probe = False
        return self._goes("CIRCUIT_OPEN")

    # ------------------------------------------------------------------ people
    def on_manual_reset(self, meta: Meta) -> Effects:
        self.attempts = self.failures = self.same_error = self.probes = 0
        self.delay_s, self.permanent, self.probe, self.last_signature = 0.0, False, False, ""
        self.saved_attempt = 0
        return self._goes("PENDING")

    def on_turn_settling(self, meta: Meta) -> Effects:
        return []

    def on_checkpoint_saved(self, meta: Meta) -> Effects:
        self.saved_in, self.saved_attempt, self.saved_as = meta["state"], meta["attempt"], meta["saved_as"]
        return []

    def on_skipped(self, meta: Meta) -> Effects:
        return self._goes("SKIPPED")

    def on_cancelled(self, meta: Meta) -> Effects:
        return self._goes("CANCELLED")

    def _goes(self, state: str) -> Effects:
        self.state = state
        return []
