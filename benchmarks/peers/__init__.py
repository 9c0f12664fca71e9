"""Peers to compare with: each is measured in its own process, and none is ever required.

A peer is a program, ``python -m benchmarks.peers.<name> <what> <count>``, that measures one thing and prints one
figure, less is better: ``tell`` (us per message), ``ask`` (us, p50), ``life`` (us, start + stop of one), ``bytes`` (of
an idle one), ``tree`` (ms, the end of a tree of 100x100). A process each, because a framework that was imported has
threads, handlers and a heap that the next one would inherit.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from benchmarks.harness import Figures, Measure, Missing, Sizes

__all__ = ["DOES", "LIMIT_S", "PEERS", "USUAL", "ask_peer", "count_of", "main", "missing", "need", "peer"]

LIMIT_S = 120.0
"""Seconds that a measurement of a peer may take."""
ROOT = Path(__file__).parent.parent.parent
HOW = "`make bench-peers` installs it"

PEERS: Mapping[str, str] = {
    "pykka": "pykka",
    "thespian": "thespian",
    "xoscar": "xoscar",
    "erlang": "erl",
}
"""The peers, and the module or program that each needs."""
DOES: Mapping[str, tuple[str, ...]] = {"erlang": ("tell", "ask", "life", "bytes", "tree")}
"""Measurements that a peer can make, where they are not ``USUAL``."""
USUAL = ("tell", "ask", "life", "bytes")


def missing(name: str) -> str:
    """Reason why a peer cannot be measured here, and how to get it; ``""`` if it can."""
    wants = PEERS.get(name, name)
    if name == "erlang":
        there = shutil.which(wants) is not None and shutil.which("erlc") is not None
        return "" if there else "erl and erlc are not on PATH (Debian: apt-get install erlang-base)"
    return "" if importlib.util.find_spec(wants) is not None else f"{wants} is not installed; {HOW}"


def need(module: str) -> ModuleType:
    """A library of the extra.

    Raises:
        Missing: it is not installed.
    """
    if why := missing(module):
        raise Missing(why)
    return importlib.import_module(module)


def count_of(what: str, sizes: Sizes) -> int:
    """Number of messages, asks, actors, or children of each node."""
    counts = {"tell": sizes.burst * sizes.bursts, "ask": sizes.asks, "tree": sizes.wide}
    return counts.get(what, sizes.actors)


def ask_peer(name: str, what: str, count: int) -> list[float]:
    """The figure of one peer, or, if *what* is ``all``, everything it does.

    Raises:
        Missing: it is not installed, or does not do that.
    """
    if why := missing(name):
        raise Missing(why)
    line = [sys.executable, "-m", f"benchmarks.peers.{name}", what, str(count)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise Missing(f"{name} {what} failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
    return [float(figure) for figure in done.stdout.split()]


def peer(name: str, what: str) -> Measure:
    """A measurement of a case that asks a peer."""

    def once(backend: str, sizes: Sizes) -> Figures:
        return tuple(ask_peer(name, what, count_of(what, sizes)))

    return once


def main(measures: Mapping[str, Callable[[int], float]]) -> None:
    """Main function of every peer's program: measure what its arguments name, or ``all``, and print the figures."""
    what, count = sys.argv[1], int(sys.argv[2])
    for one in measures if what == "all" else (what,):
        print(measures[one](count))
