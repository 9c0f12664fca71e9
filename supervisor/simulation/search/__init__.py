"""Searches over many simulated runs: soaks (many seeds) and shrinking (the smallest run that still fails)."""

__all__: list[str] = []
