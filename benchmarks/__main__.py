"""The one table: ``python -m benchmarks [--rounds N] [--only TEXT]``."""

from __future__ import annotations

from benchmarks import hostile, kernel
from benchmarks.table import main

if __name__ == "__main__":
    main((*kernel.CASES, *hostile.CASES))
