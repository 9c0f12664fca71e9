"""Part of each Python process of a scratch copy: notes which test comes by which place, runs chosen tests in order.

It stands alone: a copy of it lies beside the scratch copy, and a ``.pth`` file imports it at the start of each process,
so that programs that a test starts are heard, too. What is noted is a byte in memory that all these processes share; no
file is opened later, which a simulation would refuse.
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROW = 1024
"""Bytes for each test: one for each place, after four for the number of the test that runs now (in the first row)."""
TESTS_MAX = 32_768

_memory: mmap.mmap | None = None
try:
    with open(HERE / "reached", "r+b") as _file:
        _memory = mmap.mmap(_file.fileno(), ROW * TESTS_MAX)
except OSError:
    """Nothing is noted here, or this process may open no file."""


def hit(place: int) -> None:
    """Note that the test that runs now has come by that place."""
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
    """Keep the tests that are asked for, in the order in which they are asked for; none are named: keep all."""
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
