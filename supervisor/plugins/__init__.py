"""Plug-ins: what others add to the supervisor without changing it, by hooks that pluggy finds and this room calls.

A plug-in is a guest: an error of it, or its slowness, is its own. It is told of what has happened, asked for an opinion
where there is a choice, and never in the way: docs/how-to/plugins.md says what is promised to it, and what to
everybody else.
"""

from __future__ import annotations

from supervisor.plugins.hooks import FailedAttempt, Hooks, Verification, Verifier, WorkItem, hookimpl
from supervisor.plugins.loading import Loaded, UnknownPlugin
from supervisor.plugins.running import PluginReport, Plugins

__all__ = [
    "FailedAttempt",
    "Hooks",
    "Loaded",
    "PluginReport",
    "Plugins",
    "UnknownPlugin",
    "Verification",
    "Verifier",
    "WorkItem",
    "hookimpl",
]
