"""One codec for each way of talking to an agent."""

__all__: list[str] = []
