"""Policies of the supervisor: pure decisions without a clock, a file or a process; facts go in, a verdict comes out."""

__all__: list[str] = []
