"""Control socket, on both backends: the replies to requests, and protection of the supervisor and of other clients."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import pytest

from supervisor.control import server
from supervisor.control.client import request
from supervisor.control.error_messages import ControlError, NotRunning
from supervisor.control.requests import Abort, Compact, Follow, Inspect, Ping, Request, Send, Stop
from supervisor.control.server import LINE_BYTES_MAX, serve_control
from supervisor.diagnostics.visual_state import Inspected
from supervisor.lifecycles.types import AbortScope, DeliveryPoint, LifecycleEvent, NoSuchEntity
from supervisor.policies.abort_plan import AbortPlan, Receipt
from supervisor.policies.caller_reach import NOWHERE
from supervisor.ports import Caller, Compacted, JournalError, Origin, Retention
from supervisor.ports.outages import Outage
from supervisor.runtime.entity import Refused

pytestmark = pytest.mark.anyio


def event(seq: int, entity: str = "lead", reason: str = "") -> LifecycleEvent:
    return LifecycleEvent(
        seq=seq,
        timestamp=0.0,
        monotonic_s=0.0,
        entity_type="session",
        entity_id=entity,
        entity_seq=seq,
        event="Happened",
        reason=reason,
    )


PONG = {"pid": os.getpid(), "outage": None, "shortage": None, "unidentified": []}


class Played:
    """Stand-in for a supervisor, and for its parts, that records the requests it receives."""

    def __init__(self, *plan_commands: Any) -> None:
        self.core = self.requests = self
        self.registry = SimpleNamespace(entities={}, sessions={}, reach_of=lambda caller: NOWHERE)
        self.plan_commands = plan_commands
        self.asked: list[Any] = []
        self.events: list[LifecycleEvent] = []
        self.endless: LifecycleEvent | None = None
        self.aborting = anyio.Event()
        self.may_abort = anyio.Event()
        self.may_abort.set()
        self.subscribed = 0
        self.origin: Origin | None = Origin.OPERATOR
        """Origin of each caller; ``None`` stands for no free file descriptor to find out the origin."""
        self.stop_now = anyio.Event()
        self.daemon = None
        self.outage: Outage | None = None
        self.shortage = None
        self.unidentified = ()

    def plan_abort(self, target: str, scope: AbortScope, *, now: bool = False) -> AbortPlan:
        if target == "nobody":
            raise NoSuchEntity(target)
        if scope is AbortScope.SIBLING:
            raise ValueError(f"{target} is a root session and has no siblings")
        return AbortPlan(target=target, scope=scope, nodes=(), already_ended=False, deadline_s=18, id="0")

    async def abort(
        self,
        target: str,
        scope: AbortScope,
        *,
        reason: str,
        actor: str,
        now: bool,
        within_s: float | None,
        plan_id: str | None,
    ) -> Receipt:
        self.plan_abort(target, scope)
        self.aborting.set()
        await self.may_abort.wait()
        self.asked.append((target, scope, reason, actor))
        return Receipt(abort_id="abort-1", target=target, scope=scope, reason=reason, already_ended=False)

    async def send(self, session_id: str, text: str, *, urgent: bool, sender: str, at: str | None = None) -> str:
        match session_id:
            case "ended":
                raise Refused("session: UrgentMessage in Stopped")
            case "bug":
                raise KeyError("an index of ours")
        self.asked.append((session_id, text, urgent, sender, at))
        return "m1"

    def inspect(self, entity_id: str) -> Inspected:
        if entity_id == "nobody":
            raise NoSuchEntity(entity_id)
        seen: dict[str, Any] = {"phase": "live", "reason": "", "handled": 3}
        seen |= dict.fromkeys(("cancelled_for", "children", "tasks"), ())
        return Inspected(id=entity_id, kind="session", state="Running", queued={}, late_replies=0, timers=0, **seen)

    async def compact(self, retention: Retention | None = None) -> Compacted:
        if retention is not None and retention.records_max == 13:
            raise JournalError("journal.db is damaged")
        self.asked.append(retention)
        return Compacted(archives=("journal-000001.db",), records=7)

    async def stop(self, *, now: bool, actor: str) -> None:
        self.asked.append((now, actor))
        if now:
            self.stop_now.set()

    def caller_at(self, connection: socket.socket, pid: int) -> Caller:
        if self.origin is None:
            raise OSError(errno.EMFILE, "Too many open files")
        return Caller(self.origin, pid)

    @asynccontextmanager
    async def subscribe(self, after_seq: int = 0) -> AsyncIterator[AsyncIterator[LifecycleEvent]]:
        self.subscribed += 1
        try:
            yield self._told(after_seq)
        finally:
            self.subscribed -= 1

    async def _told(self, after_seq: int) -> AsyncIterator[LifecycleEvent]:
        for one in self.events:
            if one.seq > after_seq:
                yield one
        while self.endless is not None:
            await anyio.lowlevel.checkpoint()
            yield self.endless
        await anyio.sleep_forever()


@asynccontextmanager
async def served(path: Path, played: Played, **options: Any) -> AsyncIterator[anyio.Event]:
    """Run the control server as a task for the time of the block."""
    closing = anyio.Event()

    async def serve(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        await serve_control(path, played, closing=closing, task_status=task_status, **options)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            await group.start(serve)
            yield closing
            closing.set()


async def answers(path: Path, asked: Request) -> list[dict[str, Any]]:
    async with aclosing(request(path, asked)) as lines:
        return [line async for line in lines]


async def raw_reply(path: Path, line: bytes) -> Any:
    """Send *line*, which may be no request, and return the first line of the reply."""
    async with await anyio.connect_unix(path) as client:
        await client.send(line)
        return json.loads(await client.receive())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "runtime").mkdir()
    return tmp_path / "runtime" / "control.sock"


# ----------------------------------------------------------------------------------------------------- answers
async def test_ping_tells_the_pid(path: Path) -> None:
    """``ping`` returns the pid of the supervisor, its outage and shortage, and the processes of unknown origin."""
    async with served(path, Played()):
        assert await answers(path, Ping()) == [PONG]


async def test_a_client_of_another_user_is_told_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client whose uid, as the kernel reports it, is another user's gets no reply, and the log records the
    refusal."""
    monkeypatch.setattr(server, "peer", lambda connection: (os.getpid(), os.geteuid() + 1))
    played = Played()
    async with served(path, played):
        with pytest.raises((NotRunning, ControlError)):
            await answers(path, Stop())
    assert not played.stop_now.is_set()
    assert "control_client_refused" in caplog.text


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the kernel says who is there on Linux")
async def test_the_kernel_says_who_is_there() -> None:
    """``peer`` returns pid and uid of the process at the other end of a socket."""
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        assert server.peer(here) == (os.getpid(), os.getuid())


