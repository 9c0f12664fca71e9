"""Scripted agent, a test agent that executes the ``@step`` lines of its prompt, as a real ACP process with the
codec."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from supervisor.agents.codecs import scripted_command
from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.agents.scripted_agent import STEPS, BadScript, Step, parse, urgent_part
from supervisor.policies.context_window import ContextUse
from supervisor.ports import (
    ChildRequested,
    CloseInput,
    Compaction,
    Malformed,
    Out,
    PermissionNeeded,
    Ready,
    Send,
    StrayLine,
    TerminalKilled,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    TurnEnding,
    Usage,
)

DEADLINE_S = 120.0
Handler = Callable[["Client", Out], Awaitable[None]]


class Client:
    """Client with an agent process and its codec; it stores the codec's reports in ``seen`` and calls their
    handlers."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.codec = AcpCodec()
        self.seen: list[Out] = []
        self.handlers: dict[type[Out], Handler] = {}
        self._unread: list[Out] = []

    async def do(self, outs: Iterable[Out]) -> None:
        """Send the codec's messages to the agent, close its input on CloseInput, and store the reports for
        ``until``."""
        for out in outs:
            if isinstance(out, Send):
                assert self.process.stdin is not None
                await self.process.stdin.send(out.data)
            elif isinstance(out, CloseInput):
                await self.close_input()
            else:
                self._unread.append(out)

    async def close_input(self) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.aclose()

    async def until(self, *kinds: type[Out]) -> Out:
        """Read from the agent until the codec reports an object of one of *kinds*, and return that report."""
        with anyio.fail_after(DEADLINE_S):
            while True:
                while self._unread:
                    out = self._unread.pop(0)
                    self.seen.append(out)
                    if type(out) in self.handlers:
                        await self.handlers[type(out)](self, out)
                    if isinstance(out, kinds):
                        return out
                await self.do(self.codec.feed(await self._read()))

    async def play(self, script: str) -> Out:
        """Send *script* as a prompt and follow it to the end of the turn."""
        await self.do(self.codec.prompt(script))
        return await self.over()

    async def over(self) -> Out:
        """Follow the turn to its end."""
        if isinstance(out := await self.until(TurnEnding, TurnEnded, Malformed), TurnEnding):
            await self.do(self.codec.settled())
            out = await self.until(TurnEnded)
        return out

    async def gone(self) -> int:
        """Read the agent's output to its end, wait for the exit of the process, and return the exit status."""
        with anyio.fail_after(DEADLINE_S):
            while data := await self._read():
                await self.do(self.codec.feed(data))
            await self.do(self.codec.feed(b""))
            status = await self.process.wait()
        await self.do(self.codec.exited(status))
        self.seen += self._unread
        return status

    async def answers(self) -> None:
        """Return when the agent has read everything that was written to it: it answers an echo request, in order."""
        name = f"_test/echo{len(self.seen)}"
        assert self.process.stdin is not None
        await self.process.stdin.send(b'{"jsonrpc":"2.0","id":"%b","method":"%b"}\n' % (name.encode(), name.encode()))
        with anyio.fail_after(DEADLINE_S):
            data = b""
            while f'method not found: {name}"'.encode() not in data:
                more = await self._read()
                assert more, "the agent ended"
                data += more
                await self.do(self.codec.feed(more))

    def text(self, kind: str = "message") -> str:
        return "".join(out.text for out in self.seen if isinstance(out, Text) and out.kind == kind)

    def of(self, kind: type[Out]) -> list[Out]:
        return [out for out in self.seen if isinstance(out, kind)]

    async def _read(self) -> bytes:
        assert self.process.stdout is not None
        try:
            return await self.process.stdout.receive()
        except anyio.EndOfStream:
            return b""


@asynccontextmanager
async def agent(cwd: Path) -> AsyncIterator[Client]:
    """Return a scripted agent that is ready; it is killed at the end if it is still alive."""
    async with await anyio.open_process(scripted_command(), cwd=cwd, stderr=None) as process:
        try:
            client = Client(process)
            await client.do(client.codec.start(str(cwd)))
            assert await client.until(Ready, Malformed) == Ready(None, "scripted 1")
            yield client
        finally:
            if process.returncode is None:
                process.kill()


