"""Execution of aborts: the abort service, the termination of sessions, and the termination of single tool calls."""

__all__: list[str] = []
