"""Peer Thespian, in one process (``simpleSystemBase``): actors on the caller's stack, no queue between processes.

Run as ``python -m benchmarks.peers.thespian ask 1000``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from thespian.actors import Actor, ActorExitRequest, ActorSystem  # type: ignore[import-untyped]

from benchmarks.harness import Stopwatch, per_us, percentile
from benchmarks.peers import main
from benchmarks.peers.clocks import resident_bytes, wall_us

ANSWER_S = 60


class Counter(Actor):  # type: ignore[misc]
    """Actor that counts numbers, echoes tuples, and replies with the count."""

    seen = 0

    def receiveMessage(self, message: Any, sender: Any) -> None:
        if message == "seen":
            self.send(sender, self.seen)
        elif isinstance(message, tuple):
            self.send(sender, message)
        elif isinstance(message, int):
            self.seen += 1


def in_system(measure: Callable[[Any, int], float]) -> Callable[[int], float]:
    """Run a measurement in an actor system that is shut down after it."""

    def once(count: int) -> float:
        logging.disable(logging.CRITICAL)
        system = ActorSystem("simpleSystemBase")
        try:
            return measure(system, count)
        finally:
            system.shutdown()

    return once


def tell_us(system: Any, count: int) -> float:
    actor = system.createActor(Counter)
    with Stopwatch() as watch:
        for n in range(count):
            system.tell(actor, n)
        assert system.ask(actor, "seen", ANSWER_S) == count
    return per_us(watch.spent_s, count)


def ask_us(system: Any, count: int) -> float:
    actor = system.createActor(Counter)
    return percentile([wall_us(lambda: system.ask(actor, (1,), ANSWER_S)) for _ in range(count)], 50)


def life_us(system: Any, count: int) -> float:
    with Stopwatch() as watch:
        actors = [system.createActor(Counter) for _ in range(count)]
        for actor in actors:
            system.tell(actor, ActorExitRequest())
    return per_us(watch.spent_s, count)


def idle_bytes(system: Any, count: int) -> float:
    before = resident_bytes()
    actors = [system.createActor(Counter) for _ in range(count)]
    return (resident_bytes() - before) / len(actors)


if __name__ == "__main__":
    measures = {"tell": tell_us, "ask": ask_us, "life": life_us, "bytes": idle_bytes}
    main({name: in_system(measure) for name, measure in measures.items()})
