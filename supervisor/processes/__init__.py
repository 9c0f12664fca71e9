"""Process host for real processes, each under a shim of its own; implements ``supervisor.ports.ProcessHost``.

Invariants: no process outlives the context in which it was started, nor the supervisor; and leaving a context takes a
bounded time. The package knows nothing about agents.
"""

__all__: list[str] = []
