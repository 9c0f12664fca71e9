"""The real program, killed with SIGKILL again and again: ``python -m tests.crash --cycles 2000`` (``make crash``)."""
