"""Conformance probe: try an agent of the catalogue on this machine and report what it does (``supervisor agents``)."""

__all__: list[str] = []
