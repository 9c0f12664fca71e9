"""Lifecycle of a trigger: which deliveries start a run of a plan, and which start nothing (spec 005).

A delivery is one event of a trigger's source: an occurrence of a schedule, a request to a webhook, or a settled change
of watched files. ``decide`` makes the event of a delivery from the trigger's data; the guards of the table check the
same again, so that a record that breaks a limit is refused, and found by ``supervisor validate``.

Example, of a trigger with ``overlap: queue``: delivery A starts run r1 (``delivery_accepted``, ``run_started``); B
waits (``delivery_queued``); the end of r1 (``run_ended``) takes the trigger to ``waiting``, and B is accepted next.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from actors.machine import Effect, Event, Machine, rule
from supervisor.lifecycles.effects import SubmitPlan

TRIGGER_PREFIX: Final = "@"
"""Prefix of the ids of triggers, which no name of a session or task has."""
HOUR_S: Final = 3600.0
"""Length of the window of ``starts_per_hour``."""
QUEUE_MAX: Final = 20
"""Largest number of deliveries that wait for the end of a run."""
SEEN_MAX: Final = 500
"""Number of the newest accepted deliveries that are known to the trigger; older ones are known by the keys of their
runs."""


class Trigger(Enum):
    """The three states: nothing that the trigger started goes on, something does, and the trigger is gone."""

    WAITING = "waiting"
    RUNNING = "running"
    CLOSED = "closed"


class Overlap(StrEnum):
    """Effect of a delivery that comes while a run of the same trigger goes on."""

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Delivery that starts a run, or waits: its id within the trigger, and the values of the event that the prompts
    get."""

    id: str
    values: Mapping[str, str] = {}


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Run that a delivery has started, and that has not ended."""

    delivery: str
    run: str


class TriggerData(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a trigger. ``definition`` is a digest of its entry in the file. ``decided_s`` is the Unix time up to
    which the occurrences of a schedule are decided. ``starting`` are the accepted deliveries without a run; ``starts``
    are the times of the accepted deliveries of the last hour."""

    name: str
    source: str = ""
    definition: str = ""
    overlap: Overlap = Overlap.SKIP
    starts_per_hour: int = 10
    decided_s: float = 0.0
    starting: tuple[Delivery, ...] = ()
    running: tuple[StartedRun, ...] = ()
    queue: tuple[Delivery, ...] = ()
    starts: tuple[float, ...] = ()
    seen: tuple[str, ...] = ()

    @property
    def is_free(self) -> bool:
        """Whether no run goes on and none is about to begin."""
        return not (self.starting or self.running)

    def has(self, delivery: str) -> bool:
        """Return whether the delivery was accepted before, or waits."""
        return delivery in self.seen or any(one.id == delivery for one in self.queue)

    def may_start(self, at: float) -> bool:
        """Return whether ``starts_per_hour`` allows a start at the time *at*."""
        return sum(at - one < HOUR_S for one in self.starts) < self.starts_per_hour


# ------------------------------------------------------------------------------------------------------------ events
class DefinitionChanged(Event, frozen=True, kw_only=True):
    """Event: the entry of the trigger in the file is another one now. *decided_s* is the time from which its schedule
    counts (``None``: the schedule is the same)."""

    spelled = "definition_changed"
    definition: str
    source: str
    overlap: Overlap
    starts_per_hour: int
    decided_s: float | None = None


class DeliveryEvent(Event, frozen=True, kw_only=True):
    """Base class of the events about a delivery. *decided_s* is the time of the occurrence, for a schedule."""

    delivery: str
    decided_s: float | None = None


class DeliveryAccepted(DeliveryEvent, frozen=True, kw_only=True):
    """Event: the delivery starts a run; *values* of the event go to the prompts."""

    spelled = "delivery_accepted"
    values: Mapping[str, str] = {}


class DeliveryQueued(DeliveryEvent, frozen=True, kw_only=True):
    """Event: the delivery waits until the run that goes on has ended."""

    spelled = "delivery_queued"
    values: Mapping[str, str] = {}


class DeliveryRefused(DeliveryEvent, frozen=True, kw_only=True):
    """Event: the delivery starts nothing, for that *reason*. *unrecorded* is the number of refused deliveries since the
    record before that have no record of their own."""

    spelled = "delivery_refused"
    reason: str
    unrecorded: int = 0


class RunStarted(Event, frozen=True, kw_only=True):
    """Event: the delivery has started *run*, which is on the disk."""

    spelled = "run_started"
    delivery: str
    run: str


class StartFailed(Event, frozen=True, kw_only=True):
    """Event: the plan of an accepted delivery was not taken."""

    spelled = "start_failed"
    delivery: str
    error: str


class RunEnded(Event, frozen=True, kw_only=True):
    """Event: *run*, which the delivery had started, has ended, whatever its outcome, its merges included."""

    spelled = "run_ended"
    delivery: str
    run: str


class TriggerClosed(Event, frozen=True, kw_only=True):
    """Event: the trigger is gone from the file, or its log is continued in a new one."""

    spelled = "trigger_closed"
    reason: str


