"""Conformance probe: try an agent of the catalogue on this machine and report how it behaves (``supervisor
agents``)."""

__all__: list[str] = []
