"""Codec, messages and handshake of the Agent Client Protocol (ACP), version 1."""

__all__: list[str] = []
