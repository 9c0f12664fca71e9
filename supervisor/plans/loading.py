"""Read plan files: parse, validate as a whole, and find programs and directories on this machine.

A plan is validated before anything starts; every problem is reported with its field and the fix.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from supervisor.agent_catalogue import BadData, LineMapping, known_agent, read_data
from supervisor.agent_catalogue.line_rules import PROMPT
from supervisor.plans.acceptance import program_of
from supervisor.plans.agents import AgentConfig
from supervisor.plans.error_texts import Problem, complaints
from supervisor.plans.fields import NAME_PATTERN, PluginNames, closest
from supervisor.plans.plan import Plan
from supervisor.plans.source import BadPlan, FieldPath, Source, read_source
from supervisor.plans.tasks import AcceptanceConfig, PlacedTask, TaskConfig, every_task
from supervisor.ports.path_safety import outside

ARGUMENT_BYTES_MAX: Final = 128 * 1024 - 1
"""Largest number of bytes of one argument of a program on Linux (``MAX_ARG_STRLEN`` of linux/binfmts.h, less the final
NUL)."""

_NAME: Final = re.compile(NAME_PATTERN)
_Document = TypeVar("_Document", bound=BaseModel)

PluginNamesFor = Callable[[Sequence[str] | None], Mapping[str, Sequence[str]]]
"""Function that returns the names that plug-ins add, given the plug-ins that the plan chooses (``None`` for all
installed ones)."""


def _none(names: Sequence[str] | None) -> Mapping[str, Sequence[str]]:
    return {"adapters": (), "verifiers": (), "plugins": ()}


def load_plan(
    path: Path,
    plugin_names_for: PluginNamesFor = _none,
    instead: Mapping[str, str] = MappingProxyType({}),
    content: bytes | None = None,
    *,
    base: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    agents: Mapping[str, AgentConfig] = MappingProxyType({}),
) -> Plan:
    """Read and validate a plan; relative programs and directories are relative to the plan's own directory. A plan that
    gives no ``workstream`` is named like the file: runs of different files are different plans, for ``--resume`` and
    for what earlier runs teach.

    Args:
        plugin_names_for: names that plug-ins add, called if the plan uses a name that is not built in; by default,
            there are none.
        instead: agents of the catalogue that replace agents of the plan, by the name in the plan:
            ``{"worker": "codex"}``, or ``{"worker": "gemini:jsonl"}`` to choose the adapter.
        content: text of the plan, if it is not to be read from *path*.
        base: directory that relative paths are relative to, instead of the plan's own.
        environment: variables that every agent of the plan gets, unless its ``env`` has them.
        agents: agents that the plan may use without defining them.

    Raises:
        BadPlan: with one line for every problem.
    """
    source = read_source(path, content)
    if not isinstance(source.data, dict):
        raise source.bad([((), "a plan is a mapping with the keys agents and tasks")])
    _replace(source.data, instead, path)
    _add_variables(source.data, environment)
    if _NAME.fullmatch(path.stem):
        source.data.setdefault("workstream", path.stem)
    if agents and isinstance(own := source.data.get("agents", {}), dict):
        source.data["agents"] = {**agents, **own}
    try:
        plan = Plan.model_validate(source.data, context=_once(plugin_names_for, source.data.get("plugins")))
    except ValidationError as error:
        raise source.bad(complaints(error, source, model_at)) from None
    return _located(plan, source, base or path.resolve().parent)


def read_document(path: Path, model: type[_Document]) -> _Document:
    """Read a file with settings and agents, as a plan has them, which *model* describes; relative programs and
    directories are relative to the file's own directory.

    Raises:
        BadPlan: with one line for every problem.
    """
    source = read_source(path)
    try:
        document = model.model_validate(source.data, context=_once(_none, None))
    except ValidationError as error:
        raise source.bad(complaints(error, source, partial(model_at, root=model))) from None
    problems: list[Problem] = []
    base, agents = path.resolve().parent, document.agents  # type: ignore[attr-defined]
    found = {name: _locate(agent, ("agents", name), base, problems) for name, agent in agents.items()}
    if problems:
        raise source.bad(problems)
    return document.model_copy(update={"agents": found})


def _add_variables(data: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Give the variables of *environment* to every agent of a plan; what is no mapping is left to validation."""
    agents = data.get("agents")
    for agent in agents.values() if environment and isinstance(agents, dict) else ():
        if isinstance(agent, dict) and isinstance(own := agent.get("env", {}), dict):
            agent["env"] = {**environment, **own}


