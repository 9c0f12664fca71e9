"""The soak that mutants of the runtime are tried against: fixed runs in virtual time, judged by the oracle alone.

A mutant is killed by a violation, by an exception, by a crash of its interpreter, or by an endless loop; never by a
digest, for that only says that something is different. The first runs are cheap and find most of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

__all__ = ["RUNS", "SIMULATED", "judged"]

RUNS = (
    ("brief-turns", 1),
    ("killed", 1),
    ("quiet", 1),
    ("calm", 1),
    ("kernel", 1),
    ("kernel", 2),
    ("swarm", 3),
    ("urgent", 1),
    ("deep-delegation", 1),
    ("drains", 1),
    ("swarm", 2),
    ("stubborn-functions", 1),
    ("liars", 1),
    ("plans", 1),
    ("restart-storm", 1),
    ("policies", 1),
    ("calm", 2),
    ("calm", 3),
    ("quiet", 2),
    ("quiet", 3),
    ("given-up-starts", 1),
    ("lost-wardens", 1),
    ("orphan-storm", 1),
    ("stubborn-commands", 1),
    ("broken-protocol", 1),
    ("failing-disk", 1),
    ("slow-disk", 1),
    ("slow-starts", 1),
    ("hung-provider", 1),
    ("poison-prompt", 1),
    ("clocks", 1),
    ("thundering-herd", 1),
    *(("swarm", seed) for seed in (1, *range(4, 13))),
    ("brief-turns", 2),
    ("brief-turns", 3),
    ("urgent", 2),
    ("drains", 2),
    ("killed", 2),
    ("policies", 2),
)
"""(scenario, seed), in order: those that find most for their time come first."""

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
    "supervisor.scheduling",
    "supervisor.policy",
    "supervisor.process_link",
    "supervisor.recovery",
    "supervisor.runtime",
    "supervisor.supervision",
    "supervisor.tree",
    "supervisor.work",
)
"""What mutants are made of: the pure modules that a supervisor is made of (tables, policies, planning, codecs), and
the runtime (the kernel's actors, supervision, hands, ledger, entities, links). Not the judge itself, nor the doors to
the operating system, the command line, or the checks of logs: none of that is inside a simulated run."""


def judged() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each run, and what the oracle says of it."""
    running = importlib.import_module("supervisor.simulation.running")
    scenario = importlib.import_module("supervisor.simulation.scenario")
    for name, seed in RUNS:
        yield f"{name} {seed}", running.simulate(scenario.named(name).draw(seed)).problems
