"""Command line: bad input, commands that read the journal, and commands that send requests to a running supervisor.

A real supervisor with in-process agents runs in another thread behind its real control socket.
"""

from __future__ import annotations

import inspect
import io
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import apsw
import click
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pydantic import BaseModel

from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute
from supervisor.cli.live_view import JsonView, Reporter, RunView
from supervisor.embedding.journals import open_reader, read_state
from supervisor.embedding.runtime import open_supervisor
from supervisor.host.api import Supervisor
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.journal.tables import VERSION
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.types import ModelProblem
from supervisor.plans import (
    AcceptanceConfig,
    AccessConfig,
    AgentConfig,
    CompletionConfig,
    ConditionConfig,
    Plan,
    ReviewConfig,
    TaskConfig,
    WorkerConfig,
    load_plan,
)
from supervisor.plans.agents import McpServerConfig
from supervisor.plans.permissions import PermissionRuleConfig
from supervisor.ports import EntityRow, JournalError
from supervisor.sessions.inprocess import AgentTurn, ToolAborted
from supervisor.work.results import PlanResult
from tests.support import CommandOutput, run_command, running_program, stdout_of
from tests.unit.journal.test_journal_growth import kept_journal

Cli = Callable[..., CommandOutput]

GOOD = "agents: {a: {adapter: scripted}}\ntasks: [{id: t, agent: a}]\n"


@pytest.fixture
def cli() -> Iterator[Cli]:
    """Fixture: the function that runs a command line in this process; the settings of the supervisor's logger are
    restored afterwards."""

    logger = logging.getLogger("supervisor")
    before = logger.handlers, logger.level, logger.propagate
    yield run_command
    logger.handlers, logger.level, logger.propagate = before


# ------------------------------------------------------------------------------------------ a running supervisor
class Running:
    """Container of a supervisor that runs in another thread: its session ``lead`` has an open tool call and the ended
    child session ``lead/docs``."""

    def __init__(self, sup: Supervisor, state_dir: Path) -> None:
        self.sup, self.state_dir = sup, state_dir


async def _worker(turn: AgentTurn) -> None:
    turn.say("hello \x1b[31mred\x1b[0m\n")
    if turn.prompt == "work":
        try:
            await turn.call("a long one", anyio.sleep_forever)
        except ToolAborted:
            turn.say("went on\n")


@asynccontextmanager
async def _running(state_dir: Path) -> AsyncIterator[Running]:
    async with anyio.create_task_group() as group:
        async with open_supervisor(state_dir) as sup:
            lead = await sup.start_session("lead", agent=_worker)
            docs = await lead.start_child("docs")
            await docs.run("say hello")
            await docs.close()
            async with sup.subscribe() as events:
                group.start_soon(lead.run, "work")
                async for event in events:
                    if event.event == "tool_started":
                        break
                await events.aclose()  # type: ignore[attr-defined]
            yield Running(sup, state_dir)
            await sup.stop(now=True)


@contextmanager
def _in_a_thread(state_dir: Path) -> Iterator[Running]:
    portal: BlockingPortal
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_running(state_dir)) as running:
        yield running


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with _in_a_thread(tmp_path / "state") as one:
        yield one


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fixture: the state directory of a supervisor that has ended."""
    state_dir = tmp_path_factory.mktemp("ended") / "state"
    with _in_a_thread(state_dir):
        pass
    return state_dir


# ----------------------------------------------------------------------------------------------------- bad input
BAD_PLANS = {
    "not YAML": ("agents: [", "plan.yaml:1:10: not YAML"),
    "unknown key": (GOOD + "frobs: 1", "plan.yaml:3: frobs: unknown key"),
    "unknown agent": (GOOD.replace("agent: a", "agent: b"), "plan.yaml:2: tasks[0].agent: 'b' is not an agent"),
    "dependency on nothing": (GOOD.replace("agent: a", "agent: a, depends_on: [u]"), "'u' is not a task of this plan"),
    "cycle": (GOOD.replace("agent: a", "agent: a, depends_on: [t]"), "is part of a cycle: t -> t"),
    "negative time": (GOOD + "limits: {grace_s: -1}", "limits.grace_s: -1 is negative; give seconds >= 0"),
    "missing command": (GOOD.replace("scripted", "command"), "agents.a.command: missing; give the argv"),
    "missing program": (GOOD.replace("scripted", "acp, command: [no-such-program]"), "no program 'no-such-program'"),
}


@pytest.mark.parametrize(("text", "words"), BAD_PLANS.values(), ids=BAD_PLANS.keys())
def test_a_bad_plan_starts_and_writes_nothing(tmp_path: Path, cli: Cli, text: str, words: str) -> None:
    """A run of an invalid plan prints one error message and exits with status 2; nothing is written, not even a state
    directory."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(text)
    output = cli("run", plan, "--state-dir", tmp_path / "state")
    assert output.status == 2
    assert len(output.err.splitlines()) == 1
    assert output.err.startswith(f"supervisor: {plan}:")
    assert words in output.err
    assert list(tmp_path.iterdir()) == [plan]


def test_an_error_is_json_too(tmp_path: Path, cli: Cli) -> None:
    """With --json the error is also printed as an object on standard output."""
    output = cli("run", tmp_path / "nix.yaml", "--state-dir", tmp_path / "state", "--json")
    assert output.json["error"]["kind"] == "bad"
    assert f"supervisor: {output.json['error']['message']}\n" == output.err
    assert "no such file" in output.err


def test_a_state_directory_that_cannot_be_is_refused(tmp_path: Path, cli: Cli) -> None:
    """A state directory that cannot be created, since a file is in its place, is bad input (status 2), and the file
    stays."""
    plan, file = tmp_path / "plan.yaml", tmp_path / "file"
    plan.write_text(GOOD)
    file.write_text("mine")
    output = cli("run", plan, "--state-dir", file / "state")
    assert (output.status, file.read_text()) == (2, "mine")
    assert "cannot be a state directory" in output.err
    assert "Traceback" not in output.err


