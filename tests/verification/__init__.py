"""Checks of the whole runtime that maintainers run: golden digests, reproducibility, aborts at every step, claims,
power cuts.

``python -m tests.verification --help`` lists the commands. The simulator itself, and its commands for users, are in
:mod:`supervisor.simulation`.
"""
