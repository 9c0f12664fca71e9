"""Commands of ``python -m tests.verification``, a module each."""