def test_a_second_supervisor_is_refused(tmp_path: Path, cli: Cli, running: Running) -> None:
    """A second supervisor on a state directory is refused with the process id of the first, which runs on."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(GOOD)
    output = cli("run", plan, "--state-dir", running.state_dir)
    assert output.status == 2
    assert f"another supervisor (pid {os.getpid()}) already runs on" in output.err
    assert running.sup.core.registry.state_of("lead") == "Running"


READING = (["ps"], ["tree"], ["events"], ["why", "lead"], ["journal", "check"], ["journal", "export"])


@pytest.mark.parametrize(
    ("command", "version"),
    [(one, version) for one in (["run", "plan.yaml"], *READING) for version in (VERSION - 1, VERSION + 1)],
)
def test_a_journal_of_another_version_is_refused(tmp_path: Path, cli: Cli, command: list[str], version: int) -> None:
    """Every command exits with status 2 on a journal of another schema version, and does not change one byte of the
    journal."""
    state = StateDir(tmp_path / "state")
    with _in_a_thread(state.root):
        pass
    with closing(apsw.Connection(str(state.journal))) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version,))
    (tmp_path / "plan.yaml").write_text(GOOD)
    before = state.journal.read_bytes()
    plan = [str(tmp_path / one) if one == "plan.yaml" else one for one in command]
    output = cli(*plan, "--state-dir", state.root)
    assert output.status == 2
    assert f"has schema {version}" in output.err + output.out
    assert state.journal.read_bytes() == before


def test_a_run_goes_on_in_the_journal_of_an_earlier_one(tmp_path: Path, cli: Cli) -> None:
    """A second run in a state directory continues the record numbers, adds a number to a session name that was used
    before, and ends the entities that the first run left open."""
    state = StateDir.open(tmp_path / "state")
    shutil.move(kept_journal(tmp_path), state.journal)
    (tmp_path / "plan.yaml").write_text(GOOD.replace("id: t,", "id: works,"))
    output = cli("run", tmp_path / "plan.yaml", "--state-dir", state.root, "--json")
    assert output.status == 0, output.err
    assert (output.lines[0], output.lines[1]["seq"]) == ({"run": "r1"}, 111)
    assert output.lines[-1]["tasks"][0]["session_id"] == "works-2"
    assert cli("validate", state.root).status == 0


@pytest.mark.parametrize(
    "command",
    [
        ["ps"],
        ["tree"],
        ["events"],
        ["events", "--follow"],
        ["why", "lead"],
        ["logs", "lead"],
        ["abort", "lead", "--scope", "session"],
        ["send", "lead", "hello"],
        ["stop"],
    ],
    ids=" ".join,
)
def test_where_nothing_ever_ran_nothing_can_be_asked(tmp_path: Path, cli: Cli, command: list[str]) -> None:
    """Without a state directory every command that needs one exits with status 2, and creates none."""
    output = cli(*command, "--state-dir", tmp_path / "state")
    assert (output.status, output.out) == (2, "")
    assert "supervisor run" in output.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dance"], "No such command 'dance'"),
        (["ps", "--wibble"], "No such option '--wibble'"),
        (["abort", "lead"], "Missing option '--scope'. Choose from: tool, sibling, session; see `supervisor abort"),
        (["abort", "lead", "--scope", "world"], "'world' is not one of 'tool', 'sibling', 'session'"),
        (["why"], "Missing argument 'ID'"),
        (["send", "lead", "x", "--urgent", "--at", "noon"], "'noon' is not one of 'now', 'tool_boundary', 'turn_end'"),
        (["send", "lead", "x", "--at", "turn_end"], "--at turn_end: only an urgent message is delivered before"),
        (["events", "--after", "-1"], "-1 is not in the range 0<=x<="),
        (["run", "plan.yaml", "--backend", "curio"], "'curio' is not one of 'asyncio', 'trio'"),
        (["run", "plan.yaml", "--workdir", "/no/such/place"], "--workdir: no directory '/no/such/place'"),
        (["machines", "toaster"], "machine 'toaster' is unknown; use one of: task"),
        (["validate", "nix.jsonl"], "nix.jsonl: cannot be read: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_that_cannot_be_understood(cli: Cli, arguments: list[str], words: str) -> None:
    """A mistake in the command line is one message that says how to correct it, and exit status 2."""
    output = cli(*arguments)
    assert (output.status, output.out) == (2, "")
    assert output.err.startswith("supervisor: ")
    assert len(output.err.splitlines()) == 1
    assert words in output.err


@pytest.mark.parametrize("command", [["run", "plan.yaml"], ["ps"], ["tree"], ["events"], ["logs", "x"], ["stop"]])
def test_a_state_directory_needs_a_name(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """An empty --state-dir or SUPERVISOR_STATE_DIR is refused; the option takes precedence over the variable."""
    monkeypatch.chdir(tmp_path)
    given = cli(*command, "--state-dir", "")
    monkeypatch.setenv("SUPERVISOR_STATE_DIR", "")
    from_variable = cli(*command)
    assert (given.status, from_variable.status) == (2, 2)
    assert "it is empty; name a directory" in given.err
    assert given.err == from_variable.err
    assert "it is empty" not in cli(*command, "--state-dir", "named").err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [["run"], ["ps"], ["events", "--follow"], ["abort", "x", "--scope", "tool"], ["send", "x", "y"], ["stop"]],
)
def test_a_state_directory_with_an_impossible_name(tmp_path: Path, cli: Cli, command: list[str]) -> None:
    """A state directory whose name is too long for a file system is refused by every command with one message and exit
    status 2."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(GOOD)
    output = cli(*command, *([plan] if command == ["run"] else []), "--state-dir", tmp_path / ("x" * 300))
    assert (output.status, output.out, len(output.err.splitlines())) == (2, "", 1)
    assert "cannot be a state directory: File name too long" in output.err
    assert list(tmp_path.iterdir()) == [plan]


