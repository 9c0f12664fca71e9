"""The command line: bad input, the commands that read, and those that ask a running supervisor.

A real supervisor with in-process agents runs in another thread, behind its real control socket.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest
import structlog
from anyio.from_thread import BlockingPortal, start_blocking_portal

from supervisor.__main__ import _run
from supervisor.adapters.inprocess import AgentTurn, ToolAborted
from supervisor.journal.schema import VERSION
from supervisor.journal.statedir import StateDir
from supervisor.runtime import Supervisor, open_supervisor
from supervisor.surfaces.cli import RunRequest, commands
from supervisor.surfaces.control import serve_control
from supervisor.surfaces.execution import execute
from supervisor.surfaces.live import Reporter
from supervisor.surfaces.reading import read_logs

GOOD = "agents: {a: {adapter: scripted}}\ntasks: [{id: t, agent: a}]\n"


class Told:
    """What a command answered: its exit status, and what it printed."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Tell = Callable[..., Told]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Iterator[Tell]:
    """Run a command line in this process."""

    def run(*arguments: object) -> Told:
        capsys.readouterr()
        status = execute(commands(_run, lambda as_json, verbose: 7), [str(one) for one in arguments])
        return Told(status, *capsys.readouterr())

    yield run
    structlog.reset_defaults()


# ------------------------------------------------------------------------------------------ a running supervisor
class Running:
    """A supervisor in another thread: ``lead`` has an open tool call and the finished child ``lead/docs``."""

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
    door = anyio.Event()

    async def serve(sup: Supervisor, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        await serve_control(StateDir(state_dir).control_socket, sup, closing=door, task_status=task_status)

    async with anyio.create_task_group() as group:
        async with open_supervisor(state_dir) as sup:
            await group.start(serve, sup)
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
        door.set()


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
    """The state directory of a supervisor that has ended."""
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
    "cycle": (GOOD.replace("agent: a", "agent: a, depends_on: [t]"), "goes round in a circle: t -> t"),
    "negative time": (GOOD + "limits: {grace_s: -1}", "limits.grace_s: -1 is negative; give seconds >= 0"),
    "missing command": (GOOD.replace("scripted", "command"), "agents.a.command: missing; give the argv"),
    "missing program": (GOOD.replace("scripted", "acp, command: [no-such-program]"), "no program 'no-such-program'"),
}


@pytest.mark.parametrize(("text", "words"), BAD_PLANS.values(), ids=BAD_PLANS.keys())
def test_a_bad_plan_starts_and_writes_nothing(tmp_path: Path, tell: Tell, text: str, words: str) -> None:
    """A plan with a mistake is one message, exit status 2, and not even a state directory."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(text)
    told = tell("run", plan, "--state-dir", tmp_path / "state")
    assert told.status == 2
    assert len(told.err.splitlines()) == 1
    assert told.err.startswith(f"supervisor: {plan}:")
    assert words in told.err
    assert list(tmp_path.iterdir()) == [plan]


def test_an_error_is_json_too(tmp_path: Path, tell: Tell) -> None:
    """With --json the error is an object on standard output as well."""
    told = tell("run", tmp_path / "nix.yaml", "--state-dir", tmp_path / "state", "--json")
    assert told.json["error"]["kind"] == "bad"
    assert f"supervisor: {told.json['error']['message']}\n" == told.err
    assert "no such file" in told.err


def test_a_state_directory_that_cannot_be_is_refused(tmp_path: Path, tell: Tell) -> None:
    """Where the state directory cannot be made the run is bad input, and what is in the way stays."""
    plan, file = tmp_path / "plan.yaml", tmp_path / "file"
    plan.write_text(GOOD)
    file.write_text("mine")
    told = tell("run", plan, "--state-dir", file / "state")
    assert (told.status, file.read_text()) == (2, "mine")
    assert "cannot be a state directory" in told.err
    assert "Traceback" not in told.err


def test_a_second_supervisor_is_refused(tmp_path: Path, tell: Tell, running: Running) -> None:
    """One state directory has one supervisor; the second is told which one it is."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(GOOD)
    told = tell("run", plan, "--state-dir", running.state_dir)
    assert told.status == 2
    assert f"another supervisor (pid {os.getpid()}) already runs on" in told.err
    assert running.sup.state_of("lead") == "Running"


