"""Check that a plan's ``permissions`` can be effective for an agent.

Permissions only answer requests that the agent itself makes. A plan that denies, or lets a person decide, is therefore
rejected if the agent is known never to request a permission: because of its adapter, its catalogue entry, a flag or a
mode that turns requests off, or a launcher that may not pass on what makes the agent ask; unless the plan says
``unguarded: true``. An unknown agent is assumed to request permissions if its protocol has such requests. The default,
``allow``, needs no request.

Pure: the check reads the words of a command line and runs nothing, so that it does not see scripts, nor the agent's
settings files. What an agent reports about itself at its start is checked by the codec of its protocol
(``AgentOptions.guarded``).
"""

from __future__ import annotations

import posixpath
import re
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

_OF_ONE_PROGRAM: Final = ("claude", "codex")
"""Adapters that drive one program only, whatever starts that program."""

_LAUNCHER: Final = re.compile(
    r"\A(?:env|nice|nohup|setsid|stdbuf|timeout|ionice|chrt|time|exec|command|sh|bash|dash|zsh|node|bun|deno|"
    r"npm|npx|bunx|pnpx|pnpm|yarn|uv|uvx|pipx|dlx|tool|run|x|"
    r"-[-\w]*(=[\w.:/-]*)?|[\d.]+[smhd]?|[A-Za-z_]\w*=.*)"
)
"""Words in front of a program that start it with the same environment: launchers, with options, numbers and variables.
Any other word may do anything, such as start the program in a container or change its variables."""
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


class _Start(NamedTuple):
    """Start of a program as its command line shows it."""

    agent: KnownAgent | None
    """Agent of the catalogue that is started; ``None`` if the command line starts another program, or hides it."""
    variant: AgentVariant | None
    launchers: Sequence[str]
    """Words in front of the agent's program."""
    arguments: Sequence[str]
    """Words of the agent's own command line; without an agent, all words."""


def agent_started(program: Program) -> str:
    """Return the name in the catalogue of the agent that *program* starts; ``""`` if its command line shows none."""
    start = _start_of(program)
    return start.agent.name if start.agent is not None and _hidden_by(start, ()) is None else ""


def enforcement_problems(program: Program, permissions: PermissionsConfig) -> Iterator[Problem]:
    """Yield the reasons why *permissions* would not be effective for the agent, each with the fix."""
    if not needs_asking(permissions):
        return
    said, start = _shown(permissions), _start_of(program)
    agent, variant = start.agent, start.variant
    if why := _why_silent(program, start):
        cannot = f"{said} cannot work: {why}; take an agent that asks for permission"
        yield ("permissions",), f"{cannot}, or remove `permissions` and use the agent's own sandbox, {_FIX}"
        return
    agents = [agent] if agent is not None else [a for a in catalogue().values() if _speaks(a, program.adapter)]
    if flag := _flag_in(start.arguments, agents, is_known=agent is not None):
        yield (
            ("command",),
            f"{flag!r} makes it act without asking, but its permissions are {said}; remove the flag, {_FIX}",
        )
    # A mode of that name may mean something else to an agent that is in no catalogue.
    if agent is not None and program.mode and agent.asking_modes and program.mode not in agent.asking_modes:
        instead = variant.asking.mode if variant and variant.asking else ""
        yield (
            ("mode",),
            f"{program.mode!r} makes it act without asking, but its permissions are {said}; "
            f"say mode: {instead or agent.asking_modes[0]}, {_FIX}",
        )


def _why_silent(program: Program, start: _Start) -> str:
    """Return the reason why the agent never requests a permission; ``""`` if it does or if that is unknown."""
    if (why := _SILENT.get(program.adapter)) is not None:
        return why
    agent, variant = start.agent, start.variant
    if agent is None or variant is None:
        return ""
    if variant.asks is False:
        return f"{agent.title} never asks for permission"
    if variant.asking is None:
        return ""
    for name, value in variant.asking.env.items():
        if name not in program.env:
            return f"{agent.title} asks only with the variable {name}, which known: {agent.name} gives it"
        if program.env[name] != value:
            return f"{agent.title} asks only with the variable {name}={value}, but env has {program.env[name]!r}"
        if (word := _hidden_by(start, variant.asking.env)) is not None:
            hidden = f"and {word!r} in front of it may change that: start {variant.command[0]!r} itself"
            return f"{agent.title} asks only with the variable {name}, {hidden}"
    if variant.asking.mode and not program.mode:
        return f"{agent.title} asks only in its mode {variant.asking.mode!r}, in which known: {agent.name} starts it"
    return ""


def _shown(permissions: PermissionsConfig) -> str:
    if permissions.default is not Decision.ALLOW:
        return f"'{permissions.default}'"
    thens = dict.fromkeys(f"'{rule.then}'" for rule in permissions.rules if rule.then is not Decision.ALLOW)
    return f"rules that say {' and '.join(thens)}"


def _start_of(program: Program) -> _Start:
    """Find the agent of the catalogue that *program* starts: the agent that the plan names, or the agent whose program
    is among the words of the command line, behind launchers."""
    words = _words(program.command)
    try:
        named = known_agent(program.known) if program.known is not None else None
    except UnknownAgent:
        named = None
    if named is None and program.adapter in _OF_ONE_PROGRAM:
        named = next(agent for agent in catalogue().values() if agent.ways[0].adapter == program.adapter)
    for at, word in enumerate(words):
        for agent in [named] if named is not None else catalogue().values():
            variant = _speaks(agent, program.adapter)
            if variant is not None and _is_program(word, agent, variant):
                start = _Start(agent, variant, words[:at], words[at + 1 :])
                # Behind an unknown launcher a word may be anything; only where the agent needs a variable, which the
                # launcher may not pass on, the agent is taken to be meant.
                needs_variable = variant.asking is not None and variant.asking.env
                if named is not None or needs_variable or _hidden_by(start, ()) is None:
                    return start
    return _Start(named, _speaks(named, program.adapter) if named is not None else None, words[:1], words)


def _speaks(agent: KnownAgent, adapter: str) -> AgentVariant | None:
    """Return the variant of *agent* with the adapter *adapter*, or ``None``."""
    return next((one for one in agent.ways if one.adapter == adapter), None)


def _is_program(word: str, agent: KnownAgent, variant: AgentVariant) -> bool:
    """Return whether *word* names the agent's program: by name, path or package, or as a script in its package."""
    names = {variant.command[0], *([agent.install.package] if agent.install is not None else [])}
    package = word.rpartition("node_modules/")[2] if "node_modules/" in word else ""
    of_package = any(package.startswith(f"{name}/") for name in names)
    return of_package or not names.isdisjoint((word, posixpath.basename(word), _without_version(word)))


def _hidden_by(start: _Start, variables: Collection[str]) -> str | None:
    """Return the word in front of the agent's program that may start the program in another way, or with other
    *variables*; ``None`` if there is none."""
    names = [posixpath.basename(word) for word in start.launchers]
    for at, word in enumerate(names):
        clears = "env" in names[:at] and word.startswith("-")
        if clears or word.partition("=")[0] in variables or not _LAUNCHER.fullmatch(word):
            return start.launchers[at]
    return None


def _words(command: Sequence[str]) -> list[str]:
    """Return the words of a command line, also those of a line of script within it, without quotes."""
    return [word.strip("\"'").replace('="', "=").replace("='", "=") for part in command for word in part.split()]


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
