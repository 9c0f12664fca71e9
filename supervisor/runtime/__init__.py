"""State of a running supervisor in memory: live entities and sessions, and the writer of the journal."""

__all__: list[str] = []
