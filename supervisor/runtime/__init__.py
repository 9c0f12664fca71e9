"""The loop that every event takes: an entity, its mailbox and table, the journal writer, subscribers."""

__all__: list[str] = []
