"""Tests of the public API as a whole: names, reprs, types of arguments, and texts of errors."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
from pydantic import BaseModel

import supervisor
from supervisor import (
    AbortPolicy,
    AgentConfig,
    AgentTurn,
    Budget,
    Plan,
    PlanHandle,
    Session,
    Settings,
    StageBudgets,
    Supervisor,
    TaskConfig,
    load_plan,
    open_supervisor,
    run_plan,
)

pytestmark = pytest.mark.anyio

ROOT = Path(supervisor.__file__).parent
OURS = ("begin", "give_up")
"""Methods of a ``McpResource`` that the supervisor calls."""
OBJECTS = {name: getattr(supervisor, name) for name in supervisor.__all__}


async def echo(turn: AgentTurn) -> str:
    return turn.prompt


# ------------------------------------------------------------------------------------------------------- names
def test_the_names_are_listed_once_more_for_type_checkers() -> None:
    """`dir(supervisor)`, `__all__` and the imports for type checkers name the same things, and each name exists."""
    tree = ast.parse(Path(supervisor.__file__).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imported = [alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted([*imported, "__version__"]) == sorted(supervisor.__all__) == dir(supervisor)


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions and methods of the API, without the methods that pydantic and others have added."""
    for name, found in OBJECTS.items():
        if inspect.isfunction(found):
            yield name, found
        elif found is supervisor.BudgetScope:
            continue  # a host only passes it on
        elif inspect.isclass(found) and found.__module__.startswith("supervisor.") and not issubclass(found, BaseModel):
            for own, value in vars(found).items():
                method = value.fget if isinstance(value, property) else value
                if (
                    inspect.isfunction(method)
                    and own not in OURS
                    and not own.startswith("_")
                    and method.__module__ == found.__module__
                ):
                    yield f"{name}.{own}", method


