"""Read the plan that a command names: the path of a file, or ``-`` for standard input."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from supervisor.cli.options import warn
from supervisor.plans import Plan
from supervisor.plans.source import BYTES_MAX
from supervisor.plugins.reading import load_plan

STANDARD_INPUT: Final = Path("-")


def read_plan(path: Path, *, installed: bool = True, instead: Mapping[str, str] = MappingProxyType({})) -> Plan:
    """Read and check a plan. Relative paths in a plan from standard input are relative to the working directory. The
    other parameters are those of :func:`supervisor.plugins.reading.load_plan`.

    Raises:
        BadPlan: the plan is invalid.
    """
    if path != STANDARD_INPUT:
        return load_plan(path, installed=installed, instead=instead)
    if sys.stdin.isatty():
        warn("reading the plan from the terminal; end it with Ctrl-D")
    content = sys.stdin.buffer.read(BYTES_MAX + 1)
    return load_plan(Path("standard input"), installed=installed, instead=instead, content=content)
