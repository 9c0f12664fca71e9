"""Live sessions: their state, their agents and the connections to them, effects, requests, permissions, monitors,
aborts and termination."""

__all__: list[str] = []
