"""Queue of permission requests that wait for a human: an operator, or the embedding program. The first answer counts.

An open request is part of its turn's data, and never outlives the turn. The queue only holds the parts that the journal
cannot hold: the timer of each request, and the task that asks the embedding program. A request that is not answered in
time is denied. A caller that answers later gets an error, which names the answer and the person or program that gave
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import anyio

from actors.timers import Timer
from supervisor.lifecycles.effects import AskPermission
from supervisor.lifecycles.events import PermissionAnswered
from supervisor.lifecycles.turn import Permission, permission_of
from supervisor.policies.permissions import Decision, OpenPermission, OptionChoice, PermissionRequest, choose_option
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.termination import Background

ANSWERS_MAX: Final = 256
"""Number of answers that are stored for callers that answer late; the journal holds the older answers."""

OnPermission = Callable[[OpenPermission], Awaitable[bool | None]]
"""Function of the embedding program that decides a request: ``True`` allows once, ``False`` denies, ``None`` leaves the
answer to an operator.

The call is cancelled when another caller has answered, or when the time for the answer has passed. An exception is
logged, and the request is denied; the request is also denied if the function returns ``True`` and the agent offers no
option that allows once.
"""

_log = get_logger()


class _PendingApproval(NamedTuple):
    """Request that waits for an answer: its session, deadline and timer, and the scope of the task that asks the
    embedding program."""

    session: LiveSession
    due_s: float
    timer: Timer
    asking: anyio.CancelScope


class ApprovalQueue:
    """Queue of the permission requests of one supervisor that wait for a human.

    Args:
        background: actor in whose scope the embedding program is asked; it outlives every session.
        on_permission: function of the embedding program that decides a request.
    """

    def __init__(self, registry: EntityRegistry, background: Background, on_permission: OnPermission | None) -> None:
        self._registry = registry
        self._background = background
        self._on_permission = on_permission
        self._waiting: dict[tuple[str, int], _PendingApproval] = {}
        self._under_way: dict[str, str] = {}
        """Answers whose records are not durable yet, by permission id."""
        self._answers: deque[tuple[str, str]] = deque(maxlen=ANSWERS_MAX)

    # ------------------------------------------------------------------ open requests
    def open(self, session: LiveSession, turn_id: str, effect: AskPermission, cause: Cause) -> None:
        """Add a request to the queue, with a deadline for the answer, and ask the embedding program."""
        permission = self._permission(turn_id, effect.number)
        if permission is None:  # withdrawn before its record was durable
            return
        key, timers = (turn_id, effect.number), self._registry.system.timers
        why = f"nobody answered within answer_within_s ({effect.within_s:g} s)"
        timer = timers.set(None, None, effect.within_s, lambda _: self._deny(key, cause, "deadline", why))
        waiting = _PendingApproval(session, timers.now() + effect.within_s, timer, anyio.CancelScope())
        self._waiting[key] = waiting
        if self._on_permission is not None:
            self._background.context.start_task(
                self._ask_program, self._on_permission, key, cause, name="ask for a permission"
            )

    def close(self, turn_id: str, number: int) -> None:
        """Remove a request that was answered: cancel its timer, and the task that asks the embedding program."""
        waiting = self._waiting.pop((turn_id, number), None)
        if waiting is not None:
            self._registry.system.timers.cancel(waiting.timer)
            waiting.asking.cancel()

    def list_open(self) -> list[OpenPermission]:
        """Return the open requests, oldest first."""
        found = [(key, waiting, self._permission(*key)) for key, waiting in self._waiting.items()]
        return [self._describe(key, waiting, one) for key, waiting, one in found if one is not None]

    def _describe(self, key: tuple[str, int], waiting: _PendingApproval, permission: Permission) -> OpenPermission:
        return OpenPermission(
            id=_id_of(*key),
            session=waiting.session.session_id,
            agent=waiting.session.profile.name,
            title=permission.title,
            kind=permission.tool_kind,
            tool=permission.tool,
            detail=permission.detail,
            options=tuple(kind for _, kind in permission.options),
            left_s=max(0.0, waiting.due_s - self._registry.system.timers.now()),
        )

    def _permission(self, turn_id: str, number: int) -> Permission | None:
        turn = self._registry.entities.get(turn_id)
        return permission_of(turn.data, number) if turn is not None else None

    # ------------------------------------------------------------------ answers
    async def answer(self, permission_id: str, *, allow: bool, always: bool, because: str, by: str) -> OptionChoice:
        """Answer an open request, wait until the answer's record is durable, and return the option that is sent to the
        agent.

        Raises:
            Refused: the request is not open, or not any more; or the agent offers no such option.
            TypeError: *allow* is not a bool.
        """
        if allow not in (True, False):  # "deny" is true as well
            raise TypeError(f"allow: {allow!r} is neither yes nor no; give True or False")
        key = next((one for one in self._waiting if _id_of(*one) == permission_id), None)
        permission = self._permission(*key) if key is not None else None
        if key is None or permission is None or permission_id in self._under_way:
            raise Refused(self._not_open(permission_id))
        session = self._waiting[key].session
        choice = _chosen(permission_id, permission, allow=allow, always=always)
        answer = _answered(permission, choice, allow=allow, always=always, by=by, why=because)
        self._under_way[permission_id] = f"{answer.decision} by {by}"
        try:
            record = await self._registry.post(key[0], answer, cause=Cause(actor=by))
        finally:
            answered = self._under_way.pop(permission_id)
        if record.outcome == "stale":  # its time was over, or its turn
            raise Refused(self._not_open(permission_id))
        self._answers.append((permission_id, answered))
        if always and not (choice.kind or "").endswith("_always"):
            request = PermissionRequest.of(permission)
            session.standing_decisions[request] = Decision.ALLOW if allow else Decision.DENY
        return choice

    def _not_open(self, permission_id: str) -> str:
        known = self._under_way.get(permission_id) or dict(self._answers).get(permission_id)
        if known is not None:
            return f"{permission_id} is answered already: {known}"
        return (
            f"no permission {permission_id!r} waits for an answer: it was answered, its turn has ended, or it never was"
        )

    def _deny(self, key: tuple[str, int], cause: Cause, by: str, why: str) -> None:
        permission = self._permission(*key)
        if permission is not None:
            choice = choose_option(permission.options, allow=False)
            self._answers.append((_id_of(*key), f"deny by {by}: {why}"))
            self._registry.send(
                key[0], _answered(permission, choice, allow=False, always=False, by=by, why=why), cause=cause
            )

    async def _ask_program(self, ask: OnPermission, key: tuple[str, int], cause: Cause) -> None:
        """Ask the embedding program for the answer, and pass the answer on. This task is cancelled when another caller
        answers the request."""
        waiting, permission = self._waiting.get(key), self._permission(*key)
        if waiting is None or permission is None:
            return
        with waiting.asking:
            try:
                allow = await ask(self._describe(key, waiting, permission))
                if allow is not None:
                    await self.answer(_id_of(*key), allow=allow, always=False, because="", by="host")
            except Refused as error:
                _log.warning("the answer to a permission was not taken", permission=_id_of(*key), reason=str(error))
                if key in self._waiting and _id_of(*key) not in self._under_way:  # the agent does not offer that option
                    self._deny(key, cause, "host", str(error))
            except Exception as error:
                _log.error("asking for a permission failed", permission=_id_of(*key), exc_info=error)
                self._deny(key, cause, "host", f"asking failed: {error!r}")


def _chosen(permission_id: str, permission: Permission, *, allow: bool, always: bool) -> OptionChoice:
    choice = choose_option(permission.options, allow=allow, always=always)
    if allow and choice.option is None:
        offered = ", ".join(kind for _, kind in permission.options) or "nothing"
        what = "allowing it once" if any(kind == "allow_always" for _, kind in permission.options) else "allowing it"
        fix = "answer for good, or deny it" if what.endswith("once") else "deny it"
        raise Refused(f"{permission_id}: the agent does not offer {what} (it offers: {offered}); {fix}")
    return choice


def _answered(
    permission: Permission, choice: OptionChoice, *, allow: bool, always: bool, by: str, why: str
) -> PermissionAnswered:
    return PermissionAnswered(
        number=permission.number,
        decision="allow" if allow else "deny",
        option=choice.option,
        kind=choice.kind,
        by=by,
        why=why,
        always=always,
    )


def _id_of(turn_id: str, number: int) -> str:
    return f"{turn_id}:p{number}"
