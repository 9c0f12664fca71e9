"""The supervisor object for an embedding program, and its services."""

__all__: list[str] = []
