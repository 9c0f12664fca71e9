"""Kill the real program, start it again, and compare the work that it acknowledged with the journal.

In each cycle a host with live agents, tools and daemons is killed with SIGKILL at a random moment, in every fifth cycle
together with all of its shims; in every other cycle its programs run in pid namespaces, if the machine has them. After
the kill no process may be left. The next host continues the sessions; in every third cycle the sessions are ended
instead, and the journal must contain everything that was acknowledged, legally, and no effect may be done twice unless
the records say so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from supervisor import open_supervisor
from supervisor.processes import shim
from tests.crash.audit import Fault, JournalAudit, acknowledgements

ROOT = Path(__file__).parent.parent.parent
SHIMS_EVERY = 5
AUDIT_EVERY = 3
"""Number of cycles after which the sessions are ended instead of continued, and the whole journal is checked."""
CYCLES_PER_JOURNAL = 25
"""Number of cycles after which a new state directory is used, since each check reads the whole journal."""
GONE_S = 120.0
"""Seconds within which every process must have ended; a fork server gives its shims half of that time."""
LONGEST_S = 60.0
"""Seconds without output after which the killed program (the victim) counts as hung."""


class Cycle(NamedTuple):
    """Result of one cycle; ``recovered_s`` is ``None`` if the next host continues the sessions."""

    acknowledged: int
    resumed: int
    recovered_s: float | None
    faults: list[Fault]


class HeldPipe:
    """Pipe that every agent, tool and daemon holds open: end of file means that all have ended."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.close(os.open(path, os.O_WRONLY))  # a pipe that nobody ever wrote to has no end to tell of

    def all_gone(self) -> bool:
        until_s = time.monotonic() + GONE_S
        while select.select([self._fd], [], [], max(0.0, until_s - time.monotonic()))[0]:
            if not os.read(self._fd, 65536):
                return True
        return False

    def close(self) -> None:
        os.close(self._fd)


class Place:
    """State directory and working directory of a number of cycles, with the acknowledgements made there."""

    def __init__(self, folder: Path) -> None:
        self.workdir, self.state_dir = folder, folder / "sd"
        self.roll = HeldPipe(folder / "roll")
        self.audit = JournalAudit(self.state_dir, folder)

    def cycle(self, number: int, chance: random.Random, *, last: bool) -> Cycle:
        with self._victim(number, chance) as victim:
            output = self._watch(victim, chance)
            self._kill(victim, shims=number % SHIMS_EVERY == SHIMS_EVERY - 1)
            assert victim.stdout is not None
            output += victim.stdout.read()
        acknowledged = acknowledgements(output)
        self.audit.promise(acknowledged)
        faults = [] if self.roll.all_gone() else [Fault("left", f"processes after {GONE_S:g} s")]
        resumed = sum(one["ack"] == "resumed" for one in acknowledged)
        if not last and number % AUDIT_EVERY:
            return Cycle(len(acknowledged), resumed, None, faults)
        began_s = time.perf_counter()
        recovered_s = anyio.run(self._recover) - began_s
        return Cycle(len(acknowledged), resumed, recovered_s, faults + self.audit.check())

    @contextmanager
    def _victim(self, number: int, chance: random.Random) -> Iterator[subprocess.Popen[bytes]]:
        argv = [str(self.state_dir), str(self.workdir), str(number), str(chance.getrandbits(32))]
        command = [sys.executable, "-m", "tests.crash.victim", *argv]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as victim:
            try:
                yield victim
            finally:
                victim.kill()

    def _watch(self, victim: subprocess.Popen[bytes], chance: random.Random) -> bytes:
        """Return the output of the victim until the kill: the moment is at once, after some acknowledgements, or in
        between."""
        assert victim.stdout is not None
        heard, wanted = b"", chance.choice((0, 1, 2, 4, 8, 16, 32))
        while heard.count(b"\n") < wanted and select.select([victim.stdout], [], [], LONGEST_S)[0]:
            data = os.read(victim.stdout.fileno(), 65536)
            if not data:
                break
            heard += data
        time.sleep(chance.uniform(0.0, 0.6 if wanted == 0 else 0.05))
        return heard

    def _kill(self, victim: subprocess.Popen[bytes], *, shims: bool) -> None:
        pids = [victim.pid]
        if shims:
            os.kill(victim.pid, signal.SIGSTOP)  # so that none comes while they are counted
            fork_servers = [pid for pid in shim.children(victim.pid) if b"fork_server.py" in _command(pid)]
            pids += [pid for fork_server in fork_servers for pid in shim.children(fork_server)]
        shim.send(pids, signal.SIGSTOP)
        shim.send(pids, signal.SIGKILL)

    async def _recover(self) -> float:
        async with open_supervisor(self.state_dir):
            return time.perf_counter()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Tally:
    """Sums over all cycles: acknowledgements, resumed sessions, recovery times, and faults."""

    def __init__(self) -> None:
        self.cycles = self.acknowledged = self.resumed = 0
        self.recoveries_s: list[float] = []
        self.faults: list[Fault] = []
        self._began_s = time.monotonic()

    def take(self, cycle: Cycle) -> None:
        self.cycles += 1
        self.acknowledged += cycle.acknowledged
        self.resumed += cycle.resumed
        self.recoveries_s += [cycle.recovered_s] if cycle.recovered_s is not None else []
        self.faults += cycle.faults

    def told(self) -> dict[str, Any]:
        counts = Counter(fault.kind for fault in self.faults)
        ordered = sorted(self.recoveries_s) or [0.0]
        minutes = (time.monotonic() - self._began_s) / 60
        return {
            "cycles": self.cycles,
            "acknowledged": self.acknowledged,
            "resumed": self.resumed,
            **{kind: counts[kind] for kind in ("lost", "twice", "left", "illegal")},
            "cycles_per_minute": round(self.cycles / minutes, 1),
            "recovery_s": {
                f"p{part}": round(ordered[min(len(ordered) - 1, len(ordered) * part // 100)], 4)
                for part in (50, 90, 99)
            }
            | {"max": round(ordered[-1], 4)},
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="crash", description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tally = Tally()
    try:
        run(arguments.cycles, random.Random(arguments.seed), tally)
    except KeyboardInterrupt:
        print("stopped; until then:", file=sys.stderr)
    print(json.dumps(tally.told()))
    return 1 if tally.faults else 0


def run(cycles: int, chance: random.Random, tally: Tally) -> None:
    for first in range(0, cycles, CYCLES_PER_JOURNAL):
        with tempfile.TemporaryDirectory(prefix="crash-") as folder:
            place = Place(Path(folder))
            until = min(cycles, first + CYCLES_PER_JOURNAL)
            for number in range(first, until):
                cycle = place.cycle(number, chance, last=number == until - 1)
                tally.take(cycle)
                for fault in cycle.faults:
                    print(f"cycle {number}: {fault.kind}: {fault.words}", flush=True)
                if sys.stderr.isatty():
                    print(f"\r{number + 1} of {cycles}, {len(tally.faults)} faults", end="", file=sys.stderr)
            place.roll.close()


if __name__ == "__main__":
    sys.exit(main())
