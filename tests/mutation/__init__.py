"""Mutation test of the product: mutants, which are small changes of the code, and the tests that fail for them.
``python -m tests.mutation --help``."""
