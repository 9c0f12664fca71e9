"""Real agents, offline, against the scripted model, through our own runtime: ``make test-agents``.

Not a part of the suite: it installs programs and takes minutes. Nothing is called good that was not seen: each cell
looks at the world (files, processes, the stub's requests, the journal), and what does not hold is printed as it was.
"""
