"""Failures on demand: the production runtime in virtual time, with simulated ports, injected faults, and an oracle.

One seed is one run, to the bit: the same digest in another process, under another hash seed, on another Python.
Nothing here is imported by the runtime; only the command line and the pytest plugin come here.
"""

__all__: list[str] = []