def test_every_error_of_the_api_is_exported() -> None:
    """Each exception that a Raises section of the API names can be imported from `supervisor`, or is Python's own."""
    named = {
        (name, error)
        for name, function in functions()
        for section in re.findall(r"Raises:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(function) or "", re.DOTALL)
        for line in re.findall(r"^    (\w[\w, ]*):", section, re.MULTILINE)
        for error in line.split(", ")
    }
    assert {error for _, error in named} > {"Refused", "BadPlan", "TypeError", "NoSuchEntity"}
    assert {one for one in named if one[1] not in OBJECTS and not hasattr(builtins, one[1])} == set()


def test_every_type_in_a_signature_is_exported() -> None:
    """A host can annotate what it passes to the API, and what it gets, with names from `supervisor`."""
    known = {
        *OBJECTS,
        "SupervisorCore",
        "AbstractAsyncContextManager",
        "AbstractContextManager",
        "Iterator",
        "AsyncGenerator",
        "Collection",
        "AsyncIterator",
        "Awaitable",
    }
    known |= {
        "Any",
        "Callable",
        "Choose",
        "Journal",
        "Mapping",
        "NoReturn",
        "None",
        "Path",
        "Sequence",
        "T",
        "Generator",
    }
    used = {
        (name, word)
        for name, function in functions()
        for annotation in inspect.get_annotations(function).values()
        for word in re.findall(r"[A-Z]\w*", str(annotation))
    }
    assert {one for one in used if one[1] not in known} == set()


def models(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in the type *kind*, and in the fields of these models."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        if kind is not TaskConfig:
            kinds = [field.annotation for field in kind.model_fields.values()]
        else:  # which has subtasks
            kinds = [field.annotation for name, field in kind.model_fields.items() if name != "subtasks"]
    else:
        kinds = list(get_args(kind))
    for one in kinds:
        yield from models(one)


def test_every_model_of_a_plan_is_exported() -> None:
    """Each model of a field of a plan, at any depth, can be imported from `supervisor`."""
    found = {one.__name__ for one in models(Plan)}
    assert {"Settings", "AcceptanceConfig", "RightsConfig", "StallConfig"} - found == {"Settings"}
    assert sorted(found - OBJECTS.keys()) == []


def test_a_session_is_aborted_with_what_the_supervisor_takes() -> None:
    """`Session.abort` has the arguments of `Supervisor.abort`, with the same defaults, but for the target."""
    ours, theirs = (dict(inspect.signature(one.abort).parameters) for one in (Session, Supervisor))
    del theirs["target"], ours["scope"], theirs["scope"]
    assert ours == theirs


# --------------------------------------------------------------------------------------------------- arguments
def test_values_of_the_runtime_become_settings() -> None:
    """A policy, stages and a budget may be given as the runtime's values; a list may be given for a tuple."""
    policy = AbortPolicy(tool_to_sibling=True, ladder=StageBudgets(kill_s=3.0))
    settings = Settings(policy=policy, session_budget=Budget(cost_usd=2.0))
    assert settings.abort_policy == policy
    assert settings.monitor_settings.session == Budget(cost_usd=2.0)
    assert AgentConfig(adapter="command", command=["git", "status"]).command == ("git", "status")


async def test_functions_are_agents_of_a_plan() -> None:
    """A plan whose agent is an async function runs; a session may be started with the agent by name, too."""
    tasks = [TaskConfig(id="a", agent="w", prompt="x"), TaskConfig(id="b", agent="w", prompt="y", depends_on=["a"])]
    plan = Plan(agents={"w": echo}, tasks=tasks)
    async with open_supervisor(agents=plan.agents, settings=plan.settings) as sup:
        assert (await run_plan(sup, plan)).ok
        assert (await (await sup.start_session("s", agent="w")).run("hello")).text == "hello"


Wrong = Callable[[Supervisor, Session, PlanHandle], Awaitable[object] | object]
WRONG: dict[str, Wrong] = {
    "plan: 'p.yaml' is of type str; give a Plan or a file by load_plan(path)": lambda sup, s, run: run_plan(
        sup,
        "p.yaml",  # type: ignore[arg-type]
    ),
    "path: 5 is of type int; give a str or a Path": lambda sup, s, run: load_plan(5),  # type: ignore[arg-type]
    "task: None is of type NoneType; give a str": lambda sup, s, run: run.approve(None),  # type: ignore[arg-type]
    "on: 'b' is of type str; give a list of str": lambda sup, s, run: run.block("a", "b"),
    "subtasks[0]: 'b' is of type str; give a TaskConfig": lambda sup, s, run: run.split("a", ["b"]),  # type: ignore[list-item]
    "command: 'ls -l' is of type str; give a list of str": lambda sup, s, run: sup.start_mcp_server("s", "m", "ls -l"),
    "allow: 'yes' is of type str; give a bool": lambda sup, s, run: sup.answer("p", allow="yes"),  # type: ignore[arg-type]
    "now: 1 is of type int; give a bool": lambda sup, s, run: s.abort(now=1),  # type: ignore[arg-type]
    "within_s: '5' is of type str; give an int or a float": lambda sup, s, run: s.abort(within_s="5"),  # type: ignore[arg-type]
    "parent: 5 is of type int; give a str": lambda sup, s, run: sup.start_session("x", parent=5),  # type: ignore[arg-type]
    "after_seq: '5' is of type str; give an int": lambda sup, s, run: sup.subscribe("5"),  # type: ignore[arg-type]
}


async def test_a_wrong_type_is_named_with_its_value_and_the_right_type() -> None:
    """An argument of a wrong type raises a TypeError with its name, its value, and the type to give; nothing ends."""
    plan = Plan(agents={"w": echo}, tasks=[TaskConfig(id="a", agent="w", approval="before")])
    async with open_supervisor(agents=plan.agents) as sup:
        session, run = await sup.start_session("s", agent="w"), run_plan(sup, plan)
        for message, wrong in WRONG.items():
            with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
                made = wrong(sup, session, run)
                assert inspect.isawaitable(made), message
                await made
        assert (await session.run("on")).text == "on"
        await run.approve("a")
        assert (await run).ok


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"agents": {"w": 5}}, "agents['w']: 5 is of type int; give an AgentConfig or an async function"),
        ({"agents": {"w": anyio.sleep_forever}}, "agents['w']: sleep_forever cannot be called with one argument"),
        ({"settings": {}}, "settings: {} is of type dict; give a Settings"),
        ({"plugins": "tidy"}, "plugins: 'tidy' is of type str; give a list of object"),
        ({"journal": 3}, "journal: 3 is of type int; give a Journal"),
        ({"on_permission": True}, "on_permission: True is of type bool; give a function"),
    ],
)
async def test_a_supervisor_with_a_wrong_argument_does_not_start(arguments: dict[str, Any], message: str) -> None:
    """`open_supervisor` with an argument of a wrong type raises a TypeError that says what to give."""
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        async with open_supervisor(**arguments):
            pass


