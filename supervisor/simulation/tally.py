"""What became of the work of a run, as its customers and operators see it."""

from __future__ import annotations

import msgspec

__all__ = ["Tally"]


class Tally(msgspec.Struct):
    """What became of the work: prompts by outcome, sessions started, and how long the work stood still after a loss."""

    completed: int = 0
    failed: int = 0
    aborted: int = 0
    lost: int = 0
    sessions: int = 0
    resumed: int = 0
    """Sessions that a customer went on with under another supervisor."""
    unanswered: int = 0
    """Prompts that customers wanted and that were never completed."""
    recoveries_s: list[float] = []
    """From the loss of a customer's turn to its next completed one."""
    unrecovered: int = 0
    """Losses that no completed turn followed."""
    reached: list[int] = []
    """Sessions that each abort ended."""
