"""Group-commit writer of the journal, with an outbox of pending effects.

Theory of operation
-------------------
``record`` turns a decision into a record and returns at once. Records wait in ``_pending``; one task writes them in
batches, each one transaction of the journal. While a batch is on its way to the disk the next batch gathers, so the
cost of a commit is shared by all records that were made meanwhile. When a batch is durable its records are released in
order: published to subscribers, given to the caller that waits for them, and then their effects are performed.

    record(A), record(B)                    pending: A B
    commit [A B] begins; record(C)          in flight: A B, pending: C
    commit is durable                       release A: publish, reply, perform its effects; then B
    commit [C] begins

Invariants
----------
* No effect of a record happens before the record is durable, except *exempt* effects, which end things: an abort must
  not wait for the disk. They are performed before ``record`` returns, and are never in the outbox.
* A crash between the commit and an effect loses nothing. The effect is in the journal's outbox until it is
  acknowledged, which becomes durable with the next record; the next supervisor performs the effects that are left in
  the outbox.
* Records become durable in the order of their numbers, without a gap.
* A batch ends with the end of a group: all records made in one ``together`` block are in one transaction, whatever
  their number. Thus several entities that one decision moves (a task, its run and its job) are never found half moved.
* The outcome of a failed commit is unknown: the transaction may be on the disk. So the journal is recovered and
  its last record read before anything is written again (``JournalAvailability``). Meanwhile records wait in memory.
* An error that retrying does not help is final: nothing more is released, every caller gets the error, and the owner is
  notified once (``failed``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from actors import failpoint
from actors.machine import Effect, Event
from actors.mailbox import ReplyPort
from actors.one_shot_event import OneShotEvent
from actors.waiter import Waiter, current_backend
from supervisor.lifecycles.effects import SupervisorEffect, encode_effect
from supervisor.lifecycles.record_ids import effect_id_of, id_after, id_before
from supervisor.lifecycles.types import LifecycleEvent, RecordId
from supervisor.policies.redaction import Redactor, encodable
from supervisor.ports import Append, Journal, JournalError, JournalUnavailable, WallClock
from supervisor.ports.logs import get_logger
from supervisor.runtime.availability import JournalAvailability

BATCH_MAX = 128
"""Largest number of records in a transaction, not counting records that complete the last record's group: rows per
second peak at about this number (benchmarks/journal.py), and a larger number only adds latency."""


_log = get_logger()
_encode = msgspec.json.Encoder().encode


class Cause(NamedTuple):
    """Cause of a message: the number of the record that the message follows from, the id of the effect that the message
    acknowledges, and the name of the actor."""

    seq: RecordId | None = None
    effect_id: str | None = None
    actor: str = "supervisor"


HOST = Cause(actor="host")
"""Cause of what the embedding program requests."""


class PendingEffect(msgspec.Struct, frozen=True, gc=False):
    """Effect of a recorded event, with the state epoch of its entity at the time of the decision. ``effect_id`` is
    ``None`` for an exempt effect, which is performed at once and is never in the outbox."""

    entity_id: str
    effect_id: str | None
    effect: Effect
    seq: RecordId
    epoch: int


class RecordedEntity(Protocol):
    """Entity that a record is about, in its state after the event."""

    id: str
    parent_id: str | None
    kind_name: str
    state_name: str
    data: Any
    entity_seq: int
    epoch: int


class NewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a new record, without its entity. ``reply`` receives the record when the record is durable; ``ended``
    marks the entity's last record; ``line_fields`` are added to the fields of the event; the other fields are those of
    :class:`LifecycleEvent`."""

    name: str
    outcome: str
    cause: Cause
    event: Event | None = None
    effects: Sequence[Effect] = ()
    from_state: str = ""
    metadata: dict[str, Any] | None = None
    line_fields: dict[str, Any] | None = None
    reason: str = ""
    transition_reason: str | None = None
    abort_reason: str | None = None
    abort_id: str | None = None
    severity: str = "info"
    ended: bool = False
    reply: Any = None


