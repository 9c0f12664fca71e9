"""Aborts carried out: the service, the executor, the escalation, the end of one call."""

__all__: list[str] = []
