"""Power cuts under the real SQLite engine: the simulated disk of the production journal."""

__all__: list[str] = []