async def test_an_abort_gets_its_receipt(path: Path) -> None:
    """An abort request passes target, scope, reason and actor to the supervisor, and is answered with the receipt."""
    played = Played()
    asked = Abort(id="lead:t1:c1", scope=AbortScope.TOOL, reason="too slow", by="operator:me")
    async with served(path, played):
        (answer,) = await answers(path, asked)
    assert answer["receipt"]["abort_id"] == "abort-1"
    assert played.asked == [("lead:t1:c1", AbortScope.TOOL, "too slow", "operator:me")]


async def test_a_dry_run_ends_nothing(path: Path) -> None:
    """A dry run is answered with the abort plan, and no abort is carried out."""
    played = Played()
    async with served(path, played):
        (answer,) = await answers(path, Abort(id="lead", scope=AbortScope.SESSION, dry_run=True))
    assert answer["plan"]["target"] == "lead"
    assert played.asked == []


async def test_an_inspection_is_answered(path: Path) -> None:
    """An inspection returns the state of an entity; an unknown entity is an error of kind ``unknown``."""
    async with served(path, Played()):
        (answer,) = await answers(path, Inspect(id="lead"))
        with pytest.raises(ControlError) as refused:
            await answers(path, Inspect(id="nobody"))
    assert (answer["inspected"]["state"], answer["inspected"]["handled"]) == ("Running", 3)
    assert refused.value.kind == "unknown"