class Clock:
    """Journal clock: monotonic seconds that begin at Unix time. The Unix time is read once, and then the event loop
    counts.

    A jump of the wall clock changes no time-out and no order. *from_s* is the last time in the journal: if the wall
    clock was set back since then, the journal clock starts at *from_s*.
    """

    def __init__(self, wall: WallClock, from_s: float = 0.0) -> None:
        self.wall = wall
        self._loop_s = loop_clock()
        self._offset = max(wall.time(), from_s) - self._loop_s()

    def now(self) -> float:
        return self._loop_s() + self._offset


def loop_clock() -> Callable[[], float]:
    """Return the clock function of the running event loop (seconds). A caller stores the function, because looking it
    up costs as much as ten readings."""
    return current_backend().now


class _Pending(msgspec.Struct, frozen=True):
    """Record that waits to be written to the disk.

    The garbage collector tracks this object and every :class:`NewRecord`, because ``reply`` refers to the waiting actor
    and through the actor to the journal writer. Otherwise a supervisor whose journal failed would never be freed.
    """

    append: Append
    owed: Sequence[PendingEffect]
    reply: ReplyPort | None
    continues_group: bool
    """True if the record belongs to the same group as the record before."""


class JournalWriter:
    """Writer of records; releases records and their effects when they are durable.

    Args:
        journal: storage of the records.
        clock: source of the records' times.
        publish: called for every record once it is durable, in order.
    """

    perform: Callable[[PendingEffect], None]
    """Function that is called for every effect, once; the registry of the entities sets it."""
    failed: Callable[[JournalError], None]
    """Function that is called once when the journal has failed for good; whoever ends the supervisor sets it."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        publish: Callable[[LifecycleEvent], None],
    ) -> None:
        self.clock = clock
        self.redactor = Redactor()
        """Object that removes secrets from records. Replaced when agents get new secrets."""
        self._journal = journal
        self._publish = publish
        self._seq = self._durable_seq = journal.last_seq
        self._pending: list[_Pending] = []
        self._group_start: RecordId | None = None
        """Number of the last record before the group that is being recorded; ``None`` outside of ``together``."""
        self._in_flight: list[_Pending] = []
        """Batch of records that is being written and is not known to be durable."""
        self._acknowledged: list[str] = []
        self._then: deque[tuple[RecordId, Callable[[], None]]] = deque()
        self._backend = current_backend()
        self._waiter: Waiter | None = None
        """Waiter of the commit task while the task has nothing to commit, otherwise ``None``."""
        self.clean = True
        """True if every record is durable, or was lost with the journal."""
        self._cleaned: OneShotEvent | None = None
        """Event that is set when no record waits any more; ``None`` while no caller waits for this."""
        self._due: OneShotEvent | None = None
        """Event that is set when acknowledgements are durable without a new record; ``None`` while no caller waits for
        this."""
        self.error: JournalError | None = None
        self._closed = False
        """True if no further record will come, so that the commit task may be cancelled."""
        self.disk = JournalAvailability(journal, clock.wall)
        self.on_committed: Callable[[float], None] | None = None
        """Function that is called with the seconds that each batch took to become durable; ``None``: nobody asks."""

    @property
    def waiting(self) -> int:
        """Number of records that are not known to be durable."""
        return len(self._pending) + len(self._in_flight)

    @property
    def last_seq(self) -> RecordId:
        """Number of the newest record, whether durable or not."""
        return self._seq

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make a group: all records that are made in this block are written in one transaction. The block must not
        await; blocks may be nested. Nothing is rolled back: if the block raises, the records that were made before are
        written.

        Example, of a task that is never found without its run::

            with journal_writer.together():
                journal_writer.record(task, NewRecord(name="Born", outcome="born", cause=cause))
                journal_writer.record(run, NewRecord(name="Born", outcome="born", cause=cause))
            await journal_writer.flush()
        """
        before = self._group_start
        if before is None:
            self._group_start = self._seq
        try:
            yield
        finally:
            self._group_start = before

    def record(self, subject: RecordedEntity, draft: NewRecord) -> LifecycleEvent:
        """Append one record about *subject*; exempt effects of the record are performed before this method returns."""
        data = _encode(subject.data)  # first, since invalid text fails here, before a number is taken
        self._seq = id_after(self._seq)
        event, cause = draft.event, draft.cause
        record = LifecycleEvent(
            seq=self._seq,
            timestamp=self.clock.wall.time(),
            monotonic_s=event.at if event is not None else self.clock.now(),
            entity_type=subject.kind_name,
            entity_id=subject.id,
            entity_seq=subject.entity_seq,
            event=draft.name,
            from_status=draft.from_state,
            to_status=subject.state_name,
            outcome=draft.outcome,
            actor=encodable(cause.actor),
            reason=draft.reason,
            transition_reason=draft.transition_reason,
            abort_reason=draft.abort_reason,
            abort_id=draft.abort_id,
            cause_id=cause.seq,
            severity=draft.severity,
            metadata=draft.metadata if draft.metadata is not None else _fields(event, draft.line_fields),
        )
        exempt, later = self._sorted(subject, draft.effects) if draft.effects else ((), ())
        # Handed over before anything is performed: an exempt effect may record too, and a record with a higher number
        # that is written first makes this one unwritable.
        self._hand_over(subject, draft, record, data, later)
        for one in exempt:
            self.perform(one)
        return record

    def _sorted(
        self, subject: RecordedEntity, effects: Sequence[Effect]
    ) -> tuple[list[PendingEffect], list[PendingEffect]]:
        """Return two lists: the exempt effects, and the effects that wait until the record is durable."""
        exempt: list[PendingEffect] = []
        later: list[PendingEffect] = []
        for number, effect in enumerate(effects):
            if isinstance(effect, SupervisorEffect) and effect.exempt:
                exempt.append(PendingEffect(subject.id, None, effect, self._seq, subject.epoch))
            else:
                later.append(
                    PendingEffect(subject.id, effect_id_of(self._seq, number), effect, self._seq, subject.epoch)
                )
        return exempt, later

    def _hand_over(
        self,
        subject: RecordedEntity,
        draft: NewRecord,
        record: LifecycleEvent,
        data: bytes,
        later: Sequence[PendingEffect],
    ) -> None:
        append = Append(
            record=record,
            parent_id=subject.parent_id,
            state=subject.state_name,
            data=data,
            owed=tuple([(one.effect_id or "", encode_effect(one.effect)) for one in later]) if later else (),
            settled=self._take_acknowledged(draft.cause),
            ended=draft.ended,
        )
        if self.error is not None and draft.reply is not None:
            draft.reply.fail(self.error)
        continues_group = self._group_start is not None and record.seq > id_after(self._group_start)
        self._pending.append(_Pending(append, later, draft.reply, continues_group))
        if self.disk.outage is not None:
            self.disk.count_waiting([append])
        if self.clean:
            self.clean = False
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()

    def when_durable(self, then: Callable[[], None]) -> None:
        """Call *then* as soon as all present records are durable and their effects were performed; at once if no record
        waits, or if the journal was lost. *then* is also called when the journal is lost before that."""
        if self.clean or self.error is not None:
            then()
        else:
            self._then.append((self._seq, then))

    async def durable(self) -> bool:
        """Wait until all present records are durable; return ``False`` if a record was lost with the journal."""
        durable, seq = OneShotEvent(), self._seq
        self.when_durable(durable.set)
        await durable.wait()
        return self._durable_seq >= seq

    def _call_waiting(self, seq: RecordId) -> None:
        while self._then and self._then[0][0] <= seq:
            self._then.popleft()[1]()

    def acknowledge(self, effect_id: str | None) -> None:
        """Mark an effect as performed, so that it is removed from the outbox. The removal becomes durable with the next
        record."""
        if effect_id is not None:
            self._acknowledged.append(effect_id)

    async def acknowledge_all(self) -> None:
        """Wait until all present acknowledgements are durable, by the next record or without a record.

        Raises:
            JournalError: the journal failed before that.
        """
        if self._acknowledged and self.error is None:
            self._due = due = self._due or OneShotEvent()
            self._wake()
            await due.wait()
        if self.error is not None:
            raise self.error

    def _take_acknowledged(self, cause: Cause) -> tuple[str, ...]:
        # The outcome of an effect and its acknowledgement are one transaction: a kill leaves both or neither, and then
        # the next supervisor performs the effect again. Other acknowledgements ride along.
        if not self._acknowledged and cause.effect_id is None:
            return ()
        settled, self._acknowledged = self._acknowledged, []
        if cause.effect_id is not None:
            settled.append(cause.effect_id)
        return tuple(settled)

    async def run(self) -> None:
        """Commit batches without end. An unexpected error is as final as an error of the disk: sessions must then end
        without their records."""
        try:
            await self._commit_all()
        except Exception as error:
            lost = JournalError(f"the supervisor failed at writing it: {error!r}: {self._lost()}")
            lost.__cause__ = error
            self._give_up(lost)
        finally:
            if not self._closed:  # the actor system breaks, and cancels this task
                self._give_up(JournalError(f"the supervisor broke: {self._lost()}"))

    async def _commit_all(self) -> None:
        while True:
            if not self._pending and self._due is None:
                self._waiter = self._backend.new_waiter()
                await self._waiter.wait()
                self._waiter = None
            while self._pending:
                if not await self._commit(self._take_batch()):
                    return
            self._set_clean()
            due, self._due = self._due, None
            if due is not None and not await self._write_acknowledged(due):
                return

    def _take_batch(self) -> list[_Pending]:
        """Remove and return the waiting records for the next transaction: as many as fit, and the rest of the last
        record's group."""
        assert self._group_start is None, "a block of `together` awaits"
        # The rest of a group goes along, however long it is: a kill between two transactions would leave a task closed
        # while its job still runs.
        end = 1 if failpoint.active("ledger.batch_of_one") else BATCH_MAX
        while end < len(self._pending) and self._pending[end].continues_group:
            end += 1
        batch, self._pending = self._pending[:end], self._pending[end:]
        return batch

    def _set_clean(self) -> None:
        self.clean = True
        cleaned, self._cleaned = self._cleaned, None
        if cleaned is not None:
            cleaned.set()

    async def _commit(self, batch: list[_Pending]) -> bool:
        # Known to `_give_up` before the first wait: when the journal fails during the append, the callers of this batch
        # get the error, too, and do not wait for ever.
        appends, self._in_flight = [one.append for one in batch], batch
        began_s = self.clock.now() if self.on_committed is not None else 0.0
        try:
            try:
                await self._journal.append(appends)
            except JournalUnavailable as error:
                # Never simply appended again: the batch may be on the disk, although the append has failed.
                self.disk.count_waiting(one.append for one in (*batch, *self._pending))
                await self.disk.retry_until_durable(error, lambda durable_seq: self._append_rest(appends, durable_seq))
        except JournalError as error:
            self._give_up(error)
        if self.error is not None:
            return False
        if self.on_committed is not None:
            self.on_committed(self.clock.now() - began_s)
        while batch:  # released one by one: if a release fails, the callers of the rest get the error
            self._release(batch[0])
            del batch[0]
        return True

    async def _append_rest(self, batch: list[Append], durable_seq: RecordId) -> None:
        """Write *batch*, unless the try whose outcome was unknown has written it: the batch was one transaction."""
        before = id_before(batch[0].record.seq)
        if durable_seq == before:
            await self._journal.append(batch)
        elif durable_seq != batch[-1].record.seq:
            raise JournalError(
                f"the journal ends with record {durable_seq}, and must end with {before} or"
                f" {batch[-1].record.seq}: its disk has lost what it had promised, or somebody else writes to it"
            )

    def abandon(self) -> None:
        """Stop waiting for a journal that cannot be written; records that are not durable are lost."""
        if self.disk.outage is not None and self.error is None:
            words = f"{self.disk.outage.why}; the run ended before it could be written again"
            self._give_up(JournalUnavailable(f"{words}: {self._lost()}"))

    def _lost(self) -> str:
        """Return a phrase with the number of records that are lost."""
        unknown, waiting = len(self._in_flight), len(self._pending)
        return f"{waiting} records are not in it, of {unknown} more it is not known"

    def _release(self, one: _Pending) -> None:
        """Publish a durable record, reply to the record's caller, and perform the record's effects. If an effect fails,
        the other effects are performed all the same."""
        record = one.append.record
        # The effects come last: until here, a kill leaves them in the outbox, and all that anybody has seen is durable.
        self._durable_seq = record.seq
        self._publish(record)
        if one.reply is not None:
            one.reply.resolve(record)
        for owed in one.owed:
            try:
                self.perform(owed)
            except Exception as error:
                _log.error(
                    "an effect failed",
                    entity=owed.entity_id,
                    effect=type(owed.effect).__struct_config__.tag,
                    exc_info=error,
                )
        if self._then:
            self._call_waiting(record.seq)

    def _give_up(self, error: JournalError) -> None:
        if self.error is not None:
            return
        # The error first: whatever the lines below wake up must see that nothing will be durable any more.
        self.error = error
        self.disk.give_up()
        for one in [*self._in_flight, *self._pending]:
            if one.reply is not None:
                one.reply.fail(error)
        self._set_clean()
        self._set_acknowledged()
        self._call_waiting(self._seq)
        self.failed(error)

    async def check(self) -> None:
        """Check that the journal's file is still the file that was opened, even while nothing is recorded; if not, the
        journal has failed for good."""
        try:
            await self._journal.check()
        except JournalError as error:
            self._give_up(error)

    async def flush(self) -> None:
        """Wait until all present records are durable.

        Raises:
            JournalError: the journal failed before that.
        """
        if not await self.durable() and self.error is not None:
            raise self.error

    async def close(self) -> None:
        """Wait until no record waits, then make the last acknowledgements durable and close the writer."""
        try:
            while self.error is None and not self.clean:
                self._cleaned = cleaned = self._cleaned or OneShotEvent()
                await cleaned.wait()
            # After the last record: its effects are acknowledged only when they were performed. Without this write the
            # next supervisor would perform them again.
            with suppress(JournalError):  # the owner was told (``failed``)
                await self.acknowledge_all()
        finally:
            self._closed = True

    async def _write_acknowledged(self, due: OneShotEvent) -> bool:
        """Make acknowledgements durable that no record carries. Acknowledgements that are made meanwhile are written
        later."""
        settled, self._acknowledged = self._acknowledged, []
        try:
            try:
                # May be repeated: an effect that is settled already stays as it is.
                await self._journal.settle(settled)
            except JournalUnavailable as error:
                await self.disk.retry_until_durable(error, lambda durable_seq: self._journal.settle(settled))
        except JournalError as error:
            self._give_up(error)
        due.set()
        return self.error is None

    def _set_acknowledged(self) -> None:
        due, self._due = self._due, None
        if due is not None:
            due.set()


def _fields(event: Event | None, line_fields: dict[str, Any] | None) -> dict[str, Any]:
    if event is None:
        return {}
    fields: dict[str, Any] = msgspec.to_builtins(event)
    del fields["at"]
    if line_fields is not None:
        # The event wins: a record is stepped again with the fields of its event.
        fields = {**line_fields, **fields}
    return fields