@pytest.mark.parametrize("command", [["ps"], ["tree"], ["events"], ["stop"], ["abort", "lead", "--scope", "session"]])
def test_the_state_directory_of_another_user(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """A state directory that the user may not read is refused with one message, which names the directory and the fix,
    and exit status 2."""
    state = StateDir.open(tmp_path / "state")

    def refused(*arguments: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("supervisor.journal.statedir.os.stat", refused)
    monkeypatch.setattr("supervisor.control.client.anyio.connect_unix", refused)
    output = cli(*command, "--state-dir", state.root)
    monkeypatch.undo()
    assert (output.status, output.out) == (2, "")
    assert output.err == (
        f"supervisor: {state.root} may not be read by this user: run the command as its owner, or give another"
        " --state-dir\n"
    )


def test_no_command_is_a_plain_help(cli: Cli) -> None:
    """``supervisor`` without a command prints the help on standard error, and exits with status 2."""
    output = cli()
    assert (output.status, output.out) == (2, "")
    assert output.err == cli("--help").out


def test_a_bug_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected exception in a command is printed as one line, without a traceback, and the exit status is 1."""

    @click.group()
    def broken() -> None:
        raise ExceptionGroup("several", [KeyError("x"), ValueError("y")])

    broken.add_command(click.Command("run"))
    status = execute(broken, ["run"])
    output = capsys.readouterr()
    assert (status, len(output.err.splitlines())) == (1, 1)
    assert output.err.startswith("supervisor: this is a bug of the supervisor, please report it: KeyError: 'x'")


@pytest.mark.parametrize("command", [["events", "caf\udce9"], ["inspect", "caf\udce9"], ["send", "s", "caf\udce9"]])
def test_an_argument_that_is_not_utf_8_is_bad_input(
    tmp_path: Path, cli: Cli, running: Running, command: list[str]
) -> None:
    """An id or a message on the command line that is not UTF-8 is refused as bad input, before anything is sent."""
    output = cli(*command, "--state-dir", running.state_dir)
    assert (output.status, output.err) == (2, r"supervisor: 'caf\udce9' is not UTF-8; give it as UTF-8 text" "\n")


def test_a_command_that_leaves_by_itself_keeps_its_status() -> None:
    """A SystemExit that a command raises keeps its exit status, except after a closed pipe."""

    @click.group()
    def leaves() -> None:
        raise SystemExit(3)

    leaves.add_command(click.Command("run"))
    with pytest.raises(SystemExit, match=r"^3$"):
        execute(leaves, ["run"])


# ------------------------------------------------------------------------------------------------ what needs none
def test_help_and_version(cli: Cli) -> None:
    """``--help`` lists all commands with unshortened descriptions, and ``--version`` prints the version."""
    output = cli("--help")
    names = ["run", "demo", "machines", "ps", "tree", "events", "abort", "send", "stop", "why", "logs", "validate"]
    assert [name for name in names if f"\n  {name} " not in output.out] == []
    assert "..." not in output.out.partition("Commands:")[2]
    assert cli("--version").out.startswith("supervisor ")


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group, and of the groups in it, each with its full name."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = command.make_context(name, [], parent=context, resilient_parsing=True)
        yield inner.command_path, inner.command
        if isinstance(inner.command, click.Group):
            yield from _commands(inner.command, inner)


def test_the_help_of_every_command_ends_with_an_example() -> None:
    """The help of every command has an example, and the options of the example exist."""
    top = supervisor.make_context("supervisor", ["machines"])
    commands = dict(_commands(supervisor, top))
    assert len(commands) > 35
    for path, command in commands.items():
        lines = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]
        assert lines, path
        for line in lines:
            words = shlex.split(line, comments=True)
            named = [name for count in (3, 2) if (name := " ".join(words[:count])) in commands]
            assert named or not line.startswith("supervisor"), line
            known = {
                option
                for name in named[:1]
                for one in commands[name].params
                for option in (*one.opts, *one.secondary_opts)
            }
            assert not named or {word for word in words if word.startswith("--")} <= known, line


def test_the_help_of_a_command_begins_with_its_line_in_the_list() -> None:
    """The help of every command begins with the line that the list of commands shows, and contains that line
    only once."""
    with click.Context(supervisor) as context:
        for name, command in supervisor.commands.items():
            listed = command.get_short_help_str(limit=100)
            found = command.make_context(name, ["--help"], parent=context, resilient_parsing=True)
            text = inspect.cleandoc(found.command.help or "").splitlines()
            assert (name, text[0], text.count(text[0])) == (name, listed, 1)


def test_machines(cli: Cli) -> None:
    """``machines`` prints all state machines from their tables; --json is short for --format json."""
    output = cli("machines", "--json")
    assert [len(one["states"]) for one in output.json.values()] == [12, 4, 10, 8, 11, 8, 7, 5, 3]
    assert cli("machines", "agent", "--format", "json").json == {"agent": output.json["agent"]}
    assert "stateDiagram" in cli("machines", "agent", "--format", "mermaid").out


SLOW = {"trio", "pydantic", "rich", "structlog", "yaml", "mcp", "supervisor.plans", "supervisor.work"}
"""Modules that are slow to import, and that no command of a second terminal needs."""
READS = SLOW | {"asyncio", "anyio"}
"""Modules that no command needs that only reads the journal."""


@pytest.mark.parametrize(
    ("command", "slow"),
    [
        ("--help", READS | {"apsw"}),
        ("machines", READS | {"apsw"}),
        *((command, READS) for command in ("tree", "logs lead", "events lead", "wait lead")),
        ("abort lead --scope session", SLOW - {"pydantic"}),  # the models of requests
    ],
)
def test_it_starts_without_the_runtime(ended: Path, command: str, slow: set[str]) -> None:
    """A command imports neither the runtime nor other modules that are slow to import: the models of plans, trio,
    logging, MCP; a command that only reads the journal imports no event loop either."""
    code = (
        "import sys; from supervisor.__main__ import main\n"
        f"sys.argv = ['supervisor', *{command.split()!r}]\n"
        "try: main()\n"
        f"finally: print(sorted({slow} & set(sys.modules)), file=sys.stderr)"
    )
    env = {**os.environ, "SUPERVISOR_STATE_DIR": str(ended)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode in (0, 1), done.stderr.splitlines()[-1]) == (True, "[]")


def test_validate(tmp_path: Path, cli: Cli, ended: Path) -> None:
    """``validate`` accepts the log of a run (status 0); for a log with a damaged line it exits with status 1 and names
    the line."""
    log = StateDir(ended).transitions
    assert cli("validate", log).status == 0
    lines = log.read_text().splitlines(keepends=True)
    broken = tmp_path / "broken.jsonl"
    broken.write_text("".join([*lines[:2], "nonsense\n", *lines[3:]]))
    output = cli("validate", broken)
    assert output.status == 1
    assert output.out.startswith(f"{broken}:3: not JSON")
    output = cli("validate", broken, "--json")
    assert (output.status, output.json["valid"], output.json["report"]["problems"][0]["line"]) == (1, False, 3)


def test_a_pipe_is_validated_from_its_first_byte(cli: Cli, ended: Path) -> None:
    """``validate`` reads a log from a pipe completely, from the first byte."""
    log = StateDir(ended).transitions
    with running_program(["cat", log], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        output = cli("validate", f"/dev/fd/{cat.stdout.fileno()}", "--json")
    assert (output.status, output.json["report"]["lines"]) == (0, len(log.read_text().splitlines()))


# ------------------------------------------------------------------------------------------------------- reading
def test_a_journal_is_checked_compacted_and_exported(tmp_path: Path, cli: Cli, running: Running) -> None:
    """The commands ``journal check``, ``compact`` and ``export`` work on a running supervisor; compact does not remove
    living or recently ended entities."""
    where = ("--state-dir", running.state_dir)
    output = cli("journal", "check", "--json", *where)
    assert (output.status, output.json["sound"], len(output.json["files"])) == (0, True, 1)
    output = cli("journal", "compact", "--keep-s", 0, *where)
    assert (output.status, output.out.partition(":")[0]) == (0, "nothing to move")
    lines = cli("journal", "export", *where).lines
    assert {"seq", "from_state", "to_state", "entity_id"} <= set(lines[0])
    out = tmp_path / "out.jsonl"
    assert cli("journal", "export", "--out", out, "--json", *where).json["lines"] >= len(lines)
    assert cli("journal", "export", "--out", out, *where).status == 2
    assert cli("validate", out).status == 0


def test_a_damaged_journal_is_exit_status_1(tmp_path: Path, cli: Cli, ended: Path) -> None:
    """``journal check`` reports a damaged record with its number and exit status 1; invalid options of ``compact``, or
    a missing journal, are bad input (status 2)."""
    copy = tmp_path / "copy"
    shutil.copytree(ended, copy, ignore=shutil.ignore_patterns("control.sock"))
    with closing(apsw.Connection(str(copy / "runtime" / "journal.db"))) as db:
        db.execute("UPDATE events SET reason = 'no' WHERE seq = 2")
    output = cli("journal", "check", copy)
    assert (output.status, "record 2 is not what was written" in output.out) == (1, True)
    for given in ("nan", "inf", "-1"):
        assert cli("journal", "compact", "--keep-s", given, "--state-dir", copy).status == 2
    assert cli("journal", "compact", "--records-max", 0, "--state-dir", copy).status == 2
    (copy / "runtime" / "journal.db").unlink()
    output = cli("journal", "compact", "--state-dir", copy)
    assert (output.status, "no journal at" in output.err) == (2, True)
    assert not (copy / "runtime" / "journal.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("events",),
        ("events", "lead"),
        ("why", "lead"),
        ("validate",),
        ("replay",),
        ("journal", "export"),
    ],
    ids=" ".join,
)
def test_every_command_tells_damage_alike(tmp_path: Path, cli: Cli, ended: Path, command: tuple[str, ...]) -> None:
    """Every command that reads records reports a damaged journal with the same message and exit status 1, not as bad
    input."""
    copy = tmp_path / "copy"
    shutil.copytree(ended, copy, ignore=shutil.ignore_patterns("control.sock"))
    with closing(apsw.Connection(str(copy / "runtime" / "journal.db"))) as db:
        db.execute("UPDATE events SET reason = CAST(x'ff' AS TEXT)")
    where = ("--state-dir", copy) if command[0] in ("events", "why") else (copy,)
    output = cli(*command, *where)
    assert output.status == 1
    assert "journal.db is damaged" in output.err


def test_ps_and_tree_of_a_running_supervisor(cli: Cli, running: Running) -> None:
    """For a running supervisor ``ps`` and ``tree`` show sessions with their agents, turns and open calls."""
    seen = {one["id"]: one for one in cli("ps", "--json", "--state-dir", running.state_dir).json}
    assert list(seen) == ["lead", "lead/docs", "lead:t1", "lead:a1"]
    assert (seen["lead:t1"]["state"], seen["lead:a1"]["visual"]) == ("TOOL_USE", "RUNNING")
    assert 0 <= seen["lead"]["silent_s"] <= seen["lead"]["age_s"]
    assert seen["lead/docs"]["silent_s"] is None  # it has ended
    assert "LAST SIGN" in cli("ps", "--state-dir", running.state_dir).out.splitlines()[0]
    lines = cli("tree", "--state-dir", running.state_dir).out
    assert re.search(r"^lead  session Running  \(last sign [\d.]+ s ago\)$", lines, re.MULTILINE)
    output = cli("tree", "--state-dir", running.state_dir)
    assert '│  └─ lead:t1:c1 "a long one"' in output.out.splitlines()
    (lead,) = cli("tree", "--json", "--state-dir", running.state_dir).json
    assert [one["id"] for one in lead["children"]] == ["lead/docs", "lead:t1", "lead:a1"]


def test_ps_and_tree_of_one_that_has_ended(cli: Cli, ended: Path) -> None:
    """For a supervisor that has ended, ``ps`` and ``tree`` show the sessions, and with --all also turns and agents."""
    seen = {one["id"]: one for one in cli("ps", "--json", "--state-dir", ended).json}
    assert {name: one["state"] for name, one in seen.items()} == {"lead": "Stopped", "lead/docs": "Stopped"}
    every = [one["id"] for one in cli("ps", "--all", "--json", "--state-dir", ended).json]
    assert {"lead:t1", "lead:a1", "lead/docs:t1"} <= set(every)
    assert "lead/docs:t1" in cli("tree", "--all", "--state-dir", ended).out
    assert "lead/docs:t1" not in cli("tree", "--state-dir", ended).out


def test_events(cli: Cli, ended: Path) -> None:
    """``events`` prints the records in order: all of them, those of one entity, or those after a number."""
    every = cli("events", "--json", "--state-dir", ended).lines
    assert [one["seq"] for one in every] == list(range(1, len(every) + 1))
    of_docs = cli("events", "lead/docs", "--json", "--state-dir", ended).lines
    assert of_docs == [one for one in every if one["entity_id"] == "lead/docs"]
    assert cli("events", "--after", len(every) - 1, "--json", "--state-dir", ended).lines == every[-1:]
    assert len(cli("events", "--state-dir", ended).out.splitlines()) == len(every)


def test_events_of_a_tool_call(cli: Cli, ended: Path) -> None:
    """``events`` of a tool call prints the records of its turn that are about the call, with the call's title; an
    unknown call is bad input."""
    output = cli("events", "lead:t1:c1", "--json", "--state-dir", ended).lines
    assert [one["event"] for one in output[:1]] == ["tool_started"]
    assert {one["entity_id"] for one in output} == {"lead:t1"}
    assert len(output) < len(cli("events", "lead:t1", "--state-dir", ended).out.splitlines())
    lines = cli("events", "lead:t1:c1", "--state-dir", ended).out.splitlines()
    assert ['c1 "a long one"' in line for line in lines] == [True] * len(output)
    after = cli("events", "lead:t1:c1", "--after", output[0]["seq"], "--state-dir", ended).out.splitlines()
    assert after == lines[1:]
    assert cli("events", "lead:t1:c1", "--follow", "--json", "--state-dir", ended).lines == output
    unknown = cli("events", "lead:t1:c9", "--state-dir", ended)
    assert (unknown.status, unknown.out) == (2, "")
    assert "nothing has the id 'lead:t1:c9'" in unknown.err


def test_following_a_supervisor_that_has_ended_ends(cli: Cli, ended: Path) -> None:
    """``events --follow`` returns at once, after the past records, if the supervisor has ended."""
    followed = cli("events", "--follow", "--json", "--state-dir", ended)
    assert (followed.status, followed.out) == (0, cli("events", "--json", "--state-dir", ended).out)


def test_why(cli: Cli, running: Running) -> None:
    """``why`` of an aborted call says in a sentence who aborted it and why; ``-v`` and ``--json`` have the chain of
    causes from the record of the abort to the result of the call."""
    cli("abort", "lead:t1:c1", "--scope", "tool", "--reason", "too slow", "--state-dir", running.state_dir)
    output = cli("why", "lead:t1:c1", "--json", "--state-dir", running.state_dir).json
    assert [(one["role"], one["record"]["event"]) for one in output["steps"]] == [
        ("root", "AbortRecord"),
        ("end", "tool_completed"),
    ]
    assert (output["roots"], output["root"]["reason"], output["missing"]) == (1, "too slow", None)
    (sentence,) = cli("why", "lead:t1:c1", "--state-dir", running.state_dir).out.splitlines()
    assert sentence == output["sentence"]
    happened = r"tool call lead:t1:c1 was aborted at [\d:]{8}"
    assert re.fullmatch(rf"{happened}: operator:\w+ aborted tool call lead:t1:c1 at [\d:]{{8}}: too slow\.", sentence)
    head, *records = cli("why", "lead:t1:c1", "-v", "--state-dir", running.state_dir).out.splitlines()
    assert head == sentence
    assert records[0].startswith("why lead:t1:c1: 1 root, AbortRecord by operator")
    assert "too slow" in records[1]


@pytest.mark.parametrize(
    "command",
    [
        ["why", "nobody"],
        ["events", "nobody"],
        ["logs", "nobody"],
        ["why", "lead:t1:c01"],
        ["events", "lead:t1:c01"],
        ["why", f"lead:t1:c{'1' * 5000}"],
        ["events", f"lead:t1:c{'1' * 5000}"],
    ],
    ids=lambda command: " ".join(command)[:20],
)
def test_an_unknown_id_is_bad_input(cli: Cli, ended: Path, command: list[str]) -> None:
    """An unknown id is refused with exit status 2 and a hint where the ids are shown; so is the id of a call in another
    spelling."""
    output = cli(*command, "--state-dir", ended)
    assert (output.status, output.out) == (2, "")
    assert output.err.startswith(f"supervisor: nothing has the id {command[1]!r}; ")
    assert output.err.endswith("`supervisor ps --all` shows the ids\n")


def test_logs(cli: Cli, ended: Path) -> None:
    """``logs`` prints the transcript of a session, also given the id of one of its turns; control characters are
    escaped."""
    output = cli("logs", "lead/docs", "--state-dir", ended)
    texts = [line.split(" ", 1)[1] for line in output.out.splitlines()]
    assert texts == ["prompt| say hello", r"message| hello \u001b[31mred\u001b[0m"]
    assert cli("logs", "lead/docs:t1", "--state-dir", ended).out == output.out
    lines = cli("logs", "lead/docs", "--json", "--state-dir", ended).lines
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", lines[1].pop("timestamp"))
    assert lines[1] == {"session": "lead/docs", "source": "message", "text": "hello \x1b[31mred\x1b[0m"}


def test_logs_keep_tabs_and_the_notes_of_the_transcript(tmp_path: Path, cli: Cli) -> None:
    """``logs`` prints a tab unchanged; a line that the transcript itself has added has neither time nor source
    in JSON."""
    with _in_a_thread(tmp_path / "state"):
        pass
    transcript = StateDir(tmp_path / "state").transcript("lead")
    transcript.write_text("10:00:00.000 message| a\tb\x07\n-- 5 bytes dropped --\n")
    output = cli("logs", "lead", "--state-dir", tmp_path / "state")
    assert output.out.splitlines() == ["10:00:00.000 message| a\tb\\u0007", "-- 5 bytes dropped --"]
    record, note = cli("logs", "lead", "--json", "--state-dir", tmp_path / "state").lines
    assert record == {"session": "lead", "timestamp": "10:00:00.000", "source": "message", "text": "a\tb\x07"}
    assert note == {"session": "lead", "timestamp": None, "source": None, "text": "-- 5 bytes dropped --"}


def test_following_logs_goes_on_to_the_end_of_the_session(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """``logs --follow`` prints new output until the session ends."""
    waits = iter([lambda: _abort_tool(running), lambda: _close(running)])
    monkeypatch.setattr("supervisor.cli.logs.pause", lambda: next(waits)())
    output = stdout_of("logs", "lead", "--follow", "--state-dir", running.state_dir)
    assert [line.partition("| ")[2] for line in output.splitlines()] == [
        "work",
        r"hello \u001b[31mred\u001b[0m",
        "went on",
    ]


def test_following_logs_reads_all_entities_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """``logs --follow`` reads all entities of the journal at its start, and afterwards only new records and the entity
    that it follows, since a large plan has thousands of entities."""
    reads: list[bool] = []
    entities = JournalReader.entities

    def counted(reader: JournalReader, *, ids: Sequence[str] | None = None, **options: Any) -> list[EntityRow]:
        reads.append(ids is None)
        return entities(reader, ids=ids, **options)

    steps = iter([reads.clear, *[lambda: None] * 5, lambda: _abort_tool(running), lambda: _close(running)])
    monkeypatch.setattr("supervisor.cli.logs.pause", lambda: next(steps)())
    monkeypatch.setattr(JournalReader, "entities", counted)
    stdout_of("logs", "lead", "--follow", "--state-dir", running.state_dir)
    assert reads.count(False) > 5
    assert reads.count(True) == 0


def _abort_tool(running: Running) -> None:
    stdout_of("abort", "lead:t1:c1", "--scope", "tool", "--state-dir", running.state_dir)


def _close(running: Running) -> None:
    stdout_of("abort", "lead", "--scope", "session", "--state-dir", running.state_dir)


# ---------------------------------------------------------------------------------------------------- commanding
def test_a_dry_run_says_what_would_end(cli: Cli, running: Running) -> None:
    """``abort --dry-run`` prints the nodes that would end, and ends none."""
    output = cli("abort", "lead", "--scope", "session", "--dry-run", "--json", "--state-dir", running.state_dir)
    assert [one["id"] for one in output.json["nodes"]] == ["lead"]
    assert running.sup.core.registry.state_of("lead") == "Running"


def test_a_tool_abort_spares_its_session(cli: Cli, running: Running) -> None:
    """An abort of a call prints a receipt that names the call, and the session lives on; a second abort finds the call
    ended. Both exit with status 0."""
    abort = ["abort", "lead:t1:c1", "--scope", "tool", "--json", "--state-dir", running.state_dir]
    first, second = cli(*abort), cli(*abort)
    assert (first.status, [one["id"] for one in first.json["nodes"]]) == (0, ["lead:t1:c1"])
    assert (second.status, second.json["already_ended"]) == (0, True)
    assert running.sup.core.registry.state_of("lead") in ("Running", "SessionComplete")


@pytest.mark.parametrize("target", ["lead/docs", "lead/docs:t1"])
def test_what_has_ended_is_no_error_while_the_supervisor_runs(cli: Cli, running: Running, target: str) -> None:
    """An abort of an ended session or turn says "already ended" and exits with status 0."""
    output = cli("abort", target, "--scope", "session", "--state-dir", running.state_dir)
    assert (output.status, output.err) == (0, "")
    assert "already ended" in output.out


@pytest.mark.parametrize("target", ["lead", "lead/docs", "lead:t1", "lead:t1:c1"])
@pytest.mark.parametrize("flag", ["--dry-run", "--json"])
def test_what_has_ended_is_no_error_after_the_supervisor(cli: Cli, ended: Path, target: str, flag: str) -> None:
    """After the supervisor has ended, an abort of one of its sessions, turns or calls says "already ended" and exits
    with status 0."""
    output = cli("abort", target, "--scope", "session", flag, "--state-dir", ended)
    assert (output.status, output.err) == (0, "")
    assert ('"already_ended": true' if flag == "--json" else "already ended") in output.out


@pytest.mark.parametrize("target", ["nobody", "lead/nobody"])
def test_aborting_the_unknown_is_bad_input(cli: Cli, running: Running, target: str) -> None:
    """An abort of an unknown id exits with status 2 and names the id."""
    output = cli("abort", target, "--scope", "session", "--state-dir", running.state_dir)
    assert (output.status, output.out) == (2, "")
    assert target in output.err


@pytest.mark.parametrize("target", ["nobody", "lead/nobody", "lead:t1:c9", "lead:t7:c1", ":", ""])
def test_aborting_the_unknown_is_bad_input_after_the_supervisor(cli: Cli, ended: Path, target: str) -> None:
    """After the supervisor has ended, an abort of an unknown id exits with status 2, too."""
    output = cli("abort", target, "--scope", "session", "--state-dir", ended)
    assert (output.status, output.out) == (2, "")
    assert f"nothing has the id {target!r}" in output.err


def test_sending(cli: Cli, running: Running) -> None:
    """``send`` prints the id of the message; a message to an unknown or ended session is bad input."""
    output = cli("send", "lead", "look here", "--json", "--state-dir", running.state_dir)
    assert (output.status, output.json["message_id"][0]) == (0, "m")
    urgent = cli("send", "lead", "look now", "--urgent", "--state-dir", running.state_dir)
    assert (urgent.status, urgent.out.endswith("for lead\n")) == (0, True)
    later = cli("send", "lead", "look", "--urgent", "--at", "turn_end", "--state-dir", running.state_dir)
    assert (later.status, later.out.endswith("for lead\n")) == (0, True)
    for session in ("nobody", "lead/docs"):
        output = cli("send", session, "hello", "--state-dir", running.state_dir)
        assert (output.status, output.out) == (2, "")
        assert session in output.err


def test_stopping(cli: Cli, running: Running) -> None:
    """``stop`` returns at once with the kind of the stop, drain or, with ``--now``, abort of everything."""
    assert cli("stop", "--json", "--state-dir", running.state_dir).json == {"stopping": "drain", "outage": None}
    assert running.sup.stopping.is_set()
    assert not running.sup.core.stop_now.is_set()
    assert "being aborted" in cli("stop", "--now", "--state-dir", running.state_dir).out
    assert running.sup.core.stop_now.is_set()


def test_a_second_stop_says_that_it_ends_everything(cli: Cli, running: Running) -> None:
    """A second ``stop`` during a drain aborts everything, and says so."""
    cli("stop", "--state-dir", running.state_dir)
    output = cli("stop", "--state-dir", running.state_dir)
    assert (output.status, output.out) == (0, "everything is being aborted\n")


def test_stop_where_nothing_runs_has_nothing_to_do(cli: Cli, ended: Path) -> None:
    """``stop`` without a running supervisor says that there is nothing to stop, and has succeeded."""
    words = f"no supervisor runs on {ended}: there is nothing to stop\n"
    assert cli("stop", "--wait", "--state-dir", ended) == (0, words, "")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["abort", "lead:a1", "--scope", "session"],
            "lead:a1 is the agent of a session: `supervisor abort lead --",
        ),
        (
            ["abort", "lead:t1", "--scope", "tool"],
            "lead:t1 is the turn of a session: `supervisor abort lead --",
        ),
        (
            ["send", "lead:t1", "hello"],
            "lead:t1 is the turn of a session: `supervisor send lead TEXT`",
        ),
        (["send", "lead/docs", "hello"], "session lead/docs has ended (completed); `supervisor tree` shows what lives"),
        (["send", "leat", "hello"], "nothing has the id 'leat'; did you mean lead"),
        (["inspect", "lead/docs"], "lead/docs does not live any more: `supervisor why lead/docs` explains its end"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_an_id_of_another_kind_is_explained(cli: Cli, running: Running, command: list[str], words: str) -> None:
    """``abort`` and ``send`` with an id that they cannot take say what has the id, and what to type instead."""
    output = cli(*command, "--state-dir", running.state_dir)
    assert (output.status, output.out) == (2, "")
    assert output.err.startswith(f"supervisor: {words}")


def test_nobody_there_is_said(cli: Cli, ended: Path) -> None:
    """A command that needs a running supervisor is refused without one, with a hint how to start a supervisor."""
    output = cli("send", "lead", "hello", "--json", "--state-dir", ended)
    assert (output.status, output.json["error"]["kind"]) == (2, "not_running")
    assert output.err == f"supervisor: no supervisor runs on {ended}: start one with `supervisor run PLAN.yaml`\n"


def test_following_events_ends_with_the_supervisor(cli: Cli, tmp_path: Path) -> None:
    """``events --follow`` prints all records, past and new, and ends after the last record of the supervisor."""
    output: list[CommandOutput] = []
    state_dir = tmp_path / "state"
    with _in_a_thread(state_dir) as running:
        follower = threading.Thread(
            target=lambda: output.append(cli("events", "--follow", "--json", "--state-dir", state_dir))
        )
        follower.start()
        while not len(running.sup.core.subscriptions):
            os.sched_yield()
        running.state_dir.stat()
    follower.join(30)
    assert [one["seq"] for one in output[0].lines] == list(range(1, len(output[0].lines) + 1))
    assert output[0].lines[-1]["event"] == "Ended"


# --------------------------------------------------------------------------------------- what is told of the dead
@pytest.fixture
def killed(tmp_path: Path, ended: Path) -> Path:
    """Fixture: the state directory of a killed supervisor, whose session has the state of a living one in the
    journal."""
    state = StateDir.open(tmp_path / "killed")
    shutil.copy(StateDir(ended).journal, state.journal)
    with closing(apsw.Connection(str(state.journal))) as db:
        db.execute("UPDATE entities SET ended = 0, state = 'Running', changed_at = 0 WHERE id = 'lead'")
        db.execute("UPDATE entities SET changed_at = 0")
    return state.root


@pytest.mark.parametrize("command", ["ps", "tree"])
def test_what_a_killed_supervisor_left_is_said_to_be_dead(cli: Cli, killed: Path, command: str) -> None:
    """For a killed supervisor ``ps`` and ``tree`` print the last known states with a warning that no supervisor runs,
    with ``--json``, too."""
    output = cli(command, "--state-dir", killed)
    assert (output.status, "Running" in output.out) == (0, True)
    assert re.fullmatch(
        f"supervisor: no supervisor runs on {killed}: alive entities are shown as of its death at \\d\\d:\\d\\d:\\d\\d;"
        " the next run records their end\n",
        output.err,
    )
    assert cli(command, "--json", "--state-dir", killed).err == output.err


@pytest.mark.parametrize("command", ["ps", "tree"])
def test_what_lives_or_has_ended_is_not_said_to_be_dead(cli: Cli, running: Running, ended: Path, command: str) -> None:
    """``ps`` and ``tree`` print no warning while a supervisor runs, or when all entities have ended."""
    assert cli(command, "--state-dir", running.state_dir).err == ""
    assert cli(command, "--state-dir", ended).err == ""


def test_a_failed_task_does_not_grow_older(cli: Cli, killed: Path) -> None:
    """The age of a FAILED task stops at its failure, and ``ps`` prints no warning about that task when no supervisor
    runs."""
    with closing(apsw.Connection(str(StateDir(killed).journal))) as db:
        db.execute(
            "UPDATE entities SET kind = 'task', state = 'FAILED', born_at = 100, changed_at = 103 WHERE id = 'lead'"
        )
    output = cli("ps", "--json", "--state-dir", killed)
    assert {one["id"]: one["age_s"] for one in output.json}["lead"] == 3.0
    assert cli("ps", "--state-dir", killed).err == ""


def test_a_name_that_runs_again_is_told(cli: Cli, tmp_path: Path) -> None:
    """An abort of an id from an earlier run says that it has ended, and names the session that runs under that name
    now."""
    with _in_a_thread(tmp_path / "state"):
        pass
    with _in_a_thread(tmp_path / "state"):
        output = cli("abort", "lead:t1:c1", "--scope", "tool", "--state-dir", tmp_path / "state")
        other = cli("abort", "lead/docs", "--scope", "session", "--state-dir", tmp_path / "state")
    words = "scope tool: it had already ended, nothing was done; running under that name now: lead-2\n"
    assert (output.status, output.out) == (0, f"abort of lead:t1:c1, {words}")
    assert "running under" not in other.out


# --------------------------------------------------------------------------------------------------- dead letters
def test_dead_letters_say_what_was_given_up_and_how_to_try_again(cli: Cli, tmp_path: Path) -> None:
    """``dead-letters`` lists failed tasks with their last errors, and the command that tries them again; a task that a
    later run has done is not listed."""
    plan = tmp_path / "plan.yaml"
    once = "task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}\n"
    agents = "agents: {a: {adapter: command, command: [sh, -c, exit 3]}}\n"
    plan.write_text(once + agents + "tasks: [{id: t, agent: a, max_retries: 0}]")
    where = ("--state-dir", tmp_path / "state")
    assert cli("run", plan, *where).status == 1
    (letter,) = cli("dead-letters", "--json", *where).json
    assert (letter["task"], letter["entity_id"], letter["try_again"]) == (
        "t",
        "r1#t",
        f"supervisor run PLAN.yaml --resume --state-dir {where[1]}",
    )
    assert (letter["attempts"], letter["runs"]) == (1, 1)
    assert "3" in letter["last_error"]
    head, line = cli("dead-letters", *where).out.splitlines()
    assert head.split() == ["TASK", "ATTEMPTS", "RUNS", "TRY", "AGAIN", "LAST", "ERROR"]
    assert line.startswith("r1#t ")
    assert letter["last_error"] in line
    plan.write_text(plan.read_text().replace("exit 3", "exit 0"))
    assert cli("run", plan, *where).status == 0
    assert cli("dead-letters", *where).out == "no task was given up\n"


def test_where_nothing_was_given_up_that_is_said(cli: Cli, ended: Path) -> None:
    """``dead-letters`` without a failed task prints one sentence, or an empty JSON list."""
    assert cli("dead-letters", "--state-dir", ended).out == "no task was given up\n"
    assert cli("dead-letters", "--json", "--state-dir", ended).json == []


# --------------------------------------------------------------------------------------- the reference of plan keys
ELSEWHERE = (
    "the directory of `--workdir`",
    "the branch that is checked out",
    "all that are installed",
    "the file's name",
)
"""Descriptions of defaults that are not in the plan's model, since they depend on where the plan is run."""

_INNER: dict[str, tuple[type[BaseModel], str]] = {
    "agents": (AgentConfig, "agents.*."),
    "agents.*.permissions.rules": (PermissionRuleConfig, "agents.*.permissions.rules.*."),
    "agents.*.mcp_servers": (McpServerConfig, "agents.*.mcp_servers.*."),
    "tasks": (TaskConfig, "tasks.*."),
    "tasks.*.acceptance": (AcceptanceConfig, "tasks.*.acceptance.*."),
    "tasks.*.completion": (CompletionConfig, "tasks.*.completion.*."),
    "tasks.*.review": (ReviewConfig, "tasks.*.review."),
    "review": (ReviewConfig, "review."),
    "access": (AccessConfig, "access."),
    "tasks.*.when": (ConditionConfig, "tasks.*.when."),
    "workers": (WorkerConfig, "workers.*."),
}


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, object]]:
    """Yield every key of a plan as the reference pages spell it, with its default."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.validation_alias or name}"
        default = ... if field.is_required() else field.default
        inner = _INNER.get(key)
        if isinstance(default, BaseModel):
            yield from _fields(type(default), f"{key}.")
        else:
            yield key, default
        if inner:
            yield from _fields(*inner)


def test_the_reference_has_every_key_of_a_plan_with_its_default() -> None:
    """The two reference pages about plans have one row for each key of a plan, with the key's default, and no other
    rows."""
    reference = Path(__file__).parents[2] / "docs" / "reference"
    pages = [(reference / name).read_text(encoding="utf-8") for name in ("plan-tasks.md", "plan-run.md")]
    found = [row for page in pages for row in re.findall(r"^\| `([a-z_.*]+)` \| (.*?) \| ", page, re.MULTILINE)]
    rows = dict(found)
    assert len(rows) == len(found)
    fields = dict(_fields(Plan, ""))
    assert sorted(rows) == sorted(fields)
    for key, default in fields.items():
        match default:
            case bool():
                assert rows[key] == f"`{str(default).lower()}`", key
            case int():
                assert rows[key] == f"`{default}`", key
            case float():
                assert rows[key] == f"`{default:g}`", key
            case _ if default is ...:
                assert rows[key] == "required", key
            case None if rows[key] not in ELSEWHERE:
                assert rows[key] == "none", key
            case (TaskRun() | ModelProblem(), *_):
                assert rows[key] == f"`[{', '.join(state.value for state in default)}]`", key
            case str() if rows[key] not in ELSEWHERE:
                assert rows[key] == "`" + (str(default) or '""') + "`", key
            case _:
                assert rows[key] in ("`[]`", "`{}`", '`""`', *ELSEWHERE), key


def test_a_plan_is_checked_without_being_run(cli: Cli, tmp_path: Path) -> None:
    """`plan check` reports the content or the problems of a plan as `run` would, and writes nothing."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    text = "agents: {a: {adapter: scripted}}\ntasks: [{id: t, agent: a, acceptance: [{unit_tests: [make, test]}]}]\n"
    good.write_text(text)
    bad.write_text(text.replace("unit_tests: [make, test]", "lint: [], unit_tests: [make, test]"))
    assert cli("plan", "check", good).out.startswith(f"{good}: 1 task, 1 agent: no problems\n")
    told = json.loads(cli("plan", "check", good, "--json").out)
    assert (told.pop("retries_max"), [one["tasks"] for one in told.pop("worst_cases")]) == (10, [["t"]])
    (limit,) = told.pop("time_outs")
    assert (limit["tasks"], limit["timeout_s"], limit["earlier"]) == (["t"], 1800.0, None)
    assert told == {
        "ok": True,
        "workstream": "good",
        "agents": ["a"],
        "workers": [],
        "tasks": ["t"],
    }
    refused = cli("plan", "check", bad)
    assert refused.status == 2
    assert "tasks[0].acceptance[0]: says unit_tests and lint; give exactly one of file_exists," in refused.err
    assert "tasks[0].acceptance[0].lint: is empty; give the argv, for example [pytest, -q]" in refused.err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bad.yaml", "good.yaml"]


