"""The one door to the journal: every event becomes a record here, and its effects are released when it is durable.

Group commit: while one batch is on its way to the disk the next one gathers. Exempt effects (they end things) are
performed as soon as their record is handed over. After a commit that failed nothing is known, so the disk is looked at
before anything is written again; while it is down everything waits in its order, but for what ends things. An error
that no waiting mends is never papered over: nothing more is released, and whoever owns the ledger hears of it once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import msgspec
import trio

from actors import failpoint
from actors.machine import Effect, Event
from actors.mailbox import ReplyPort
from actors.waiter import Waiter, current_backend
from supervisor.lifecycles.effects import SupervisorEffect, encode_effect
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.redaction import Redactor, encodable
from supervisor.ports import Append, Journal, JournalError, JournalUnavailable, WallClock
from supervisor.ports.logs import get_logger
from supervisor.runtime.availability import JournalAvailability
from supervisor.runtime.one_shot_event import OneShotEvent

__all__ = ["BATCH_MAX", "Cause", "Clock", "JournalWriter", "NewRecord", "PendingEffect", "RecordedEntity"]

BATCH_MAX = 128
"""Records per transaction: about where rows per second peak (benchmarks/journal.py); more only adds latency."""


_log = get_logger()
_encode = msgspec.json.Encoder().encode


class Cause(NamedTuple):
    """What led to a message: the record, the owed effect that it settles, and who acted."""

    seq: int | None = None
    effect_id: str | None = None
    actor: str = "supervisor"


class PendingEffect(msgspec.Struct, frozen=True, gc=False):
    """An effect of a recorded event, with the state epoch of its entity when it was decided.

    An exempt one is performed at once, so the journal never owes it, and it has no ``effect_id``.
    """

    entity_id: str
    effect_id: str | None
    effect: Effect
    seq: int
    epoch: int


class RecordedEntity(Protocol):
    """Whom a record is about, as it is after the event."""

    id: str
    parent_id: str | None
    kind_name: str
    state_name: str
    data: Any
    entity_seq: int
    epoch: int


class NewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says, beside whom it is about. *reply* gets the record when it is durable.

    ``outcome`` and the words are those of :class:`LifecycleEvent`; ``ended`` marks the last record of the entity.
    """

    name: str
    outcome: str
    cause: Cause
    event: Event | None = None
    effects: Sequence[Effect] = ()
    from_state: str = ""
    metadata: dict[str, Any] | None = None
    reason: str = ""
    transition_reason: str | None = None
    abort_reason: str | None = None
    abort_id: str | None = None
    severity: str = "info"
    ended: bool = False
    reply: Any = None


class Clock:
    """Monotonic seconds that look like Unix time: read once off the wall, then counted by the event loop.

    A jump of the wall clock changes no time-out and no order. *from_s* is the last time that was recorded: a wall
    clock that was set back since then does not take the journal's time with it.
    """

    def __init__(self, wall: WallClock, from_s: float = 0.0) -> None:
        self.wall = wall
        self._loop_s = loop_clock()
        self._offset = max(wall.time(), from_s) - self._loop_s()

    def now(self) -> float:
        return self._loop_s() + self._offset


def loop_clock() -> Callable[[], float]:
    """What reads the clock of the event loop that runs (seconds): looked up once, since that takes ten readings."""
    return trio.current_time if trio.lowlevel.in_trio_run() else asyncio.get_running_loop().time


class _Pending(msgspec.Struct, frozen=True):
    """Record that waits for the disk.

    The garbage collector follows its references, as those of a :class:`NewRecord`: ``reply`` leads to the waiting
    actor and from there to the journal writer. Without that, a supervisor whose journal failed would never be freed.
    """

    append: Append
    owed: Sequence[PendingEffect]
    reply: ReplyPort | None


