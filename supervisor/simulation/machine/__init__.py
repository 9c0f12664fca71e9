"""The simulated machine: processes, pipes, signals and shims that behave as the real ones."""

__all__: list[str] = []