def test_plan_check_refuses_what_run_refuses(cli: Cli, tmp_path: Path) -> None:
    """A plan with worktrees is refused outside of a git repository by `plan check` as by `run`, with the same message
    and exit status 2; nothing is written."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("workspace: worktree\nagents: {a: {adapter: scripted}}\ntasks: [{id: t, agent: a}]\n")
    checked = cli("plan", "check", plan, "--workdir", tmp_path)
    run = cli("run", plan, "--workdir", tmp_path, "--state-dir", tmp_path / "sd")
    assert (checked.status, checked.err) == (run.status, run.err)
    assert checked.status == 2
    assert "is not in a git repository" in checked.err
    missing = cli("plan", "check", plan, "--workdir", tmp_path / "nowhere")
    assert (missing.status, "--workdir: no directory" in missing.err) == (2, True)


def test_plan_check_tells_that_an_answer_may_come_too_late(cli: Cli, tmp_path: Path) -> None:
    """If a person has as long to answer a permission request as the whole attempt may take, `plan check` says so, with
    both figures; a task with more time gets no such line."""
    plan = tmp_path / "plan.yaml"
    tasks = "[{id: a, prompt: x, agent: s, timeout_s: 300}, {id: b, prompt: x, agent: s}]"
    plan.write_text(f"agents: {{s: {{adapter: acp, command: [sh], permissions: ask}}}}\ntasks: {tasks}\n")
    lines = [one for one in cli("plan", "check", plan).out.splitlines() if "answer_within_s" in one]
    assert lines == [
        f"{plan}: tasks[0]: an attempt of 300 s ends while a person has 300 s to answer (answer_within_s); "
        "raise timeout_s, or lower answer_within_s"
    ]


def test_plan_check_tells_the_worst_case_of_each_task(cli: Cli, tmp_path: Path) -> None:
    """`plan check` prints for each way to fail for ever the tries and the time after which a task has failed; tasks
    with equal figures share their rows."""
    plan = tmp_path / "plan.yaml"
    quick = "task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}\n"
    tasks = "[{id: a, prompt: x, agent: s, timeout_s: 60}, {id: b, prompt: x, agent: s, timeout_s: 60}]"
    plan.write_text(f"{quick}agents: {{s: {{adapter: command, command: [sh]}}}}\ntasks: {tasks}\n")
    *_, head, first, _, endless, together = cli("plan", "check", plan).out.splitlines()
    assert " ".join(head.split()) == "TASK ITS AGENT TRIES AT MOST"
    assert " ".join(first.split()) == "each of 2 fails, with the same error each time 1 0 s"
    assert " ".join(endless.split()) == "hangs, or works on without end 1 70 s"
    assert together == "Together, the tasks answer failures with at most 10 launches (retry_budget)."


def test_the_schema_of_a_plan_knows_every_key(cli: Cli) -> None:
    """`plan schema` prints a JSON Schema that contains every key of a plan."""
    schema = json.loads(cli("plan", "schema").out)
    assert schema["$schema"].endswith("2020-12/schema")
    assert set(schema["properties"]) == set(Plan.model_fields)
    assert set(schema["$defs"]["AcceptanceConfig"]["properties"]) == {
        str(field.validation_alias or name) for name, field in AcceptanceConfig.model_fields.items()
    }
    assert set(schema["$defs"]["TaskConfig"]["properties"]) == set(TaskConfig.model_fields)
    assert set(schema["$defs"]["ConditionConfig"]["properties"]) == {"task", "is", "file_exists"}
    assert schema["$defs"]["TaskConfig"]["required"] == ["id"]


def test_the_plan_on_the_page_of_plans_is_a_plan(tmp_path: Path) -> None:
    """The example plan on the documentation page about plans is valid, after its program is replaced by an existing
    one."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "plans.md").read_text(encoding="utf-8")
    text = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    plan = tmp_path / "plan.yaml"
    plan.write_text(text.replace("my-agent", "sh"))
    assert load_plan(plan).agents["reviewer"].inherit_env == ("ANTHROPIC_API_KEY",)


