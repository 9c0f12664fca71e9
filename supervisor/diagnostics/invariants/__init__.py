"""Invariants of every journal, checked from its records alone; ``supervisor validate`` and the simulator use them."""

from supervisor.diagnostics.invariants.catalogue import INVARIANTS, WORLD, Violation
from supervisor.diagnostics.invariants.checker import RecordChecker

__all__ = ["INVARIANTS", "WORLD", "RecordChecker", "Violation"]
