"""Requests that only a daemon takes: plans to run, the end of a run, and the configuration again.

The daemon package implements :class:`DaemonControl`; the control server calls it (``SupervisorCore.daemon``). A
supervisor that was opened by a host, or by ``supervisor run``, has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to run a plan, as its submitter had the plan.

    *text* is the plan as YAML or JSON, ``""`` to resume a run with the plan that was recorded with it. *source* names
    the text in error messages. *path* is the plan's file (``""``: there is none): relative paths in the plan are
    relative to its directory, or else to *directory*, in which agents without a ``cwd`` work. *environment* are
    variables that every agent of the plan gets. *instead* are agents of the catalogue that replace agents of the plan,
    *name* replaces the name of the plan. *installed*: installed plug-ins are used. *key* is the idempotency key,
    *resume* the id of the run to resume.
    """

    text: str = ""
    source: str = "plan"
    path: str = ""
    directory: str
    environment: Mapping[str, str] = {}
    instead: Mapping[str, str] = {}
    name: str = ""
    fail_fast: bool = False
    installed: bool = True
    key: str | None = None
    resume: str | None = None
    by: str = ""


class SubmittedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to a :class:`PlanRequest`: the id of the run, which is on the disk, and sentences about what of the plan
    has no effect here."""

    run: str
    notes: tuple[str, ...] = ()


class HookLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the requests to a webhook, which hold before its signature is checked."""

    bytes_max: int
    requests_per_minute: int


class HookReply(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to a request to a webhook: the HTTP status, and the body."""

    status: int
    body: Mapping[str, Any]


class Hooks(Protocol):
    """Webhooks of a daemon, by the names of their triggers."""

    def limits(self, name: str) -> HookLimits | None:
        """Return the limits of a webhook; ``None`` if there is none of that name."""
        ...

    async def deliver(self, name: str, headers: Mapping[str, str], body: bytes) -> HookReply:
        """Take a request to a webhook; *headers* have names in lower case. The decision is on the disk when this
        returns."""
        ...

    def note_refused(self, name: str, reason: str) -> None:
        """Record that a request was refused unread."""
        ...

    def note_unknown(self, name: str) -> None:
        """Record that a request has named a webhook that there is not."""
        ...


class DaemonControl(Protocol):
    """Control of a daemon."""

    @property
    def hooks(self) -> Hooks | None:
        """Webhooks; ``None`` if the daemon has no triggers."""
        ...

    async def submit(self, request: PlanRequest) -> SubmittedPlan:
        """Begin a run, and return when the run is on the disk.

        Raises:
            BadPlan: the plan, or a field of the request, is invalid; nothing was started.
            NoSuchEntity: there is no run to resume.
            Refused: the key was used for another request, the run to resume goes on or has no rest, or the daemon ends.
        """
        ...

    async def cancel_run(self, run: str, *, by: str, reason: str) -> bool:
        """Give a run up: its sessions are aborted, and its open tasks are cancelled. Return when the run has ended;
        false if it had ended before.

        Raises:
            NoSuchEntity: there is no such run.
        """
        ...

    async def reload(self, *, by: str) -> str:
        """Read the configuration again, and return a sentence about it.

        Raises:
            BadPlan: the configuration is invalid; the last good one stays in force.
            Refused: the daemon has no configuration file.
        """
        ...

    def stop(self, *, by: str, now: bool) -> None:
        """Begin the end of the daemon: a drain; with *now*, or at the second call, the end at once. Runs and sessions
        that have not ended are left to the next daemon."""
        ...
