"""Where permissions wait for a human: an operator, or the program that embeds us. The first answer counts.

What is open stands in the data of its turn, so that it survives nothing that its turn does not. The desk only has what
a journal cannot hold: the clock of each, and the task that asks the embedding program. What is not answered in time is
denied; who comes later is told what was answered, and by whom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

import anyio

from actors import Context
from actors.timers import Timer
from supervisor.lifecycles.effects import AskPermission
from supervisor.lifecycles.events import PermissionAnswered
from supervisor.lifecycles.turn import Permission, permission_of
from supervisor.policies.permissions import Decision, OpenPermission, OptionChoice, PermissionRequest, choose_option
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import LiveSession

__all__ = ["ApprovalQueue", "OnPermission"]

REMEMBERED_MAX: Final = 256
"""Answers that who comes late is still told of; of older ones the journal knows."""

OnPermission = Callable[[OpenPermission], Awaitable[bool | None]]
"""The embedding program's answer: ``True`` allows once, ``False`` denies, ``None`` leaves it to an operator. It is
cancelled when somebody else has answered, or the time is over. What it raises is logged, and denies; so is ``True``
where the agent offers nothing that allows once."""

_log = get_logger()


class _PendingApproval(NamedTuple):
    """One that waits: whose, until when, and who is being asked."""

    session: LiveSession
    due_s: float
    timer: Timer
    asking: anyio.CancelScope


class ApprovalQueue:
    """The permissions of one supervisor that wait for a human.

    Args:
        home: in whose scope the embedding program is asked; it outlives every session.
        on_permission: asks the embedding program.
    """

    def __init__(
        self, registry: EntityRegistry, home: Callable[[], Context], on_permission: OnPermission | None
    ) -> None:
        self._registry = registry
        self._home = home
        self._on_permission = on_permission
        self._waiting: dict[tuple[str, int], _PendingApproval] = {}
        self._under_way: dict[str, str] = {}
        """Answers that are on their way to the disk: the first one counts."""
        self._answers: deque[tuple[str, str]] = deque(maxlen=REMEMBERED_MAX)

    # ------------------------------------------------------------------ what is open
    def open(self, session: LiveSession, turn_id: str, effect: AskPermission, cause: Cause) -> None:
        """A human is to answer that, in time."""
        wish = self._wish(turn_id, effect.number)
        if wish is None:  # withdrawn before its record was durable
            return
        key, timers = (turn_id, effect.number), self._registry.system.timers
        timer = timers.set(None, None, effect.within_s, lambda _: self._too_late(key, effect.within_s, cause))
        waiting = _PendingApproval(session, timers.now() + effect.within_s, timer, anyio.CancelScope())
        self._waiting[key] = waiting
        if self._on_permission is not None:
            self._home().start_task(self._ask_program, self._on_permission, key, cause, name="ask for a permission")

    def close(self, turn_id: str, number: int) -> None:
        """It is answered: its clock stops, and nobody is asked any more."""
        waiting = self._waiting.pop((turn_id, number), None)
        if waiting is not None:
            self._registry.system.timers.cancel(waiting.timer)
            waiting.asking.cancel()

    def listed(self) -> list[OpenPermission]:
        """What waits for an answer, oldest first."""
        return list(self._listed())

    def _listed(self) -> Iterator[OpenPermission]:
        for key, waiting in self._waiting.items():
            wish = self._wish(*key)
            if wish is not None:
                yield self._shown(key, waiting, wish)

    def _shown(self, key: tuple[str, int], waiting: _PendingApproval, wish: Permission) -> OpenPermission:
        return OpenPermission(
            id=_id_of(*key),
            session=waiting.session.session_id,
            agent=waiting.session.profile.name,
            title=wish.title,
            kind=wish.tool_kind,
            tool=wish.tool,
            detail=wish.detail,
            options=tuple(kind for _, kind in wish.options),
            left_s=max(0.0, waiting.due_s - self._registry.system.timers.now()),
        )

    def _wish(self, turn_id: str, number: int) -> Permission | None:
        turn = self._registry.entities.get(turn_id)
        return permission_of(turn.data, number) if turn is not None else None

    # ------------------------------------------------------------------ who answers
    async def answer(self, permission_id: str, *, allow: bool, always: bool, because: str, by: str) -> OptionChoice:
        """Answer one that is open; what the agent is told. Its record is durable.

        Raises:
            Refused: it is not open, or no longer; or the agent offers no such answer.
            TypeError: *allow* is neither yes nor no.
        """
        if allow not in (True, False):  # "deny" is true as well
            raise TypeError(f"allow: {allow!r} is neither yes nor no; give True or False")
        key = next((one for one in self._waiting if _id_of(*one) == permission_id), None)
        wish = self._wish(*key) if key is not None else None
        if key is None or wish is None or permission_id in self._under_way:
            raise Refused(self._not_open(permission_id))
        session = self._waiting[key].session
        choice = _chosen(permission_id, wish, allow=allow, always=always)
        answer = _answered(wish, choice, allow=allow, always=always, by=by, why=because)
        self._under_way[permission_id] = f"{answer.decision} by {by}"
        try:
            record = await self._registry.post(key[0], answer, cause=Cause(actor=by))
        finally:
            words = self._under_way.pop(permission_id)
        if record.outcome == "stale":  # its time was over, or its turn
            raise Refused(self._not_open(permission_id))
        self._remember(permission_id, words)
        if always and not (choice.kind or "").endswith("_always"):
            session.standing_decisions[_plain(wish)] = Decision.ALLOW if allow else Decision.DENY
        return choice

    def _remember(self, permission_id: str, words: str) -> None:
        self._answers.append((permission_id, words))

    def _not_open(self, permission_id: str) -> str:
        known = self._under_way.get(permission_id) or dict(self._answers).get(permission_id)
        if known is not None:
            return f"{permission_id} is answered already: {known}"
        turn_id = permission_id.rpartition(":p")[0] or "ID"
        return (
            f"no permission {permission_id!r} waits for an answer: `supervisor permissions` lists those that do, "
            f"`supervisor events {turn_id}` what became of others"
        )

    def _too_late(self, key: tuple[str, int], within_s: float, cause: Cause) -> None:
        self._deny(key, cause, "deadline", f"nobody answered within answer_within_s ({within_s:g} s)")

    def _deny(self, key: tuple[str, int], cause: Cause, by: str, why: str) -> None:
        wish = self._wish(*key)
        if wish is not None:
            choice = choose_option(wish.options, allow=False)
            self._remember(_id_of(*key), f"deny by {by}: {why}")
            self._registry.send(key[0], _answered(wish, choice, allow=False, always=False, by=by, why=why), cause=cause)

    async def _ask_program(self, ask: OnPermission, key: tuple[str, int], cause: Cause) -> None:
        """The embedding program has a say; who is answered otherwise meanwhile is not asked any longer."""
        waiting, wish = self._waiting.get(key), self._wish(*key)
        if waiting is None or wish is None:
            return
        with waiting.asking:
            try:
                allow = await ask(self._shown(key, waiting, wish))
                if allow is not None:
                    await self.answer(_id_of(*key), allow=allow, always=False, because="", by="host")
            except Refused as error:
                _log.warning("the answer to a permission was not taken", permission=_id_of(*key), reason=str(error))
                if key in self._waiting and _id_of(*key) not in self._under_way:  # what it says, nobody could grant
                    self._deny(key, cause, "host", str(error))
            except Exception as error:
                _log.error("asking for a permission failed", permission=_id_of(*key), exc_info=error)
                self._deny(key, cause, "host", f"asking failed: {error!r}")


def _chosen(permission_id: str, wish: Permission, *, allow: bool, always: bool) -> OptionChoice:
    choice = choose_option(wish.options, allow=allow, always=always)
    if allow and choice.option is None:
        offered = ", ".join(kind for _, kind in wish.options) or "nothing"
        what = "allowing it once" if any(kind == "allow_always" for _, kind in wish.options) else "allowing it"
        fix = "answer for good, or deny it" if what.endswith("once") else "deny it"
        raise Refused(f"{permission_id}: the agent does not offer {what} (it offers: {offered}); {fix}")
    return choice


def _answered(
    wish: Permission, choice: OptionChoice, *, allow: bool, always: bool, by: str, why: str
) -> PermissionAnswered:
    return PermissionAnswered(
        number=wish.number,
        decision="allow" if allow else "deny",
        option=choice.option,
        kind=choice.kind,
        by=by,
        why=why,
        always=always,
    )


def _plain(wish: Permission) -> PermissionRequest:
    return PermissionRequest(title=wish.title, kind=wish.tool_kind, tool=wish.tool, paths=wish.paths)


def _id_of(turn_id: str, number: int) -> str:
    return f"{turn_id}:p{number}"