async def run_terminal(client: Client, out: Out) -> None:
    """Run the command of a TerminalOpened, and report the result to the codec."""
    assert isinstance(out, TerminalOpened)
    done = await anyio.run_process(out.argv, cwd=out.cwd, check=False)
    await client.do(client.codec.terminal_output(out.terminal_id, done.stdout))
    await client.do(client.codec.terminal_exited(out.terminal_id, done.returncode))


# ---------------------------------------------------------------------------------------------- the language
def test_a_script_is_its_lines_with_an_at_sign() -> None:
    """``parse`` returns the lines of a script that begin with ``@``: other lines and indentation are ignored, and only
    ``@agent`` takes the indented lines below it."""
    text = "Please:\n  @say hi there \nmail me@here\n@agent one two\n    @say inner\n\n      @run x\n\n@hang\n  prose\n"
    assert parse(text) == [
        Step(2, "say", "hi there", ""),
        Step(4, "agent", "one two", "    @say inner\n\n      @run x"),
        Step(9, "hang", "", ""),
    ]


def test_an_unknown_step_is_refused_with_the_known_ones() -> None:
    """An unknown step raises BadScript; the error names the line, the step and the known steps."""
    with pytest.raises(
        BadScript, match=r"^line 2: unknown step @bogus; known steps: @think @pause @inside @say"
    ) as caught:
        parse("@say a\n@bogus b")
    assert all(f"@{word}" in str(caught.value) for word in STEPS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@say hi", None),
        ("no Urgent message here", None),
        ("@say old\nUrgent message: stop now", ("stop now", "\n\n")),
        ("Urgent message: a\nUrgent message from ann: b\n@say new", ("b @say new", "\n\n@say new")),
        ("Urgent message\nstop\nat once", ("stop at once", "\nstop\nat once")),
    ],
)
def test_only_what_follows_the_last_urgent_message_counts(text: str, expected: tuple[str, str] | None) -> None:
    """``urgent_part`` returns the text of the last urgent message, and the lines after it with their line numbers
    kept."""
    assert urgent_part(text) == expected


def test_the_command_is_isolated() -> None:
    """The command of the scripted agent uses the current interpreter, without site packages and environment
    variables."""
    interpreter, *flags, path = scripted_command()
    assert (interpreter, flags) == (sys.executable, ["-I", "-S"])
    assert Path(path).is_file()


# ---------------------------------------------------------------------------------------------- the program
pytestmark = pytest.mark.anyio


async def test_it_thinks_speaks_writes_and_reports(tmp_path: Path) -> None:
    """The steps of a script are executed and reported in order, and the turn succeeds."""
    script = "@think hm\n@say hello\n@write sub/file.txt one\\ntwo\n@usage 42\n@compact\nprose\n@say bye"
    async with agent(tmp_path) as client:
        assert await client.play(script) == TurnEnded("end_turn")
        assert client.seen[1:-1] == [
            Text("thought", "hm\n"),
            Text("message", "hello\n"),
            Usage({"used": 42, "size": 200_000}, context=ContextUse(42, 200_000)),
            Compaction(True),
            Compaction(False),
            Text("message", "bye\n"),
        ]
    assert (tmp_path / "sub" / "file.txt").read_text() == "one\ntwo"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("just prose", "nothing to do\n"),
        ("@say old\nUrgent message: drop it", "understood: drop it\n"),
        ("@say old\nUrgent message: drop it\n@say new", "new\n"),
    ],
)
async def test_a_prompt_without_steps_is_answered(tmp_path: Path, script: str, said: str) -> None:
    """The scripted agent replies "nothing to do" to a prompt without steps; steps before an urgent message are
    ignored."""
    async with agent(tmp_path) as client:
        assert await client.play(script) == TurnEnded("end_turn")
        assert client.text() == said


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("@fail model is down", TurnEnded("error", "model is down")),
        ("@refuse\n@say never", TurnEnded("refusal")),
        ("@exit seven", TurnEnded("error", "line 1: @exit seven: invalid literal for int() with base 10: 'seven'")),
    ],
)
async def test_a_turn_can_end_badly_and_the_next_one_well(tmp_path: Path, script: str, ended: TurnEnded) -> None:
    """A step that fails, refuses or is invalid ends its turn with the step's error, and the agent takes the next
    prompt."""
    async with agent(tmp_path) as client:
        assert await client.play(script) == ended
        assert client.text() == ""
        assert await client.play("@say again") == TurnEnded("end_turn")


