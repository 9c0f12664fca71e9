"""Parts of a live session: the connection to its agent, the execution of effects, permissions, monitors and
requests."""

__all__: list[str] = []
