"""Where sessions work."""

__all__: list[str] = []
