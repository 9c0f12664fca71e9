"""Agents: one codec per protocol, all behind :class:`supervisor.ports.Codec`, and the agent as an async function.

A codec does no I/O: it owns no process, file, clock or task, so that the simulator runs the same codec.
``scripted_agent`` is a program that runs as a process of its own; nothing here imports it.
"""

__all__: list[str] = []
