"""Many runs: soaks and shrinking."""

__all__: list[str] = []
