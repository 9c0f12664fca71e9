"""The simulated machine: processes, pipes, signals and shims that behave as on a real Linux machine."""

__all__: list[str] = []
