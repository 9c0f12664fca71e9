"""Peer Pykka, with a thread for each actor. Run as ``python -m benchmarks.peers.pykka tell 50000``."""

from __future__ import annotations

import threading
from typing import Any

import pykka

from benchmarks.harness import Stopwatch, per_us, percentile
from benchmarks.peers import main
from benchmarks.peers.clocks import resident_bytes, wall_us

LIVES_MAX = 2_000
"""Largest number of threads at once, one for each living actor."""


class Echo(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Any:
        return message


class Counter(pykka.ThreadingActor):
    def __init__(self, count: int, done: threading.Event) -> None:
        super().__init__()
        self.left, self.done = count, done

    def on_receive(self, message: Any) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()


def tell_us(count: int) -> float:
    """Measure a tell: processor time of both threads, per message."""
    done = threading.Event()
    ref = Counter.start(count, done)
    with Stopwatch() as watch:
        for n in range(count):
            ref.tell(n)
        done.wait()
    ref.stop()
    return per_us(watch.spent_s, count)


def ask_us(count: int) -> float:
    ref = Echo.start()
    times = [wall_us(lambda: ref.ask(1)) for _ in range(count)]
    ref.stop()
    return percentile(times, 50)


def life_us(count: int) -> float:
    count = min(count, LIVES_MAX)

    def live() -> None:
        refs = [Echo.start() for _ in range(count)]
        for ref in refs:
            ref.stop(block=False)
        for ref in refs:
            ref.actor_stopped.wait()

    return wall_us(live) / count


def idle_bytes(count: int) -> float:
    """Measure an idle actor: resident memory, the thread's stack included."""
    count = min(count, LIVES_MAX)
    before = resident_bytes()
    refs = [Echo.start() for _ in range(count)]
    held = resident_bytes() - before
    for ref in refs:
        ref.stop()
    return held / count


if __name__ == "__main__":
    main({"tell": tell_us, "ask": ask_us, "life": life_us, "bytes": idle_bytes})
