"""Check that a plan's ``permissions`` can be effective for an agent.

Permissions only answer requests that the agent itself makes. A plan that denies, or lets a person decide, is therefore
rejected if the agent is known never to request a permission: because of its adapter, its catalogue entry, or a flag
that turns requests off; unless the plan says ``unguarded: true``. An unknown agent is assumed to request permissions if
its protocol has such requests. The default, ``allow``, needs no request.

Pure: the check reads the words of a command line and runs nothing, so that it does not see the agent's settings files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from supervisor.agent_catalogue import AgentVariant, KnownAgent, UnknownAgent, catalogue, known_agent
from supervisor.plans.error_texts import Problem
from supervisor.plans.permissions import PermissionsConfig
from supervisor.policies.permissions import Decision

_SILENT: Final[Mapping[str, str]] = {
    "command": "adapter: command passes no permission requests",
    "jsonl": "adapter: jsonl passes no permission requests",
}
"""Adapters whose agents cannot request a permission, with the reason. ``scripted`` agents can, by a script of the user.
An agent that is a function of the embedding program has no entry in a plan. For the adapter of a plug-in this is
unknown, so its agents are assumed to."""

_LAUNCHERS: Final = frozenset({"npx", "bunx", "pnpx", "uvx", "pipx"})
_FIX: Final = "or write `unguarded: true` if it may act without asking"


def needs_asking(permissions: Any) -> bool:
    """Return whether *permissions*, as written in a plan or validated, depend on an agent that requests permissions. A
    value of a wrong type does not; validation reports such a value."""
    match permissions:
        case PermissionsConfig():
            return permissions.default is not Decision.ALLOW or any(
                rule.then is not Decision.ALLOW for rule in permissions.rules
            )
        case str():
            return permissions in (Decision.DENY, Decision.ASK)
        case {**given}:
            rules = given.get("rules")
            thens = [rule.get("then") for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
            return any(needs_asking(one) for one in (given.get("default"), *thens) if isinstance(one, str))
        case _:
            return False


class Program(NamedTuple):
    """Parts of an agent's entry in a plan that identify its program and its start; *command* is the whole command
    line."""

    adapter: str
    known: str | None
    command: Sequence[str]
    env: Mapping[str, str]
    mode: str


def enforcement_problems(program: Program, permissions: PermissionsConfig) -> Iterator[Problem]:
    """Yield the reasons why *permissions* would not be effective for the agent, each with the fix."""
    if not needs_asking(permissions):
        return
    said, words = _shown(permissions), _words(program.command)
    agent, variant = _of_catalogue(program, words)
    if why := _why_silent(program, agent, variant):
        cannot = f"{said} cannot work: {why}; take an agent that asks for permission"
        yield ("permissions",), f"{cannot}, or remove `permissions` and use the agent's own sandbox, {_FIX}"
        return
    agents = [agent] if agent is not None else list(catalogue().values())
    if flag := _flag_in(words, agents, is_known=agent is not None):
        yield (
            ("command",),
            f"{flag!r} makes it act without asking, but its permissions are {said}; remove the flag, {_FIX}",
        )
    # A mode of that name may mean something else to an agent that is in no catalogue.
    if agent is not None and program.mode.lower() in {mode.lower() for one in agents for mode in one.never_ask_modes}:
        instead = (
            f"say mode: {variant.asking.mode}"
            if variant and variant.asking and variant.asking.mode
            else "take another mode"
        )
        yield (
            ("mode",),
            f"{program.mode!r} makes it act without asking, but its permissions are {said}; {instead}, {_FIX}",
        )


def _why_silent(program: Program, agent: KnownAgent | None, variant: AgentVariant | None) -> str:
    """Return the reason why the agent never requests a permission; ``""`` if it does or if that is unknown."""
    if (why := _SILENT.get(program.adapter)) is not None:
        return why
    if agent is None or variant is None:
        return ""
    if variant.asks is False:
        return f"{agent.title} never asks for permission"
    if variant.asking is not None and not (variant.asking.env.keys() <= program.env.keys()):
        missing = ", ".join(one for one in variant.asking.env if one not in program.env)
        return f"{agent.title} asks only with the variable {missing}, which known: {agent.name} gives it"
    if variant.asking is not None and variant.asking.mode and not program.mode:
        return f"{agent.title} asks only in its mode {variant.asking.mode!r}, in which known: {agent.name} starts it"
    return ""


def _shown(permissions: PermissionsConfig) -> str:
    if permissions.default is not Decision.ALLOW:
        return f"'{permissions.default}'"
    thens = dict.fromkeys(f"'{rule.then}'" for rule in permissions.rules if rule.then is not Decision.ALLOW)
    return f"rules that say {' and '.join(thens)}"


def _of_catalogue(program: Program, words: Sequence[str]) -> tuple[KnownAgent | None, AgentVariant | None]:
    """Return the agent of the catalogue whose program *program* is, found by name or by command, and its variant."""
    try:
        found = known_agent(program.known) if program.known is not None else None
    except UnknownAgent:
        found = None
    for agent in [found] if found is not None else catalogue().values():
        names = {agent.install.package} if agent.install is not None else set()
        for variant in agent.ways:
            is_it = found is not None or bool(
                {*words[:1], *map(posixpath.basename, words[:1])} & {*names, variant.command[0]}
            )
            if variant.adapter == program.adapter and is_it:
                return agent, variant
    return None, None


def _words(command: Sequence[str]) -> list[str]:
    """Return the words of the agent's own command line, without quotes and without a launcher such as npx."""
    words = [word.strip("\"'").replace('="', "=").replace("='", "=") for part in command for word in part.split()]
    if words and posixpath.basename(words[0]) in _LAUNCHERS:
        words = words[next((n for n, word in enumerate(words) if n and not word.startswith("-")), len(words)) :]
        words[:1] = [_without_version(word) for word in words[:1]]
    return words


def _without_version(package: str) -> str:
    name, at, version = package.rpartition("@")
    return name if at and name and version else package


def _flag_in(words: Sequence[str], agents: Collection[KnownAgent], *, is_known: bool) -> str:
    """Return the flag among *words* with which one of *agents* never requests a permission. A short flag counts only
    for its own agent."""
    said = _split(words)
    for flag in dict.fromkeys(flag for agent in agents for flag in agent.never_ask_flags):
        wanted = _split(flag.split())
        if not is_known and len(wanted) == 1 and not (wanted[0].startswith("--") or "=" in wanted[0]):
            continue
        if any(said[n : n + len(wanted)] == wanted for n in range(len(said))):
            return flag
    return ""


def _split(words: Sequence[str]) -> list[str]:
    """Split ``--mode=yolo`` into two words, and convert all words to lower case."""
    parts = [word.split("=", 1) if word.startswith("--") else [word] for word in words]
    return [part.lower() for both in parts for part in both]
