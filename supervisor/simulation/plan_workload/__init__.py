"""Work in a simulated world: plans that are drawn, what their tasks meet, and the judge's own record of that."""

__all__: list[str] = []
