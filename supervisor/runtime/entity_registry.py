"""Registry of the living entities: creation, messages, removal.

The journal records what happened; the registry holds the entities that can receive messages. Callers can rely on these
rules:

* ``create_entity``, ``add_entity``, ``send``, ``apply`` and ``perform`` never await.
* While the journal cannot be written, deadlines of entities are paused: an entity that waits for the disk does not time
  out meanwhile.
* No two entities of a journal share an id (:class:`IdAllocator`).

The registry knows nothing about the kinds of entities. ``supervisor.sessions.registry`` derives from it the registry of
a supervisor, which adds the sessions.

Every effect with an id is acknowledged when it is performed, so that the next supervisor does not perform it again.
``SendEvent`` is acknowledged by the record of the event that it sends: if that event is lost with its receiver, the
next supervisor sends it again.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from enum import Enum
from typing import Any

import msgspec

from actors import ActorStopped, ActorSystem, Context, IllegalTransition, Lane, Limits
from actors.machine import Event, Step
from supervisor.lifecycles.effects import FinalizeEntity, SendEvent, StartTimer
from supervisor.lifecycles.entity_types import Lifecycle
from supervisor.lifecycles.types import LifecycleEvent, NoSuchEntity, RecordId
from supervisor.policies.stage_deadlines import EXITING_S
from supervisor.ports import EntityRow
from supervisor.runtime.entity import (
    Degraded,
    Entity,
    EntityActor,
    Refused,
    weight,
)
from supervisor.runtime.journal_writer import Cause, JournalWriter, PendingEffect

_encode = msgspec.json.Encoder().encode


POST_S = 30 * 86_400.0
"""Seconds that a caller waits for a durable record. A journal that cannot be written recovers, or is given up; the
month given here only bounds the effect of a bug that prevents both."""


END_S = 60.0 + EXITING_S
"""Seconds that the actor kernel gives an entity's tasks to end: longer than the stage budgets of any policy, and the
wait for the kernel after that."""


_NOTHING = object()
"""Message without an event: an entity replies to it as soon as the entity has processed every message before."""


MAILBOX = Limits(size_of=weight)
"""Limits of an entity's mailbox."""


class IdAllocator:
    """Allocator of ids that are unique in one journal: a name that was used before gets a number. *taken*: ids that the
    journal already contains.

    No two entities of a journal share an id. Names of root entities are stored while the supervisor runs; of a name
    that was numbered only the last number is stored. Names below an entity (*below*) are stored while that entity
    lives: nothing is created below an entity that has ended, and its id is not given again. Of ids that are only a
    number after a prefix (:meth:`number`) the highest number is stored.
    """

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}
        """Last number given to each name that was used more than once. All lower numbers are used too."""
        self._below: dict[str, IdAllocator] = {}
        self._highest: dict[str, int] = {}
        """Highest number given to each prefix (:meth:`number`)."""

    def __len__(self) -> int:
        """Return the number of names that are stored."""
        return len(self._taken) + len(self._numbers) + sum(map(len, self._below.values()))

    def __contains__(self, name: str) -> bool:
        """Return whether the id *name* was used. Ids that :meth:`new` gave *below* an entity are not considered."""
        base, dash, number = name.rpartition("-")
        counted = dash and number.isdecimal() and number == str(int(number))
        return name in self._taken or (bool(counted) and 2 <= int(number) <= self._numbers.get(base, 1))

    def new(self, wanted: str, *, below: str | None = None) -> str:
        """Return *wanted*, or *wanted* with the first free number if *wanted* was used. *below* is the id of the
        entity above the new entity."""
        if below is None:
            return self._new(wanted, self)
        return self._below.setdefault(below, IdAllocator())._new(wanted, self)

    def number(self, prefix: str) -> str:
        """Return *prefix* with the number after the highest that was used in this journal. Only these ids begin with
        *prefix* and end with a number: the caller lets nobody choose such a name."""
        if prefix not in self._highest:
            rests = (one.removeprefix(prefix) for one in self._taken if one.startswith(prefix))
            self._highest[prefix] = max((int(rest) for rest in rests if rest.isdecimal()), default=0)
        self._highest[prefix] += 1
        return f"{prefix}{self._highest[prefix]}"

    def drop_below(self, entity_id: str) -> None:
        """Drop the stored names below an entity that has ended."""
        self._below.pop(entity_id, None)

    def _new(self, wanted: str, earlier: IdAllocator) -> str:
        number, found = self._numbers.get(wanted, 1), wanted
        while found in self or found in earlier._taken:
            number += 1
            found = f"{wanted}-{number}"
        if number > 1:
            self._numbers[wanted] = number
        else:
            self._taken.add(found)
        return found


