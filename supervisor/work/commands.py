"""Commands take effect once: what an operator asks is a record, and whoever repeats its id gets the first answer.

A command is a fact in the log of the task that it is about, and what it did stands behind it: so both are there after a
crash, and nothing else has to be kept. That it was refused is a fact too; then its id may be used again, as where a
crash came before it did anything. What is remembered is bounded: the newest ``KEPT_MAX`` answers.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import anyio
import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans.task_control import CommandResult, Verb
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import NoSuchEntity

__all__ = [
    "COMMANDED",
    "EFFECTS",
    "ID_MAX",
    "KEPT_MAX",
    "Command",
    "CommandEffect",
    "CommandLog",
    "CommandReused",
    "digest_of",
]

COMMANDED: Final = "Commanded"
"""The fact that somebody gave a command."""
REFUSED: Final = "CommandRefused"
"""The fact that a command was refused, and changed nothing."""
EFFECTS: Final[Mapping[Verb, frozenset[str]]] = {
    Verb.APPROVE: frozenset({"approved", "approval_granted", "approval_denied"}),
    Verb.REJECT: frozenset({"rejected", "approval_denied"}),
    Verb.RESET: frozenset({"reopened", "manual_reset"}),
    Verb.REQUEUE: frozenset({"requeued"}),
    Verb.UNCLAIM: frozenset({"unclaimed"}),
    Verb.CANCEL: frozenset({"cancelled"}),
    Verb.SPLIT: frozenset({"split"}),
    Verb.BLOCK: frozenset({"blocked"}),
    Verb.UNBLOCK: frozenset({"unblocked"}),
}
"""The events that a command is for. What could not be merged is denied, though it was approved."""
KEPT_MAX: Final = 10_000
"""Answers that are remembered, the newest first."""
ID_MAX: Final = 200
"""Characters of a command's id."""

Note = Callable[[str, str, Cause, dict[str, Any], str], LifecycleEvent]
"""Records a fact: the entity, its name, its cause, its metadata, its reason."""


class CommandEffect(NamedTuple):
    """What a command came to: the state that its task (or the run of it) is in, and what that was split into."""

    state: str
    subtasks: tuple[str, ...] = ()


CommandAction = Callable[[Cause], Awaitable[CommandEffect]]
"""Does what was asked, by the given cause."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, of which entity, by whom. *given* stands for what came with it (``digest_of``)."""

    verb: Verb
    entity_id: str
    by: str
    reason: str = ""
    id: str | None = None
    given: str = ""

    @property
    def wish(self) -> tuple[Verb, str, str]:
        """What must be the same in a repetition."""
        return (self.verb, self.entity_id, self.given)


class CommandReused(ValueError):
    """The id was given to another command."""

    def __init__(self, command: Command, first: Command) -> None:
        used = f"{first.verb} {first.entity_id}{_other(first) if first.given != command.given else ''}"
        super().__init__(f"the command id {command.id!r} was given to {used} by {first.by}; give this one another id")


def _other(first: Command) -> str:
    return " on other things" if first.verb is Verb.BLOCK else " with other subtasks"


class _Answered(NamedTuple):
    command: Command
    answer: CommandResult


