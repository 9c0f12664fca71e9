"""Recovery: sessions and work that a dead supervisor left open are read from the journal and continued."""

__all__: list[str] = []
