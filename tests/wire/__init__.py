"""Conversations with real agents, as they went over the wire, and what records and replays them.

``AGENT-WHAT.jsonl`` is one conversation, a line ``{"at": ..., "data": ...}`` for each line on the agent's standard
input (``in``) and output (``out``), newline left out, and for each thing that was asked of the codec in between
(``do``: the method's name, with its ``args``; the first names the adapter). ``AGENT-WHAT.told`` is what the codec says
of that conversation, a line each.
"""
