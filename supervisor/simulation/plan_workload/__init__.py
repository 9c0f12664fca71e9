"""Plans for simulated runs: random plans, scripts of what each task meets, simulated workspaces, and operator bots."""

__all__: list[str] = []
