"""The simulated machine: processes, pipes, signals and wardens that behave as the real ones."""

__all__: list[str] = []
