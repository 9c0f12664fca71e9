"""The Agent Client Protocol, version 1."""

__all__: list[str] = []
