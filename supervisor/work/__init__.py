"""Work on plans: backlog, scheduler and workers, attempts, completion of tasks, retries and recovery."""

__all__: list[str] = []
