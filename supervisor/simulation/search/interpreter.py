"""Other interpreters for what must not run in this one: an order goes in, and its answers come out.

One that breaks, or never answers, has no say about what it was asked: that is an exception, never an answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from threading import Lock
from typing import Any

from supervisor.simulation.search.many import unheard

__all__ = ["Interpreters", "NoVerdict", "NotWanted"]

WALL_S = 120.0
"""Seconds on the clock that one CPU second may take on a busy machine, before an order is given up."""
COMMAND = [sys.executable, "-P", "-m", "supervisor.simulation.search.planting"]


class NoVerdict(Exception):
    """It broke or did not answer; the message says how."""


class NotWanted(Exception):
    """Nobody waits for its answer any more."""


class Interpreters:
    """Those that work on an order now, each for a thread of its own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def carried_out(self, order: Mapping[str, Any]) -> str:
        """The last line that a fresh interpreter (``planting``) answers to an order, in JSON.

        Args:
            order: with ``budget_s``, the CPU seconds that it may take.

        Raises:
            NoVerdict: there is no answer.
            NotWanted: all were ended.
        """
        with self._started() as child:
            try:
                said, complaints = child.communicate(
                    json.dumps(order) + "\n", timeout=max(order["budget_s"], 1.0) * WALL_S
                )
            except subprocess.TimeoutExpired:
                raise NoVerdict("no verdict: it waits for ever, or the machine is too busy") from None
            finally:
                child.kill()
                with self._lock:
                    self._running.discard(child)
        if self._ended:
            raise NotWanted
        answers = said.splitlines()
        if child.returncode or not answers:
            last = (complaints.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
            raise NoVerdict(f"its interpreter broke: {last}")
        return answers[-1]

    def _started(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        with self._lock:
            if self._ended:
                raise NotWanted
            with unheard():
                child = subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            self._running.add(child)
        return child

    def end(self) -> None:
        """Nobody is waited for any more."""
        with self._lock:
            self._ended = True
            for child in self._running:
                child.kill()
