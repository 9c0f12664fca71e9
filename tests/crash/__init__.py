"""Crash test: the real program is killed with SIGKILL again and again: ``python -m tests.crash --cycles 2000`` (``make
crash``)."""
