"""The commands of ``supervisor simulate``."""

__all__: list[str] = []
