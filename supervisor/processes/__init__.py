"""Real processes, each under a shim of its own, behind ``supervisor.ports.ProcessHost``.

Invariants: no process outlives the context that it was started in, nor the supervisor; and leaving a context takes a
bounded time. The package knows nothing about agents.
"""

__all__: list[str] = []