# ------------------------------------------------------------------------------------------------- broken pipes
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_output_is_silent(ended: Path, closed: str) -> None:
    """A command whose standard output is closed from the start succeeds without a message."""
    command = f"exec {sys.executable} -m supervisor ps --state-dir {ended} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nobody_reading_is_silent(ended: Path) -> None:
    """A command whose reader closes the pipe in the middle of the output prints no error message."""
    command = [sys.executable, "-m", "supervisor", "events", "--json", "--state-dir", str(ended)]
    with running_program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_run_goes_on_when_nobody_reads(ended: Path) -> None:
    """A run's reporter whose reader has closed the pipe closes its view once, prints nothing more, and raises no
    error."""
    calls: list[str] = []

    class Broken:
        def show(self, events: object, rows: object, used: object = ()) -> None:
            calls.append("show")
            raise BrokenPipeError

        def outage(self, outage: object) -> None: ...

        def end(self, result: object) -> None:
            raise AssertionError("nobody reads the results")

        def close(self) -> None:
            calls.append("close")
            raise BrokenPipeError

    reporter = Reporter(after=0)
    reporter.start(read_state(StateDir(ended)), Broken)
    reporter.update()
    reporter.update()
    reporter.end(PlanResult({}))
    reporter.close()
    assert calls == ["show", "close"]


