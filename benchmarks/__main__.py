"""Command that prints the table of the kernel and of hostile sessions: ``python -m benchmarks [--rounds N] [--only
TEXT] [--short]``."""

from __future__ import annotations

from benchmarks.table import main

if __name__ == "__main__":
    main()
