"""Codec and messages of Claude Code's stream-json protocol."""

__all__: list[str] = []
