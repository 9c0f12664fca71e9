"""Probe in each Python process of a scratch copy: records which test reaches which place, and orders the chosen tests.

This module imports nothing of the project: a copy of the module lies beside the scratch copy, and a ``.pth`` file
imports that copy at the start of each process, even of programs that a test starts. A reached place is recorded as a
byte in memory that all these processes share, since the simulator would refuse to open a file later.
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROW = 1024
"""Bytes of shared memory for each test: four, then one for each place. The first four bytes of all hold the number of
the test that runs now."""
TESTS_MAX = 32_768

_memory: mmap.mmap | None = None
try:
    with open(HERE / "reached", "r+b") as _file:
        _memory = mmap.mmap(_file.fileno(), ROW * TESTS_MAX)
except OSError:
    """No shared memory: no places are recorded in this run, or this process may not open a file."""


def hit(place: int) -> None:
    """Record that the test that runs now has reached the place with that number."""
    if _memory is not None:
        _memory[int.from_bytes(_memory[:4], "little") * ROW + 4 + place] = 1


# --------------------------------------------------------------------------------------------- as a plug-in of pytest
_ids: dict[str, int] = {}


def _note(*words: object) -> None:
    with open(HERE / "results", "a", encoding="utf-8") as file:
        file.write("\t".join(map(str, words)) + "\n")


def pytest_configure() -> None:
    from hypothesis import Phase, settings

    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
    settings.load_profile("mutants")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep only the tests in the list of chosen tests, in the order of that list; without a list keep all tests."""
    if (HERE / "chosen").exists():
        order = {name: index for index, name in enumerate(json.loads((HERE / "chosen").read_text()))}
        items[:] = sorted((one for one in items if one.nodeid in order), key=lambda one: order[one.nodeid])
    _ids.update((one.nodeid, number) for number, one in enumerate(items, 1))


def pytest_runtest_logstart(nodeid: str) -> None:
    _note("begins", nodeid)
    if _memory is not None:
        _memory[:4] = _ids[nodeid].to_bytes(4, "little")


def pytest_runtest_logreport(report: Any) -> None:
    _note("failed" if report.failed else report.when, report.nodeid, _ids[report.nodeid], round(report.duration, 3))
