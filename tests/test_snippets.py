"""Tests of the examples in the documentation: programs print what their page says, plans are plans, commands exist."""

from __future__ import annotations

import ast
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import click
import pytest
import yaml

from supervisor import AgentTurn, Plan, TaskConfig, open_supervisor
from supervisor.cli.commands import supervisor as command_line
from supervisor.daemon.config import DaemonConfig
from supervisor.triggers.definitions import TriggersFile
from tests.snippets import Snippet, snippets
from tests.support import running_program

PRINTED = {
    ("tutorial/embedding", 0): ["run the unit tests: done", "ended with 0 survivors"],
    ("tutorial/embedding", 1): ["write completed", "check completed"],
    ("tutorial/embedding", 3): ["reason: 5 is of type int; give a str", "False failed", "nothing alive has the id 's'"],
    ("how-to/telemetry", 0): ["supervisor_journal_writable 1.0"],
    ("how-to/abort-from-python", 0): None,
    ("how-to/abort-from-python", 1): None,
}
"""Programs by page and number among the Python examples of the page, and what each prints; None: the lines of the next
block on the page, in any order."""


ELSEWHERE = {
    "README": "tests/test_readme.py",
    "how-to/embed": "tests/test_docs.py",
    "how-to/http": "tests/unit/control/http/test_http_docs.py",
    "how-to/event-stream": "tests/unit/control/http/test_http_docs.py",
    "how-to/mcp": "starts a server that is downloaded",
    "how-to/simulation-pytest": "a test, below",
    "how-to/stub-model": "needs Gemini CLI; examples/test_stub_model.py is the same with another agent",
}
"""Pages whose Python examples are tested elsewhere, or cannot run here."""
FRAGMENTS = [one for one in snippets("python") if not one.is_program and one.page not in ELSEWHERE]
FRAGMENTS += [one for one in snippets("python", "how-to/embed") if not one.is_program]


def named(one: Snippet) -> str:
    return f"{one.page}:{one.number}"


@pytest.mark.parametrize(("page", "number"), PRINTED)
def test_a_program_prints_what_its_page_says(
    page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program runs in an empty directory, and prints the lines that the page shows."""
    program, expected = snippets("python", page)[number], PRINTED[page, number]
    if expected is None:
        after = next(one for one in snippets("text", page) if one.number > program.number)
        expected = sorted(after.text.splitlines())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["example.py"])
    exec(compile(program.text, page, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    assert (sorted(printed) if PRINTED[page, number] is None else printed) == expected


def test_the_plan_of_the_tutorial_waits_for_the_second_terminal(tmp_path: Path) -> None:
    """The program that waits for a decision goes on when `supervisor approve` is typed beside it."""
    program = snippets("python", "tutorial/embedding")[2].text
    with running_program([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        typed = host.stdout.readline().removeprefix("now type: supervisor ").split()
        approved = subprocess.run([sys.executable, "-m", "supervisor", *typed], cwd=tmp_path, timeout=120, check=False)
        assert approved.returncode == 0
        rest = host.stdout.read().splitlines()
    assert rest == ["{'deploy': 'completed', 'announce': 'rejected'}", "rejected by me: nothing to announce"]


def test_the_daemon_ends_with_sigterm(tmp_path: Path) -> None:
    """The daemon works on a job, and ends in order with exit status 0 at SIGTERM."""
    program = snippets("python", "how-to/web-app")[2].text
    with running_program([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "job completed\n"
        daemon.send_signal(signal.SIGTERM)
        assert daemon.stdout.read() == "ended\n"
    assert daemon.returncode == 0


def test_the_web_app_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Starlette app runs a prompt in its lifespan's supervisor, and says that it is healthy."""
    pytest.importorskip("starlette")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(compile(snippets("python", "how-to/web-app")[0].text, "web-app", "exec"), namespace)
    app = namespace["app"]
    answers: list[dict[str, Any]] = []

    async def post(path: str, method: str, body: bytes, state: dict[str, Any]) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: dict[str, Any]) -> None:
            answers.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "state": state}
        await app(scope, receive, send)

    async def main() -> None:
        async with app.router.lifespan_context(app) as state:
            await post("/work", "POST", b"echo hello", dict(state))
            await post("/health", "GET", b"", dict(state))

    anyio.run(main)
    bodies = [one["body"] for one in answers if one["type"] == "http.response.body"]
    assert bodies == [
        b'{"session":"job","outcome":"completed","text":"hello\\n","error":""}',
        b'{"problem":null}',
    ]


