"""Mutants of the product: small changes of it, and the tests that notice them. ``python -m tests.mutation --help``."""
