"""API for programs that embed a supervisor."""

__all__: list[str] = []