class CommandLog:
    """The commands of one supervisor.

    Args:
        note: records a fact about an entity.
        kept_max: how many answers are remembered.
    """

    def __init__(self, note: Note, *, kept_max: int = KEPT_MAX) -> None:
        self._note, self._kept_max = note, kept_max
        self._answered: OrderedDict[str, _Answered] = OrderedDict()
        self._under_way: dict[str, tuple[Command, anyio.Event]] = {}

    async def once(self, command: Command, take: CommandAction) -> CommandResult:
        """Have *command* take effect, unless it has: then its first answer. One that is under way is waited for.

        Raises:
            CommandReused: its id was given to another command.
            ValueError: its id is empty or too long.
        """
        if command.id is None:
            return await self._taken(command, take)
        if not command.id or len(command.id) > ID_MAX:
            raise ValueError(f"command id: {command.id[:20]!r} has {len(command.id)} characters; give 1 to {ID_MAX}")
        while (before := self._under_way.get(command.id)) is not None:
            self._check(command, before[0])
            await before[1].wait()
        if (known := self._answered.get(command.id)) is not None:
            self._check(command, known.command)
            return msgspec.structs.replace(known.answer, repeated=True)
        return await self._first(command, command.id, take)

    async def _first(self, command: Command, command_id: str, take: CommandAction) -> CommandResult:
        over = anyio.Event()
        self._under_way[command_id] = (command, over)
        try:
            answer = await self._taken(command, take)
            self._keep(command_id, command, answer)
            return answer
        finally:
            del self._under_way[command_id]
            over.set()

    async def _taken(self, command: Command, take: CommandAction) -> CommandResult:
        told = {"command": command.verb.value, "command_id": command.id, "given": command.given}
        fact = self._note(command.entity_id, COMMANDED, Cause(actor=command.by), told, command.reason)
        cause = Cause(fact.seq, None, command.by)
        try:
            return _answer(command, fact.seq, await take(cause))
        except (Refused, LookupError, ValueError) as error:
            with suppress(NoSuchEntity):  # its log is closed: its plan ended meanwhile
                self._note(command.entity_id, REFUSED, cause, {"command": command.verb.value}, str(error))
            raise

    @staticmethod
    def _check(command: Command, first: Command) -> None:
        if command.wish != first.wish:
            raise CommandReused(command, first)

    def _keep(self, command_id: str, command: Command, answer: CommandResult) -> None:
        self._answered[command_id] = _Answered(command, answer)
        self._answered.move_to_end(command_id)
        while len(self._answered) > self._kept_max:
            self._answered.popitem(last=False)

    # ------------------------------------------------------------------ after a start
    def fold(self, records: Iterable[LifecycleEvent]) -> None:
        """Remember the commands that took effect before: *records* are those of tasks and their runs, by number."""
        given: dict[int, Command] = {}
        newest: dict[str, int] = {}
        for record in records:
            if record.outcome == "fact":
                self._fold_fact(record, given, newest)
            elif record.outcome == "transition":
                self._fold_transition(record, given, newest)

    @staticmethod
    def _fold_fact(record: LifecycleEvent, given: dict[int, Command], newest: dict[str, int]) -> None:
        if record.event == COMMANDED:
            given[record.seq], newest[record.entity_id] = _command(record), record.seq
        elif record.event == REFUSED and record.cause_id is not None:
            given.pop(record.cause_id, None)

    def _fold_transition(self, record: LifecycleEvent, given: dict[int, Command], newest: dict[str, int]) -> None:
        """What a command caused, or what came of its task after it, is its effect if it is for that."""
        seq = record.cause_id if record.cause_id in given else newest.get(record.entity_id)
        command = given.get(seq) if seq is not None else None
        if seq is None or command is None or record.event not in EFFECTS[command.verb]:
            return
        del given[seq]
        if command.id is not None:
            effect = CommandEffect(record.to_status, tuple(record.metadata.get("subtasks", ())))
            self._keep(command.id, command, _answer(command, seq, effect))


def digest_of(value: object) -> str:
    """What stands for *value* (of plain data) in a command, in 16 characters."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def _command(record: LifecycleEvent) -> Command:
    told: Mapping[str, Any] = record.metadata
    return Command(
        verb=Verb(told["command"]),
        entity_id=record.entity_id,
        by=record.actor,
        reason=record.reason,
        id=told.get("command_id"),
        given=str(told.get("given", "")),
    )


def _answer(command: Command, seq: int, effect: CommandEffect) -> CommandResult:
    return CommandResult(
        verb=command.verb, entity_id=command.entity_id, state=effect.state, seq=seq, subtasks=effect.subtasks
    )
