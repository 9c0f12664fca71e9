"""``supervisor agents``: the agents of the catalogue, their installation on this machine, and the conformance probe."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import click
import msgspec

from supervisor.agent_catalogue import AgentVariant, KnownAgent, UnknownAgent, catalogue, known_agent
from supervisor.agent_catalogue.measured import measured_agents, tried_versions
from supervisor.agents.probe.conformance import CASES, probe
from supervisor.agents.probe.discovery import InstalledAgent, find, find_all
from supervisor.agents.probe.sandbox import make_sandbox
from supervisor.agents.probe.trial import ModelTruth, ProbeResult
from supervisor.cli.options import examples, json_option, say, state_dir_option
from supervisor.cli.rendering import columns, json_text
from supervisor.cli.terminal import table_width
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput
from supervisor.processes.host import ShimHost

_VERDICTS: Final[Mapping[bool | None, str]] = {True: "yes", False: "no", None: "-"}
_ASKS: Final[Mapping[bool | str, str]] = {True: "yes", False: "no", "with flags": "with flags", "unknown": "unknown"}


@click.group(
    "agents", invoke_without_command=True, epilog=examples("supervisor agents", "supervisor agents show claude")
)
@json_option
@click.pass_context
def agents_group(context: click.Context, as_json: bool) -> int:
    """A plan uses a known agent with `known: NAME`; `supervisor agents show NAME` prints the whole entry of an
    agent."""
    if context.invoked_subcommand is None:
        found = list(find_all(catalogue().values()))
        if as_json:
            say(json_text([_listed(one) for one in found]))
        else:
            say(columns(("NAME", "VERSION", "NEWEST TRIED", "ADAPTERS", "WHERE"), map(_row, found), table_width()))
    return DONE


@agents_group.command("show", epilog=examples("supervisor agents show claude"))
@click.argument("name")
@json_option
def _show(name: str, as_json: bool) -> int:
    """Show the catalogue entry of an agent: command lines, installation, model server settings and quirks."""
    agent = _named(name)
    found = find(agent)
    if as_json:
        say(json_text({**_listed(found), "known": agent.model_dump(mode="json", exclude_defaults=True)}))
    else:
        say("\n".join(_details(found)))
    return DONE


@agents_group.command("probe", epilog=examples("supervisor agents probe claude --case resume"))
@click.argument("name")
@click.option("--adapter", help="Adapter to use; by default the agent's first.")
@click.option("--model-url", metavar="URL", help="Model server; by default a scripted one on loopback.")
@click.option("--case", "cases", multiple=True, type=click.Choice(tuple(CASES)), help="Try only this case; repeatable.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
@json_option
def _probe(
    name: str, adapter: str | None, model_url: str | None, cases: tuple[str, ...], backend: str, as_json: bool
) -> int:
    """Try an agent in a scratch directory and report its behaviour.

    The probe tests whether a cancel ends the tool, whether the agent takes another prompt afterwards, whether it
    resumes a conversation, whether it reports its usage, and what it leaves behind when it is ended. The model must do
    what the prompt says, as `supervisor stub-model` does. Exit status 1: the agent fails a case; the runtime copes with
    it.
    """
    agent = _named(name)
    variant = _variant(agent, adapter)
    found = find(agent)
    if variant.adapter not in found.ways:
        install = f"; install it: {agent.install.command}" if agent.install else ""
        raise BadInput(f"{agent.name}: no program {variant.command[0]!r} on PATH{install}")
    if not as_json:
        say(f"{agent.name} {found.version}, by {variant.adapter}:")
    rows = anyio.run(partial(_run, agent, variant, model_url, cases or tuple(CASES), not as_json), backend=backend)
    if as_json:
        head = {"agent": agent.name, "version": found.version, "adapter": variant.adapter}
        say(json_text({**head, "cases": msgspec.to_builtins(rows)}))
    return WORK_FAILED if any(one.good is False for one in rows) else DONE


@agents_group.command("levels", epilog=examples("supervisor agents levels"))
@state_dir_option
@json_option
def _levels(state_dir: Path, as_json: bool) -> None:
    """List the trust level of each agent of the running supervisor, and what it permits."""
    from supervisor.cli.live_lists import show_levels  # here, since the other commands need no supervisor

    show_levels(state_dir, as_json=as_json)


async def _run(
    agent: KnownAgent, variant: AgentVariant, model_url: str | None, cases: tuple[str, ...], shows: bool
) -> list[ProbeResult]:
    if model_url is not None:
        return await _probed(agent, variant, model_url, None, cases, shows)
    try:
        from supervisor.mock_model.server import open_stub_model
    except ModuleNotFoundError:
        need = "pip install 'supervisor-runtime[stub-model]'"
        raise BadInput(f"a scripted model is needed, and h11 is not installed: {need}, or give --model-url") from None
    async with open_stub_model() as stub:
        return await _probed(agent, variant, stub.base_url, stub, cases, shows)


async def _probed(
    agent: KnownAgent,
    variant: AgentVariant,
    base_url: str,
    truth: ModelTruth | None,
    cases: tuple[str, ...],
    shows: bool,
) -> list[ProbeResult]:
    rows: list[ProbeResult] = []
    with tempfile.TemporaryDirectory(prefix="supervisor-probe-", ignore_cleanup_errors=True) as folder:
        sandbox = make_sandbox(agent, variant, base_url, Path(folder))
        async with ShimHost() as host:
            async for one in probe(host, sandbox, cases, truth):
                rows.append(one)
                if shows:
                    say(f"  {_VERDICTS[one.good]:<5} {one.case:<38} {one.found}")
    return rows


def _named(name: str) -> KnownAgent:
    try:
        return known_agent(name)
    except UnknownAgent as error:
        raise BadInput(str(error)) from None


def _variant(agent: KnownAgent, adapter: str | None) -> AgentVariant:
    try:
        return agent.variant(adapter)
    except UnknownAgent as error:
        raise BadInput(f"--adapter: {error}") from None


# ------------------------------------------------------------------------------------------------------ what is shown
def _listed(found: InstalledAgent) -> dict[str, object]:
    agent = found.agent
    return {
        "name": agent.name,
        "title": agent.title,
        "installed": bool(found.path),
        "version": found.version,
        "path": found.path,
        "untried": found.untried,
        "oldest_tried": tried_versions(agent).oldest,
        "newest_tried": tried_versions(agent).newest,
        "adapters": [variant.adapter for variant in agent.ways],
        "asks": {variant.adapter: variant.asks for variant in agent.ways},
        "install": agent.install.command if agent.install else "",
    }


def _row(found: InstalledAgent) -> tuple[str, str, str, str, str]:
    agent, tried = found.agent, tried_versions(found.agent)
    which = " (older than tried)" if " older " in found.untried else " (newer than tried)" if found.untried else ""
    version = f"{found.version or '?'}{which}"
    where = found.path or f"not installed: {agent.install.command if agent.install else ''}"
    ways = ", ".join(variant.adapter for variant in agent.ways)
    return agent.name, version if found.path else "-", tried.newest or "-", ways, where


def _details(found: InstalledAgent) -> Iterator[str]:
    agent = found.agent
    also = f" (also {', '.join(agent.also)})" if agent.also else ""
    yield f"{agent.name}{also}: {agent.title}"
    if agent.about:
        yield f"  {agent.about}"
    yield f"  here      {found.path or 'not installed'}{f', version {found.version}' if found.version else ''}"
    if found.untried:
        yield f"            {found.untried}; `supervisor agents probe {agent.name}` shows what differs"
    if agent.install:
        yield f"  install   {agent.install.command}"
    tried = tried_versions(agent)
    between = tried.newest if tried.oldest == tried.newest else f"{tried.oldest} to {tried.newest}"
    yield f"  tried     {between or 'no version'}"
    for variant in agent.ways:
        yield f"  {variant.adapter:<9} {' '.join(variant.command)}"
        differs = variant.quirks.model_dump(exclude_defaults=True)
        quirks = [f"{name}: {value}" if isinstance(value, str) else name for name, value in differs.items()]
        notes = [*quirks, *(["sub_agents"] if variant.sub_agents else []), f"urgent messages: {variant.urgent}"]
        yield f"            {', '.join(notes)}, asks leave: {_ASKS[variant.asks]}"
        yield from _measured(agent, variant)
    if agent.passes:
        yield f"  may have  {', '.join(agent.passes)}"
    for name, value in agent.env.items():
        yield f"  gets      {name}={value}"
    yield from _model_settings(agent)


def _measured(agent: KnownAgent, variant: AgentVariant) -> Iterator[str]:
    """Yield the lines about what the probe found wrong with a variant of the agent."""
    measured = measured_agents().get(agent.name)
    for result in measured.results if measured is not None else ():
        if result.adapter == variant.adapter:
            bad = {case: one.found for case, one in result.cases.items() if one.good is False}
            good = sum(one.good is True for one in result.cases.values())
            yield f"            measured {result.date} with {result.version}: {good} cases good, {len(bad)} not:"
            yield from (f"              {case}: {found}" for case, found in bad.items())


def _model_settings(agent: KnownAgent) -> Iterator[str]:
    """Yield the lines about the agent's model server settings."""
    for name, value in agent.model.env.items():
        yield f"  model     {name}={value}"
    if agent.model.arguments:
        yield f"  model     {' '.join(agent.model.arguments)}"
    for one in agent.model.files:
        yield f"  model     ~/{one.path}:"
        yield from (f"              {line}" for line in one.text.strip().splitlines())
