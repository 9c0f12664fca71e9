"""Commands of ``python -m tests.verification``, one module for each."""
