"""Many runs: soaks, proofs, sweeps, shrinking, and the hunt for planted bugs."""

__all__: list[str] = []
