"""The stream-json of Claude Code."""

__all__: list[str] = []
