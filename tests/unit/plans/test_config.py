"""Plan files: what is valid, the error for every mistake, and limits that equal those of the runtime."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from pydantic import BaseModel, ValidationError

from supervisor.lifecycles.types import AbortPolicy, SessionLimits, StageBudgets
from supervisor.plans import (
    AgentConfig,
    BadPlan,
    LimitsConfig,
    Plan,
    PolicyConfig,
    Settings,
    StageBudgetsConfig,
    TaskConfig,
    load_plan,
)
from supervisor.plans.permissions import PermissionsConfig
from supervisor.plans.source import BYTES_MAX, NODES_MAX

AGENTS = "agents: {build: {adapter: scripted}}\n"


def loaded(folder: Path, text: str | bytes) -> Plan:
    path = folder / "plan.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_plan(path)


def refusal(folder: Path, text: str | bytes) -> str:
    """Return the error of an invalid plan, without the plan's directory."""
    with pytest.raises(BadPlan) as refused:
        loaded(folder, text)
    return str(refused.value).replace(f"{folder}/", "")


# -------------------------------------------------------------------------------------------------- what is right
def test_the_smallest_plan(tmp_path: Path) -> None:
    """A plan needs only an agent with a command and a task; everything else has a default."""
    plan = loaded(
        tmp_path,
        "agents: {a: {adapter: command, command: [sh, -c, 'exit 0']}}\n"
        'tasks: [{id: t, agent: a, prompt: "...", depends_on: []}]',
    )
    assert plan.agents["a"] == AgentConfig(adapter="command", command=("sh", "-c", "exit 0"))
    assert plan.tasks == (TaskConfig(id="t", agent="a", prompt="..."),)
    assert plan.settings == Settings()


def test_everything_can_be_said(tmp_path: Path) -> None:
    """Every key of a plan reaches its field, and the limits become the runtime's values."""
    plan = loaded(
        tmp_path,
        """
        max_sessions: 2
        drain_s: 0.5
        policy: {tool_to_sibling: true, ladder: {request_s: 1, kill_s: 0}}
        limits: {turn_timeout_s: 7, max_total_errors: 3}
        agents:
          s: &base {adapter: scripted, env: {A: b}, inherit_env: [HOME], permissions: deny}
          t: {<<: *base, permissions: allow}
        tasks:
          - {id: one, agent: s}
          - {id: two, agent: t, depends_on: [one]}
        """,
    )
    assert (plan.settings.max_sessions, plan.settings.drain_s) == (2, 0.5)
    assert plan.settings.abort_policy == AbortPolicy(tool_to_sibling=True, ladder=StageBudgets(request_s=1, kill_s=0))
    assert plan.settings.limits.value() == SessionLimits(turn_timeout_s=7, max_total_errors=3)
    assert plan.agents["t"] == plan.agents["s"].model_copy(update={"permissions": PermissionsConfig()})
    assert plan.tasks[1].depends_on == ("one",)


@pytest.mark.parametrize(
    ("model", "struct"),
    [(StageBudgetsConfig, StageBudgets), (PolicyConfig, AbortPolicy), (LimitsConfig, SessionLimits)],
)
def test_bounds_mirror_the_vocabulary(model: type[BaseModel], struct: type[msgspec.Struct]) -> None:
    """Every limit of the runtime can be set in a plan, and has the runtime's default."""
    assert set(model.model_fields) == {field.name for field in msgspec.structs.fields(struct)}
    assert model().value() == struct()  # type: ignore[attr-defined]


def test_relative_programs_are_relative_to_the_plan(tmp_path: Path) -> None:
    """A program with a slash, and a directory, are relative to the plan."""
    shutil.copy("/bin/sh", tmp_path / "agent")
    (tmp_path / "work").mkdir()
    plan = loaded(tmp_path, "agents: {a: {adapter: acp, command: [./agent, x], cwd: work}}\ntasks: [{id: t, agent: a}]")
    assert plan.agents["a"].command == (str(tmp_path / "agent"), "x")
    assert plan.agents["a"].cwd == str(tmp_path / "work")


def test_the_examples_are_plans() -> None:
    """Every plan below examples/ is valid."""
    examples = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
    assert len(examples) >= 2
    for path in examples:
        assert load_plan(path).tasks


def test_a_plan_in_python_is_checked_too() -> None:
    """A plan that is built in Python gets the same checks."""
    agent = AgentConfig(adapter="scripted")
    with pytest.raises(ValidationError, match="'b' is not an agent of this plan"):
        Plan(agents={"a": agent}, tasks=(TaskConfig(id="t", agent="b"),))