def told(stopping: str) -> list[dict[str, Any]]:
    return [{"stopping": stopping, "outage": None}]


async def test_a_compaction_is_answered_with_what_was_moved(path: Path) -> None:
    """``compact`` uses the supervisor's retention, or the one in the request; a failed compaction is an error of kind
    ``failed``."""
    played = Played()
    async with served(path, played):
        (answer,) = await answers(path, Compact())
        await answers(path, Compact(keep_s=5.0))
        with pytest.raises(ControlError, match=r"^journal\.db is damaged$") as failed:
            await answers(path, Compact(records_max=13))
    assert (answer["compacted"]["archives"], answer["compacted"]["records"]) == (["journal-000001.db"], 7)
    assert played.asked == [None, Retention(keep_s=5.0, records_max=None)]
    assert failed.value.kind == "failed"


async def test_messages_and_stops_arrive(path: Path) -> None:
    """Message and stop requests reach the supervisor with all their fields."""
    played = Played()
    async with served(path, played):
        message = Send(id="lead", text="hi", urgent=True, by="me", at=DeliveryPoint.TURN_END)
        sent = await answers(path, message)
        drained = await answers(path, Stop(by="me"))
        stopped = await answers(path, Stop(now=True, by="me"))
    assert (sent, drained, stopped) == ([{"message_id": "m1"}], told("drain"), told("now"))
    assert played.asked == [("lead", "hi", True, "me", "turn_end"), (False, "me"), (True, "me")]


@pytest.mark.parametrize(
    ("asked", "kind", "words"),
    [
        (Abort(id="nobody", scope=AbortScope.TOOL), "unknown", "nothing alive has the id 'nobody'"),
        (Abort(id="lead", scope=AbortScope.SIBLING), "bad", "lead is a root session"),
        (Send(id="ended", text=""), "refused", "UrgentMessage in Stopped"),
    ],
)
async def test_a_request_that_fails_is_answered_with_the_reason(
    path: Path, asked: Request, kind: str, words: str
) -> None:
    """An unknown target, a wrong scope and a refusal each get an error of their kind, with the reason."""
    async with served(path, Played()):
        with pytest.raises(ControlError) as refused:
            await answers(path, asked)
        assert await answers(path, Ping())
    assert refused.value.kind == kind
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            {"do": "abort", "id": "lead", "scope": "world"},
            "scope: 'world' is not valid; give tool, that call; sibling,",
        ),
        ({"do": "abort", "scope": "tool"}, "id: missing; give the id of a tool call or session"),
        ({"do": "abort", "id": "lead", "scope": "tool", "within_s": -1}, "within_s: -1 is not valid; give the seconds"),
        (
            {"do": "follow", "after": 2**63},
            "after: 9223372036854775808 is not valid; give the number of the last record",
        ),
        ({"do": "dance"}, "do: 'dance' is not an operation; give one of ping, inspect, permissions, processes,"),
        ({}, "do: None is not an operation; give one of ping"),
        ({"do": "ping", "loudly": True}, "loudly: unknown field; the fields of ping are: none"),
        (
            {"do": "send", "id": 5, "text": "", "urgent": "yes"},
            "id: 5 is not valid; give the id of a session, or of a task (RUN#TASK) for its session\nurgent:",
        ),
        ([], "a request is an object, not []; give for example {'do': 'ping'}"),
    ],
)
async def test_a_malformed_request_is_answered_with_field_value_and_fix(path: Path, message: Any, words: str) -> None:
    """A request with a wrong field is answered with an error that names the field, its value and the fix."""
    async with served(path, Played()):
        error = (await raw_reply(path, f"{json.dumps(message)}\n".encode()))["error"]
        assert await answers(path, Ping())
    assert error["kind"] == "bad"
    assert error["message"].startswith(words)


