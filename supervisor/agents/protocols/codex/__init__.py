"""Codec and messages of codex's app-server protocol (``codex app-server``)."""

__all__: list[str] = []