@pytest.mark.parametrize("command", [["run", "plan.yaml"], ["ps"], ["tree"], ["events"], ["why", "lead"]])
def test_a_newer_journal_is_refused(tmp_path: Path, tell: Tell, command: list[str]) -> None:
    """A journal of a newer version is bad input for every command, and not one byte of it changes."""
    state = StateDir(tmp_path / "state")
    with _in_a_thread(state.root):
        pass
    with closing(apsw.Connection(str(state.journal))) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (VERSION + 1,))
    (tmp_path / "plan.yaml").write_text(GOOD)
    before = state.journal.read_bytes()
    plan = [str(tmp_path / one) if one == "plan.yaml" else one for one in command]
    told = tell(*plan, "--state-dir", state.root)
    assert told.status == 2
    assert f"has schema {VERSION + 1}" in told.err
    assert state.journal.read_bytes() == before


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
def test_where_nothing_ever_ran_nothing_can_be_asked(tmp_path: Path, tell: Tell, command: list[str]) -> None:
    """Without a state directory every command says so with exit status 2, and makes none."""
    told = tell(*command, "--state-dir", tmp_path / "state")
    assert (told.status, told.out) == (2, "")
    assert "supervisor run" in told.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dance"], "No such command 'dance'"),
        (["ps", "--wibble"], "No such option '--wibble'"),
        (["abort", "lead"], "Missing option '--scope'"),
        (["abort", "lead", "--scope", "world"], "'world' is not one of 'tool', 'sibling', 'session'"),
        (["why"], "Missing argument 'ID'"),
        (["events", "--after", "-1"], "-1 is not in the range x>=0"),
        (["run", "plan.yaml", "--backend", "curio"], "'curio' is not one of 'asyncio', 'trio'"),
        (["run", "plan.yaml", "--workdir", "/no/such/place"], "--workdir: no directory '/no/such/place'"),
        (["machines", "toaster"], "machine 'toaster' is unknown; use one of: task"),
        (["validate", "nix.jsonl"], "nix.jsonl: cannot be read: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_that_cannot_be_understood(tell: Tell, arguments: list[str], words: str) -> None:
    """A mistake in the command line is one message with what would be right, and exit status 2."""
    told = tell(*arguments)
    assert (told.status, told.out) == (2, "")
    assert told.err.startswith("supervisor: ")
    assert words in told.err


def test_a_bug_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected error is one line that says where it happened, and exit status 1."""

    def broken(request: RunRequest) -> int:
        raise ExceptionGroup("several", [KeyError("x"), ValueError("y")])

    status = execute(commands(broken, lambda as_json, verbose: 0), ["run", "plan.yaml"])
    told = capsys.readouterr()
    assert (status, len(told.err.splitlines())) == (1, 1)
    assert told.err.startswith("supervisor: this is a bug of the supervisor, please report it: KeyError: 'x'")


# ------------------------------------------------------------------------------------------------ what needs none
def test_help_and_version(tell: Tell) -> None:
    """The command line explains itself."""
    told = tell("--help")
    names = ["run", "demo", "machines", "ps", "tree", "events", "abort", "send", "stop", "why", "logs", "validate"]
    assert [name for name in names if f"\n  {name} " not in told.out] == []
    assert tell("--version").out.startswith("supervisor ")


def test_the_demo_is_handed_in(tell: Tell) -> None:
    """The demonstration's exit status is the command's."""
    assert tell("demo").status == 7


def test_machines(tell: Tell) -> None:
    """The lifecycles are printed from their tables, --json being short for the format."""
    told = tell("machines", "--json")
    assert [len(one["states"]) for one in told.json.values()] == [12, 4, 10, 8, 11, 8, 7, 5]
    assert tell("machines", "agent", "--format", "json").json == {"agent": told.json["agent"]}
    assert "stateDiagram" in tell("machines", "agent", "--format", "mermaid").out


@pytest.mark.parametrize("command", ["--help", "machines"])
def test_it_starts_without_the_runtime(command: str) -> None:
    """Help and machines import neither the runtime nor anything else that takes its time."""
    slow = {"trio", "pydantic", "rich", "apsw", "structlog", "supervisor.runtime"}
    code = (
        "import sys; from supervisor.__main__ import main\n"
        f"sys.argv = ['supervisor', {command!r}]\n"
        "try: main()\n"
        f"finally: print(sorted({slow} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_validate(tmp_path: Path, tell: Tell, ended: Path) -> None:
    """The log of a run is valid; one with a line changed is not, and the line is named."""
    log = StateDir(ended).transitions
    assert tell("validate", log).status == 0
    lines = log.read_text().splitlines(keepends=True)
    broken = tmp_path / "broken.jsonl"
    broken.write_text("".join([*lines[:2], "nonsense\n", *lines[3:]]))
    told = tell("validate", broken)
    assert told.status == 1
    assert told.out.startswith(f"{broken}:3: not JSON")
    told = tell("validate", broken, "--json")
    assert (told.status, told.json["valid"], told.json["report"]["problems"][0]["line"]) == (1, False, 3)


# ------------------------------------------------------------------------------------------------------- reading
def test_ps_and_tree_of_a_running_supervisor(tell: Tell, running: Running) -> None:
    """While it runs one sees sessions with their agents, turns and open calls."""
    seen = {one["id"]: one for one in tell("ps", "--json", "--state-dir", running.state_dir).json}
    assert list(seen) == ["lead", "lead/docs", "lead:t1", "lead:a1"]
    assert (seen["lead:t1"]["state"], seen["lead:a1"]["visual"]) == ("TOOL_USE", "RUNNING")
    told = tell("tree", "--state-dir", running.state_dir)
    assert '│  └─ lead:t1:c1 "a long one"' in told.out.splitlines()
    (lead,) = tell("tree", "--json", "--state-dir", running.state_dir).json
    assert [one["id"] for one in lead["children"]] == ["lead/docs", "lead:t1", "lead:a1"]


def test_ps_and_tree_of_one_that_has_ended(tell: Tell, ended: Path) -> None:
    """Afterwards one sees the sessions as they ended, and everything with --all."""
    seen = {one["id"]: one for one in tell("ps", "--json", "--state-dir", ended).json}
    assert {name: one["state"] for name, one in seen.items()} == {"lead": "Stopped", "lead/docs": "Stopped"}
    every = [one["id"] for one in tell("ps", "--all", "--json", "--state-dir", ended).json]
    assert {"lead:t1", "lead:a1", "lead/docs:t1"} <= set(every)
    assert "lead/docs:t1" in tell("tree", "--all", "--state-dir", ended).out
    assert "lead/docs:t1" not in tell("tree", "--state-dir", ended).out


def test_events(tell: Tell, ended: Path) -> None:
    """Events are the records in order, of everything, of one entity, or after a number."""
    every = tell("events", "--json", "--state-dir", ended).lines
    assert [one["seq"] for one in every] == list(range(1, len(every) + 1))
    of_docs = tell("events", "lead/docs", "--json", "--state-dir", ended).lines
    assert of_docs == [one for one in every if one["entity_id"] == "lead/docs"]
    assert tell("events", "--after", len(every) - 1, "--json", "--state-dir", ended).lines == every[-1:]
    assert len(tell("events", "--state-dir", ended).out.splitlines()) == len(every)


def test_following_a_supervisor_that_has_ended_ends(tell: Tell, ended: Path) -> None:
    """Nothing more will come, so nothing is waited for."""
    followed = tell("events", "--follow", "--json", "--state-dir", ended)
    assert (followed.status, followed.out) == (0, tell("events", "--json", "--state-dir", ended).out)


def test_why(tell: Tell, running: Running) -> None:
    """The chain of an aborted call begins with the abort's record and ends with the call's result."""
    tell("abort", "lead:t1:c1", "--scope", "tool", "--reason", "too slow", "--state-dir", running.state_dir)
    chain = tell("why", "lead:t1:c1", "--json", "--state-dir", running.state_dir).json["records"]
    assert [one["event"] for one in chain] == ["AbortRecord", "tool_completed"]
    assert "too slow" in tell("why", "lead:t1:c1", "--state-dir", running.state_dir).out


@pytest.mark.parametrize("command", [["why", "nobody"], ["events", "nobody"], ["logs", "nobody"]])
def test_an_unknown_id_is_bad_input(tell: Tell, ended: Path, command: list[str]) -> None:
    """What the journal does not know is named, with where the ids are; exit status 2."""
    told = tell(*command, "--state-dir", ended)
    assert (told.status, told.out) == (2, "")
    assert told.err == "supervisor: nothing has the id 'nobody'; `supervisor ps --all` shows the ids\n"


def test_logs(tell: Tell, ended: Path) -> None:
    """The transcript of a session is printed, for its turns and agents too, with nothing a terminal would act on."""
    told = tell("logs", "lead/docs", "--state-dir", ended)
    said = [line.split(" ", 1)[1] for line in told.out.splitlines()]
    assert said == ["prompt| say hello", r"message| hello \x1b[31mred\x1b[0m"]
    assert tell("logs", "lead/docs:t1", "--state-dir", ended).out == told.out
    lines = tell("logs", "lead/docs", "--json", "--state-dir", ended).lines
    assert lines[1]["session"] == "lead/docs"
    assert lines[1]["line"].endswith("hello \x1b[31mred\x1b[0m")


def test_following_logs_goes_on_to_the_end_of_the_session(running: Running) -> None:
    """What is said while one follows is told, and the session's end ends it."""
    said: list[str] = []
    waits = iter([lambda: _abort_tool(running), lambda: _close(running)])
    read_logs(running.state_dir, "lead", said.append, follow=True, as_json=False, pause=lambda: next(waits)())
    assert [line.partition("| ")[2] for line in said] == ["work", r"hello \x1b[31mred\x1b[0m", "went on"]


def _abort_tool(running: Running) -> None:
    done = execute(
        commands(_run, lambda as_json, verbose: 0),
        ["abort", "lead:t1:c1", "--scope", "tool", "--state-dir", str(running.state_dir)],
    )
    assert done == 0


def _close(running: Running) -> None:
    done = execute(
        commands(_run, lambda as_json, verbose: 0),
        ["abort", "lead", "--scope", "session", "--state-dir", str(running.state_dir)],
    )
    assert done == 0


# ---------------------------------------------------------------------------------------------------- commanding
def test_a_dry_run_says_what_would_end(tell: Tell, running: Running) -> None:
    """A dry run names the nodes and ends none."""
    told = tell("abort", "lead", "--scope", "session", "--dry-run", "--json", "--state-dir", running.state_dir)
    assert [one["id"] for one in told.json["nodes"]] == ["lead"]
    assert running.sup.state_of("lead") == "Running"


def test_a_tool_abort_spares_its_session(tell: Tell, running: Running) -> None:
    """The receipt names the call, the session lives on, and a second abort finds it ended; all with status 0."""
    abort = ["abort", "lead:t1:c1", "--scope", "tool", "--json", "--state-dir", running.state_dir]
    first, second = tell(*abort), tell(*abort)
    assert (first.status, [one["id"] for one in first.json["nodes"]]) == (0, ["lead:t1:c1"])
    assert (second.status, second.json["already_ended"]) == (0, True)
    assert running.sup.state_of("lead") in ("Running", "SessionComplete")


@pytest.mark.parametrize("target", ["lead/docs", "lead/docs:t1"])
def test_what_has_ended_is_no_error_while_the_supervisor_runs(tell: Tell, running: Running, target: str) -> None:
    """Aborting a session or turn that has ended answers already_ended, exit status 0."""
    told = tell("abort", target, "--scope", "session", "--state-dir", running.state_dir)
    assert (told.status, told.err) == (0, "")
    assert "already_ended" in told.out


@pytest.mark.parametrize("target", ["lead", "lead/docs", "lead:t1", "lead:t1:c1"])
@pytest.mark.parametrize("flag", ["--dry-run", "--json"])
def test_what_has_ended_is_no_error_after_the_supervisor(tell: Tell, ended: Path, target: str, flag: str) -> None:
    """When the supervisor has ended the journal knows that what it ran has ended too."""
    told = tell("abort", target, "--scope", "session", flag, "--state-dir", ended)
    assert (told.status, told.err) == (0, "")
    assert "already_ended" in told.out


@pytest.mark.parametrize("target", ["nobody", "lead/nobody"])
def test_aborting_the_unknown_is_bad_input(tell: Tell, running: Running, target: str) -> None:
    """An id that never was is exit status 2."""
    told = tell("abort", target, "--scope", "session", "--state-dir", running.state_dir)
    assert (told.status, told.out) == (2, "")
    assert target in told.err


@pytest.mark.parametrize("target", ["nobody", "lead/nobody", "lead:t1:c9", "lead:t7:c1", ":", ""])
def test_aborting_the_unknown_is_bad_input_after_the_supervisor(tell: Tell, ended: Path, target: str) -> None:
    """The journal of a supervisor that has ended tells what never was from what has ended."""
    told = tell("abort", target, "--scope", "session", "--state-dir", ended)
    assert (told.status, told.out) == (2, "")
    assert f"nothing has the id {target!r}" in told.err


def test_sending(tell: Tell, running: Running) -> None:
    """A message gets an id; one for nobody, or for a session that has ended, is bad input."""
    told = tell("send", "lead", "look here", "--json", "--state-dir", running.state_dir)
    assert (told.status, told.json["message_id"][0]) == (0, "m")
    urgent = tell("send", "lead", "look now", "--urgent", "--state-dir", running.state_dir)
    assert (urgent.status, urgent.out.endswith("for lead\n")) == (0, True)
    for session in ("nobody", "lead/docs"):
        told = tell("send", session, "hello", "--state-dir", running.state_dir)
        assert (told.status, told.out) == (2, "")
        assert session in told.err


def test_stopping(tell: Tell, running: Running) -> None:
    """A stop is asked for and answered at once; the run ends by itself."""
    assert tell("stop", "--json", "--state-dir", running.state_dir).json == {"stopping": "drain"}
    assert running.sup.stopping.is_set()
    assert not running.sup.stop_now.is_set()
    assert "being aborted" in tell("stop", "--now", "--state-dir", running.state_dir).out
    assert running.sup.stop_now.is_set()


@pytest.mark.parametrize("command", [["send", "lead", "hello"], ["stop"]])
def test_nobody_there_is_said(tell: Tell, ended: Path, command: list[str]) -> None:
    """What only a running supervisor can do is refused without one, with what to do."""
    told = tell(*command, "--json", "--state-dir", ended)
    assert (told.status, told.json["error"]["kind"]) == (2, "not_running")
    assert told.err == f"supervisor: no supervisor runs on {ended}: start one with `supervisor run PLAN.yaml`\n"


def test_following_events_ends_with_the_supervisor(tell: Tell, tmp_path: Path) -> None:
    """A follower gets what was, what happens, and the last record before the supervisor ends."""
    told: list[Told] = []
    state_dir = tmp_path / "state"
    with _in_a_thread(state_dir) as running:
        follower = threading.Thread(
            target=lambda: told.append(tell("events", "--follow", "--json", "--state-dir", state_dir))
        )
        follower.start()
        while not len(running.sup.subscriptions):
            os.sched_yield()
        running.state_dir.stat()
    follower.join(30)
    assert [one["seq"] for one in told[0].lines] == list(range(1, len(told[0].lines) + 1))
    assert told[0].lines[-1]["event"] == "Ended"


# ------------------------------------------------------------------------------------------------- broken pipes
def test_nobody_reading_is_silent(ended: Path) -> None:
    """When the reader of a long answer goes away nothing is said about it."""
    command = [sys.executable, "-m", "supervisor", "events", "--json", "--state-dir", str(ended)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_run_goes_on_when_nobody_reads(ended: Path) -> None:
    """A reporter whose reader has gone away says nothing more, and raises nothing."""

    class Broken:
        drawings = 0

        def event(self, event: object) -> None:
            raise BrokenPipeError

        def drawn(self) -> None:
            self.drawings += 1

        def end(self, results: object, *, ok: bool) -> None:
            raise AssertionError("nobody reads the results")

        def close(self) -> None:
            raise AssertionError("there is nothing to leave as it was")

    teller = Broken()
    reporter = Reporter(StateDir(ended).journal, after=0)
    reporter.start(teller)
    reporter.look()
    reporter.look()
    reporter.end([], ok=True)
    reporter.close()
    assert teller.drawings == 0
