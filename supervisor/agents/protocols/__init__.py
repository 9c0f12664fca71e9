"""Codecs of the protocols that agents speak."""

__all__: list[str] = []