class Kept(logging.Handler):
    """Log handler that stores the log lines as text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Return the list of lines that the runtime logs."""
    logger, kept = logging.getLogger("supervisor"), Kept()
    before, logger.handlers = logger.handlers, [kept]
    yield kept.lines
    logger.handlers = before


async def test_a_bug_is_told_logged_and_survived(path: Path, logged: list[str]) -> None:
    """An unexpected exception is reported to the client and logged with its traceback, and the server continues."""
    async with served(path, Played()):
        with pytest.raises(ControlError, match="the supervisor failed: KeyError") as failed:
            await answers(path, Send(id="bug", text=""))
        assert await answers(path, Ping())
    assert failed.value.kind == "failed"
    (line,) = logged
    assert line.startswith("event=control_request_failed\nTraceback")


# ------------------------------------------------------------------------------------------------------- follow
async def test_following_tells_what_comes_after(path: Path) -> None:
    """``follow`` yields the events after the given number, of the named entity, until the server closes."""
    played = Played()
    played.events = [event(1), event(2), event(3, "other"), event(4)]
    async with (
        served(path, played) as closing,
        aclosing(request(path, Follow(after=1, id="lead"))) as lines,
    ):
        assert [(await anext(lines))["event"]["seq"] for _ in range(2)] == [2, 4]
        closing.set()
        assert [line async for line in lines] == []


async def test_a_follower_that_hangs_up_is_forgotten(path: Path) -> None:
    """When a follower closes its connection, its subscription ends, even if no event comes."""
    played = Played()
    played.events = [event(1)]
    async with served(path, played):
        async with aclosing(request(path, Follow())) as lines:
            await anext(lines)
            assert played.subscribed == 1
        while played.subscribed:
            await anyio.wait_all_tasks_blocked()
            assert await answers(path, Ping())


async def test_a_client_that_does_not_read_is_disconnected(path: Path) -> None:
    """A follower that stops reading does not delay other clients, and is disconnected after the stall time."""
    played = Played()
    played.endless = event(1, reason="x" * 10_000)
    async with served(path, played, stall_s=0.05), await anyio.connect_unix(path) as stalled:
        await stalled.send(b'{"do": "follow"}\n')
        while not played.subscribed:
            assert await answers(path, Ping())
        while played.subscribed:
            assert await answers(path, Ping())


