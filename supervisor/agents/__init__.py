"""Adapters: one codec per way of talking to an agent, all behind :class:`supervisor.ports.Codec`.

A codec is sans-I/O: it owns no process, file, clock or task, so the simulator runs the same one. Only
``scripted_agent`` is a program, and it is never imported here: it runs as a process of its own.
"""

__all__: list[str] = []
