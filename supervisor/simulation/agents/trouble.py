"""Failures of simulated programs: this module queries the fault plan, and carries out the faults that strike.

A *fate* ends a program's work: the program hangs, dies, or closes its output, and writes nothing after that. An
*outburst* is wrong output that the program does not notice. A daemon, or a process that holds the output pipe open,
outlives the program if it can.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import OsProcess

_T = TypeVar("_T")

CRASHES: Final = (1, 2, 124, 125, 126, 127, 130, 137, 143)
"""Exit statuses of a crash: an error, a usage error, the statuses of ``timeout`` and of a shell (timed out, failed
itself, not executable, not found), and the statuses of a shell for a program that SIGINT, SIGKILL or SIGTERM ended,
which a wrapper passes on."""

SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)
"""Signals that kill a program from outside, or because of an error of the program."""

SLOW_EXIT_S: Final = (1.0, 30.0)
"""Fewest and most seconds that the kernel takes to end a process that holds much memory."""

_BLOCK: Final = b"x" * 1024 * 1024
_HUGE_BLOCKS: Final = 10
_TORN: Final = b'{"jsonrpc":"2.0","method":"session/upda'
_NOT_UTF8: Final = (b"\xff\xfe broken\n", b'{"jsonrpc":"2.0","method":"caf\xe9"}\n', b"\xed\xa0\x80\n")
_NOT_JSON: Final = (b"Traceback (most recent call last):\n", b'{"jsonrpc":"2.0",\n', b"[]\n", b"{}\n", b"null\n")

Fate = Callable[[OsProcess, KeyedRandom], Awaitable[int]]
Outburst = Callable[[bytes, KeyedRandom], Iterator[bytes]]


# ----------------------------------------------------------------------------------------------------------- fates
async def _hang(inside: OsProcess, how: KeyedRandom) -> int:
    await anyio.sleep_forever()
    raise AssertionError("nothing ends a sleep that lasts for ever")


async def _crash(inside: OsProcess, how: KeyedRandom) -> int:
    status = how.choice(CRASHES, "status")
    await inside.write_err(f"fatal: simulated crash, status {status}\n".encode())
    return status


async def _signalled(inside: OsProcess, how: KeyedRandom) -> int:
    inside.die(how.choice(SIGNALS, "signal"))
    return await _hang(inside, how)


async def _tear(inside: OsProcess, how: KeyedRandom) -> int:
    await inside.write(_TORN)
    return how.choice(CRASHES, "status")


async def _go_mute(inside: OsProcess, how: KeyedRandom) -> int:
    inside.close_output()
    await anyio.sleep(how.between(1.0, 600.0, "seconds"))
    return how.choice((0, 1), "status")


async def _lie(inside: OsProcess, how: KeyedRandom) -> int:
    return 0


FATES: Final[Mapping[str, Fate]] = {
    "process.hang": _hang,
    "process.crash": _crash,
    "process.signalled": _signalled,
    "process.torn_line": _tear,
    "process.closes_output": _go_mute,
    "process.lies": _lie,
}
"""Functions that carry out a fate, by kind of fault; each returns an exit status. At most one strikes a program."""


# ------------------------------------------------------------------------------------------------------- outbursts
def _flood(line: bytes, how: KeyedRandom) -> Iterator[bytes]:
    block = line * (64 * 1024 // len(line) + 1)
    return (block for _ in range(how.integer(16, 64, "blocks")))


def _bad_utf8(line: bytes, how: KeyedRandom) -> Iterator[bytes]:
    yield how.choice(_NOT_UTF8, "bytes")


def _bad_json(line: bytes, how: KeyedRandom) -> Iterator[bytes]:
    yield how.choice(_NOT_JSON, "line")


def _huge_line(line: bytes, how: KeyedRandom) -> Iterator[bytes]:
    yield b'{"jsonrpc":"2.0","method":"'
    for _ in range(_HUGE_BLOCKS):
        yield _BLOCK
    yield b'"}\n'


OUTBURSTS: Final[Mapping[str, Outburst]] = {
    "process.flood": _flood,
    "process.bad_utf8": _bad_utf8,
    "process.bad_json": _bad_json,
    "process.huge_line": _huge_line,
}
"""Functions that yield the parts of wrong output, by kind of fault, given an ordinary line of the program. The parts
share their memory."""

_FATES, _OUTBURSTS = frozenset(FATES), frozenset(OUTBURSTS)


# --------------------------------------------------------------------------------------------------------- programs
async def _daemon(inside: OsProcess, *, deaf: bool) -> int:
    if deaf:
        inside.ignore_terminate()
    await anyio.sleep_forever()
    return 0


async def _sleep(inside: OsProcess, *, seconds: float) -> int:
    await anyio.sleep(seconds)
    return 0


async def side_by_side(do: Callable[[_T], Coroutine[Any, Any, None]], batch: Sequence[_T]) -> None:
    """Run *do* for each item of *batch* at the same time, and wait for all; a single item is run without a new task."""
    if len(batch) == 1:
        await do(batch[0])
        return
    async with anyio.create_task_group() as group:
        for one in batch:
            group.start_soon(do, one)


class Trouble:
    """Faults of one simulated program: the decisions of the fault plan, and their effects on the program.

    Args:
        inside: the process of the program.
        faults: the fault plan.
        place: the program's name in strikes; the names of the program's turns and calls begin with this name.
    """

    def __init__(self, inside: OsProcess, faults: FaultPlan, place: str) -> None:
        self._inside = inside
        self._faults = faults
        self._place = place

    def strikes(self, kind: str, place: str) -> bool:
        """Decide whether a fault of *kind* strikes at *place*, a name within this program. Call this once for each
        place."""
        return self._faults.strikes(kind, place)

    async def at_start(self, usual_s: float, slow_s: tuple[float, float]) -> int | None:
        """Start the program, with the faults of a start; return an exit status if the program ends at once, else
        ``None``."""
        if self.strikes("process.ignores_term", self._place):
            self._inside.ignore_terminate()
        self._slow_exit(self._inside, self._place)
        if self.strikes("process.orphans", self._place):
            self._leave_daemons()
        if self.strikes("process.fast_exit", self._place):
            return self._how("process.fast_exit", self._place).choice((0, *CRASHES), "status")
        slow = self.strikes("process.slow_start", self._place)
        start_s = self._how("process.slow_start", self._place).between(*slow_s, "seconds") if slow else usual_s
        await anyio.sleep(start_s)
        return None

    def fate(self, place: str) -> Callable[[], Awaitable[int]] | None:
        """Return the fate that strikes at *place*; ``None`` if the program goes on."""
        if not self._faults.may_strike_any(_FATES):
            return None
        kind = next((one for one in FATES if self.strikes(one, place)), None)
        return partial(FATES[kind], self._inside, self._how(kind, place)) if kind is not None else None

    def outbursts(self, place: str, line: bytes) -> Iterator[bytes]:
        """Yield the wrong output that strikes at *place*; *line* is an ordinary line of the program."""
        if not self._faults.may_strike_any(_OUTBURSTS):
            return
        for kind, outburst in OUTBURSTS.items():
            if self.strikes(kind, place):
                yield from outburst(line, self._how(kind, place))

    async def work(self, place: str, seconds: float) -> int:
        """Do the work of the tool call at *place*; return the exit status."""
        if self.strikes("agent.tool_hangs", place):
            await anyio.sleep_forever()
        await anyio.sleep(seconds)
        return int(self.strikes("agent.tool_fails", place))

    async def in_process(self, place: str, seconds: float) -> int:
        """Do the work of the tool call in a child process in a new process session, as agents do; wait for the child
        process and return its exit status."""

        async def tool(inside: OsProcess) -> int:
            if self.strikes("process.ignores_term", place):
                inside.ignore_terminate()
            self._slow_exit(inside, place)
            if self.strikes("process.background", place):
                left = partial(_sleep, seconds=self._how("process.background", place).between(0.1, 60.0, "seconds"))
                inside.fork(left, name=f"{place}:background", new_session=True)
            return await self.work(place, seconds)

        return await self._inside.wait_child(self._inside.fork(tool, name=place, new_session=True))

    def at_exit(self, status: int) -> int:
        """Perhaps leave behind a child process that holds the output pipe open; return *status*."""
        if self.strikes("process.holds_pipe", self._place):
            seconds = self._how("process.holds_pipe", self._place).between(1.0, 600.0, "seconds")
            holder = partial(_sleep, seconds=seconds)
            self._inside.fork(holder, name=f"{self._place}:holder", keeps_output=True)
        return status

    def _slow_exit(self, inside: OsProcess, place: str) -> None:
        if self.strikes("process.slow_exit", place):
            inside.exit_s = self._how("process.slow_exit", place).between(*SLOW_EXIT_S, "seconds")

    def _leave_daemons(self) -> None:
        how = self._how("process.orphans", self._place)
        for number in range(how.integer(1, 3, "daemons")):
            daemon = partial(_daemon, deaf=how.happens(0.5, "deaf", number))
            self._inside.fork(daemon, name=f"{self._place}:daemon{number}", new_session=True)

    def _how(self, kind: str, place: str) -> KeyedRandom:
        return self._faults.draws(kind, place)
