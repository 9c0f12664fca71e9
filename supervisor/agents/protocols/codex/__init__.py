"""The app-server of codex."""

__all__: list[str] = []
