"""What must hold of every journal, checked from its records alone: ``supervisor validate`` and the simulator use it."""

from supervisor.invariants.checker import RecordChecker
from supervisor.invariants.laws import INVARIANTS, WORLD, Violation

__all__ = ["INVARIANTS", "WORLD", "RecordChecker", "Violation"]