_OF_THE_PROGRAM: Final = ("known", "adapter", "command", "arguments", "mapping", "quirks", "unguarded")
"""Keys of an agent that describe its program; the other keys describe its part in the plan and survive a
replacement."""


def _replace(data: dict[str, Any], instead: Mapping[str, str], path: Path) -> None:
    """Replace agents of the plan by agents of the catalogue.

    Raises:
        BadPlan: the plan has no such agent.
    """
    agents = data.get("agents")
    for name, other in instead.items():
        if not isinstance(agents, dict) or name not in agents:
            guess = closest(name, agents if isinstance(agents, dict) else (), "the agents are")
            raise BadPlan(f"{path}: {other!r} cannot replace {name!r}, which is not an agent of this plan; {guess}")
        known_as, _, adapter = other.partition(":")
        had = agents[name] if isinstance(agents[name], dict) else {}
        kept = {key: value for key, value in had.items() if key not in _OF_THE_PROGRAM}
        agents[name] = {**kept, "known": known_as, **({"adapter": adapter} if adapter else {})}


def _once(plugin_names_for: PluginNamesFor, chosen: object) -> PluginNames:
    """Return a cached lookup for the plug-ins that the plan chooses; an invalid choice is reported by its own field."""
    names = [one for one in chosen if isinstance(one, str)] if isinstance(chosen, list) else None
    return cache(lambda: plugin_names_for(names))


def model_at(path: FieldPath, root: type[BaseModel] = Plan) -> type[BaseModel] | None:
    """Return the model whose fields are at *path* of the model *root*; ``None`` if there is none."""
    found: Any = root
    for part in path:
        found = _inside(found, part)
    return found if _is_model(found) else None


def _inside(kind: Any, part: str | int) -> Any:
    """Return the type of *part* in a value of type *kind*; ``None`` if there is none."""
    if _is_model(kind):
        fields = {str(field.validation_alias or name): field for name, field in kind.model_fields.items()}
        return _without_none(fields[part].annotation) if part in fields else None
    if get_origin(kind) is Sequence and isinstance(part, int):
        return get_args(kind)[0]
    return _without_none(get_args(kind)[1]) if get_origin(kind) is Mapping else None


def _without_none(kind: Any) -> Any:
    return next((one for one in get_args(kind) if one is not NoneType), kind) if isinstance(kind, UnionType) else kind


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _located(plan: Plan, source: Source, base: Path) -> Plan:
    """Return the plan with its programs and directories found on this machine."""
    problems: list[Problem] = []
    agents = {name: _locate(agent, ("agents", name), base, problems) for name, agent in plan.agent_configs.items()}
    plan = plan.model_copy(update={"agents": agents})
    problems += [*_straying_files(plan), *_missing_test_programs(plan)]
    problems += [] if problems else _long_prompts(plan)  # a mapping that cannot be read was reported already
    if problems:
        raise source.bad(problems)
    return plan


def _straying_files(plan: Plan) -> Iterator[Problem]:
    """Yield the problems of owned paths that a symbolic link leads out of the agent's known working directory."""
    for one in every_task(plan.tasks):
        cwd = plan.agent_configs[one.task.agent].cwd
        for number, name in enumerate(one.task.files):
            if cwd is not None and (why := outside("", str(Path(cwd) / name), cwd).removeprefix(": ")):
                yield (*one.path, "files", number), why


def _missing_test_programs(plan: Plan) -> Iterator[Problem]:
    """Yield the problems of tests whose program is missing, where nothing of the plan comes first that may install the
    program."""
    reason = "so the test would fail whatever the agent does; install it or give its full path"
    for one in every_task(plan.tasks):
        if not _comes_later(one.task):
            yield from _missing_of_task(plan, one, reason)
    yield from _missing_programs(plan.validation, ("validation",), None, reason)


def programs_to_come(plan: Plan) -> Iterator[Problem]:
    """Yield a field and a text for each acceptance test whose program is missing now, and may be installed by a task
    that comes before."""
    for one in every_task(plan.tasks):
        if _comes_later(one.task):
            yield from _missing_of_task(plan, one, "so the test fails unless a task before it installs it")


def _comes_later(task: TaskConfig) -> bool:
    return bool(task.depends_on) or task.when is not None


