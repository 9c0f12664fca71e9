"""Fuzz test: targets are given malformed input, much of it: ``python -m tests.fuzz --inputs 1000000`` (``make
fuzz``)."""
