"""Daemon: a supervisor without a plan of its own, which runs the plans that are submitted to it."""

__all__: list[str] = []