# -------------------------------------------------------------------------------------------------- what is wrong
REFUSED: dict[str, tuple[str | bytes, str]] = {
    "not YAML": ("agents: {a: b\ntasks: [", "plan.yaml:2:6: not YAML: "),
    "a tab": ("\tagents: 1", "plan.yaml:1:1: not YAML: while scanning for the next token, found character"),
    "two documents": ("a: 1\n---\nb: 2", "plan.yaml:2:1: not YAML: expected a single document"),
    "a control character": ('a: "\x01"', "plan.yaml:1: not YAML: special characters are not allowed (#x01)"),
    "a Python object": ("a: !!python/object:os.system x", "plan.yaml:1:4: not YAML: could not determine"),
    "no date": ("a: 2024-13-45", "plan.yaml: a value looks like a number or a date, but is not valid"),
    "not UTF-8": (b"a: 1\nb: \xff", "plan.yaml:2: not UTF-8 (byte 0xff at position 8); save the plan as UTF-8"),
    "empty": ("# nothing\n", "plan.yaml: is empty; a plan needs agents and tasks"),
    "a list": ("\n- a", "plan.yaml:2: a plan is a mapping with the keys agents and tasks"),
    "a key twice": (
        AGENTS + "tasks: []\ntasks: []",
        "plan.yaml:3: tasks: is a duplicate key (first in line 2); remove one",
    ),
    "a key twice below": (
        "agents:\n  a: {adapter: scripted}\n  a: {adapter: scripted}",
        "plan.yaml:3: a: is a duplicate key (first in line 2); remove one",
    ),
    "a key that is a truth value": (
        "agents:\n  on: {adapter: scripted}",
        "plan.yaml:2: the key on is read as bool; quote it to make it text",
    ),
    "a key that is a list": ("? [a]\n: b", "plan.yaml:1: a key must be text, not a list or a mapping"),
    "endless by alias": ("a: &a [*a]", f"plan.yaml: has more than {NODES_MAX} values, its aliases resolved"),
    "too deep": (
        "[" * 50_000,
        "plan.yaml: nested too deeply; a plan has six levels",
    ),
    "too large": ("# " + "x" * BYTES_MAX, f"plan.yaml: is larger than {BYTES_MAX} bytes"),
    "no tasks": (AGENTS, "plan.yaml:1: tasks: missing; give a list of tasks, for example"),
    "no task": (AGENTS + "tasks: []", "plan.yaml:2: tasks: is empty; give a list of tasks"),
    "no agent": ("agents: {}\ntasks: []", "plan.yaml:1: agents: is empty; give a mapping of names to agents"),
    "tasks as a mapping": (AGENTS + "tasks: {id: t}", "plan.yaml:2: tasks: {'id': 't'} is a mapping; give a list"),
    "agents as a list": ("agents: [a]\ntasks: []", "plan.yaml:1: agents: ['a'] is a list; give a mapping"),
    "a task as text": (AGENTS + "tasks: [build]", "plan.yaml:2: tasks[0]: 'build' is text; give a task"),
    "an unknown key": (
        AGENTS + "tasks:\n - id: t\n   agent: build\n   promt: hello",
        "plan.yaml:5: tasks[0].promt: unknown key; did you mean 'prompt'?",
    ),
    "an unknown key at the top": (
        AGENTS + "wibble: 1\ntasks: [{id: t, agent: build}]",
        "plan.yaml:2: wibble: unknown key; the keys here are agents, tasks, max_sessions, max_sessions_total, drain_s",
    ),
    "an unknown key of a ladder": (
        AGENTS + "policy:\n  ladder:\n    kil_s: 1\ntasks: [{id: t, agent: build}]",
        "plan.yaml:4: policy.ladder.kil_s: unknown key; did you mean 'kill_s'?",
    ),
    "an unknown key of permissions": (
        "agents: {build: {adapter: scripted, permissions: {defalt: ask}}}\ntasks: [{id: t, agent: build}]",
        "plan.yaml:1: agents.build.permissions.defalt: unknown key; did you mean 'default'?",
    ),
    "an unknown agent": (
        AGENTS + "tasks:\n - {id: s, agent: build}\n - {id: t, agent: bild}",
        "plan.yaml:4: tasks[1].agent: 'bild' is not an agent of this plan; did you mean 'build'?",
    ),
    "a dependency on nothing": (
        AGENTS + "tasks:\n - {id: s, agent: build, depends_on: [z]}",
        "plan.yaml:3: tasks[0].depends_on[0]: 'z' is not a task of this plan; the tasks are s",
    ),
    "an id twice": (
        AGENTS + "tasks:\n - {id: s, agent: build}\n - {id: s, agent: build}",
        "plan.yaml:4: tasks[1].id: 's' is the id of tasks[0] too; give it another",
    ),
    "a circle": (
        AGENTS
        + "tasks:\n - {id: z, agent: build, depends_on: [a]}\n - {id: a, agent: build, depends_on: [b]}\n"
        + " - {id: b, agent: build, depends_on: [a]}",
        "plan.yaml:4: tasks[1].depends_on: is part of a cycle: a -> b -> a; remove one of these dependencies",
    ),
    "a task that waits for itself": (
        AGENTS + "tasks: [{id: a, agent: build, depends_on: [a]}]",
        "plan.yaml:2: tasks[0].depends_on: is part of a cycle: a -> a",
    ),
    "a negative time": (
        AGENTS + "tasks: [{id: t, agent: build}]\nlimits:\n  grace_s: -1",
        "plan.yaml:4: limits.grace_s: -1 is negative; give seconds >= 0",
    ),
    "a negative drain": (
        AGENTS + "tasks: [{id: t, agent: build}]\ndrain_s: -0.5",
        "plan.yaml:3: drain_s: -0.5 is negative; give seconds >= 0",
    ),
    "an endless time": (
        AGENTS + "tasks: [{id: t, agent: build}]\ndrain_s: .inf",
        "plan.yaml:3: drain_s: inf is not a length of time; give seconds >= 0",
    ),
    "a time as text": (
        AGENTS + "tasks: [{id: t, agent: build}]\ndrain_s: '3'",
        "plan.yaml:3: drain_s: '3' is text; give seconds >= 0, for example 2.5",
    ),
    "a negative backoff": (
        AGENTS + "tasks: [{id: t, agent: build}]\nlimits: {backoff_base_ms: -1}",
        "plan.yaml:3: limits.backoff_base_ms: -1 is negative; give milliseconds >= 0",
    ),
    "no session at all": (
        AGENTS + "tasks: [{id: t, agent: build}]\nmax_sessions: 0",
        "plan.yaml:3: max_sessions: 0 is too small; give 1 or more",
    ),
    "a truth value as a count": (
        AGENTS + "tasks: [{id: t, agent: build}]\nmax_sessions: true",
        "plan.yaml:3: max_sessions: True is a truth value; give a whole number, for example 3",
    ),
    "a half session": (
        AGENTS + "tasks: [{id: t, agent: build}]\nmax_sessions: 1.5",
        "plan.yaml:3: max_sessions: 1.5 is a number; give a whole number, for example 3",
    ),
    "text as a truth value": (
        AGENTS + "tasks: [{id: t, agent: build}]\npolicy: {tool_to_sibling: perhaps}",
        "plan.yaml:3: policy.tool_to_sibling: 'perhaps' is text; give true or false",
    ),
    "an unknown adapter": (
        "agents: {a: {adapter: comand}}\ntasks: [{id: t, agent: a}]",
        "plan.yaml:1: agents.a.adapter: 'comand' is not one of command, acp, claude, codex, jsonl, scripted; did you "
        "mean 'command'?",
    ),
    "no command": (
        "agents:\n  a:\n    adapter: command\ntasks: [{id: t, agent: a}]",
        "plan.yaml:2: agents.a.command: missing; give the argv, for example [git, status]",
    ),
    "an empty command": (
        "agents: {a: {adapter: acp, command: []}}\ntasks: [{id: t, agent: a}]",
        "plan.yaml:1: agents.a.command: missing; give the argv, for example [git, status]",
    ),
    "a command in one text": (
        "agents: {a: {adapter: command, command: git status}}\ntasks: [{id: t, agent: a}]",
        "plan.yaml:1: agents.a.command: 'git status' is text; give the argv as a list, for example [git, status]",
    ),
    "a number in a command": (
        "agents: {a: {adapter: command, command: [sleep, 60]}}\ntasks: [{id: t, agent: a}]",
        "plan.yaml:1: agents.a.command[1]: 60 is read as a number; quote it to make it text: '60'",
    ),
    "a command for the scripted agent": (
        "agents: {a: {adapter: scripted, command: [sh]}}\ntasks: [{id: t, agent: a}]",
        "plan.yaml:1: agents.a.command: the scripted agent takes none; remove it",
    ),
    "a program that is not there": (
        "agents:\n  a:\n    adapter: command\n    command: [no-such-program-here]\ntasks: [{id: t, agent: a}]",
        "plan.yaml:4: agents.a.command: no program 'no-such-program-here' on PATH; install it or give its full path",
    ),
    "a program that is not beside the plan": (
        "agents: {a: {adapter: command, command: [./agent]}}\ntasks: [{id: t, agent: a}]",
        "plan.yaml:1: agents.a.command: no program 'agent'; a relative path is relative to the plan",
    ),
    "a directory that is not there": (
        "agents: {a: {adapter: scripted, cwd: nowhere}}\ntasks: [{id: t, agent: a}]",
        "plan.yaml:1: agents.a.cwd: no directory 'nowhere'; make it or leave cwd out",
    ),
    "a variable without a name": (
        "agents: {a: {adapter: scripted, env: {'A=B': c}}}\ntasks: [{id: t, agent: a}]",
        "plan.yaml:1: agents.a.env: 'A=B' cannot be the name of a variable",
    ),
    "a name with a slash": (
        AGENTS + "tasks: [{id: a/b, agent: build}]",
        "plan.yaml:2: tasks[0].id: 'a/b' cannot be a name: it must begin with a letter or a digit",
    ),
    "a name with the mark behind a run": (
        AGENTS + "tasks: [{id: 'a#b', agent: build}]",
        "plan.yaml:2: tasks[0].id: 'a#b' cannot be a name: it must begin with a letter or a digit",
    ),
    "a name like that of a run": (
        AGENTS + "tasks: [{id: r12, agent: build}]",
        "plan.yaml:2: tasks[0].id: 'r12' has the form of the id of a run, which commands would take it for; rename",
    ),
    "an agent's name with a space": (
        "agents:\n  a b: {adapter: scripted}\ntasks: [{id: t, agent: a b}]",
        "plan.yaml:2: agents.a b: 'a b' cannot be a name",
    ),
    "a prompt without text": (
        AGENTS + "tasks: [{id: t, agent: build, prompt: }]",
        "plan.yaml:2: tasks[0].prompt: has no value; give text, or '' for none",
    ),
    "a prompt with a NUL": (
        AGENTS + 'tasks: [{id: t, agent: build, prompt: "a\\0b"}]',
        "plan.yaml:2: tasks[0].prompt: contains a NUL character",
    ),
    "a prompt with half a character": (
        AGENTS + 'tasks: [{id: t, agent: build, prompt: "\\ud800"}]',
        "plan.yaml:2: tasks[0].prompt: contains half of a surrogate pair",
    ),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_a_mistake_is_named_with_its_place_and_its_remedy(tmp_path: Path, text: str | bytes, expected: str) -> None:
    """Every mistake is one message with file, line, field and fix."""
    assert refusal(tmp_path, text).startswith(expected)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """A plan with several mistakes reports all of them, in the order of the file."""
    told = refusal(
        tmp_path, "drain_s: -1\nagents:\n  a: {adapter: nix}\n  b: {adapter: acp}\ntasks: [{id: t, agent: a, x: 1}]"
    )
    assert [line.split(": ")[1] for line in told.splitlines()] == [
        "drain_s",
        "agents.a.adapter",
        "agents.b.command",
        "tasks[0].x",
    ]


def test_aliases_do_not_multiply_without_bound(tmp_path: Path) -> None:
    """A small file whose aliases stand for millions of values is rejected."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert refusal(tmp_path, "\n".join(levels)).startswith(f"plan.yaml: has more than {NODES_MAX} values")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A missing file is an error with the path, and with the name of a similar file beside it."""
    with pytest.raises(BadPlan, match=r"nix\.yaml: no such file; give the path of a plan"):
        load_plan(tmp_path / "nix.yaml")
    (tmp_path / "plan.yaml").touch()
    with pytest.raises(BadPlan, match=r"pan\.yaml: no such file; did you mean '.*/plan\.yaml'\?"):
        load_plan(tmp_path / "pan.yaml")


def test_a_directory_is_no_plan(tmp_path: Path) -> None:
    """A directory is an error that names the likely file in it."""
    with pytest.raises(BadPlan, match=r"is a directory; give the path of a plan, for example .*/plan\.yaml"):
        load_plan(tmp_path)


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable file is an error with the system's reason (simulated, because root may read everything)."""

    def refused(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    (tmp_path / "plan.yaml").touch(mode=0)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(BadPlan, match="cannot be read: Permission denied"):
        load_plan(tmp_path / "plan.yaml")


def test_a_program_that_may_not_be_run_is_named(tmp_path: Path) -> None:
    """A program that is not executable is an error."""
    (tmp_path / "agent").touch(mode=0o600)
    told = refusal(tmp_path, "agents: {a: {adapter: acp, command: [./agent]}}\ntasks: [{id: t, agent: a}]")
    assert told == "plan.yaml:1: agents.a.command: 'agent' is not executable; chmod +x it or name its interpreter first"


def test_a_long_chain_of_dependencies_is_no_circle(tmp_path: Path) -> None:
    """Thousands of tasks in a chain are checked without recursion."""
    tasks = [" - {id: t0, agent: build}"]
    tasks += [f" - {{id: t{n}, agent: build, depends_on: [t{n - 1}]}}" for n in range(1, 3000)]
    assert len(loaded(tmp_path, AGENTS + "tasks:\n" + "\n".join(reversed(tasks))).tasks) == 3000
