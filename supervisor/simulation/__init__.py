"""Failures on demand: the production runtime in virtual time, with simulated ports, injected faults, and an oracle.

A seed determines a run completely: the run has the same digest in another process, under another hash seed, on another
Python. The runtime imports nothing from this package; only the command line and the pytest plugin import the package.
"""

__all__: list[str] = []