class JournalWriter:
    """Records in, durable records and their effects out.

    Args:
        journal: where records become durable.
        clock: the time they carry.
        perform: called for every effect, once.
        publish: called for every record once it is durable, in order.
        failed: called once when the journal cannot be written.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        *,
        perform: Callable[[PendingEffect], None],
        publish: Callable[[LifecycleEvent], None],
        failed: Callable[[JournalError], None],
    ) -> None:
        self.clock = clock
        self.redactor = Redactor()
        """What keeps secrets out; another one where agents are given some."""
        self._journal = journal
        self._perform, self._publish, self._failed = perform, publish, failed
        self._seq = self._durable_seq = journal.last_seq
        self._pending: list[_Pending] = []
        self._in_hand: list[_Pending] = []
        """The batch that is being written, and is not known to be durable."""
        self._settled: list[str] = []
        self._then: deque[tuple[int, Callable[[], None]]] = deque()
        self._backend = current_backend()
        self._waiter: Waiter | None = None
        """Set while there is nothing to commit."""
        self.clean = True
        """All that was recorded is durable, or lost with the journal."""
        self._cleaned: OneShotEvent | None = None
        """When nothing is left to record; there is none while nobody wants that."""
        self._due: OneShotEvent | None = None
        """When what was performed is settled, though no record came; there is none while nobody wants that."""
        self.error: JournalError | None = None
        self._closed = False
        """Nothing more is recorded: its task may be cancelled."""
        self.disk = JournalAvailability(journal, clock.wall)

    @property
    def last_seq(self) -> int:
        """The number of the newest record, durable or not."""
        return self._seq

    def record(self, subject: RecordedEntity, draft: NewRecord) -> LifecycleEvent:
        """Hand over one record; exempt effects are performed before this returns."""
        data = _encode(subject.data)  # before anything has changed: text that is no text fails here
        self._seq += 1
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
            metadata=draft.metadata if draft.metadata is not None else _fields(event),
        )
        exempt, later = self._sorted(subject, draft.effects) if draft.effects else ((), ())
        self._hand_over(subject, draft, record, data, later)
        for one in exempt:
            self._perform(one)
        return record

    def _sorted(
        self, subject: RecordedEntity, effects: Sequence[Effect]
    ) -> tuple[list[PendingEffect], list[PendingEffect]]:
        """The effects that do not wait, and those that do."""
        exempt: list[PendingEffect] = []
        later: list[PendingEffect] = []
        for number, effect in enumerate(effects):
            if isinstance(effect, SupervisorEffect) and effect.exempt:
                exempt.append(PendingEffect(subject.id, None, effect, self._seq, subject.epoch))
            else:
                later.append(PendingEffect(subject.id, f"{self._seq}.{number}", effect, self._seq, subject.epoch))
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
            settled=self._take_settled(draft.cause) if self._settled or draft.cause.effect_id is not None else (),
            ended=draft.ended,
        )
        if self.error is not None and draft.reply is not None:
            draft.reply.fail(self.error)
        self._pending.append(_Pending(append, later, draft.reply))
        if self.disk.outage is not None:
            self.disk.count_waiting([append])
        if self.clean:
            self.clean = False
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()

    def when_durable(self, then: Callable[[], None]) -> None:
        """Call *then* once all that is recorded now is durable and its effects were performed; at once if it is."""
        if self.clean or self.error is not None:
            then()
        else:
            self._then.append((self._seq, then))

    async def durable(self) -> bool:
        """Wait until all that is recorded now is durable; ``False`` if it is lost with the journal."""
        durable, seq = OneShotEvent(), self._seq
        self.when_durable(durable.set)
        await durable.wait()
        return self._durable_seq >= seq

    def _call_waiting(self, seq: int) -> None:
        while self._then and self._then[0][0] <= seq:
            self._then.popleft()[1]()

    def acknowledge(self, effect_id: str | None) -> None:
        """The effect has been performed; that becomes durable with the next record."""
        if effect_id is not None:
            self._settled.append(effect_id)

    async def acknowledge_all(self) -> None:
        """Have what was settled so far durable, with the next record or without one.

        Raises:
            JournalError: the journal failed before it was.
        """
        if self._settled and self.error is None:
            self._due = due = self._due or OneShotEvent()
            self._wake()
            await due.wait()
        if self.error is not None:
            raise self.error

    def _take_settled(self, cause: Cause) -> tuple[str, ...]:
        settled, self._settled = self._settled, []
        if cause.effect_id is not None:
            settled.append(cause.effect_id)
        return tuple(settled)

    async def run(self) -> None:
        """Commit, for ever. An error that nobody foresaw is the end of the journal, as the disk's would be: sessions
        must end, and wait for no record of it."""
        try:
            await self._commit_all()
        except Exception as error:
            lost = JournalError(f"the supervisor failed at writing it: {error!r}: {self._lost()}")
            lost.__cause__ = error
            self._give_up(lost)
        finally:
            if not self._closed:  # the system that it runs in breaks
                self._give_up(JournalError(f"the supervisor broke: {self._lost()}"))

    async def _commit_all(self) -> None:
        while True:
            if not self._pending and self._due is None:
                self._waiter = self._backend.new_waiter()
                await self._waiter.wait()
                self._waiter = None
            while self._pending:
                most = 1 if failpoint.active("ledger.batch_of_one") else BATCH_MAX
                batch, self._pending = self._pending[:most], self._pending[most:]
                if not await self._commit(batch):
                    return
            self._say_clean()
            due, self._due = self._due, None
            if due is not None and not await self._settle_due(due):
                return

    def _say_clean(self) -> None:
        self.clean = True
        cleaned, self._cleaned = self._cleaned, None
        if cleaned is not None:
            cleaned.set()

    async def _commit(self, batch: list[_Pending]) -> bool:
        appends, self._in_hand = [one.append for one in batch], batch
        try:
            try:
                await self._journal.append(appends)
            except JournalUnavailable as error:
                self.disk.count_waiting(one.append for one in (*batch, *self._pending))
                await self.disk.retry_until_durable(error, lambda durable_seq: self._append_rest(appends, durable_seq))
        except JournalError as error:
            self._give_up(error)
        if self.error is not None:
            return False
        while batch:  # in hand until it is released: who waits for one behind an error is told of that
            self._release(batch[0])
            del batch[0]
        return True

    async def _append_rest(self, batch: list[Append], durable_seq: int) -> None:
        """Write *batch*, if the try whose outcome was unknown has not: it was one transaction, all of it or nothing."""
        if durable_seq == batch[0].record.seq - 1:
            await self._journal.append(batch)
        elif durable_seq != batch[-1].record.seq:
            raise JournalError(
                f"the journal ends with record {durable_seq}, and must end with {batch[0].record.seq - 1} or"
                f" {batch[-1].record.seq}: its disk has lost what it had promised, or somebody else writes to it"
            )

    def abandon(self) -> None:
        """Wait no longer for a disk that is down: what is not durable by now is lost, as with a journal that failed."""
        if self.disk.outage is not None and self.error is None:
            words = f"{self.disk.outage.why}; the run ended before it could be written again"
            self._give_up(JournalUnavailable(f"{words}: {self._lost()}"))

    def _lost(self) -> str:
        """What became of the records that wait, in words."""
        unknown, waiting = len(self._in_hand), len(self._pending)
        return f"{waiting} records are not in it, of {unknown} more it is not known"

    def _release(self, one: _Pending) -> None:
        """The record is durable: tell of it, and let its effects happen. A fault in one of them is that one's alone."""
        record = one.append.record
        self._durable_seq = record.seq
        self._publish(record)
        if one.reply is not None:
            one.reply.resolve(record)
        for owed in one.owed:
            try:
                self._perform(owed)
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
        self.error = error
        self.disk.give_up()
        for one in [*self._in_hand, *self._pending]:
            if one.reply is not None:
                one.reply.fail(error)
        self._say_clean()
        self._say_settled()
        self._call_waiting(self._seq)
        self._failed(error)

    async def check(self) -> None:
        """Look whether the journal still lies where it was opened, although nothing is recorded: one that does not is
        lost."""
        try:
            await self._journal.check()
        except JournalError as error:
            self._give_up(error)

    async def flush(self) -> None:
        """Wait until everything recorded so far is durable.

        Raises:
            JournalError: the journal failed before it was.
        """
        if not await self.durable() and self.error is not None:
            raise self.error

    async def close(self) -> None:
        """Wait until nothing is left to record, and settle what was performed since."""
        try:
            while self.error is None and not self.clean:
                self._cleaned = cleaned = self._cleaned or OneShotEvent()
                await cleaned.wait()
            with suppress(JournalError):  # whoever owns the ledger has heard of it
                await self.acknowledge_all()
        finally:
            self._closed = True

    async def _settle_due(self, due: OneShotEvent) -> bool:
        """All records are durable: settle what none of them has. Whoever asks meanwhile has that settled next."""
        settled, self._settled = self._settled, []
        try:
            try:
                await self._journal.settle(settled)
            except JournalUnavailable as error:
                await self.disk.retry_until_durable(error, lambda durable_seq: self._journal.settle(settled))
        except JournalError as error:
            self._give_up(error)
        due.set()
        return self.error is None

    def _say_settled(self) -> None:
        due, self._due = self._due, None
        if due is not None:
            due.set()


def _fields(event: Event | None) -> dict[str, Any]:
    if event is None:
        return {}
    fields: dict[str, Any] = msgspec.to_builtins(event)
    del fields["at"]
    return fields
