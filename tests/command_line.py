"""Run command lines of ``supervisor`` in this process, and read their output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute

__all__ = ["Cli", "Output", "run_with"]


class Output(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output, of which each line is JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Output]


def run_with(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return a function that runs a command line, given by its arguments."""

    def run(*arguments: object) -> Output:
        capsys.readouterr()
        status = execute(supervisor, [str(one) for one in arguments])
        return Output(status, *capsys.readouterr())

    return run