def decide(data: TriggerData, delivery: Delivery, at: float, decided_s: float | None = None) -> DeliveryEvent:
    """Return the event of a delivery that is genuine, at the time *at* of the journal's clock."""
    known, is_queued = data.has(delivery.id), any(one.id == delivery.id for one in data.queue)
    if known and not is_queued:
        reason = "repeated: this delivery has started a run before"
    elif known and not data.is_free:
        reason = "repeated: this delivery waits"
    elif not data.is_free and data.overlap is Overlap.SKIP:
        reason = "overlap: a run of this trigger goes on"
    elif not data.is_free and data.overlap is Overlap.QUEUE:
        if len(data.queue) < QUEUE_MAX:
            return DeliveryQueued(delivery=delivery.id, values=delivery.values, decided_s=decided_s)
        reason = f"overlap: {QUEUE_MAX} deliveries wait already"
    elif not data.may_start(at):
        reason = f"starts_per_hour: {data.starts_per_hour} runs were started within the last hour"
    else:
        return DeliveryAccepted(delivery=delivery.id, values=delivery.values, decided_s=decided_s)
    return DeliveryRefused(delivery=delivery.id, reason=reason, decided_s=decided_s)


# ----------------------------------------------------------------------------------------------------- guards, actions
Out = tuple[TriggerData, tuple[Effect, ...]]


def may_begin(data: TriggerData, event: DeliveryAccepted) -> bool:
    """Whether the delivery is new or was queued, nothing that it may not overlap goes on, and the hour has room."""
    is_new = event.delivery not in data.seen
    return is_new and (data.is_free or data.overlap is Overlap.ALLOW) and data.may_start(event.at)


def may_wait(data: TriggerData, event: DeliveryQueued) -> bool:
    return data.overlap is Overlap.QUEUE and not data.has(event.delivery) and len(data.queue) < QUEUE_MAX


def is_last(data: TriggerData, event: StartFailed | RunEnded) -> bool:
    """Whether nothing else that the trigger has started goes on."""
    others = [one.id for one in data.starting] + [one.delivery for one in data.running]
    return others == [event.delivery]


def is_starting(data: TriggerData, event: RunStarted) -> bool:
    return any(one.id == event.delivery for one in data.starting)


def note_definition(data: TriggerData, event: DefinitionChanged) -> Out:
    changed = replace(
        data,
        definition=event.definition,
        source=event.source,
        overlap=event.overlap,
        starts_per_hour=event.starts_per_hour,
        decided_s=data.decided_s if event.decided_s is None else event.decided_s,
    )
    return changed, ()


def note_decided(data: TriggerData, event: DeliveryEvent) -> Out:
    """Forget a queued delivery that is decided now, and note the time of the occurrence."""
    queue = tuple(one for one in data.queue if one.id != event.delivery)
    return replace(data, queue=queue, decided_s=max(data.decided_s, event.decided_s or 0.0)), ()


def start(data: TriggerData, event: DeliveryAccepted) -> Out:
    starting = (*data.starting, Delivery(id=event.delivery, values=event.values))
    starts = (*(one for one in data.starts if event.at - one < HOUR_S), event.at)
    seen = (*data.seen, event.delivery)[-SEEN_MAX:]
    return replace(data, starting=starting, starts=starts, seen=seen), (SubmitPlan(delivery=event.delivery),)


def enqueue(data: TriggerData, event: DeliveryQueued) -> Out:
    return replace(data, queue=(*data.queue, Delivery(id=event.delivery, values=event.values))), ()


def note_run(data: TriggerData, event: RunStarted) -> Out:
    running = (*data.running, StartedRun(delivery=event.delivery, run=event.run))
    return replace(_without(data, event.delivery), running=running), ()


def forget(data: TriggerData, event: RunEnded) -> Out:
    return _without(data, event.delivery), ()


def forget_failed(data: TriggerData, event: StartFailed) -> Out:
    """Forget the delivery whose start failed, so that its sender may deliver it again."""
    seen = tuple(one for one in data.seen if one != event.delivery)
    return replace(_without(data, event.delivery), seen=seen), ()


def _without(data: TriggerData, delivery: str) -> TriggerData:
    starting = tuple(one for one in data.starting if one.id != delivery)
    return replace(data, starting=starting, running=tuple(one for one in data.running if one.delivery != delivery))


T = Trigger
TRIGGER: Machine[Trigger, TriggerData] = Machine(
    "trigger",
    source="005",
    initial=[T.WAITING],
    terminal=[T.CLOSED],
    rules=[
        rule(DefinitionChanged, [T.WAITING, T.RUNNING], None, do=[note_definition]),
        rule(DeliveryAccepted, [T.WAITING, T.RUNNING], T.RUNNING, when=may_begin, do=[note_decided, start]),
        rule(DeliveryQueued, T.RUNNING, None, when=may_wait, do=[note_decided, enqueue]),
        rule(DeliveryRefused, [T.WAITING, T.RUNNING], None, do=[note_decided]),
        rule(RunStarted, T.RUNNING, None, when=is_starting, do=[note_run]),
        rule(StartFailed, T.RUNNING, T.WAITING, when=is_last, do=[forget_failed]),
        rule(StartFailed, T.RUNNING, None, do=[forget_failed]),
        rule(RunEnded, T.RUNNING, T.WAITING, when=is_last, do=[forget]),
        rule(RunEnded, T.RUNNING, None, do=[forget]),
        rule(TriggerClosed, [T.WAITING, T.RUNNING], T.CLOSED),
    ],
)
