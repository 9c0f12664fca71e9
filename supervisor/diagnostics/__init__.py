"""Read models of the journal: causal traces, the entity tree, visual states, validation, replay and what-if
analysis."""

__all__: list[str] = []
