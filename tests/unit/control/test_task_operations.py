"""Commands about work, from the command line through the socket to whoever carries the work out, and back.

The work is a fake that remembers what it was asked; the door and the command line are the real ones.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute
from supervisor.control.client import request
from supervisor.control.error_messages import BadInput, ControlError
from supervisor.control.requests import Steer
from supervisor.control.server import serve_control
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import NoSuchEntity, Verb
from supervisor.plans import BadPlan, TaskConfig
from supervisor.plans.task_control import CommandResult
from supervisor.ports import JournalError
from supervisor.runtime.entity import Refused
from tests.support import CommandOutput, run_command
from tests.unit.control.test_control import Played

Cli = Callable[..., CommandOutput]


def supervisor_of(work: Work | None) -> Played:
    return Played() if work is None else Played(work)


class Work:
    """Stand-in for a running plan that records commands: task ``open`` is refused, ``nobody`` unknown; ``disk`` and
    ``bug`` fail."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.waiting: tuple[str, ...] = ("a", "b")
        self.seen: set[str] = set()
        self.run_id = "r1"

    async def begun(self) -> str:
        return self.run_id

    def has(self, task: str) -> bool:
        return task != "nobody"

    async def planned(self) -> tuple[str, ...]:
        return self.waiting

    async def approve(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return self._answer(Verb.APPROVE, task, by, reason, command_id)

    async def reject(self, task: str, *, by: str, reason: str, command_id: str | None = None) -> CommandResult:
        return self._answer(Verb.REJECT, task, by, reason, command_id)

    async def retry(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return self._answer(Verb.RETRY, task, by, reason, command_id)

    async def keep(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return self._answer(Verb.KEEP, task, by, reason, command_id)

    async def requeue(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return self._answer(Verb.REQUEUE, task, by, reason, command_id)

    async def unclaim(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return self._answer(Verb.UNCLAIM, task, by, reason, command_id)

    async def cancel(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return self._answer(Verb.CANCEL, task, by, reason, command_id)

    async def split(
        self, task: str, subtasks: Sequence[TaskConfig], *, by: str, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        if subtasks[0].id == task:
            raise BadPlan(f"tasks[0].subtasks[0].id: {task!r} is the id of tasks[0] too; give it another")
        made = tuple(f"r1#{one.id}" for one in subtasks)
        answer = self._answer(Verb.SPLIT, task, by, reason, command_id, subtasks)
        return msgspec.structs.replace(answer, state="WAITING_FOR_SUBTASKS", subtasks=made)

    async def block(
        self, task: str, on: Sequence[str], *, by: str, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        return self._answer(Verb.BLOCK, task, by, reason, command_id, on)

    async def unblock(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return self._answer(Verb.UNBLOCK, task, by, reason, command_id)

    def _answer(self, verb: Verb, task: str, *output: Any) -> CommandResult:
        match task:
            case "open":
                raise Refused("task: approved in OPEN; allowed here: claimed, split, cancelled")
            case "nobody":
                raise NoSuchEntity(task)
            case "disk":
                raise JournalError("the disk is gone")
            case "bug":
                raise KeyError("an index of ours")
        self.asked.append((verb.value, task, *output))
        command_id = output[2]
        repeated = command_id is not None and command_id in self.seen
        self.seen.add(command_id or "")
        return CommandResult(verb=verb, entity_id=f"r1#{task}", state="OPEN", seq=7, repeated=repeated)


async def _serve(state_dir: Path, work: Work | None, closing: anyio.Event, started: threading.Event) -> None:
    async def serve(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        path = StateDir.open(state_dir).control_socket
        await serve_control(path, supervisor_of(work), closing=closing, task_status=task_status)

    async with anyio.create_task_group() as group:
        await group.start(serve)
        started.set()


@contextmanager
def served(state_dir: Path, work: Work | None, backend: str) -> Iterator[None]:
    """Serve a supervisor's control socket in a thread of its own for the time of the block."""
    with start_blocking_portal(backend) as portal:
        closing, started = portal.call(anyio.Event), threading.Event()
        serving = portal.start_task_soon(_serve, state_dir, work, closing, started)
        assert started.wait(120)
        yield
        portal.call(closing.set)
        serving.result(30)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture(params=["asyncio", "trio"])
def cli(
    request: pytest.FixtureRequest,
    work: Work,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Cli]:
    """Return a function that runs a command line against the stand-in plan, whose socket is served on either
    backend."""
    monkeypatch.setenv("SUPERVISOR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    monkeypatch.delenv("SUPERVISOR_TASK", raising=False)

    with served(tmp_path / "state", work, request.param):
        yield run_command


# ------------------------------------------------------------------------------------------------ what is asked
@pytest.mark.parametrize(
    ("command", "verb", "words"),
    [
        (("approve", "a"), "approve", "a: approved, now OPEN"),
        (("reject", "a", "--reason", "no tests"), "reject", "a: rejected, now OPEN"),
        (("retry", "a"), "retry", "a: is tried again, now OPEN"),
        (("stop", "a", "--keep"), "keep", "a: its agent is told to stop; what is done is checked and merged, now OPEN"),
        (("task", "requeue", "a"), "requeue", "a: taken from its session, now OPEN"),
        (("task", "unclaim", "a"), "unclaim", "a: taken from its session, now OPEN"),
        (("task", "cancel", "a"), "cancel", "a: cancelled, now OPEN"),
        (("task", "unblock", "a"), "unblock", "a: unblocked, now OPEN"),
    ],
)
def test_each_command_arrives(cli: Cli, work: Work, command: tuple[str, ...], verb: str, words: str) -> None:
    """Each command passes verb, task, operator and reason to the plan, and prints the result."""
    output = cli(*command)
    assert (output.status, output.out, output.err) == (0, words + "\n", "")
    reason = "no tests" if verb == "reject" else ""
    assert work.asked == [(verb, "a", "operator:me", reason, None)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("a",), "TASK: 'a' alone does not say what becomes of its work; --keep checks and merges its work"),
        (("--keep",), "--keep: names no task; give TASK"),
        (("a", "--keep", "--now"), "--now: is for the stop of the supervisor; `supervisor wait a` waits for the task"),
        (("--run", "r1"), "--run r1: `stop` without TASK ends the supervisor; `supervisor cancel r1` ends a run"),
    ],
)
def test_a_stop_says_what_it_is_about(cli: Cli, work: Work, options: tuple[str, ...], words: str) -> None:
    """A stop whose options do not say what is to end is bad input, and ends nothing."""
    output = cli("stop", *options)
    assert (output.status, words in output.err, work.asked) == (2, True, []), output.err


def test_what_a_task_is_blocked_on_arrives(cli: Cli, work: Work) -> None:
    """``task block`` passes all that ``--on`` names to the plan; without ``--on`` it is rejected with exit status 2."""
    output = cli("task", "block", "a", "--on", "b", "--on", "a key", "--reason", "no access")
    assert (output.status, output.out, output.err) == (0, "a: blocked, now OPEN\n", "")
    assert work.asked == [("block", "a", "operator:me", "no access", None, ("b", "a key"))]
    assert cli("task", "block", "a").status == 2


def test_who_why_and_its_id_arrive(cli: Cli, work: Work) -> None:
    """``--by``, ``--reason`` and ``--command-id`` reach the plan, and a repeated command is reported as repeated."""
    options = ("--by", "ada", "--reason", "looks good", "--command-id", "c1")
    first, again = cli("approve", "a", *options), cli("approve", "a", *options)
    assert work.asked[0] == ("approve", "a", "operator:ada", "looks good", "c1")
    assert "given before" not in first.out
    assert again.out == "a: approved, now OPEN (this command was given before, nothing was done now)\n"


def test_several_tasks_are_several_commands(cli: Cli, work: Work) -> None:
    """A command for several tasks reaches the plan once for each task, in order; a command id is extended by the
    task."""
    assert cli("approve", "a", "b", "a", "--command-id", "c").status == 0
    assert [(one[1], one[4]) for one in work.asked] == [("a", "c/a"), ("b", "c/b")]


def test_what_one_is_refused_does_not_keep_the_others(cli: Cli, work: Work) -> None:
    """If the plan refuses some of the tasks, the others are still handled; each refusal is printed, and the exit status
    is 2."""
    output = cli("approve", "a", "open", "nobody", "b")
    assert output.status == 2
    assert output.out == "a: approved, now OPEN\nb: approved, now OPEN\n"
    assert output.err == (
        "supervisor: open: task: approved in OPEN; allowed here: claimed, split, cancelled\n"
        "supervisor: nobody: nothing alive has the id 'nobody'; `supervisor tree` shows the ids\n"
    )


@pytest.mark.parametrize(("tasks", "status"), [(("disk",), 1), (("bug",), 1), (("disk", "open"), 2)])
def test_what_failed_may_be_granted_later(cli: Cli, tasks: tuple[str, ...], status: int) -> None:
    """A failure of the journal, or a bug, gives exit status 1; together with a refusal the exit status is 2."""
    assert cli("approve", *tasks).status == status


def test_all_that_are_planned(cli: Cli, work: Work) -> None:
    """``--all-planned`` handles every task that waits for approval, and reports if there is none."""
    assert cli("approve", "--all-planned").out == "r1#a: approved, now OPEN\nr1#b: approved, now OPEN\n"
    assert cli("reject", "--all-planned", "--reason", "x").status == 0
    assert [one[:2] for one in work.asked] == [("approve", "a"), ("approve", "b"), ("reject", "a"), ("reject", "b")]
    work.waiting = ()
    output = cli("approve", "--all-planned")
    assert (output.status, output.out) == (0, "no planned task waits for approval\n")


def test_answers_are_json_too(cli: Cli, work: Work) -> None:
    """``--json`` prints each task with its result, or with the kind and the message of its refusal."""
    output = cli("approve", "a", "open", "--json")
    assert (output.status, output.err) == (2, "")
    answer = {
        "verb": "approve",
        "entity_id": "r1#a",
        "state": "OPEN",
        "seq": 7,
        "subtasks": [],
        "repeated": False,
    }
    refused = {"kind": "refused", "message": "task: approved in OPEN; allowed here: claimed, split, cancelled"}
    assert output.json == [{"task": "a", "answer": answer}, {"task": "open", "refused": refused}]


# ------------------------------------------------------------------------------------------------------- splits
SUBTASKS = "- {id: part, prompt: do it}\n- {id: rest, agent: b, depends_on: [part]}\n"


def test_a_split_brings_its_subtasks_from_a_file(cli: Cli, work: Work, tmp_path: Path) -> None:
    """``task split --from FILE`` reads the subtasks from the file, and prints the ids of the new tasks."""
    file = tmp_path / "parts.yaml"
    file.write_text(SUBTASKS)
    output = cli("task", "split", "a", "--from", file, "--reason", "too large")
    assert (output.status, output.out) == (0, "a: split into r1#part, r1#rest, now WAITING_FOR_SUBTASKS\n")
    ((verb, task, by, reason, command_id, subtasks),) = work.asked
    assert (verb, task, by, reason, command_id) == ("split", "a", "operator:me", "too large", None)
    assert subtasks == (
        TaskConfig(id="part", prompt="do it"),
        TaskConfig(id="rest", agent="b", depends_on=("part",)),
    )


def test_an_agent_splits_its_own_task_from_standard_input(
    cli: Cli, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``task split`` without arguments splits the task in SUPERVISOR_TASK by the subtasks on standard input."""
    monkeypatch.setenv("SUPERVISOR_TASK", "a")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SUBTASKS.encode())))
    assert cli("task", "split").status == 0
    assert work.asked[0][:3] == ("split", "a", "operator:me")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "parts.yaml: is empty; give a list of tasks, for example [{id: part, prompt: '@say hello'}]"),
        ("[]", "parts.yaml:1: give a list of tasks"),
        ("id: part", "parts.yaml:1: give a list of tasks"),
        ("- id: part\n  promt: x", "parts.yaml:2: [0].promt: unknown key; did you mean 'prompt'?"),
        ("- part", "parts.yaml:1: [0]: 'part' is text; give a task, for example"),
        ("- id: [", "parts.yaml:1:8: not YAML"),
        ("- {id: a}", "tasks[0].subtasks[0].id: 'a' is the id of tasks[0] too; give it another"),
    ],
)
def test_bad_subtasks_are_told_with_their_place(cli: Cli, work: Work, tmp_path: Path, text: str, words: str) -> None:
    """Errors in subtasks are reported with file, line and field where there is one, and nothing is split."""
    file = tmp_path / "parts.yaml"
    file.write_text(text)
    output = cli("task", "split", "a", "--from", file)
    assert (output.status, output.out, work.asked) == (2, "", [])
    assert words in output.err.replace(f"{tmp_path}/", "")


# ---------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("approve",), "TASK: missing; name the tasks to approve (`supervisor tree` shows them)"),
        (("task", "cancel"), "TASK: missing; name the tasks to cancel"),
        (("approve", "a", "--all-planned"), "--all-planned: it stands for other tasks each time; leave out"),
        (("approve", "--all-planned", "--command-id", "c"), "--all-planned: it stands for other tasks each time"),
        (("reject", "a"), "Missing option '--reason'"),
        (("task", "split"), "TASK: missing; name the task to split (an agent may set SUPERVISOR_TASK instead)"),
        (("task", "split", "a", "--from", "/nowhere.yaml"), "/nowhere.yaml: cannot be read: No such file or directory"),
        (("task", "cancel", "a", "--all-planned"), "No such option"),
    ],
)
def test_bad_input_asks_nothing(cli: Cli, work: Work, command: tuple[str, ...], words: str) -> None:
    """An invalid command line gives one message and exit status 2, and no request is sent."""
    output = cli(*command)
    assert (output.status, output.out, work.asked) == (2, "", [])
    assert words in output.err


@pytest.mark.parametrize(
    ("data", "words"), [(b"\xff", "not UTF-8 at position 0"), (b" " * 524_289, "is larger than 524288 bytes")]
)
def test_a_file_that_cannot_be_subtasks(cli: Cli, work: Work, tmp_path: Path, data: bytes, words: str) -> None:
    """A subtask file that is not UTF-8, or is too large, is rejected before it is sent."""
    (tmp_path / "parts.yaml").write_bytes(data)
    output = cli("task", "split", "a", "--from", tmp_path / "parts.yaml")
    assert (output.status, work.asked) == (2, [])
    assert words in output.err


def test_without_a_supervisor_there_is_nobody_to_ask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command without a running supervisor gives one message and exit status 2."""
    assert execute(supervisor, ["approve", "a", "--state-dir", str(tmp_path / "nix")]) == 2
    assert "no supervisor runs on" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------- the socket
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"verb": "approve"}, "tasks: none is named; give at least one task id"),
        ({"verb": "dance", "tasks": ["a"]}, "verb: 'dance' is not valid; give one of approve, reject, retry"),
        ({"verb": "split", "tasks": ["a"]}, "verb: split needs new tasks; give them with do: split"),
        ({"verb": "add", "tasks": ["a"]}, "verb: add needs new tasks; give them with do: add_tasks"),
        ({"verb": "block", "tasks": ["a"]}, "on: names what a task waits for; give it with block"),
        ({"verb": "cancel", "all_planned": True}, "can be approved or rejected, not cancel"),
        ({"verb": "approve", "tasks": ["a"], "all_planned": True}, "these may be other tasks"),
        ({"verb": "approve", "all_planned": True, "command_id": "c"}, "these may be other tasks"),
    ],
)
def test_a_command_that_contradicts_itself_cannot_be_requested(fields: dict[str, Any], words: str) -> None:
    """A steer request with fields that contradict each other is bad input, with the field and the fix."""
    with pytest.raises(BadInput) as bad:
        Steer.model_validate(fields)
    assert words in str(bad.value)


@pytest.mark.anyio
async def test_where_no_plan_runs_there_is_nothing_to_steer(tmp_path: Path) -> None:
    """A steer request to a supervisor without a plan is refused."""
    with pytest.raises(ControlError, match="no plan runs here") as refused:
        await asked(tmp_path, None, Steer(verb=Verb.APPROVE, tasks=("a",)))
    assert refused.value.kind == "refused"


async def asked(folder: Path, work: Work | None, message: Steer) -> list[dict[str, Any]]:
    closing, path = anyio.Event(), folder / "control.sock"
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:

            async def serve(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                await serve_control(path, supervisor_of(work), closing=closing, task_status=task_status)

            await group.start(serve)
            try:
                async with aclosing(request(path, message)) as lines:
                    return [line async for line in lines]
            except ControlError as error:
                output = error
            finally:
                closing.set()
    raise output
