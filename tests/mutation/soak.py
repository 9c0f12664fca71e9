"""The soak that mutants of the runtime are tried against: fixed runs in virtual time, judged by the oracle alone.

A mutant is killed by a violation, by an exception, by a crash of its interpreter, or by an endless loop; never by a
digest, for that only says that something is different. The first runs are cheap and find most of it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["RUNS", "SIMULATED", "judged", "reached"]

RUNS = (
    ("quiet", 1),
    *(("swarm", seed) for seed in range(1, 11)),
    ("restart-storm", 1),
    ("plans", 1),
    ("failing-disk", 1),
    ("slow-disk", 1),
    ("slow-starts", 1),
    ("drains", 1),
    ("hung-provider", 1),
    ("broken-protocol", 1),
    ("deep-delegation", 1),
    ("policies", 1),
    ("abort-cascade", 1),
)
"""(scenario, seed), in order."""

SIMULATED = (
    "actors.cell",
    "actors.dispatch",
    "actors.host",
    "actors.machine",
    "actors.mailbox",
    "actors.nursery",
    "actors.parking",
    "actors.place",
    "actors.reading",
    "actors.ref",
    "actors.restart",
    "actors.scopes",
    "actors.timers",
    "actors.waiting",
    "actors.working",
    "supervisor.abort",
    "supervisor.abort_state",
    "supervisor.aborter",
    "supervisor.aborts",
    "supervisor.adapters.acp",
    "supervisor.adapters.acp_calls",
    "supervisor.adapters.acp_messages",
    "supervisor.adapters.acp_terminals",
    "supervisor.adapters.command",
    "supervisor.adapters.framing",
    "supervisor.adapters.inprocess",
    "supervisor.effects",
    "supervisor.entity",
    "supervisor.hands",
    "supervisor.ladder",
    "supervisor.ledger",
    "supervisor.lifecycles.agent",
    "supervisor.lifecycles.session",
    "supervisor.lifecycles.task",
    "supervisor.lifecycles.turn",
    "supervisor.link",
    "supervisor.moments",
    "supervisor.nodes",
    "supervisor.plan_runner",
    "supervisor.policy",
    "supervisor.process_link",
    "supervisor.recovery",
    "supervisor.runtime",
    "supervisor.supervision",
    "supervisor.tree",
    "supervisor.work",
)
"""The modules of the product whose functions the soak enters (``mutants.py --by simulation`` says when it does not
any more)."""


def judged() -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Each run, and what the oracle says of it."""
    running = importlib.import_module("supervisor.simulation.running")
    scenario = importlib.import_module("supervisor.simulation.scenario")
    for name, seed in RUNS:
        yield name, seed, running.simulate(scenario.named(name).draw(seed)).problems


def reached(root: Path) -> dict[str, set[int]]:
    """The functions of the product that the soak enters: the first line of each, by file relative to *root*."""
    entered: set[CodeType] = set()

    def look(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            entered.add(frame.f_code)

    sys.setprofile(look)
    try:
        for _ in judged():
            pass
    finally:
        sys.setprofile(None)
    lines: dict[str, set[int]] = {}
    for code in entered:
        if code.co_filename.startswith((f"{root}/actors/", f"{root}/supervisor/")):
            lines.setdefault(code.co_filename.removeprefix(f"{root}/"), set()).add(code.co_firstlineno)
    return lines
