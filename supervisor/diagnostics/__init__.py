"""Read models of the records: causes, the tree, visual states, validation, replay, what-if."""

__all__: list[str] = []
