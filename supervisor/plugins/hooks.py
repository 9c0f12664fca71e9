"""What a plug-in may implement: every hook with its arguments and its answer, and the values that they are given.

This file is the promise of docs/how-to/plugins.md in code: within a major version a hook keeps its name, its arguments
and what its answer means; values may get more fields, each with a default. Hooks are plain functions: a plug-in names
the arguments that it wants, and the supervisor calls them by name, from one thread of that plug-in's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pluggy

from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.ports import Codec

__all__ = [
    "ABORT_HOOK",
    "ABORT_RECORDS",
    "EVENT_HOOKS",
    "PROJECT",
    "FailedAttempt",
    "Hooks",
    "Verification",
    "Verifier",
    "WorkItem",
    "hookimpl",
    "hookspec",
]

PROJECT: Final = "supervisor"
"""The name that pluggy knows these hooks by."""

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plug-in as the implementation of the hook of that name."""


# ------------------------------------------------------------------------------------------------------ what is given
class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work that could be claimed; ``priority`` is what the plan says of it (more is sooner)."""

    id: str
    agent: str
    priority: int = 0
    role: str = ""
    depends_on: tuple[str, ...] = ()


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a task that has failed; ``attempt`` counts from 1.

    ``category`` is what the supervisor takes the error for (``transient``, ``permanent``, ``unknown``, or nothing where
    it has no opinion), ``agents`` the names that another attempt may be given to.
    """

    task_id: str
    agent: str
    attempt: int
    error: str
    category: str = ""
    agents: tuple[str, ...] = ()


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What a verifier is to look at: the directory that the work was done in, and what the plan says ``with`` it.

    ``timeout_s`` is how long it may take, in seconds: after that nobody listens to it any more.
    """

    name: str
    directory: str
    options: Mapping[str, Any] = {}
    env: Mapping[str, str] = {}
    timeout_s: float = 30.0


Verifier = Callable[[Verification], str | None]
"""Looks at a piece of work: ``None`` or ``""`` where it is as it should be, or why it is not. It may block, and is
called in a thread of its own."""


# ----------------------------------------------------------------------------------------------------------- the hooks
class Hooks:
    """The specifications. Every hook is optional."""

    # ---- what has happened: every record is durable when it is told of, and is a copy: what is done to it stays there
    @hookspec
    def supervisor_task_event(self, event: LifecycleEvent) -> None:
        """A record of a task: a transition, a refusal or a fact (``event.outcome``)."""

    @hookspec
    def supervisor_agent_event(self, event: LifecycleEvent) -> None:
        """A record of an agent."""

    @hookspec
    def supervisor_session_event(self, event: LifecycleEvent) -> None:
        """A record of a session."""

    @hookspec
    def supervisor_turn_event(self, event: LifecycleEvent) -> None:
        """A record of a turn, with its tool calls."""

    @hookspec
    def supervisor_workstream_event(self, event: LifecycleEvent) -> None:
        """A record of a workstream."""

    @hookspec
    def supervisor_abort_event(self, event: LifecycleEvent) -> None:
        """An abort: one was asked for or crossed a policy edge (``AbortRecord``), or joined one that was under way
        (``AbortJoined``). The log that it stands in, a session's or a turn's, tells of it too."""

    # ---- what there is: asked once, when the supervisor opens
    @hookspec
    def supervisor_adapters(self) -> Mapping[str, Callable[[], Codec]]:  # type: ignore[empty-body]
        """Adapters by the name that a plan says (``agents.*.adapter``): each makes a codec, ``supervisor.ports.Codec``,
        which is one conversation. A codec is called on the event loop: it must not block. One that raises is taken
        for an agent that broke its protocol."""

    @hookspec
    def supervisor_verifiers(self) -> Mapping[str, Verifier]:  # type: ignore[empty-body]
        """Verifiers by the name that a plan says (``tasks.*.acceptance.*.verifier``). One that raises, or that is late,
        has not accepted the work."""

    # ---- opinions: the first plug-in with one is heard; with none, late, or failing: as if nobody was asked
    @hookspec
    def supervisor_priority(self, item: WorkItem) -> int | None:
        """The priority by which *item* is ordered among what can be claimed (more is sooner, as many: who came first),
        instead of its own. It orders: it cannot make claimable what is not."""

    @hookspec
    def supervisor_escalate(self, attempt: FailedAttempt) -> str | None:
        """Which of ``attempt.agents`` the next attempt is given to. Another name is no opinion."""

    @hookspec
    def supervisor_judge_retry(self, attempt: FailedAttempt) -> bool | None:
        """Whether the task is tried again: ``False`` ends it now, ``True`` tries even what looks permanent. It cannot
        exceed the attempts, budgets and breakers of the plan."""


EVENT_HOOKS: Final[Mapping[str, str]] = {
    kind.value: f"supervisor_{kind.value}_event"
    for kind in (Kind.TASK, Kind.AGENT, Kind.SESSION, Kind.TURN, Kind.WORKSTREAM)
}
"""By the kind of entity that a record is about."""

ABORT_HOOK: Final = "supervisor_abort_event"
ABORT_RECORDS: Final = frozenset({"AbortRecord", "AbortJoined"})
