"""What the actor kernel costs: messages, lives, ends, steps. Run it alone with ``python -m benchmarks.kernel``."""

from __future__ import annotations

from benchmarks import ends, lives, machine, messages
from benchmarks.harness import Case
from benchmarks.table import main

__all__ = ["CASES"]

CASES: tuple[Case, ...] = (*messages.CASES, *lives.CASES, *ends.CASES, *machine.CASES)

if __name__ == "__main__":
    main(CASES)
