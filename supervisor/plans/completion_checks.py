"""Completion checks: files or texts that must exist before an agent's report that it is done is accepted (completion
signals of spec 000, ``task_completed``).

The checks run when the agent reports success, before any acceptance test. A failed check means that the agent stopped
too early: the attempt has failed and may be repeated, whereas a failed acceptance test would fail again. All checks
run, and every missing file or text is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import anyio.to_thread
import msgspec

from supervisor.ports.input_files import open_input
from supervisor.ports.shortages import outlast_shortage, shortage_of

READ_MAX = 8 * 1024 * 1024
"""Number of bytes at the beginning of a file that are searched."""
GLOB_MAX = 10_000
"""Number of files that one pattern may find before the search stops."""


class CompletionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Check. *kind* is ``glob_exists`` (*path* is a pattern), ``file_contains`` (the file at *path* contains *text*) or
    ``answer_contains`` (the agent's last answer contains *text*)."""

    kind: str
    path: str = ""
    text: str = ""


async def missing(signals: Sequence[CompletionCheck], directory: str, answer: str) -> str:
    """Return a text about every completion signal that is missing; ``""`` if none is.

    Args:
        directory: directory of the work; files outside of it do not count.
        answer: the agent's last answer.
    """
    absent = [f"its answer does not say {one.text!r}" for one in signals if _unsaid(one, answer)]
    files = [one for one in signals if one.kind != "answer_contains"]
    if files:
        absent += await outlast_shortage(partial(anyio.to_thread.run_sync, _absent, files, Path(directory)))
    return "; ".join(absent)


def _unsaid(signal: CompletionCheck, answer: str) -> bool:
    return signal.kind == "answer_contains" and signal.text not in answer


def _absent(signals: Sequence[CompletionCheck], directory: Path) -> list[str]:
    return [words for one in signals if (words := _looked_for(one, directory))]


def _looked_for(signal: CompletionCheck, directory: Path) -> str:
    try:
        place = directory.resolve()
        if signal.kind == "glob_exists":
            found = islice(directory.glob(signal.path), GLOB_MAX)
            return "" if any(one.resolve().is_relative_to(place) for one in found) else f"nothing is at {signal.path}"
        path = (directory / signal.path).resolve()
        if not path.is_relative_to(place):
            return f"{signal.path} is not inside {place}"
        with open_input(path) as file:
            holds = signal.text.encode() in file.read(READ_MAX)
        return "" if holds else f"{signal.path} does not contain {signal.text!r}"
    except (OSError, RuntimeError, ValueError) as error:  # not there, a link to itself, a pattern that is none
        if shortage_of(error):  # no reason to count the file as missing
            raise
        return f"{signal.path} cannot be read: {error}"