async def echo(turn: AgentTurn) -> str:
    return turn.prompt


def test_every_program_is_tested() -> None:
    """Each Python example of a page is run by a test of this file, or the list of exceptions says why not."""
    counts = {page: len([one for one in snippets("python", page) if one.is_program]) for page in ELSEWHERE}
    tested = {page for page, _ in PRINTED} | {one.page for one in FRAGMENTS} | {"how-to/web-app", *counts}
    assert {one.page for one in snippets("python")} == tested
    assert len(snippets("python", "tutorial/embedding")) == 5  # the last fails on purpose: tests/test_docs.py


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=named)
@pytest.mark.anyio
async def test_a_fragment_runs(fragment: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is no program runs with a supervisor, a session, agents and a plan under their usual names."""
    monkeypatch.chdir(tmp_path)
    agents = {"coder": echo}
    plan = Plan(agents=agents, tasks=[TaskConfig(id="deploy", agent="coder", approval="before")])
    namespace: dict[str, Any] = {"agents": agents, "plan": plan}
    exec("from supervisor import *", namespace)
    code = compile(fragment.text, named(fragment), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with open_supervisor(agents=agents) as sup:
        namespace |= {"sup": sup, "session": await sup.start_session("lead", agent="coder")}
        namespace["open_supervisor"] = lambda *given, **named: nullcontext(
            sup
        )  # one with sessions and the plan's agents
        if (coroutine := eval(code, namespace)) is not None:
            await coroutine


def test_the_test_of_the_page_about_virtual_time_passes(simulated_supervisor: Callable[..., object]) -> None:
    """The test function on the page passes with the fixture that the page explains."""
    (example,) = snippets("python", "how-to/simulation-pytest")
    namespace: dict[str, Any] = {}
    exec(compile(example.text, example.page, "exec"), namespace)
    namespace["test_a_build_ends"](simulated_supervisor)


AGENTS = {name: {"adapter": "scripted"} for name in ("coder", "sh", "reviewer")}


@pytest.mark.parametrize("block", snippets("yaml"), ids=named)
def test_a_plan_is_a_plan(block: Snippet) -> None:
    """A plan on a page is valid; a part of a plan is valid together with agents, or with a task. A configuration of a
    daemon is valid, and so is a file of triggers."""
    given = yaml.safe_load(block.text)
    if given.keys() & {"http", "fleet"}:
        assert DaemonConfig.model_validate(given)
        return
    if "triggers" in given:
        assert TriggersFile.model_validate(given).triggers
        return
    agents = given.get("agents", AGENTS)
    task = {"id": "t", "prompt": "x", "agent": next(iter(agents))}
    if not given.keys() <= Plan.model_fields.keys():  # keys of a task
        given = {"tasks": [task | given]}
    tasks = [{"agent": task["agent"], **one} for one in given.get("tasks", [task])]
    assert Plan.model_validate({**given, "agents": agents, "tasks": tasks}).tasks


LINES = [
    (one.page, line.strip())
    for one in snippets("sh")
    for line in one.text.replace("\\\n", " ").splitlines()
    if line.strip().startswith("supervisor ")
]


@pytest.mark.parametrize(("page", "line"), LINES)
def test_a_command_exists(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line on a page is accepted by the command line's parser; nothing is carried out."""
    words = shlex.split(re.split(r"(?:^| )[|>&#]", line)[0])[1:]  # a comment begins at the beginning of a word
    command: click.Command = command_line
    context = click.Context(command, info_name="supervisor")
    monkeypatch.chdir(tmp_path)
    for name in ("plan.yaml", "mine.toml", "long.yaml"):
        Path(name).touch()
    while isinstance(command, click.Group) and words:
        found: Callable[..., Any] | None = command.get_command(context, words[0])
        assert isinstance(found, click.Command), f"{page}: no command {words[0]}"
        command, words = found, words[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    words = [word.replace("$EXAMPLES/workstream.yaml", "plan.yaml") for word in words]
    command.make_context(command.name, words, parent=context.parent)
