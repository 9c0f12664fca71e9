"""Commands that take effect once: a command with an id is recorded, and a repetition of the id returns the first reply.

A command is a fact in the log of its task, and the effect of the command is recorded after that fact: both are in the
journal after a crash, and nothing else has to be stored. A refusal is a fact too; then the id may be used again, as
after a crash before the command had an effect. Memory is bounded: the newest ``KEPT_MAX`` replies are remembered.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import anyio
import msgspec

from supervisor.lifecycles.types import LifecycleEvent, NoSuchEntity, RecordId, Verb
from supervisor.plans.source import BadPlan
from supervisor.plans.task_control import CommandResult
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause

COMMANDED: Final = "Commanded"
"""Name of the fact that a command was given."""
REFUSED: Final = "CommandRefused"
"""Name of the fact that a command was refused, and changed nothing."""
EFFECTS: Final[Mapping[Verb, frozenset[str]]] = {
    Verb.APPROVE: frozenset({"approved", "approval_granted", "approval_denied"}),
    Verb.REJECT: frozenset({"rejected", "approval_denied"}),
    Verb.RETRY: frozenset({"reopened", "manual_reset"}),
    Verb.REQUEUE: frozenset({"requeued"}),
    Verb.UNCLAIM: frozenset({"unclaimed"}),
    Verb.CANCEL: frozenset({"cancelled"}),
    Verb.SPLIT: frozenset({"split"}),
    Verb.BLOCK: frozenset({"blocked"}),
    Verb.UNBLOCK: frozenset({"unblocked"}),
    Verb.KEEP: frozenset({"kept"}),
    Verb.ADD: frozenset({"tasks_added"}),
}
"""The events that each command may cause. A task that was approved and cannot be merged gets the event of a denial."""
KEPT_MAX: Final = 10_000
"""Number of replies that are remembered: the newest ones."""
ID_MAX: Final = 200
"""Maximal number of characters of a command's id."""

Note = Callable[[str, str, Cause, dict[str, Any], str], LifecycleEvent]
"""Function that records a fact; arguments: entity, name, cause, metadata, reason."""


class CommandEffect(NamedTuple):
    """The effect of a command: the new state of its task (or of the task's run, or of the workstream), and the ids of
    the subtasks that the task was split into, or of the tasks that were added."""

    state: str
    subtasks: tuple[str, ...] = ()


CommandAction = Callable[[Cause], Awaitable[CommandEffect]]
"""Function that carries a command out for the given cause, and returns the effect."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command about an entity. *given* is the digest of the command's other arguments (``digest_of``)."""

    verb: Verb
    entity_id: str
    by: str
    reason: str = ""
    id: str | None = None
    given: str = ""

    @property
    def wish(self) -> tuple[Verb, str, str]:
        """The fields that must be the same when a command is repeated."""
        return (self.verb, self.entity_id, self.given)


class CommandReused(ValueError):
    """Raised when a command has an id that was given to a different command before."""

    def __init__(self, command: Command, first: Command) -> None:
        used = f"{first.verb} {first.entity_id}{_other(first) if first.given != command.given else ''}"
        super().__init__(f"the command id {command.id!r} was given to {used} by {first.by}; give this one another id")


def _other(first: Command) -> str:
    match first.verb:
        case Verb.BLOCK:
            return " on other things"
        case Verb.ADD:
            return " with other tasks"
    return " with other subtasks"


class _KnownResult(NamedTuple):
    command: Command
    result: CommandResult


class CommandLog:
    """Log of the commands of one supervisor; carries each command out at most once.

    Args:
        note: function that records a fact about an entity.
        kept_max: number of replies that are remembered.
    """

    def __init__(self, note: Note, *, kept_max: int = KEPT_MAX) -> None:
        self._note, self._kept_max = note, kept_max
        self._known: OrderedDict[str, _KnownResult] = OrderedDict()
        self._under_way: dict[str, tuple[Command, anyio.Event]] = {}

    async def once(self, command: Command, take: CommandAction) -> CommandResult:
        """Carry *command* out, unless it has taken effect before: then return its first reply. If a command with the
        same id is under way, wait for its end first.

        Raises:
            CommandReused: the id was given to a different command.
            ValueError: the id is empty or too long.
        """
        if command.id is None:
            return await self._perform(command, take)
        if not command.id or len(command.id) > ID_MAX:
            raise ValueError(f"command id: {command.id[:20]!r} has {len(command.id)} characters; give 1 to {ID_MAX}")
        while (before := self._under_way.get(command.id)) is not None:
            self._check(command, before[0])
            await before[1].wait()
        if (known := self._known.get(command.id)) is not None:
            self._check(command, known.command)
            return msgspec.structs.replace(known.result, repeated=True)
        over = anyio.Event()
        self._under_way[command.id] = (command, over)
        try:
            result = await self._perform(command, take)
            self._keep(command.id, command, result)
            return result
        finally:
            del self._under_way[command.id]
            over.set()

    async def _perform(self, command: Command, take: CommandAction) -> CommandResult:
        told = {"command": command.verb.value, "command_id": command.id, "given": command.given}
        fact = self._note(command.entity_id, COMMANDED, Cause(actor=command.by), told, command.reason)
        cause = Cause(fact.seq, None, command.by)
        try:
            return _result(command, fact.seq, await take(cause))
        except (Refused, BadPlan, LookupError, ValueError) as error:
            with suppress(NoSuchEntity):  # its log is closed: its plan ended meanwhile
                self._note(command.entity_id, REFUSED, cause, {"command": command.verb.value}, str(error))
            raise

    @staticmethod
    def _check(command: Command, first: Command) -> None:
        if command.wish != first.wish:
            raise CommandReused(command, first)

    def _keep(self, command_id: str, command: Command, result: CommandResult) -> None:
        self._known[command_id] = _KnownResult(command, result)
        self._known.move_to_end(command_id)
        while len(self._known) > self._kept_max:
            self._known.popitem(last=False)

    # ------------------------------------------------------------------ after a start
    def fold(self, records: Iterable[LifecycleEvent]) -> None:
        """Remember the commands that took effect under an earlier supervisor: *records* are the records of tasks, their
        runs and workstreams, ordered by number."""
        given: dict[RecordId, Command] = {}
        newest: dict[str, RecordId] = {}
        for record in records:
            if record.outcome == "fact" and record.event == COMMANDED:
                given[record.seq] = command = _command(record)
                if command.verb is not Verb.ADD:  # a split adds tasks to the workstream, too
                    newest[record.entity_id] = record.seq
            elif record.outcome == "fact" and record.event == REFUSED and record.cause_id is not None:
                given.pop(record.cause_id, None)
            elif record.outcome == "transition":
                # The effect of the command that caused the record, or that came before it in the log of its task, if
                # it is an event that the command is for.
                seq = record.cause_id if record.cause_id in given else newest.get(record.entity_id)
                found = given.get(seq) if seq is not None else None
                if seq is None or found is None or record.event not in EFFECTS[found.verb]:
                    continue
                del given[seq]
                if found.id is not None:
                    made = record.metadata.get("subtasks") or record.metadata.get("tasks", ())
                    effect = CommandEffect(record.to_status, tuple(made))
                    self._keep(found.id, found, _result(found, seq, effect))


def digest_of(value: object) -> str:
    """Return a digest of 16 characters that stands for *value* (of plain data) in a command."""
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


def _result(command: Command, seq: RecordId, effect: CommandEffect) -> CommandResult:
    return CommandResult(
        verb=command.verb, entity_id=command.entity_id, state=effect.state, seq=seq, subtasks=effect.subtasks
    )
