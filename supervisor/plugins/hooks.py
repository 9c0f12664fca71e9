"""Hooks that a plug-in may implement, with their arguments, results, and the types of these.

Within a major version a hook keeps its name, its arguments and the meaning of its result; the types of arguments may
have more fields in later versions, each with a default. Hooks are plain functions: a plug-in names the arguments that
it wants, and the supervisor passes them by name, from one thread per plug-in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pluggy

from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.ports import Codec

PROJECT: Final = "supervisor"
"""Name of the supervisor's hooks in pluggy."""

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Decorator that marks a function of a plug-in as the implementation of the hook with the same name."""


# ------------------------------------------------------------------------------------------------------ arguments
class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work that could be claimed, with its priority in the plan (work with a higher priority is claimed
    sooner)."""

    id: str
    agent: str
    priority: int = 0
    role: str = ""
    depends_on: tuple[str, ...] = ()


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a task that has failed; ``attempt`` counts from 1.

    ``category`` is the supervisor's classification of the error (``transient``, ``permanent``, ``unknown``, or empty),
    ``agents`` the names of the agents that may make another attempt.
    """

    task_id: str
    agent: str
    attempt: int
    error: str
    category: str = ""
    agents: tuple[str, ...] = ()


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Argument of a verifier: the directory of the work, and the ``options`` that the plan gives by ``with``.

    ``timeout_s`` are the seconds that the verifier may take; a later result is ignored, and the work not accepted.
    """

    name: str
    directory: str
    options: Mapping[str, Any] = {}
    env: Mapping[str, str] = {}
    timeout_s: float = 30.0


Verifier = Callable[[Verification], str | None]
"""Function that checks a piece of work; returns ``None`` or ``""`` to accept the work, else the reason against it. The
function may block: it has its own thread."""


# ----------------------------------------------------------------------------------------------------------- the hooks
class Hooks:
    """Specifications of the hooks. Every hook is optional."""

    # ---- records: durable, and copies, so that a plug-in may change them
    @hookspec
    def supervisor_task_event(self, event: LifecycleEvent) -> None:
        """Receive a record of a task: a transition, a refusal or a fact (``event.outcome``)."""

    @hookspec
    def supervisor_agent_event(self, event: LifecycleEvent) -> None:
        """Receive a record of an agent."""

    @hookspec
    def supervisor_session_event(self, event: LifecycleEvent) -> None:
        """Receive a record of a session."""

    @hookspec
    def supervisor_turn_event(self, event: LifecycleEvent) -> None:
        """Receive a record of a turn or of its tool calls."""

    @hookspec
    def supervisor_workstream_event(self, event: LifecycleEvent) -> None:
        """Receive a record of a workstream."""

    @hookspec
    def supervisor_abort_event(self, event: LifecycleEvent) -> None:
        """Receive the record of an abort that was requested or crossed a policy edge (``AbortRecord``), or that
        joined an abort under way (``AbortJoined``). The same record also goes to the hook of its entity, a
        session or a turn."""

    # ---- registrations: called once, when the supervisor opens
    @hookspec
    def supervisor_adapters(self) -> Mapping[str, Callable[[], Codec]]:  # type: ignore[empty-body]
        """Return adapters by their names in plans (``agents.*.adapter``). An adapter is a function that makes a
        ``supervisor.ports.Codec`` for one conversation. A codec is called on the event loop and must not block. An
        exception counts as a protocol error of the agent."""

    @hookspec
    def supervisor_verifiers(self) -> Mapping[str, Verifier]:  # type: ignore[empty-body]
        """Return verifiers by their names in plans (``tasks.*.acceptance.*.verifier``). If a verifier raises or is
        late, the work is not accepted."""

    # ---- opinions: the first one counts; None, a late result or an exception is no opinion
    @hookspec
    def supervisor_priority(self, item: WorkItem) -> int | None:
        """Return the priority of *item* among the work that can be claimed, instead of the priority in the plan. Work
        with a higher priority is claimed sooner; at the same priority the older work is. The hook cannot make work
        claimable."""

    @hookspec
    def supervisor_escalate(self, attempt: FailedAttempt) -> str | None:
        """Return the agent, one of ``attempt.agents``, for the next attempt. Any other name is ignored."""

    @hookspec
    def supervisor_judge_retry(self, attempt: FailedAttempt) -> bool | None:
        """Return whether the task is tried again: ``False`` ends it now, ``True`` also allows a retry after a permanent
        error. The limits of the plan (attempts, budgets, breakers) still apply."""


EVENT_HOOKS: Final[Mapping[str, str]] = {
    kind.value: f"supervisor_{kind.value}_event"
    for kind in (Kind.TASK, Kind.AGENT, Kind.SESSION, Kind.TURN, Kind.WORKSTREAM)
}
"""Name of the hook for the records of each kind of entity."""

ABORT_HOOK: Final = "supervisor_abort_event"
ABORT_RECORDS: Final = frozenset({"AbortRecord", "AbortJoined"})
