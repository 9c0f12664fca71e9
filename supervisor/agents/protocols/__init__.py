"""Codecs for the protocols that agents use."""

__all__: list[str] = []