async def test_an_unknown_step_is_an_error_of_the_prompt(tmp_path: Path) -> None:
    """A script with an unknown step is not executed at all."""
    async with agent(tmp_path) as client:
        ended = await client.play("@say hi\n@bogus")
        assert isinstance(ended, TurnEnded)
        assert ended.error.startswith("line 2: unknown step @bogus; known steps: @think")
        assert client.text() == ""


async def test_a_command_runs_in_a_client_terminal(tmp_path: Path) -> None:
    """A ``@run`` step opens a tool call, runs its command in a terminal of the client in the right directory, and
    closes the call with its outcome."""
    async with agent(tmp_path) as client:
        client.handlers[TerminalOpened] = run_terminal
        assert await client.play("@run pwd\n@run echo bad; exit 3\n@run kill -9 $$") == TurnEnded("end_turn")
        assert client.text() == f"{tmp_path}\nthe command failed (3): bad\nthe command failed (SIGKILL): (no output)\n"
        (first, *_) = client.of(TerminalOpened)
        assert isinstance(first, TerminalOpened)
        assert (first.argv, first.cwd) == (("sh", "-c", "pwd"), str(tmp_path))
        calls = [out for out in client.seen if isinstance(out, ToolOpened | ToolClosed | TerminalOpened)]
        assert calls[:2] == [ToolOpened(first.call_id, "pwd", "execute"), first]
        closed = calls[2]
        assert isinstance(closed, ToolClosed)
        assert (closed.call_id, closed.outcome) == (first.call_id, "completed")
        closed = [out.outcome for out in client.of(ToolClosed) if isinstance(out, ToolClosed)]
        assert closed == ["completed", "failed", "failed"]


async def test_tools_run_at_the_same_time(tmp_path: Path) -> None:
    """All calls of ``@tools`` are open before the first is answered, each with a terminal of its own."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@tools 3 echo x"))
        opened = [await client.until(TerminalOpened) for _ in range(3)]
        assert client.of(ToolClosed) == []
        for out in reversed(opened):
            await run_terminal(client, out)
        assert await client.until(TurnEnded) == TurnEnded("end_turn")
        assert len({out.call_id for out in opened if isinstance(out, TerminalOpened)}) == 3
        assert len(client.of(ToolClosed)) == 3
        assert client.text() == "x\n" * 3


async def test_a_local_command_needs_no_client(tmp_path: Path) -> None:
    """The agent runs the command of ``@local`` itself: the tool call has no terminal."""
    async with agent(tmp_path) as client:
        assert await client.play("@local echo mine\n@local exit 4") == TurnEnded("end_turn")
        assert client.of(TerminalOpened) == []
        assert client.text() == "mine\nthe command failed (4): (no output)\n"
        assert len(client.of(ToolClosed)) == 2


async def test_neighbouring_agents_run_at_the_same_time(tmp_path: Path) -> None:
    """Adjacent ``@agent`` steps request their child sessions together; each has its block as prompt and a call of its
    own."""
    script = "@agent one\n  @say a\n\n  @say b\n@agent two fast\n  @hang\n@say done\n@agent three"
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt(script))
        one, two = await client.until(ChildRequested), await client.until(ChildRequested)
        assert isinstance(one, ChildRequested)
        assert isinstance(two, ChildRequested)
        assert (one.name, one.prompt, one.agent) == ("one", "  @say a\n\n  @say b", None)
        assert (two.name, two.prompt, two.agent) == ("two", "  @hang", "fast")
        assert [out.call_id for out in client.of(ToolOpened) if isinstance(out, ToolOpened)] == [
            one.call_id,
            two.call_id,
        ]
        await client.do(client.codec.child_ended(two.request_id, "aborted", ""))
        await client.do(client.codec.child_ended(one.request_id, "completed", "a\nb\n"))
        three = await client.until(ChildRequested)
        assert isinstance(three, ChildRequested)
        assert client.text() == "two aborted: (no output)\none completed: a\ndone\n"
        await client.do(client.codec.child_ended(three.request_id, "failed", "why"))
        assert await client.until(TurnEnded) == TurnEnded("end_turn")
        closed = [out.outcome for out in client.of(ToolClosed) if isinstance(out, ToolClosed)]
        assert closed == ["failed", "completed", "failed"]


@pytest.mark.parametrize(("option", "said"), [("allow_once", "deleted\n"), ("reject_once", "refused: delete it\n")])
async def test_a_permission_decides_how_the_script_goes_on(tmp_path: Path, option: str, said: str) -> None:
    """A script continues after its permission is granted; after a rejection it reports the refusal and ends."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@ask delete it\n@say deleted"))
        asked = await client.until(PermissionNeeded)
        options = (("allow_once", "allow_once"), ("reject_once", "reject_once"))
        assert asked == PermissionNeeded("permission-1", "delete it", options)
        await client.do(client.codec.permission("permission-1", option))
        assert await client.over() == TurnEnded("end_turn")
        assert client.text() == said


