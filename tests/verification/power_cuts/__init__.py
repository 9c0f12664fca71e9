"""Simulation of power cuts under the real SQLite engine, with a simulated disk for the production journal."""

__all__: list[str] = []
