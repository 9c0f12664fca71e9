"""Codec for programs that print lines of JSON, whose meaning a line mapping describes."""

__all__: list[str] = []
