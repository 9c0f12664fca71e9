"""Checks of the whole runtime that maintainers run: golden digests, reproducibility, aborts at every step, claims,
power cuts.

``python -m tests.verification --help`` lists the commands. The simulator itself, and what users run with it, is
:mod:`supervisor.simulation`.
"""
