"""Another interpreter for what must not run in this one: an order goes in, and its answers come out.

One that breaks, or never answers, has no say about what it was asked: that is an exception, never an answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["NoVerdict", "carried_out"]

WALL_S = 120.0
"""Seconds on the clock that one CPU second may take on a busy machine, before an order is given up."""


class NoVerdict(Exception):
    """It broke or did not answer; the message says how."""


def carried_out(order: Mapping[str, Any]) -> str:
    """The last line that a fresh interpreter (``planting``) answers to an order, in JSON.

    Args:
        order: with ``budget_s``, the CPU seconds that it may take.

    Raises:
        NoVerdict: there is no answer.
    """
    command = [sys.executable, "-P", "-m", "supervisor.simulation.search.planting"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(order) + "\n",
            capture_output=True,
            text=True,
            timeout=max(order["budget_s"], 1.0) * WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoVerdict("no verdict: it waits for ever, or the machine is too busy") from None
    answers = done.stdout.splitlines()
    if done.returncode or not answers:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise NoVerdict(f"its interpreter broke: {last}")
    return answers[-1]
