"""Test of real agents, offline, against the scripted model, on this runtime: ``make test-agents``.

Not a part of the test suite, since it installs programs and takes minutes. Only behaviour that was observed is reported
as good: each cell checks files, processes, the requests to the stub of the model and the journal, and prints the
observation where a check fails.
"""
