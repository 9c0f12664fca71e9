"""Whether an agent can be held to the ``permissions`` that a plan gives it.

Permissions are answers: they hold what the agent asks leave for, and nothing else. So a plan that denies, or has a
human asked, is refused where the agent is known never to ask, by its adapter, by its entry in the catalogue, or by a
flag that switches its asking off; unless the plan says ``unguarded: true``. An agent that nothing is known of is taken
at its protocol's word: it may ask. The default, ``allow``, needs no asking.

Pure: it looks at the words of a command line and runs nothing, so it does not know the agent's own settings files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from supervisor.agent_catalogue import AgentVariant, KnownAgent, UnknownAgent, catalogue, known_agent
from supervisor.plans.error_texts import Problem
from supervisor.plans.permissions import PermissionsConfig
from supervisor.policies.permissions import Decision

__all__ = ["Program", "enforcement_problems", "needs_asking"]

_SILENT: Final[Mapping[str, str]] = {
    "command": "adapter: command gives a program its prompt, and is asked nothing",
    "jsonl": "adapter: jsonl hears what a program does, and is asked nothing",
}
"""Adapters with no way to ask. ``scripted`` has one, and asks where its script says so: its script is the user's own. A
function of the host has no entry in a plan. What an adapter of a plug-in does is not known: its agents may ask."""

_LAUNCHERS: Final = frozenset({"npx", "bunx", "pnpx", "uvx", "pipx"})
_FIX: Final = "or write `unguarded: true` if it may do so unasked"


def needs_asking(permissions: Any) -> bool:
    """Whether *permissions*, as a plan writes them or read, hold only an agent that asks. What is no such thing does
    not; whoever reads it says so."""
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
    """The parts of an agent's entry that say what it is and how it is started; *command* is the whole argv."""

    adapter: str
    known: str | None
    command: Sequence[str]
    env: Mapping[str, str]
    mode: str


def enforcement_problems(program: Program, permissions: PermissionsConfig) -> Iterator[Problem]:
    """Where an agent cannot be held to its *permissions*, and what to do."""
    if not needs_asking(permissions):
        return
    said, words = _shown(permissions), _words(program.command)
    agent, variant = _of_catalogue(program, words)
    if why := _why_silent(program, agent, variant):
        cannot = f"{said} cannot work: {why}; take an agent that asks (`supervisor agents` lists some)"
        yield ("permissions",), f"{cannot}, or remove `permissions` and use the agent's own sandbox, {_FIX}"
        return
    agents = [agent] if agent is not None else list(catalogue().values())
    if flag := _flag_in(words, agents, is_known=agent is not None):
        yield ("command",), f"{flag!r} has it act unasked, and its permissions are {said}; remove the flag, {_FIX}"
    # A mode of that name may mean something else to an agent that is in no catalogue.
    if agent is not None and program.mode.lower() in {mode.lower() for one in agents for mode in one.never_ask_modes}:
        instead = (
            f"say mode: {variant.asking.mode}"
            if variant and variant.asking and variant.asking.mode
            else "take another mode"
        )
        yield ("mode",), f"{program.mode!r} has it act unasked, and its permissions are {said}; {instead}, {_FIX}"


def _why_silent(program: Program, agent: KnownAgent | None, variant: AgentVariant | None) -> str:
    """Why the agent never asks; ``""`` where it does, or nobody can tell."""
    if (why := _SILENT.get(program.adapter)) is not None:
        return why
    if agent is None or variant is None:
        return ""
    if variant.asks is False:
        return f"{agent.title} does it all unasked"
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
    """The agent of the catalogue that it is, by its name there or by its program, and the way to have it."""
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
    """The words of the agent's own command line: without who fetches and starts it, and without quotes."""
    words = [word.strip("\"'").replace('="', "=").replace("='", "=") for part in command for word in part.split()]
    if words and posixpath.basename(words[0]) in _LAUNCHERS:
        words = words[next((n for n, word in enumerate(words) if n and not word.startswith("-")), len(words)) :]
        words[:1] = [_without_version(word) for word in words[:1]]
    return words


def _without_version(package: str) -> str:
    name, at, version = package.rpartition("@")
    return name if at and name and version else package


def _flag_in(words: Sequence[str], agents: Collection[KnownAgent], *, is_known: bool) -> str:
    """The flag among *words* by which one of *agents* never asks. A short one means that to its own agent only."""
    said = _split(words)
    for flag in dict.fromkeys(flag for agent in agents for flag in agent.never_ask_flags):
        wanted = _split(flag.split())
        if not is_known and len(wanted) == 1 and not (wanted[0].startswith("--") or "=" in wanted[0]):
            continue
        if any(said[n : n + len(wanted)] == wanted for n in range(len(said))):
            return flag
    return ""


def _split(words: Sequence[str]) -> list[str]:
    """``--mode=yolo`` as two words, and all of them in small letters."""
    parts = [word.split("=", 1) if word.startswith("--") else [word] for word in words]
    return [part.lower() for both in parts for part in both]
