"""Test every real agent in every cell, and print a table of the results; see the package."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from supervisor.agent_catalogue import UnknownAgent, known_agent
from supervisor.mock_model.server import open_stub_model
from tests.real_agents.cells import CELLS, Cell
from tests.real_agents.installing import NotInstalled, program_of
from tests.real_agents.place import Broken, scratch

AGENTS = ["claude", "codex", "gemini", "claude-agent-acp", "codex-acp", "vibe"]
CELL_S = 120.0
"""Seconds after which a cell that is not done counts as failed."""


class Seen:
    """Result of a cell: whether its requirement holds, and the observation as text."""

    def __init__(self, holds: bool, words: str) -> None:
        self.holds = holds
        self.words = words


Results = dict[str, dict[str, Seen]]
"""Results by agent and cell; for an agent that could not be installed there are none."""


async def look(agent: str, program: Path, cell: Cell, keep: bool) -> Seen:
    """Run one cell with one agent, a model server and a scratch directory of its own; return the result."""
    async with open_stub_model() as stub:
        with scratch(agent, program, stub.base_url, keep=keep) as place:
            if keep:
                print(f"  in {place.folder}")
            try:
                with anyio.fail_after(CELL_S):
                    return Seen(True, await cell.look(place, stub))
            except TimeoutError:
                last = [f"{one.answer or one.error} {one.status}" for one in stub.requests[-3:]]
                count = len(stub.requests)
                return Seen(False, f"not done within {CELL_S:g} s; {count} requests, the last: {', '.join(last)}")
            except Exception as error:
                return Seen(False, _words(error))


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"


def table_of(results: Results, cells: list[Cell]) -> Table:
    """Return a table of all cells with a row for each agent: the text of a cell that holds, or NO for one that does
    not."""
    table = Table("agent", *(cell.title for cell in cells))
    for agent, row in results.items():
        table.add_row(agent, *(_shown(row.get(cell.title)) for cell in cells))
    return table


def _shown(seen: Seen | None) -> str:
    if seen is None:
        return "[bold red]not there[/]"
    return seen.words if seen.holds else "[bold red]NO[/]"


async def look_at_all(asked: argparse.Namespace, programs: dict[str, Path], cells: list[Cell]) -> Results:
    """Run every cell of every installed agent, a few at a time; print each result, and return all."""
    results: Results = {name: {} for name in asked.agents}
    places = anyio.Semaphore(asked.jobs)

    async def one(name: str, cell: Cell) -> None:
        async with places:
            began_s = time.perf_counter()
            seen = results[name][cell.title] = await look(name, programs[name], cell, asked.keep)
            took_s = time.perf_counter() - began_s
        holds = "holds" if seen.holds else "DOES NOT HOLD"
        print(f"{name} {cell.title}: {holds} ({took_s:.1f} s): {seen.words}", flush=True)

    async with anyio.create_task_group() as group:
        for name in programs:
            for cell in cells:
                group.start_soon(one, name, cell)
    return results


def install(names: list[str], cache: Path) -> dict[str, Path]:
    """Install the programs of the agents, and return the paths; print the agents that cannot be installed."""
    programs: dict[str, Path] = {}
    for name in names:
        try:
            programs[name] = program_of(known_agent(name), cache)
        except (UnknownAgent, NotInstalled) as error:
            print(f"{name}: not installed: {error}", flush=True)
    return programs


def main() -> int:
    asked = _asked()
    cells = [one for one in CELLS if not asked.cells or one.title in asked.cells]
    programs = install(asked.agents, asked.cache)
    results = anyio.run(look_at_all, asked, programs, cells, backend=asked.backend)
    Console(width=asked.width).print(table_of(results, cells))
    holding = sum(seen.holds for row in results.values() for seen in row.values())
    wanted = len(asked.agents) * len(cells)
    print(f"{holding} of {wanted} cells hold")
    return 0 if holding == wanted else 1


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.real_agents", description=__doc__)
    parser.add_argument("agents", nargs="*", default=AGENTS, help=f"by default: {' '.join(AGENTS)}")
    parser.add_argument("--cell", action="append", dest="cells", choices=[cell.title for cell in CELLS])
    parser.add_argument("--cache", type=Path, default=Path(".agents"), help="where they are installed")
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time")
    parser.add_argument("--keep", action="store_true", help="leave the scratch directories, to look at")
    parser.add_argument("--width", type=int, default=200)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
