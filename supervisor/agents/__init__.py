"""Agents: one codec for each protocol, all behind :class:`supervisor.ports.Codec`, and in-process agents (async
functions).

A codec does no I/O: it owns no process, file, clock or task, so that the simulator runs the same codec.
``scripted_agent`` is a program that runs as a process of its own; nothing in this package imports it.
"""

__all__: list[str] = []
