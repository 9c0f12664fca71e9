"""Measure agents with the conformance probe, and write what was found into the catalogue: ``make agents``.

Each agent is installed as ``make test-agents`` does, or taken from PATH with ``--on-path``. The results replace those
of the same agent and adapter in ``supervisor/agent_catalogue/measured/NAME.json``; then the page of the documentation
is written again.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
import tempfile
from pathlib import Path

import anyio
import msgspec

from supervisor.agent_catalogue import AgentVariant, KnownAgent, UnknownAgent, catalogue, known_agent
from supervisor.agent_catalogue.measured import MEASURED, MeasuredAgent, MeasuredBehaviour, Measurement
from supervisor.agents.probe.conformance import CASES, probe
from supervisor.agents.probe.discovery import find
from supervisor.agents.probe.sandbox import make_sandbox
from supervisor.mock_model.server import open_stub_model
from supervisor.processes.host import ShimHost
from tests.real_agents.installing import NotInstalled, program_of
from tests.real_agents.measured_page import write_page

LIMIT_S = 1800.0
"""Seconds after which the cases of one variant that are left are given up."""


async def measure(agent: KnownAgent, variant: AgentVariant, version: str, cases: tuple[str, ...]) -> Measurement:
    """Try one variant of an agent in *cases*, and print each result."""
    found: dict[str, MeasuredBehaviour] = {}
    with tempfile.TemporaryDirectory(prefix="measure-", ignore_cleanup_errors=True) as folder:
        async with open_stub_model() as stub, ShimHost() as host:
            sandbox = make_sandbox(agent, variant, stub.base_url, Path(folder))
            with anyio.move_on_after(LIMIT_S):
                async for one in probe(host, sandbox, cases, stub):
                    found[one.case] = MeasuredBehaviour(one.found, one.good)
                    print(
                        f"{agent.name} {version} {variant.adapter} | {one.good} | {one.case} | {one.found}", flush=True
                    )
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Measurement(adapter=variant.adapter, version=version, date=today, cases=found)


def record(agent: KnownAgent, result: Measurement, *, is_part: bool) -> None:
    """Write a result into the catalogue; of a *part* of the cases, the other results of the same version stay."""
    path = MEASURED / f"{agent.name}.json"
    before = msgspec.json.decode(path.read_bytes(), type=MeasuredAgent).results if path.exists() else ()
    old = next((one for one in before if one.adapter == result.adapter), None)
    if is_part and old is not None and old.version == result.version:
        result = msgspec.structs.replace(result, cases={**old.cases, **result.cases})
    order = [way.adapter for way in agent.ways]
    results = {one.adapter: one for one in (*before, result) if one.adapter in order}
    known = MeasuredAgent(agent.name, tuple(sorted(results.values(), key=lambda one: order.index(one.adapter))))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")


def main() -> int:
    asked = _asked()
    status = 0
    for name in asked.agents:
        wanted, _, adapter = name.partition(":")
        try:
            agent = known_agent(wanted)
            ways = [agent.variant(adapter)] if adapter else agent.ways
            if not asked.on_path:
                os.environ["PATH"] = f"{program_of(agent, asked.cache).parent}:{os.environ['PATH']}"
        except (UnknownAgent, NotInstalled) as error:
            print(f"{name}: not measured: {error}", flush=True)
            status = 1
            continue
        here = find(agent)
        if not here.version:
            print(f"{name}: not measured: {here.path or 'its program'} does not say its version", flush=True)
            status = 1
            continue
        for way in ways:
            if shutil.which(way.command[0]) is None:
                print(f"{name}: not measured: no program {way.command[0]!r}", flush=True)
                continue
            cases = tuple(asked.cases or CASES)
            result = anyio.run(measure, agent, way, here.version, cases)
            record(agent, result, is_part=bool(asked.cases))
    write_page()
    return status


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.real_agents.measure", description=__doc__)
    parser.add_argument("agents", nargs="*", default=list(catalogue()), help="names, or NAME:ADAPTER; by default all")
    parser.add_argument("--case", action="append", dest="cases", choices=list(CASES))
    parser.add_argument("--cache", type=Path, default=Path(".agents"), help="where they are installed")
    parser.add_argument("--on-path", action="store_true", help="take the programs on PATH, whatever their version")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