# ---------------------------------------------------------------------------------------------- cancel
async def test_a_cancel_ends_the_turn_and_not_the_agent(tmp_path: Path) -> None:
    """A hanging agent ends its turn on session/cancel, and takes the next prompt in the same session."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@say here\n@hang\n@say never"))
        await client.until(Text)
        await client.do(client.codec.interrupt())
        assert await client.until(TurnEnded) == TurnEnded("cancelled")
        assert await client.play("@say again") == TurnEnded("end_turn")
        assert client.text() == "here\nagain\n"


async def test_a_cancel_in_the_same_breath_as_the_prompt_is_answered(tmp_path: Path) -> None:
    """A cancel that arrives together with the prompt ends the turn as cancelled, with one response to the prompt."""
    async with agent(tmp_path) as client:
        await client.do([*client.codec.prompt("@hang"), *client.codec.interrupt()])
        assert await client.until(TurnEnded) == TurnEnded("cancelled")


async def test_a_cancel_kills_and_releases_the_terminals(tmp_path: Path) -> None:
    """A cancel kills and releases every running command."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@tools 2 sleep 86400"))
        opened = [await client.until(TerminalOpened) for _ in range(2)]
        await client.do(client.codec.interrupt())
        assert await client.until(TurnEnded) == TurnEnded("cancelled")
        killed = {out.terminal_id for out in client.of(TerminalKilled) if isinstance(out, TerminalKilled)}
        assert killed == {out.terminal_id for out in opened if isinstance(out, TerminalOpened)}
        assert len(client.of(ToolClosed)) == 2


async def test_a_cancel_with_a_permission_open_ends_the_turn(tmp_path: Path) -> None:
    """A cancel while a permission request is open ends the turn as cancelled, without the script's text for a
    refusal."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@ask may I"))
        await client.until(PermissionNeeded)
        await client.do(client.codec.interrupt())
        assert await client.until(TurnEnded) == TurnEnded("cancelled")
        assert client.text() == ""


async def test_a_cancel_with_children_open_ends_the_turn(tmp_path: Path) -> None:
    """A cancelled turn ends without waiting for the requested child sessions, and their late results are ignored."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@agent a\n@agent b"))
        children = [await client.until(ChildRequested) for _ in range(2)]
        await client.do(client.codec.interrupt())
        assert await client.until(TurnEnded) == TurnEnded("cancelled")
        for child in children:
            assert isinstance(child, ChildRequested)
            await client.do(client.codec.child_ended(child.request_id, "aborted", ""))
        assert await client.play("@say again") == TurnEnded("end_turn")


async def test_a_cancel_kills_a_local_command(tmp_path: Path) -> None:
    """A cancel kills the command of ``@local``: the process is dead and reaped before the agent answers
    ``cancelled``."""
    os.mkfifo(tmp_path / "pid")
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@local echo $$ > pid; exec sleep 86400"))
        await client.until(ToolOpened)
        with anyio.fail_after(DEADLINE_S):
            pid = int(await anyio.to_thread.run_sync((tmp_path / "pid").read_text))
        await client.do(client.codec.interrupt())
        assert await client.until(TurnEnded) == TurnEnded("cancelled")
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# ---------------------------------------------------------------------------------------------- the end
async def test_the_end_of_its_input_ends_it(tmp_path: Path) -> None:
    """An idle agent closes its session and exits with 0 at the end of its input."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.close())
        assert await client.gone() == 0


async def test_the_end_of_its_input_ends_it_during_a_turn(tmp_path: Path) -> None:
    """The end of its input ends the agent also while a turn hangs."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@say here\n@hang"))
        await client.until(Text)
        await client.close_input()
        assert await client.gone() == 0