def test_a_defect_of_the_view_does_not_stop_a_run(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A view that raises any error is dropped with one line on standard error; the log of ``-v`` still gets every
    record, and the result counts as not printed."""
    logged: list[int] = []

    class Defective(JsonView):
        def show(self, events: object, rows: object, used: object = ()) -> None:
            raise ValueError("no such column")

    reporter = Reporter(after=0, log=lambda event: logged.append(event.seq))
    reporter.start(read_state(StateDir(ended)), lambda: Defective(io.StringIO()))
    reporter.update()
    seen = reporter.last
    assert logged == list(range(1, seen + 1))
    reporter.last = 0  # as if new records had come
    reporter.update()
    assert len(logged) == 2 * seen
    assert not reporter.end(PlanResult({}))
    reporter.close()
    assert capsys.readouterr().err.splitlines()[:-1] == [
        "supervisor: the output failed, the run continues without output: ValueError: no such column"
    ]


def test_no_view_is_made_without_a_journal(tmp_path: Path) -> None:
    """A reporter that cannot open the journal makes no view: the message about the error must reach standard error."""
    made: list[RunView] = []

    def make() -> RunView:
        made.append(JsonView(io.StringIO()))
        return made[-1]

    (tmp_path / "runtime").mkdir()
    with pytest.raises(JournalError):
        Reporter(after=0).start(open_reader(tmp_path), make)
    assert made == []
