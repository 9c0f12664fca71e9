"""Plug-ins: additions to the supervisor by hooks, which pluggy finds and this package calls.

A plug-in receives records, gives opinions where the supervisor has a choice, and adds adapters and verifiers. The
errors and the slowness of a plug-in affect nothing else. docs/how-to/plugins.md lists the guarantees.
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