async def test_agents_cannot_keep_an_operator_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If agents hold all client slots, an operator gets the slot of the oldest one."""
    monkeypatch.setattr(server, "clients_max", lambda: 2)
    played = Played()
    played.origin = Origin.AGENT
    async with served(path, played), await anyio.connect_unix(path) as first, await anyio.connect_unix(path) as second:
        for client in (first, second):
            await client.send(b'{"do": "follow"}\n')
        while played.subscribed < 2:
            await anyio.wait_all_tasks_blocked()
        played.origin = Origin.OPERATOR
        assert await answers(path, Ping())
        with pytest.raises(anyio.EndOfStream):
            await first.receive()
        assert played.subscribed == 1


async def test_a_client_that_cannot_be_looked_at_is_refused(path: Path) -> None:
    """A client whose origin cannot be found out for lack of a file descriptor gets an error of kind ``busy``."""
    played = Played()
    async with served(path, played):
        played.origin = None
        with pytest.raises(ControlError, match="no file descriptor left") as refused:
            await answers(path, Ping())
        played.origin = Origin.OPERATOR
        assert await answers(path, Ping())
    assert refused.value.kind == "busy"


# --------------------------------------------------------------------------------------------- hostile requests
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"hello\n", "the request is not JSON: JSON is malformed"),
        (b"\xff\xfe\n", "JSON is malformed"),
        (b"\n", "Input data was truncated"),
        (b'{"x": ' + b"[" * 100_000 + b"\n", "the request is nested too deeply"),
        (b"x" * (LINE_BYTES_MAX + 1), f"the request is longer than {LINE_BYTES_MAX} bytes"),
    ],
    ids=["no JSON", "no UTF-8", "empty", "deep", "endless"],
)
async def test_garbage_gets_an_error_line(path: Path, line: bytes, words: str) -> None:
    """A line that is no valid request is answered with one error, and the server continues."""
    async with served(path, Played()):
        answer = await raw_reply(path, line)
        assert await answers(path, Ping())
    assert words in answer["error"]["message"]


async def test_a_client_that_says_nothing_is_no_trouble(path: Path) -> None:
    """A connection that is closed before or within its request does not disturb the server."""
    async with served(path, Played()):
        for part in (b"", b'{"do": "pi'):
            async with await anyio.connect_unix(path) as client:
                await client.send(part)
        assert await answers(path, Ping())


async def test_an_abort_outlives_its_client(path: Path) -> None:
    """An abort is carried out even if its client disconnects before the reply."""
    played = Played()
    played.may_abort = anyio.Event()
    async with served(path, played):
        async with await anyio.connect_unix(path) as client:
            await client.send(b'{"do": "abort", "id": "lead", "scope": "session"}\n')
            await played.aborting.wait()
        played.may_abort.set()
    assert [target for target, *_ in played.asked] == ["lead"]


async def test_an_answer_under_way_is_given_before_the_door_closes(path: Path) -> None:
    """When the server closes, a request in progress is still answered."""
    played = Played()
    played.may_abort = anyio.Event()
    got: list[Any] = []

    async def ask() -> None:
        got.extend(await answers(path, Abort(id="lead", scope=AbortScope.SESSION)))

    async with anyio.create_task_group() as group, served(path, played) as closing:
        group.start_soon(ask)
        await played.aborting.wait()
        closing.set()
        played.may_abort.set()
    assert got[0]["receipt"]["target"] == "lead"


async def test_an_answer_that_never_comes_does_not_hold_the_door(path: Path) -> None:
    """A request that is not answered within the grace period after the close ends with an error to the client."""
    played = Played()
    played.may_abort = anyio.Event()
    told: list[str] = []

    async def ask() -> None:
        try:
            await answers(path, Abort(id="lead", scope=AbortScope.SESSION))
        except ControlError as error:
            told.append(str(error))

    async with anyio.create_task_group() as group, served(path, played, grace_s=0.01):
        group.start_soon(ask)
        await played.aborting.wait()
    assert told == ["the connection was closed before the reply was complete; the journal has the result"]


# ------------------------------------------------------------------------------------------------------ the file
async def test_only_the_owner_may_ask(path: Path) -> None:
    """The socket has mode 0600."""
    async with served(path, Played()):
        assert stat.S_IMODE((await anyio.Path(path).stat()).st_mode) == 0o600


async def test_a_stale_socket_is_replaced(path: Path) -> None:
    """The socket file of a killed supervisor is replaced by a new server."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with served(path, Played()):
        assert await answers(path, Ping())


async def test_a_path_may_be_longer_than_an_address(tmp_path: Path) -> None:
    """The control socket works at a path longer than a socket address may be."""
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    path = folder / "control.sock"
    async with served(path, Played()):
        assert path.is_socket()
        assert await answers(path, Ping()) == [PONG]


@pytest.mark.parametrize("name", ["control.sock", "missing/control.sock", "x" * 110 + "/control.sock"])
async def test_nobody_there_is_said_with_the_remedy(tmp_path: Path, name: str) -> None:
    """A request without a running supervisor raises NotRunning with the command that starts one."""
    with pytest.raises(NotRunning, match=r"no supervisor runs on .*: start one with `supervisor run PLAN\.yaml`"):
        await answers(tmp_path / name, Ping())


async def test_a_socket_that_nobody_listens_on_is_nobody(path: Path) -> None:
    """The socket file exists after the server has ended, and a request on it raises NotRunning."""
    async with served(path, Played()):
        pass
    assert await anyio.Path(path).is_socket()
    with pytest.raises(NotRunning):
        await answers(path, Ping())