class EntityRegistry:
    """Registry of the living entities of one supervisor."""

    def __init__(self, system: ActorSystem, journal_writer: JournalWriter, names: IdAllocator) -> None:
        self.system = system
        self.journal_writer = journal_writer
        self.names = names
        self.entities: dict[str, Entity] = {}
        journal_writer.perform = self.perform
        journal_writer.disk.down.then(self._pause_deadlines)

    # ------------------------------------------------------------------ creation and removal
    def create_entity(
        self,
        lifecycle: Lifecycle,
        entity_id: str,
        *,
        parent_id: str | None,
        state: Enum,
        data: Any,
        cause: Cause,
        home: str | None = None,
        contained: bool = True,
    ) -> Entity:
        """Create an entity below the entity *parent_id*, and append the first record of the new entity's log.

        Args:
            home: actor whose dispatcher runs the entity.
            contained: the entity's scope lies in its parent's; otherwise the entity may outlive its parent.

        Raises:
            ActorStopped: the parent is stopping; nothing is created below it.
        """
        make = EntityActor if lifecycle.has_actor else Entity
        entity = make(lifecycle, entity_id, parent_id, state, data, self.journal_writer)
        self.add_entity(entity, cause=cause, home=home, contained=contained)
        return entity

    def add_entity(self, entity: Entity, *, cause: Cause, home: str | None = None, contained: bool = True) -> None:
        """Add a new entity, and append the first record of its log. The arguments are those of :meth:`create_entity`.

        Raises:
            ActorStopped: the parent is stopping; the entity is not added.
        """
        # The actor first: if its parent is stopping, there is no record of an entity that never lived. Nothing awaits
        # in between, so no event is processed before the first record.
        self._spawn(entity, home, contained)
        entity.record_birth(cause)

    def _spawn(self, entity: Entity, home: str | None, contained: bool) -> None:
        parent_id = entity.parent_id
        if isinstance(entity, EntityActor):
            if parent_id is None or not contained:
                self.system.spawn(entity, entity.id, limits=MAILBOX, shutdown_s=END_S)
            else:
                self.system.spawn(entity, entity.id, parent=parent_id, home=home, limits=MAILBOX, shutdown_s=END_S)
        self.entities[entity.id] = entity

    def restore_entity(self, entity: Entity, *, home: str | None = None, contained: bool = True) -> None:
        """Add an entity that an earlier supervisor left in the journal: as :meth:`create_entity`, without a first
        record."""
        self._spawn(entity, home, contained)

    def remove(self, entity_id: str) -> None:
        """Remove an entity from memory: no further event is sent to it, and no further record is made about it. Records
        that it has made already are written later if they are not durable yet."""
        # Out of the table first: whatever the end of its actor calls, no event is sent to the entity from here on.
        entity = self.entities.pop(entity_id, None)
        self.system.stop(entity_id, "ended")
        if entity is not None:
            self._detach(entity)

    def remove_crashed(self, entity: Entity) -> None:
        """Remove an entity whose actor has crashed: it has no last record."""
        self.entities.pop(entity.id, None)
        self._detach(entity)

    def _detach(self, entity: Entity) -> None:
        """Detach *entity*, which is removed, from the entities that wait for its last record."""
        entity.release()

    # ------------------------------------------------------------------ deadlines
    def _pause_deadlines(self) -> None:
        """Pause the deadlines of all entities, because the journal cannot be written."""
        for entity in self.entities.values():
            if isinstance(entity, EntityActor) and (ctx := self.system.context(entity.id)) is not None:
                entity.pause_deadline(ctx)
        self.journal_writer.disk.up.then(self._resume_deadlines)

    def _resume_deadlines(self) -> None:
        for entity in self.entities.values():
            if isinstance(entity, EntityActor) and (ctx := self.system.context(entity.id)) is not None:
                entity.resume_deadline(ctx)
        self.journal_writer.disk.down.then(self._pause_deadlines)

    # ------------------------------------------------------------------ messages
    def send(self, entity_id: str, event: Event, *, cause: Cause, lane: Lane = Lane.CONTROL) -> bool:
        """Put *event* into the entity's mailbox; return ``False`` if the entity is gone or does not accept the
        event."""
        ref, entity = self.system.ref(entity_id), self.entities.get(entity_id)
        if ref is None or entity is None or not entity.accepts(event):
            return False
        try:
            ref.tell(event, lane=lane, cause=cause)
        except ActorStopped:
            return False
        return True

    def apply(self, *moves: tuple[str, Event], cause: Cause) -> LifecycleEvent:
        """Move the entities of one decision, each by its event, and return the last record. Never awaits.

        The records are written in one transaction (``JournalWriter.together``); each follows from the one before. The
        events do not pass through the mailboxes of the entities: they are processed before the messages that wait
        there.

        Example::

            registry.apply(("run:a", TestsPassed()), ("job:a", ValidationPassed()), cause=cause)
            await registry.journal_writer.flush()

        Raises:
            NoSuchEntity: an entity is gone; nothing is recorded.
            Refused: a table does not allow its event; only that is recorded.
        """
        # All tables are asked before anything is recorded: a refusal of the third leaves no half of the decision.
        steps: list[tuple[Entity, Context | None, Event, Step[Any, Any]]] = []
        after: dict[str, tuple[Enum, Any]] = {}
        for entity_id, event in moves:
            entity, ctx = self.entity(entity_id), self.system.context(entity_id)
            if ctx is None and isinstance(entity, EntityActor):
                raise NoSuchEntity(entity_id)
            event, (state, data) = entity.prepare(event), after.get(entity_id, (entity.state, entity.data))
            try:
                step = entity.step(state, data, event)
            except IllegalTransition as refusal:
                entity.refuse(event, cause, str(refusal))
                raise Refused(str(refusal)) from None
            after[entity_id] = step.state, step.data
            steps.append((entity, ctx, event, step))
        # One transaction: a kill between two of the records would leave a task closed whose job still runs.
        with self.journal_writer.together():
            for entity, ctx, event, step in steps:
                record = entity.enter(ctx, event, step, cause)
                cause = Cause(record.seq, None, cause.actor)
        return record

    async def post(
        self, entity_id: str, event: Event, *, cause: Cause, lane: Lane = Lane.NORMAL, withdraws: bool = False
    ) -> LifecycleEvent:
        """Send *event*, wait until the event's record is durable, and return the record.

        Args:
            withdraws: withdraw the event if the caller is cancelled before the entity has processed the event;
                otherwise the entity processes the event even then.

        Raises:
            NoSuchEntity: no living entity has that id.
            Refused: the entity's table does not allow the event now.
            JournalError: the journal could not be written.
        """
        ref = self.system.ref(entity_id)
        if ref is None or entity_id not in self.entities:
            raise NoSuchEntity(entity_id)
        try:
            record: LifecycleEvent = await ref.ask(
                event, timeout_s=POST_S, lane=lane, cause=cause, detach=not withdraws
            )
        except ActorStopped as error:
            raise NoSuchEntity(entity_id) from error
        return record

    async def report(self, entity_id: str, event: Event, *, cause: Cause) -> RecordId | None:
        """Send *event*, wait until its record is durable, and return the record's number; ``None`` if the event was
        refused, or if the entity is gone or does not accept the event."""
        entity = self.entities.get(entity_id)
        if entity is None or not entity.accepts(event):
            return None
        try:
            record = await self.post(entity_id, event, cause=cause, lane=Lane.CONTROL)
        except (NoSuchEntity, Refused):
            return None
        return record.seq

    # ------------------------------------------------------------------ effects
    def perform(self, pending: PendingEffect) -> None:
        """Perform one effect, or start a task that performs it, and acknowledge the effect."""
        entity = self.entities.get(pending.entity_id)
        if entity is None:
            return
        effect, cause = pending.effect, Cause(pending.seq, None, pending.entity_id)
        if isinstance(effect, SendEvent):
            # The receiver's record acknowledges the effect, in one transaction with what the event led to. Acknowledged
            # here, a kill before that record would lose the event.
            if self.forward(effect, cause._replace(effect_id=pending.effect_id)):
                return
        elif isinstance(effect, FinalizeEntity):
            self.remove(pending.entity_id)
        elif isinstance(effect, StartTimer):
            if isinstance(entity, EntityActor) and (ctx := self.system.context(entity.id)) is not None:
                entity.start_timer(ctx, effect, pending.epoch, cause)
        else:
            entity.perform(effect, cause)
        # After the effect: a kill in between performs it again, and never not at all.
        self.journal_writer.acknowledge(pending.effect_id)

    def forward(self, effect: SendEvent, cause: Cause) -> bool:
        """Send the event of *effect*; return ``False`` if the receiver does not accept the event. The record of the
        event acknowledges the effect.

        A receiver that has ended may be removed before it reads its mailbox, and would then never acknowledge the
        effect; no event is sent to it. If the receiver's actor is cancelled with its supervisor, the next supervisor
        sends the event again.
        """
        receiver = self.entities.get(effect.to)
        if receiver is None or receiver.ended or not receiver.accepts(effect.event):
            return False
        self.send(effect.to, effect.event, cause=cause)
        return True

    async def wait_processed(self, entity_id: str) -> None:
        """Wait until the entity has processed every message that was sent to it before, or is gone."""
        ref = self.system.ref(entity_id)
        if ref is not None:
            with suppress(ActorStopped):
                await ref.ask(_NOTHING, timeout_s=POST_S, lane=Lane.CONTROL, detach=True)

    def record_fact(self, entity_id: str, name: str, cause: Cause, metadata: dict[str, Any], **described: Any) -> None:
        """Append a fact to an entity's log; do nothing if the entity is gone."""
        entity = self.entities.get(entity_id)
        if entity is not None:
            entity.record_fact(name, cause, metadata, **described)

    def cancel_scope(self, actor_id: str, cause: object) -> None:
        """Cancel everything that runs in the scope of the actor *actor_id*."""
        ctx = self.system.context(actor_id)
        if ctx is not None:
            ctx.scope.cancel(cause)

    # ------------------------------------------------------------------ queries
    def check_disk(self, what: str) -> None:
        """Raise Degraded if the journal cannot be written now; *what* names what is refused."""
        if (outage := self.journal_writer.disk.outage) is not None:
            raise Degraded(what, outage)

    def state_of(self, entity_id: str) -> str:
        """Return the state of a living entity.

        Raises:
            NoSuchEntity: no living entity has that id.
        """
        return str(self.entity(entity_id).state.value)

    def entity(self, entity_id: str) -> Entity:
        """Return the living entity with the id *entity_id*.

        Raises:
            NoSuchEntity: no living entity has that id.
        """
        entity = self.entities.get(entity_id)
        if entity is None:
            raise NoSuchEntity(entity_id)
        return entity

    def rows(self, *, data: bool = True) -> list[EntityRow]:
        """Return the rows that the journal has for the living entities. *data* of the entities is the costly part, and
        can be left out."""
        return [_row(one, data=data) for one in self.entities.values()]

    def row(self, entity_id: str) -> EntityRow:
        """Return the row that the journal has for the living entity with the id *entity_id*.

        Raises:
            NoSuchEntity: no living entity has that id.
        """
        return _row(self.entity(entity_id), data=True)


def _row(entity: Entity, *, data: bool) -> EntityRow:
    return EntityRow(
        kind=entity.kind_name,
        id=entity.id,
        parent_id=entity.parent_id,
        state=entity.state._value_,
        data=_encode(entity.data) if data else b"",
        entity_seq=entity.entity_seq,
        ended=entity.ended,
        born_seq=entity.born_seq,
        born_at=entity.born_at,
        changed_at=entity.changed_at,
    )
