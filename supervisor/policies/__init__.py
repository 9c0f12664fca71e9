"""Decisions without a clock, a file or a process: facts in, a verdict out."""

__all__: list[str] = []
