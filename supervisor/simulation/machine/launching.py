"""Random draws for a launch: whether the program starts, when the shim is lost, and how output is cut into pieces.

The name of every draw contains the name of the launch. The messages of errors are those of the real process host.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from itertools import count
from typing import Final

import msgspec

from supervisor.ports import Launch, SpawnError
from supervisor.ports.shortages import shortage_of
from supervisor.processes.spawn_errors import resource_missing, step_failed
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import Program

PIECES: Final = 0.5
"""Share of the output streams that arrive in arbitrary pieces, unless a scenario sets another share."""
LOST_MIN_S: Final = 0.001
LOST_MAX_S: Final = 60.0
"""Longest time from a launch to the loss of its shim, in seconds; every order of magnitude is equally likely."""
NO_PATH: Final = "/simulated/bin"
"""PATH in the error for a missing program, so that the message does not depend on the real machine's disk."""


class NotStarted(Exception):
    """Error: a program cannot be started. *step* is the step that fails (``pipe``, ``fork``, ``cwd``, ``exec``),
    *number* the errno."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(step, number)
        self.step = step
        self.number = number


class LaunchDraws:
    """Launch of a simulated program: the launch's name, random draws, and program."""

    def __init__(
        self,
        launch: Launch,
        name: str,
        program_for: Callable[[Launch], Program],
        faults: FaultPlan,
        random: KeyedRandom,
        pieces: float,
    ) -> None:
        self.launch = launch
        self.name = name
        self.random = random.below("process", name)
        self._program_for = program_for
        self._pieces = pieces
        self._error = _refusal_of(launch, name, faults)
        self.lost_after_s = _lost_after_s(name, faults)

    def need_descriptors(self) -> None:
        """Check whether the launch is drawn to fail, before its shim exists, for lack of file descriptors.

        Raises:
            SpawnShortage: the launch has no file descriptors left.
        """
        if self._error is not None and self._error.step == "pipe":
            lack = OSError(self._error.number, os.strerror(self._error.number))
            raise resource_missing(self.launch, shortage_of(lack), lack)

    def program(self) -> Program:
        """Return the program that the launch runs.

        Raises:
            NotStarted: the program cannot be started.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._program_for(self.launch)
        except OSError as error:
            step = "cwd" if error.filename == self.launch.cwd else "exec"
            raise NotStarted(step, error.errno or errno.ENOENT) from error

    def refusal(self, step: str, number: int) -> SpawnError:
        """Return the error for a failed step of the launch."""
        if self._error is None:
            return step_failed(self.launch, step, number)
        return step_failed(msgspec.structs.replace(self.launch, env={**self.launch.env, "PATH": NO_PATH}), step, number)

    def pieces(self, stream: str) -> Callable[[int], int] | None:
        """Return a function that, given a number of available bytes, draws the size of the next piece of an output
        stream; ``None`` if the stream is not cut."""
        if not self.random.happens(self._pieces, stream, "cut"):
            return None
        random, reads = self.random.below(stream), count(1)
        return lambda size: random.integer(1, size, next(reads))


def _refusal_of(launch: Launch, name: str, faults: FaultPlan) -> NotStarted | None:
    if not faults.strikes("process.spawn_error", name):
        return None
    options = [("exec", errno.EACCES), ("fork", errno.EAGAIN), ("pipe", errno.EMFILE)]
    if "/" not in launch.argv[0]:
        options.append(("exec", errno.ENOENT))
    return NotStarted(*faults.draws("process.spawn_error", name).choice(options, "which"))


def _lost_after_s(name: str, faults: FaultPlan) -> float:
    if not faults.strikes("process.warden_lost", name):
        return math.inf
    unit = faults.draws("process.warden_lost", name).unit("when")
    return LOST_MIN_S * float((LOST_MAX_S / LOST_MIN_S) ** unit)
