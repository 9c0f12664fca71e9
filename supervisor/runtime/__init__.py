"""Live entities, the journal writer and the state of live sessions."""

__all__: list[str] = []
