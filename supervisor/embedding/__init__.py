"""What an embedding program imports."""

__all__: list[str] = []