async def test_a_stall_profile_is_given_by_name() -> None:
    """`start_session` takes the name of a stall profile as a string; another name is refused with those allowed."""
    async with open_supervisor(agents={"w": echo}) as sup:
        assert (await (await sup.start_session("s", agent="w", patience="large")).run("on")).text == "on"
        with pytest.raises(ValueError, match=r"^patience: 'nope' is unknown; expected default, large or tests$"):
            await sup.start_session("t", agent="w", patience="nope")


def test_a_missing_plan_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is read from a str or a Path; a missing file is one error with the path and the fix."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(supervisor.BadPlan, match=r"^p\.yaml: no such file; give the path of a plan"):
        load_plan("p.yaml")


# ------------------------------------------------------------------------------------------------------- texts
async def test_what_a_host_prints_says_what_it_is() -> None:
    """The repr of a supervisor, a session, a turn and a plan's handle names the object and its state."""
    turns: list[str] = []

    async def agent(turn: AgentTurn) -> None:
        turns.append(repr(turn))

    async with open_supervisor(agents={"w": echo}) as sup:
        session = await sup.start_session("s", agent=agent)
        assert repr(sup) == "<Supervisor in memory, running, sessions: 1>"
        await session.run("")
        assert (repr(session), turns) == ("<Session 's', SessionComplete>", ["<AgentTurn 's:t1'>"])
        await session.close()
        assert repr(session) == "<Session 's', ended>"
        handle = run_plan(sup, Plan(agents={"w": echo}, tasks=[TaskConfig(id="a", agent="w")]))
        assert repr(handle) == "<PlanHandle 'plan', running>"
        await handle


async def test_an_aborted_call_has_the_reason() -> None:
    """`ToolAborted` in an agent function has the title of the call, and the reason that was given with the abort."""
    said: list[str] = []

    async def agent(turn: AgentTurn) -> str:
        try:
            await turn.call("wait", anyio.sleep_forever)
        except supervisor.ToolAborted as aborted:
            said.append(str(aborted))
        return ""

    async with open_supervisor() as sup, anyio.create_task_group() as group, sup.subscribe() as records:
        session = await sup.start_session("s", agent=agent)
        group.start_soon(session.run, "")
        while (await anext(records)).event != "tool_started":
            pass
        await sup.abort("s:t1:c1", "tool", reason="too slow")
        await session.close()
    assert said == ["the call 'wait' was aborted: too slow"]


COMMAND_LINE = ("cli", "mock_model", "simulation", "agent_catalogue", "__main__.py")
"""Parts of the package that speak to a terminal."""
OF_THE_TERMINAL = {
    "supervisor/control/error_messages.py",
    "supervisor/control/http/page_access.py",
    "supervisor/daemon/daemon.py",
    "supervisor/host/notifications.py",
    "supervisor/journal/reader.py",
    "supervisor/journal/statedir.py",
}
"""Modules with errors that only the command line raises (a directory that is read without a supervisor); notices,
the log of the daemon, and the page, which give a person the command to type."""


def test_texts_for_a_host_name_no_command() -> None:
    """No text of the packages that a host uses names a command of the terminal: an error says what is wrong, and the
    command line adds the command that helps."""
    told = re.compile(r"""(?<!")"(?!")[^"\n]*(`supervisor |use --|--state-dir)[^"\n]*" """.strip())
    sources = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] not in COMMAND_LINE]
    found = {str(path.relative_to(ROOT.parent)) for path in sources if told.search(path.read_text(encoding="utf-8"))}
    assert found == OF_THE_TERMINAL
