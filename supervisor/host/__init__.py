"""The supervisor that an embedding program holds, and its services."""

__all__: list[str] = []
