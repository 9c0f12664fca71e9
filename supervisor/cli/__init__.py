"""Command line of the supervisor, and its MCP server.

The commands decide nothing: they read the journal, and send requests to the running supervisor.
"""

from __future__ import annotations

__all__: list[str] = []