def _missing_of_task(plan: Plan, placed: PlacedTask, reason: str) -> Iterator[Problem]:
    search = plan.agent_configs[placed.task.agent].env.get("PATH")
    yield from _missing_programs(placed.task.acceptance, (*placed.path, "acceptance"), search, reason)


def _missing_programs(
    tests: Sequence[AcceptanceConfig], path: FieldPath, search: str | None, reason: str
) -> Iterator[Problem]:
    """Yield the problems of tests whose program is not on the PATH *search*. A program with a slash in its name may be
    a part of the work."""
    directories = (search or "").split(os.pathsep)
    if search is not None and not all(os.path.isabs(one) and os.path.isdir(one) for one in directories):
        return  # a directory that the work may make, such as a virtual environment
    for number, test in enumerate(tests):
        value = test.value()
        program = program_of(value)
        if program is not None and "/" not in program and shutil.which(program, path=search) is None:
            yield (*path, number, value.kind), f"no program {program!r} on PATH, {reason}"


def _long_prompts(plan: Plan) -> Iterator[Problem]:
    """Yield the problems of prompts that an agent gets as an argument of its command, and that the kernel does not
    accept as one."""
    for one in every_task(plan.tasks):
        for name in dict.fromkeys((one.task.agent, *one.task.fallback_agents)):
            words = prompt_words(plan.agent_configs[name])
            size = max((len(word.replace(PROMPT, one.task.prompt).encode()) for word in words), default=0)
            if size > ARGUMENT_BYTES_MAX:
                limit = f"a program takes at most {ARGUMENT_BYTES_MAX} bytes in one argument"
                fix = "write the text to a file and name that in the prompt, or use an agent that reads standard input"
                yield (*one.path, "prompt"), f"the argument of agent {name!r} would have {size} bytes; {limit}; {fix}"


def prompt_words(agent: AgentConfig) -> Sequence[str]:
    """Return the words of the agent's command line that hold its prompt; none if it reads standard input."""
    match agent.adapter:
        case "command":
            words: Sequence[str] = (*agent.command, *agent.arguments)
        case "jsonl" if (mapping := agent.line_mapping) is not None:
            words = mapping.prompt_arguments
        case _:
            words = ()
    return [word for word in words if PROMPT in word]


def _locate(agent: AgentConfig, path: FieldPath, base: Path, problems: list[Problem]) -> AgentConfig:
    changes: dict[str, object] = {}
    if agent.command:
        program = agent.command[0]
        changes["command"] = (_absolute(program, base) if "/" in program else program, *agent.command[1:])
        problems += [((*path, "command"), words) for words in _program_problems(agent, base)]
    if agent.mapping is not None:
        changes["mapping"] = _absolute(agent.mapping, base)
        problems += [((*path, "mapping"), words) for words in _mapping_problems(agent, base)]
    if agent.cwd is not None:
        changes["cwd"] = cwd = _absolute(agent.cwd, base)
        if not Path(cwd).is_dir():
            problems.append(((*path, "cwd"), f"no directory {cwd!r}; make it or leave cwd out"))
        elif why := outside("", cwd, str(base)).removeprefix(": "):
            problems.append(((*path, "cwd"), f"{why}; agents without a cwd work in the work directory of the run"))
    return agent.model_copy(update=changes)


def _program_problems(agent: AgentConfig, base: Path) -> Iterator[str]:
    program = agent.command[0]
    if "/" not in program:
        search = agent.env.get("PATH", os.environ.get("PATH"))
        if shutil.which(program, path=search) is None:
            yield f"no program {program!r} on PATH; {_how_to_install(agent)}"
    elif not Path(_absolute(program, base)).is_file():
        yield f"no program {_absolute(program, base)!r}; a relative path is relative to the plan"
    elif not os.access(_absolute(program, base), os.X_OK):
        yield f"{_absolute(program, base)!r} is not executable; chmod +x it or name its interpreter first"


def _how_to_install(agent: AgentConfig) -> str:
    install = known_agent(agent.known).install if agent.known is not None else None
    if install is None:
        return "install it or give its full path"
    return f"install it (`{install.command}`) or give its full path"


def _mapping_problems(agent: AgentConfig, base: Path) -> list[str]:
    assert agent.mapping is not None, "asked only of who has one"
    try:
        read_data(Path(_absolute(agent.mapping, base)), LineMapping)
    except BadData as error:
        return str(error).splitlines()
    return []


def _absolute(path: str, base: Path) -> str:
    return str(base / Path(path).expanduser())
