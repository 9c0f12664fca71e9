"""Deliveries of a trigger: which start a run, which wait, and which start nothing, with the reasons."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.machine import Event, IllegalTransition
from supervisor.lifecycles.effects import SubmitPlan
from supervisor.lifecycles.trigger import (
    QUEUE_MAX,
    SEEN_MAX,
    TRIGGER,
    DefinitionChanged,
    Delivery,
    DeliveryAccepted,
    DeliveryQueued,
    DeliveryRefused,
    Overlap,
    RunEnded,
    RunStarted,
    StartFailed,
    Trigger,
    TriggerData,
    decide,
)


class Log:
    """Trigger that takes deliveries and other events one after the other."""

    def __init__(self, overlap: Overlap = Overlap.SKIP, starts_per_hour: int = 10) -> None:
        self.state = Trigger.WAITING
        self.data = TriggerData(name="t", overlap=overlap, starts_per_hour=starts_per_hour)

    def take(self, *events: Event) -> list[object]:
        """Apply *events*, and return their effects."""
        effects: list[object] = []
        for event in events:
            step = TRIGGER.step(self.state, self.data, event)
            self.state, self.data = step.state, step.data
            effects += step.effects
        return effects

    def deliver(self, delivery: str, at: float = 0.0) -> str:
        """Decide about a delivery at *at*, and return the name of its event, with the first word of a reason."""
        event = replace(decide(self.data, Delivery(id=delivery), at), at=at)
        self.take(event)
        if isinstance(event, DeliveryRefused):
            return event.reason.partition(":")[0]
        return event.name()

    def fail(self, delivery: str) -> None:
        """Let the start of a delivery fail."""
        self.take(StartFailed(delivery=delivery, error="the plan has an error"))

    def run(self, delivery: str, at: float = 0.0) -> str:
        """Deliver, and let the run that begins end."""
        found = self.deliver(delivery, at)
        if found == "delivery_accepted":
            self.take(RunStarted(delivery=delivery, run="r1"), RunEnded(delivery=delivery, run="r1"))
        return found


def test_an_accepted_delivery_submits_the_plan() -> None:
    """An accepted delivery owes one submission, and the trigger waits again when its run has ended."""
    log = Log()
    effects = log.take(DeliveryAccepted(delivery="a", values={"title": "x"}))
    assert effects == [SubmitPlan(delivery="a")]
    assert (log.state, log.data.starting) == (Trigger.RUNNING, (Delivery(id="a", values={"title": "x"}),))
    log.take(RunStarted(delivery="a", run="r1"))
    assert (log.data.starting, [one.run for one in log.data.running]) == ((), ["r1"])
    log.take(RunEnded(delivery="a", run="r1"))
    assert (log.state, log.data.is_free) == (Trigger.WAITING, True)


@pytest.mark.parametrize(
    ("overlap", "second", "third"),
    [
        (Overlap.SKIP, "overlap", "delivery_accepted"),
        (Overlap.QUEUE, "delivery_queued", "delivery_accepted"),
        (Overlap.ALLOW, "delivery_accepted", "delivery_accepted"),
    ],
)
def test_a_delivery_is_decided_by_overlap(overlap: Overlap, second: str, third: str) -> None:
    """A delivery that comes while a run goes on is skipped, waits, or starts a run beside it; the next one after the
    end of all runs starts a run."""
    log = Log(overlap)
    assert log.deliver("a") == "delivery_accepted"
    assert log.deliver("b") == second
    log.take(StartFailed(delivery="a", error="no plan"))
    if overlap is Overlap.QUEUE:
        assert log.deliver(log.data.queue[0].id) == "delivery_accepted"
    if overlap is not Overlap.SKIP:
        log.take(RunStarted(delivery="b", run="r2"), RunEnded(delivery="b", run="r2"))
    assert (log.state, log.data.queue) == (Trigger.WAITING, ())
    assert log.deliver("c") == third


@pytest.mark.parametrize("overlap", Overlap)
def test_a_repeated_delivery_starts_nothing(overlap: Overlap) -> None:
    """A delivery that has started a run starts none again: not while the run goes on, and not after its end. One that
    waits is not queued a second time."""
    log = Log(overlap)
    assert [log.deliver("a"), log.deliver("a")] == ["delivery_accepted", "repeated"]
    if overlap is Overlap.QUEUE:
        assert [log.deliver("b"), log.deliver("b")] == ["delivery_queued", "repeated"]
    log.take(RunStarted(delivery="a", run="r1"), RunEnded(delivery="a", run="r1"))
    assert log.deliver("a") == "repeated"


def test_a_skipped_delivery_may_come_again() -> None:
    """A delivery that was skipped has started nothing, so that its sender may repeat it."""
    log = Log()
    assert [log.deliver("a"), log.deliver("b")] == ["delivery_accepted", "overlap"]
    log.take(StartFailed(delivery="a", error="no plan"))
    assert log.deliver("b") == "delivery_accepted"


def test_starts_per_hour() -> None:
    """No more runs than ``starts_per_hour`` are started within any hour."""
    log = Log(starts_per_hour=2)
    assert [log.run("a", 0), log.run("b", 1800), log.run("c", 3599)] == [
        *["delivery_accepted"] * 2, "starts_per_hour"
    ]  # fmt: skip
    assert [log.run("c", 3600), log.run("d", 5399), log.run("d", 5400)] == [
        "delivery_accepted", "starts_per_hour", "delivery_accepted"
    ]  # fmt: skip


def test_the_memory_of_a_trigger_is_bounded() -> None:
    """The queue, the known deliveries and the times of starts keep a bounded number, since each record has them."""
    log = Log(Overlap.QUEUE, starts_per_hour=1000)
    log.deliver("first")
    assert {log.deliver(str(number)) for number in range(QUEUE_MAX)} == {"delivery_queued"}
    assert log.deliver("more") == "overlap"
    log = Log(starts_per_hour=1000)
    for number in range(SEEN_MAX + 10):
        assert log.run(str(number), at=number * 3600.0) == "delivery_accepted"
    assert (len(log.data.seen), len(log.data.starts)) == (SEEN_MAX, 1)


@pytest.mark.parametrize(
    "event",
    [DeliveryAccepted(delivery="a"), DeliveryQueued(delivery="b"), RunStarted(delivery="z", run="r9")],
)
def test_the_table_checks_the_decision_again(event: Event) -> None:
    """A record that overlaps, repeats or follows nothing is refused by the table, whatever decided it."""
    log = Log()
    log.deliver("a")
    with pytest.raises(IllegalTransition):
        log.take(event)


def test_a_changed_definition_counts_at_once() -> None:
    """New settings hold for the next delivery; what is known of deliveries stays."""
    log = Log()
    log.run("a")
    log.take(
        DefinitionChanged(definition="d", source="every 60 s", overlap=Overlap.ALLOW, starts_per_hour=1, decided_s=5.0)
    )
    assert (log.deliver("a"), log.deliver("b"), log.data.decided_s) == ("repeated", "starts_per_hour", 5.0)


def test_what_could_not_be_started_may_be_delivered_again() -> None:
    """A sender delivers again after the plan was mended; a delivery that has started a run starts no other."""
    log = Log()
    assert log.deliver("d1") == "delivery_accepted"
    log.fail("d1")
    assert log.run("d1") == "delivery_accepted"
    assert log.deliver("d1") == "repeated"
