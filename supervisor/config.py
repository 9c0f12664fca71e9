"""What a person may write: agents, tasks, bounds. These models stand at the edge; inside go the values they make.

A plan is checked whole before anything starts, and every problem is told with its field and what would be right.
The bounds mirror the structs of the vocabulary, which keep the defaults. Only ``load_plan`` reads a file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from supervisor.acceptance import ARGV, KINDS, TIMEOUT_S, AcceptanceTest
from supervisor.complaints import Problem, Problems, complaints
from supervisor.lifecycles.session import SessionLimits
from supervisor.plan_source import BadPlan, FieldPath, Source, read_source
from supervisor.ports import Retention
from supervisor.vocabulary import AbortPolicy, Ladder
from supervisor.within import outside

__all__ = [
    "AcceptanceConfig",
    "AgentConfig",
    "BadPlan",
    "LadderConfig",
    "LimitsConfig",
    "Plan",
    "PolicyConfig",
    "RecoveryConfig",
    "RetentionConfig",
    "Settings",
    "TaskConfig",
    "load_plan",
]


def _sound(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which no program can be given; remove it")
    if any("\ud800" <= one <= "\udfff" for one in text):
        raise ValueError("holds half of a surrogate pair, which is no text; write the whole character")
    return text


Text = Annotated[str, AfterValidator(_sound)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Milliseconds = Annotated[int, Strict(), Field(ge=0)]
Count = Annotated[int, Strict(), Field(ge=1)]
Flag = Annotated[bool, Strict()]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


# -------------------------------------------------------------------------------------------------------- bounds
_LADDER, _LIMITS = Ladder(), SessionLimits()


class LadderConfig(Model):
    """How long each rung of an abort may take."""

    request_s: Seconds = _LADDER.request_s
    cancel_s: Seconds = _LADDER.cancel_s
    terminate_s: Seconds = _LADDER.terminate_s
    kill_s: Seconds = _LADDER.kill_s

    def value(self) -> Ladder:
        return msgspec.convert(self.model_dump(), Ladder)


class PolicyConfig(Model):
    """Which levels an abort may cross."""

    tool_to_sibling: Flag = False
    sibling_to_session: Flag = False
    ladder: LadderConfig = LadderConfig()

    def value(self) -> AbortPolicy:
        return msgspec.convert(self.model_dump(), AbortPolicy)


class LimitsConfig(Model):
    """The bounds of each session."""

    max_consecutive_errors: Count = _LIMITS.max_consecutive_errors
    max_total_errors: Count = _LIMITS.max_total_errors
    backoff_base_ms: Milliseconds = _LIMITS.backoff_base_ms
    backoff_cap_ms: Milliseconds = _LIMITS.backoff_cap_ms
    grace_s: Seconds = _LIMITS.grace_s
    spawn_deadline_s: Seconds = _LIMITS.spawn_deadline_s
    turn_timeout_s: Seconds = _LIMITS.turn_timeout_s
    stable_after_s: Seconds = _LIMITS.stable_after_s
    restarts_max: Count = _LIMITS.restarts_max
    restarts_within_s: Seconds = _LIMITS.restarts_within_s
    waiting_max: Count = _LIMITS.waiting_max

    def value(self) -> SessionLimits:
        return msgspec.convert(self.model_dump(), SessionLimits)


_KEPT = Retention()


class RetentionConfig(Model):
    """What the journal keeps of what has ended, and how often the rest goes to the archive; null is no bound."""

    keep_s: Seconds | None = _KEPT.keep_s
    records_max: Count | None = _KEPT.records_max
    every_s: Annotated[float, Strict(), Field(ge=1, allow_inf_nan=False)] = 3600.0

    def value(self) -> Retention:
        return Retention(keep_s=self.keep_s, records_max=self.records_max)


class RecoveryConfig(Model):
    """What becomes of the work of a supervisor that died.

    ``sessions``: ``resume`` those whose conversation can be loaded again, or that have none to lose, and stop the rest;
    ``restart`` those too, each in a new conversation, its prompt asked again; or ``stop`` them all. ``orphans``: a task
    whose session is lost is ``open`` for another one, at most ``max_retries`` times, or has ``failed``, or is ``done``.
    """

    sessions: Literal["resume", "restart", "stop"] = "resume"
    orphans: Literal["open", "failed", "done"] = "open"


class Settings(Model):
    """How a supervisor runs: sessions at once, the time a drain may take, what holds for every session, and for how
    long the journal keeps it.

    With *workspace* ``worktree`` each root session works on a git branch of its own, and the work of a task is merged
    into *merge_into*: by default the branch that is checked out.
    """

    max_sessions: Count = 6
    drain_s: Seconds = 120.0
    policy: PolicyConfig = PolicyConfig()
    limits: LimitsConfig = LimitsConfig()
    workspace: Literal["directory", "worktree"] = "directory"
    merge_into: Text = ""
    retention: RetentionConfig = RetentionConfig()
    recovery: RecoveryConfig = RecoveryConfig()


# --------------------------------------------------------------------------------------------------------- plans
class AgentConfig(Model):
    """A way to have an agent: which adapter speaks to it, and which program it is.

    ``cwd`` is the session's directory unless it is given. The program gets *env*, the variables named in
    ``inherit_env``, and nothing else of ours.
    """

    adapter: Literal["command", "acp", "scripted"]
    command: tuple[Text, ...] = ()
    env: Mapping[Text, Text] = {}
    inherit_env: tuple[Text, ...] = ()
    cwd: Text | None = None
    permissions: Literal["allow", "deny"] = "allow"

    @model_validator(mode="after")
    def _command_fits_adapter(self) -> AgentConfig:
        if found := list(_agent_problems(self)):
            raise Problems(found)
        return self


class AcceptanceConfig(Model):
    """What must hold of a piece of work: one kind of test, and how long it may take."""

    file_exists: Text | None = None
    python_import: Text | None = None
    javascript_import: Text | None = None
    unit_tests: tuple[Text, ...] | None = None
    lint: tuple[Text, ...] | None = None
    command: tuple[Text, ...] | None = None
    timeout_s: Seconds = TIMEOUT_S

    @model_validator(mode="after")
    def _is_one_test(self) -> AcceptanceConfig:
        if found := list(_acceptance_problems(self)):
            raise Problems(found)
        return self

    def value(self) -> AcceptanceTest:
        kind, given = next(iter(_given(self).items()))
        return AcceptanceTest(kind=kind, words=(given,) if isinstance(given, str) else given, timeout_s=self.timeout_s)


def _given(test: AcceptanceConfig) -> dict[str, str | tuple[str, ...]]:
    """The kinds that *test* says, with what it says of them."""
    return {name: given for name in KINDS if (given := getattr(test, name)) is not None}


def _acceptance_problems(test: AcceptanceConfig) -> Iterator[Problem]:
    given = _given(test)
    if len(given) != 1:
        said = f"says {' and '.join(given)}" if given else "says nothing"
        yield (), f"{said}; give exactly one of {', '.join(KINDS)}"
    for name, words in given.items():
        if not words or not words[0]:
            yield (name,), f"is empty; give {'the argv, for example [pytest, -q]' if name in ARGV else 'a name'}"


class TaskConfig(Model):
    """A piece of work: one prompt for one agent, after the tasks it depends on; *acceptance* must hold of it."""

    id: Name
    agent: str
    prompt: Text = ""
    depends_on: tuple[str, ...] = ()
    acceptance: tuple[AcceptanceConfig, ...] = ()


class Plan(Settings):
    """Agents and tasks, with the settings at the top level."""

    agents: Mapping[Name, AgentConfig] = Field(min_length=1)
    tasks: tuple[TaskConfig, ...] = Field(min_length=1)

    @property
    def settings(self) -> Settings:
        return Settings(**{name: getattr(self, name) for name in Settings.model_fields})

    @model_validator(mode="after")
    def _hangs_together(self) -> Plan:
        if found := [*_task_problems(self)] or [*_cycle_problems(self)]:
            raise Problems(found)
        return self


def _agent_problems(agent: AgentConfig) -> Iterator[Problem]:
    if agent.adapter == "scripted" and agent.command:
        yield ("command",), "the scripted agent has none; remove it, or use adapter: command or adapter: acp"
    if agent.adapter != "scripted" and not (agent.command and agent.command[0]):
        yield ("command",), "missing; give the argv, for example [git, status]"
    for name in (*agent.env, *agent.inherit_env):
        if not name or "=" in name:
            field = "env" if name in agent.env else "inherit_env"
            yield (field,), f"{name!r} cannot be the name of a variable; it must not be empty or hold '='"


def _task_problems(plan: Plan) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for number, task in enumerate(plan.tasks):
        if task.id in first:
            yield ("tasks", number, "id"), f"{task.id!r} is the id of tasks[{first[task.id]}] too; give it another"
        first.setdefault(task.id, number)
        if task.agent not in plan.agents:
            known = closest(task.agent, plan.agents, "the agents are")
            yield ("tasks", number, "agent"), f"{task.agent!r} is not an agent of this plan; {known}"
    for number, task in enumerate(plan.tasks):
        for place, wanted in enumerate(task.depends_on):
            if wanted not in first:
                path: FieldPath = ("tasks", number, "depends_on", place)
                yield path, f"{wanted!r} is not a task of this plan; {closest(wanted, first, 'the tasks are')}"


def _cycle_problems(plan: Plan) -> Iterator[Problem]:
    cycle = _cycle({task.id: task.depends_on for task in plan.tasks})
    if cycle:
        number = next(n for n, task in enumerate(plan.tasks) if task.id == cycle[0])
        circle = " -> ".join([*cycle, cycle[0]])
        yield ("tasks", number, "depends_on"), f"goes round in a circle: {circle}; remove one of these dependencies"


def _cycle(needs: Mapping[str, tuple[str, ...]]) -> list[str]:
    """A circle of dependencies, beginning with the task that stands first; empty if there is none. Iterative."""
    done: set[str] = set()
    for start in needs:
        path: dict[str, None] = {}
        pending = [(start, False)]
        while pending:
            one, leaving = pending.pop()
            if leaving:
                done.add(path.popitem()[0])
            elif one in path:
                walked = list(path)
                return _from_the_first(walked[walked.index(one) :], list(needs))
            elif one not in done:
                path[one] = None
                pending += [(one, True), *((each, False) for each in reversed(needs[one]))]
    return []


def _from_the_first(cycle: list[str], order: list[str]) -> list[str]:
    places = {name: place for place, name in enumerate(order)}
    start = cycle.index(min(cycle, key=places.__getitem__))
    return cycle[start:] + cycle[:start]


def closest(word: str, known: Mapping[str, object], otherwise: str) -> str:
    """``did you mean 'build'?``, or the list of what there is."""
    near = get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(known) or 'none'}"


# ------------------------------------------------------------------------------------------------------- loading
def load_plan(path: Path) -> Plan:
    """Read and check a plan; a relative program or directory of it is relative to the plan's own directory.

    Raises:
        BadPlan: with one line for every problem.
    """
    source = read_source(path)
    if not isinstance(source.data, dict):
        raise source.bad([((), "a plan is a mapping with the keys agents and tasks")])
    try:
        plan = Plan.model_validate(source.data)
    except ValidationError as error:
        raise source.bad(complaints(error, source, model_at)) from None
    return _located(plan, source, path.resolve().parent)


def model_at(path: FieldPath) -> type[BaseModel] | None:
    """The model whose fields stand at *path*."""
    match path:
        case ():
            return Plan
        case ("agents", _):
            return AgentConfig
        case ("tasks", _):
            return TaskConfig
        case ("tasks", _, "acceptance", _):
            return AcceptanceConfig
        case ("policy",):
            return PolicyConfig
        case ("policy", "ladder"):
            return LadderConfig
        case ("limits",):
            return LimitsConfig
        case ("retention",):
            return RetentionConfig
        case ("recovery",):
            return RecoveryConfig
        case _:
            return None


def _located(plan: Plan, source: Source, base: Path) -> Plan:
    """The plan with its programs and directories found on this machine."""
    problems: list[Problem] = []
    agents = {name: _locate(agent, ("agents", name), base, problems) for name, agent in plan.agents.items()}
    if problems:
        raise source.bad(problems)
    return plan.model_copy(update={"agents": agents})


def _locate(agent: AgentConfig, path: FieldPath, base: Path, problems: list[Problem]) -> AgentConfig:
    changes: dict[str, object] = {}
    if agent.command:
        program = agent.command[0]
        changes["command"] = (_absolute(program, base) if "/" in program else program, *agent.command[1:])
        problems += [((*path, "command"), words) for words in _program_problems(agent, base)]
    if agent.cwd is not None:
        changes["cwd"] = cwd = _absolute(agent.cwd, base)
        if not Path(cwd).is_dir():
            problems.append(((*path, "cwd"), f"no directory {cwd!r}; make it or leave cwd out"))
        elif why := outside("", cwd, str(base)).removeprefix(": "):
            problems.append(((*path, "cwd"), f"{why}; --workdir is where agents without a cwd work"))
    return agent.model_copy(update=changes)


def _program_problems(agent: AgentConfig, base: Path) -> Iterator[str]:
    program = agent.command[0]
    if "/" not in program:
        search = agent.env.get("PATH", os.environ.get("PATH"))
        if shutil.which(program, path=search) is None:
            yield f"no program {program!r} on PATH; install it or give its full path"
    elif not Path(_absolute(program, base)).is_file():
        yield f"no program {_absolute(program, base)!r}; a relative path is relative to the plan"
    elif not os.access(_absolute(program, base), os.X_OK):
        yield f"{_absolute(program, base)!r} is not executable; chmod +x it or name its interpreter first"


def _absolute(path: str, base: Path) -> str:
    return str(base / Path(path).expanduser())
