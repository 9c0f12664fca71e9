"""Parts of a live session: its connection to an agent, its effects, permissions, monitors and requests."""

__all__: list[str] = []
