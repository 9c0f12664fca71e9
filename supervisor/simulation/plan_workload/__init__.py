"""Plans for simulated runs: random plans, scripts of each task's outcomes, simulated workspaces, and operator bots."""

__all__: list[str] = []
