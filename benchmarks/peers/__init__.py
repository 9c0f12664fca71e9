"""Peers: other actor frameworks to compare with; each is measured in its own process, and none is required.

A peer is a program, ``python -m benchmarks.peers.<name> <what> <count>``, that measures one thing and prints one
figure, less is better: ``tell`` (us per message), ``ask`` (us, p50), ``life`` (us, start + stop of an actor), ``bytes``
(of an idle actor), ``tree`` (ms, the end of a tree of 100x100). Each peer has a process of its own, because an imported
framework has threads, handlers and a heap that would affect the next one.
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
"""Peers by name, and the module or program that each needs."""
DOES: Mapping[str, tuple[str, ...]] = {"erlang": ("tell", "ask", "life", "bytes", "tree")}
"""Measurements that a peer can make, for peers that cannot make exactly the ``USUAL`` ones."""
USUAL = ("tell", "ask", "life", "bytes")


def missing(name: str) -> str:
    """Return the reason why a peer cannot be measured here, and the way to install it; ``""`` if it can."""
    wants = PEERS.get(name, name)
    if name == "erlang":
        there = shutil.which(wants) is not None and shutil.which("erlc") is not None
        return "" if there else "erl and erlc are not on PATH (Debian: apt-get install erlang-base)"
    return "" if importlib.util.find_spec(wants) is not None else f"{wants} is not installed; {HOW}"


def need(module: str) -> ModuleType:
    """Import a library of the benchmarks and return the module.

    Raises:
        Missing: the library is not installed.
    """
    if why := missing(module):
        raise Missing(why)
    return importlib.import_module(module)


def count_of(what: str, sizes: Sizes) -> int:
    """Return the count for a measurement: the number of messages, asks, actors, or children of each node."""
    counts = {"tell": sizes.burst * sizes.bursts, "ask": sizes.asks, "tree": sizes.wide}
    return counts.get(what, sizes.actors)


def ask_peer(name: str, what: str, count: int) -> list[float]:
    """Run a peer's program; return its figure for *what*, or all of its figures if *what* is ``all``.

    Raises:
        Missing: the peer is not installed, or cannot make that measurement.
    """
    if why := missing(name):
        raise Missing(why)
    line = [sys.executable, "-m", f"benchmarks.peers.{name}", what, str(count)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise Missing(f"{name} {what} failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
    return [float(figure) for figure in done.stdout.split()]


def peer(name: str, what: str) -> Measure:
    """Make a measurement that runs a peer's program."""

    def once(backend: str, sizes: Sizes) -> Figures:
        return tuple(ask_peer(name, what, count_of(what, sizes)))

    return once


def main(measures: Mapping[str, Callable[[int], float]]) -> None:
    """Measure what the arguments of a peer's program name (``all``: everything), and print the figures."""
    what, count = sys.argv[1], int(sys.argv[2])
    for one in measures if what == "all" else (what,):
        print(measures[one](count))