async def test_a_deaf_agent_can_only_be_killed(tmp_path: Path) -> None:
    """After ``@deaf`` the agent ignores session/cancel, SIGTERM, SIGINT and the end of its input; only SIGKILL ends
    it."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@deaf\n@say deaf\n@wait go\n@say still here\n@hang"))
        await client.until(Text)
        await client.do(client.codec.interrupt())
        client.process.send_signal(signal.SIGTERM)
        client.process.send_signal(signal.SIGINT)
        await client.answers()
        await client.close_input()
        (tmp_path / "go").touch()
        assert await client.until(Text, TurnEnded) == Text("message", "still here\n")
        client.process.kill()
        assert await client.gone() == -signal.SIGKILL
    assert client.seen[-1] == TurnEnded("error", "the agent was ended by SIGKILL in the middle of a turn")


async def test_sigterm_ends_an_agent_that_is_not_deaf(tmp_path: Path) -> None:
    """SIGTERM ends an agent whose script has no ``@deaf``."""
    async with agent(tmp_path) as client:
        client.process.send_signal(signal.SIGTERM)
        assert await client.gone() == -signal.SIGTERM


async def test_it_can_exit_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    """``@exit`` in the middle of a turn: the text before the exit is reported, and the turn fails with the exit
    status."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@say last words\n@exit 7"))
        assert await client.gone() == 7
    said, ended = client.seen[-2:]
    assert said == Text("message", "last words\n")
    assert ended == TurnEnded("error", "the agent exited with status 7 in the middle of a turn")


async def test_it_can_crash_once(tmp_path: Path) -> None:
    """``@crash-once`` makes the first agent process exit; the second one completes the same script."""
    async with agent(tmp_path) as client:
        await client.do(client.codec.prompt("@crash-once mark 3\n@say through"))
        assert await client.gone() == 3
    async with agent(tmp_path) as client:
        assert await client.play("@crash-once mark 3\n@say through") == TurnEnded("end_turn")
        assert client.text() == "through\n"


async def test_it_can_leave_a_daemon_behind(tmp_path: Path) -> None:
    """``@daemon`` starts a process in an operating-system session of its own, which outlives the agent and ignores
    SIGTERM."""
    async with agent(tmp_path) as client:
        assert await client.play("@daemon") == TurnEnded("end_turn")
        pid = int(client.text().split()[1])
        try:
            assert os.getsid(pid) not in (os.getsid(0), client.process.pid)
            await client.do(client.codec.close())
            assert await client.gone() == 0
            ignored = int(_status_field(pid, "SigIgn"), 16)
            assert ignored & (1 << (signal.SIGTERM - 1))
            assert _status_field(pid, "Name") == "sleep"
        finally:
            os.kill(pid, signal.SIGKILL)


def _status_field(pid: int, field: str) -> str:
    """Return a field of ``/proc/PID/status`` of a living process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return line.partition(":")[2].strip()
    raise AssertionError(f"/proc/{pid}/status has no {field}")


# ---------------------------------------------------------------------------------------------- misbehaviour
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("@garbage", "the agent wrote a line that is not JSON: 'this is not JSON'"),
        ("@utf8", "session/update: Expected `object`, got `str`"),
        ("@longline 9000000", "longer than 8388608 bytes"),
    ],
)
async def test_it_can_write_what_is_no_message(tmp_path: Path, script: str, why: str) -> None:
    """Each step that writes a line which is no message makes the codec report the line with the matching reason."""
    async with agent(tmp_path) as client:
        assert await client.play(f"@say done\n{script}") == TurnEnded("end_turn")
        (stray,) = [one for one in client.seen if isinstance(one, StrayLine)]
        assert stray.why.startswith(why)


async def test_a_long_line_within_the_limit_is_a_message(tmp_path: Path) -> None:
    """``@longline`` with a length within the limit is a valid message."""
    async with agent(tmp_path) as client:
        assert await client.play("@longline 1000000") == TurnEnded("end_turn")
        assert len(client.text()) == 1_000_000


async def test_a_flood_is_as_long_as_it_says_and_can_be_cancelled(tmp_path: Path) -> None:
    """``@flood`` writes exactly the requested number of bytes, and can be cancelled."""
    async with agent(tmp_path) as client:
        assert await client.play("@flood 100000") == TurnEnded("end_turn")
        assert len(client.text()) == 100_000
        await client.do(client.codec.prompt(f"@flood {10**12}"))
        await client.until(Text)
        await client.do(client.codec.interrupt())
        assert await client.until(TurnEnded) == TurnEnded("cancelled")
