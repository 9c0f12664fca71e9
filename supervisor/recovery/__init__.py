"""What a dead supervisor left open is read from the journal and continued."""

__all__: list[str] = []
