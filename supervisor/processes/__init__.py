"""Real processes, each under a warden of its own, behind ``supervisor.ports.ProcessHost``.

What must always hold: no process outlives the context it was started in, nor the supervisor; and leaving takes a
bounded time. Nothing here knows what an agent is.
"""

__all__: list[str] = []
