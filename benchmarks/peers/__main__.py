"""A table of bare queues and tasks, the kernel, and each peer that is installed.

``python -m benchmarks.peers [--rounds N] [--short]``. All take turns, round by round; figures are medians, less is
better. The tree of a bare backend consists of task groups of the same shape; Pykka has no comparable tree.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence

from benchmarks.ends import bare_wide, grow_wide, tree_stop
from benchmarks.harness import BACKENDS, FULL, SHORT, Measure, Missing, Sizes, asynchronous, options
from benchmarks.lives import actor_bytes, actor_lives, task_bytes, task_lives
from benchmarks.messages import idle_asks, queued_asks, tells
from benchmarks.peers import DOES, PEERS, USUAL, missing, peer
from benchmarks.primitives import StreamPipe, asks_p50_us, bare_asks_us, bare_tells_us, tells_us
from benchmarks.report import figure

WHAT = {
    "tell": "tell us",
    "ask": "ask us",
    "queued": "ask, queued us",
    "life": "start+stop us",
    "bytes": "idle bytes",
    "tree": "stop 100x100 ms",
}
"""Columns of the table, by measurement."""
NAMES = {
    "pykka": "Pykka (threads)",
    "thespian": "Thespian (one process, no queue)",
    "xoscar": "xoscar (one process)",
    "erlang": "Erlang/OTP (one scheduler)",
}


async def stream_tells(backend: str, sizes: Sizes) -> float:
    return await tells_us(StreamPipe, sizes)


async def stream_asks(backend: str, sizes: Sizes) -> float:
    return await asks_p50_us(StreamPipe, sizes)


OURS: dict[str, dict[str, Measure]] = {
    "the kernel": {
        "tell": asynchronous(tells),
        "ask": asynchronous(idle_asks),
        "queued": asynchronous(queued_asks),
        "life": asynchronous(actor_lives),
        "bytes": asynchronous(actor_bytes),
        "tree": asynchronous(tree_stop(grow_wide)),
    },
    "bare queues and tasks": {
        "tell": asynchronous(bare_tells_us),
        "queued": asynchronous(bare_asks_us),
        "life": asynchronous(task_lives),
        "bytes": asynchronous(task_bytes),
        "tree": asynchronous(bare_wide),
    },
    "anyio streams": {"tell": asynchronous(stream_tells), "queued": asynchronous(stream_asks)},
}


def everybody() -> dict[str, tuple[str, dict[str, Measure]]]:
    """Return the rows of the table: a name, the backend, and the possible measurements."""
    rows = {f"{who}, {backend}": (backend, does) for who, does in OURS.items() for backend in BACKENDS}
    for name in PEERS:
        does = {what: peer(name, what) for what in DOES.get(name, USUAL)}
        rows[NAMES[name]] = ("", does)
    return rows


def measure_all(sizes: Sizes, rows: dict[str, tuple[str, dict[str, Measure]]]) -> dict[tuple[str, str], list[float]]:
    """Measure all rows in turns; return the figures of every round, by row and column."""
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(sizes.rounds):
        for what in WHAT:
            for who, (backend, does) in rows.items():
                if what in does:
                    found.setdefault((who, what), []).extend(_once(does[what], backend, sizes))
    return found


def _once(measure: Measure, backend: str, sizes: Sizes) -> Iterator[float]:
    try:
        yield measure(backend, sizes)[0]
    except Missing as why:
        print(why, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and the peers that are missing. Exit status 1: a peer that is installed could not be
    measured."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="repetitions of each measurement")
    args = parser.parse_args(arguments)
    sizes = SHORT if args.short else FULL._replace(rounds=args.rounds)
    absent = {NAMES[name]: why for name in PEERS if (why := missing(name))}
    rows = {who: row for who, row in everybody().items() if who not in absent}
    found = measure_all(sizes, rows)
    print(f"{'':<34}" + "".join(f"{title:>17}" for title in WHAT.values()))
    for who in rows:
        medians = (statistics.median(found[who, what]) if found.get((who, what)) else None for what in WHAT)
        print(f"{who:<34}" + "".join(f"{figure(one):>17}" for one in medians))
    for who, why in absent.items():
        print(f"missing: {who}: {why}")
    return int(any((who, what) not in found for who, (_, does) in rows.items() for what in does))


if __name__ == "__main__":
    sys.exit(main())
