"""Fuzz targets: functions that read input, each with the errors that it declares; any other error means that the input
breaks the target."""

from __future__ import annotations

import json
import random
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import apsw
import msgspec
from anyio.abc import ByteStream, SocketAttribute

from supervisor import open_supervisor
from supervisor.agent_catalogue import catalogue
from supervisor.agents.codecs import codec_for
from supervisor.control.server import _ClientSlot, _Handler
from supervisor.diagnostics import tree_view
from supervisor.diagnostics.invariants import RecordChecker
from supervisor.diagnostics.validate import split_lines, validate_lines
from supervisor.journal.database import open_database
from supervisor.journal.jsonl import TransitionLog
from supervisor.journal.reader import JournalReader
from supervisor.journal.sqlite import SqliteJournal
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.session_data import SessionData
from supervisor.lifecycles.types import LifecycleEvent, SessionLimits
from supervisor.plans import BadPlan, load_plan
from supervisor.policies.abort_plan import AbortPlan
from supervisor.policies.caller_reach import CallerReach
from supervisor.ports import (
    Append,
    Caller,
    ChildRequested,
    FileRequested,
    JournalError,
    Origin,
    Out,
    PermissionNeeded,
    Ready,
    TerminalOpened,
    ToolOpened,
)
from supervisor.runtime.entity import Refused
from supervisor.triggers.definitions import compose, load_definitions
from supervisor.triggers.event_values import VALUE_CHARS_MAX, add_values, take_values, why_not_meant
from supervisor.triggers.signatures import Forged, Malformed, Provider, receive
from tests.unit.triggers.webhook_kit import NOW, SECRETS, signed

CORPUS = Path(__file__).parent / "corpus"
Take = Callable[[bytes], None]


class Target(NamedTuple):
    """Function under test. ``weight`` is its share of all inputs; ``opened`` gives a context with a function to which
    each input is passed."""

    name: str
    weight: float
    words: tuple[bytes, ...]
    opened: Callable[[], AbstractContextManager[Take]]

    def seeds(self) -> list[bytes]:
        """Return the inputs of the target in the corpus: good ones, and those that once broke the target."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


def simple(take: Take) -> Callable[[], AbstractContextManager[Take]]:
    @contextmanager
    def opened() -> Iterator[Take]:
        yield take

    return opened


# ------------------------------------------------------------------------------------------------------------ agents
def agent(adapter: str) -> Take:
    """Return a function that feeds input to the codec of *adapter* and checks that the codec never raises an error, and
    works to the end, whatever an agent sends."""
    mappings = [way.mapping for one in catalogue().values() for way in one.ways if way.mapping is not None]

    def take(data: bytes) -> None:
        chance = random.Random(len(data))
        codec = codec_for(adapter, mapping=chance.choice(mappings))()
        codec.argv(("agent",), "do it")
        outs: list[Out] = list(codec.start("/"))
        at = 0
        while at < len(data):
            size = chance.choice((1, 7, 64, 4096, 65536))
            fed = list(codec.feed(data[at : at + size]))
            outs += fed
            for out in fed:
                outs += answered(codec, out)
            at += size
        for call_id in sorted({out.call_id for out in outs if isinstance(out, ToolOpened)})[:100]:
            outs += codec.end_call(call_id) or []
        outs += codec.steer("and this") or []
        outs += [*codec.settled(), *codec.interrupt(), *codec.close(), *codec.feed(b""), *codec.exited(0)]
        assert all(isinstance(out, msgspec.Struct) for out in outs)
        assert len(outs) < 100 + 20 * len(data), f"{len(outs)} answers to {len(data)} bytes"

    return take


def answered(codec: Any, out: Out) -> list[Out]:
    match out:
        case Ready():
            return list(codec.prompt("do it"))
        case PermissionNeeded(request_id=request_id):
            return list(codec.permission(request_id, None))
        case TerminalOpened(terminal_id=terminal_id):
            return [*codec.terminal_output(terminal_id, b"\xffout"), *codec.terminal_exited(terminal_id, 1)]
        case FileRequested(request_id=request_id, text=text):
            return list(codec.file_answered(request_id, "a\nb\n", "" if text is None else "it is full"))
        case ChildRequested(request_id=request_id):
            return list(codec.child_ended(request_id, "completed", "done"))
        case _:
            return []


# ------------------------------------------------------------------------------------------------------------- plans
@contextmanager
def plans() -> Iterator[Take]:
    """Check that a file of any content is read as a plan, or refused by the error :class:`BadPlan`."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "plan.yaml"

        def take(data: bytes) -> None:
            path.write_bytes(data)
            with suppress(BadPlan):
                load_plan(path)

        yield take


# ---------------------------------------------------------------------------------------------------------- triggers
def webhook(data: bytes) -> None:
    """Check that a request to a webhook with any body and any headers (the lines before an empty one) is forged, and
    that the same body, signed, is read or refused as malformed; its values go to a prompt as one bounded line."""
    head, _, body = data.partition(b"\n\n")
    given = [line.partition(b":")[::2] for line in head.splitlines()]
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in given}
    for provider in Provider:
        with suppress(Forged):
            raise AssertionError(f"{provider}: {receive(provider, SECRETS[provider], headers, body, NOW)}")
        try:
            found = receive(provider, SECRETS[provider], *signed(provider, body), NOW)
        except Malformed:
            continue
        why_not_meant(found.document, found.event, ("push",), {"ref": ("refs/heads/main",)})
        values = take_values(found.document, {path: path for path in PATHS})
        plan = {"tasks": [{"id": "a", "prompt": "do"}, {"id": "b", "subtasks": [{"prompt": "do"}]}]}
        add_values(plan, values)
        prompt = str(plan["tasks"][0]["prompt"])
        assert len(prompt.splitlines()) == (5 if values else 1)
        assert len(prompt) < 500 + len(PATHS) * 12 * (VALUE_CHARS_MAX + 100)
        assert prompt.isascii()


PATHS = ("ref", "head_commit.message", "commits.0.id", "event.text", "data.name", "a.b.c", "0", "")


@contextmanager
def definitions() -> Iterator[Take]:
    """Check that a file of any content is read as a file of triggers, or refused by the error :class:`BadPlan`."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "sd" / "config" / "triggers.yaml"
        path.parent.mkdir(parents=True, mode=0o700)
        (Path(folder) / "inbox").mkdir()
        (Path(folder) / "plan.yaml").write_text("tasks: []")

        def take(data: bytes) -> None:
            path.write_bytes(data)
            with suppress(BadPlan):
                for one in load_definitions(path, Path(folder)).values():
                    if one.config.schedule is not None:
                        assert next(one.config.schedule.value().after(NOW)) > NOW
                    compose(one, Path(folder), {"a": "b"})

        yield take


# ---------------------------------------------------------------------------------------------------------- requests
class RecordedConnection(ByteStream):
    """Connection of a client whose whole input is there from the beginning."""

    def __init__(self, data: bytes, connection: socket.socket) -> None:
        self._data, self._connection = data, connection
        self.heard = bytearray()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {SocketAttribute.raw_socket: lambda: self._connection}

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data, self._data = self._data[:max_bytes], self._data[max_bytes:]
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        self.heard += item

    async def send_eof(self) -> None:
        return None

    async def aclose(self) -> None:
        return None


class RefusingSupervisor:
    """Stand-in for a supervisor, and for its parts, that refuses every request."""

    outage = None
    shortage = None
    daemon = None
    unidentified = ()

    def __init__(self) -> None:
        self.core = self.registry = self.requests = self.session_factory = self.aborts = self
        self.entities: dict[str, object] = {}
        self.sessions: dict[str, object] = {}
        self.stop_now = anyio.Event()

    def plan_abort(self, *_: object, **__: object) -> AbortPlan:
        raise Refused("no")

    async def refuse(self, *_: object, **__: object) -> Any:
        raise Refused("no")

    abort = send = stop = start = close_session = refuse

    def caller_at(self, _connection: socket.socket, pid: int) -> Caller:
        return Caller(Origin.OPERATOR, pid)

    def reach_of(self, _caller: Caller) -> CallerReach:
        return CallerReach()

    def inspect(self, entity_id: str) -> Any:
        raise Refused(entity_id)

    def subscribe(self, after_seq: int = 0) -> Any:
        raise Refused(str(after_seq))


def request(data: bytes) -> None:
    """Check that a request of any content gets a reply of JSON lines, the last of which ends the reply or is an error,
    or no reply at all."""
    anyio.run(_ask, data)


async def _ask(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        told = RecordedConnection(data, ours)
        # The handler of one connection is private; a server with a listener would make a million inputs take hours.
        handler = _Handler(RefusingSupervisor(), 1.0)
        await handler.serve(told, _ClientSlot())
        handler.reserve.close()
    lines = [json.loads(line) for line in bytes(told.heard).splitlines()]
    assert lines == [] or set(lines[-1]) in ({"done"}, {"error"}), lines
    assert "the supervisor failed" not in str(lines), lines


# ------------------------------------------------------------------------------------------------------------- lines
def lines(data: bytes) -> None:
    """Check that the validator accepts a log of any content as input."""
    report = validate_lines(split_lines([data]))
    assert report.lines <= data.count(b"\n") + 1


@contextmanager
def tails() -> Iterator[Take]:
    """Check that a ``transitions.jsonl`` of any content is cut off at an incomplete line, or refused by an error;
    complete lines stay."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "transitions.jsonl"

        def take(data: bytes) -> None:
            path.write_bytes(data)
            with suppress(JournalError):
                TransitionLog.open(path, journal_seq=1 << 40).close()
            assert data.startswith(path.read_bytes())

        yield take


# ----------------------------------------------------------------------------------------------------------- records
_decode = msgspec.json.Decoder(LifecycleEvent).decode


def records(data: bytes) -> None:
    """Check that the record checker handles records of the right shape with any content."""
    found: list[LifecycleEvent] = []
    for line in data.splitlines():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found.append(_decode(line))
    checker = RecordChecker()
    for one in found:
        checker.check(one)
    checker.finish(quiescent=False)


# -------------------------------------------------------------------------------------------------------------- rows
@contextmanager
def journals() -> Iterator[Take]:
    """Check that a file of any content opens as a journal, or raises :class:`JournalError`, for writing and for
    reading."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "journal.db"

        def take(data: bytes) -> None:
            for left in Path(folder).iterdir():
                left.unlink()
            path.write_bytes(data)
            with suppress(JournalError), JournalReader(path) as reader:
                list(reader.events())
                reader.entities()
            with suppress(JournalError):
                open_database(path, Path(folder) / "transitions.jsonl").close()

        yield take


@contextmanager
def rows() -> Iterator[Take]:
    """Check that a journal with any content in a column can be read and taken over, or raises :class:`JournalError`."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        good = Path(folder) / "good"
        anyio.run(_one_session, good)

        def take(data: bytes) -> None:
            state = StateDir(Path(folder) / "state")
            shutil.rmtree(state.root, ignore_errors=True)
            shutil.copytree(good, state.root, ignore=shutil.ignore_patterns("control.sock"))
            column, _, value = data.partition(b"=")
            _overwrite(state.journal, COLUMNS[len(column) % len(COLUMNS)], value)
            with suppress(JournalError), JournalReader(state.journal) as reader:
                list(reader.events())
                tree_view.tree(reader.entities())
            anyio.run(_started, state.root)

        yield take


COLUMNS = (
    "entities.data",
    "entities.state",
    "entities.kind",
    "events.metadata",
    "events.entity_type",
    "events.timestamp",
)


async def _one_session(path: Path) -> None:
    """Write a journal whose one session has not ended, like that of a killed supervisor."""
    journal = await SqliteJournal.open(StateDir.open(path).journal, jsonl=path / "transitions.jsonl")
    data = SessionData(id="a", agent="x", limits=SessionLimits())
    born = LifecycleEvent(
        seq=1,
        timestamp=1.0,
        monotonic_s=1.0,
        entity_type="session",
        entity_id="a",
        entity_seq=1,
        event="Born",
        to_status="Initializing",
        outcome="born",
        metadata=msgspec.to_builtins(data),
    )
    await journal.append([Append(record=born, parent_id=None, state="Initializing", data=msgspec.json.encode(data))])
    await journal.close()


async def _started(path: Path) -> None:
    try:
        async with open_supervisor(path):
            pass
    except* JournalError:
        pass


def _overwrite(path: Path, column: str, value: bytes) -> None:
    table, _, name = column.partition(".")
    db = apsw.Connection(str(path))
    for stored in (value, value.decode(errors="replace")):
        with suppress(apsw.Error):  # what the table's own rules refuse is not there
            db.execute(f"UPDATE {table} SET {name} = ?", (stored,))
            break
    db.close()


ACP = (
    b'"jsonrpc":"2.0"',
    b'"id":1',
    b'"id":0',
    b'"id":-1',
    b'"method":"session/update"',
    b'"method":"session/request_permission"',
    b'"method":"terminal/create"',
    b'"method":"terminal/output"',
    b'"method":"_supervisor/session/run"',
    b'"sessionUpdate":"tool_call"',
    b'"sessionUpdate":"tool_call_update"',
    b'"status":"completed"',
    b'"stopReason":"end_turn"',
    b'"error":{"code":-32603,"message":"no"}',
)
CODEX = (
    b'"id":3',
    b'"id":0',
    b'"method":"item/started"',
    b'"method":"item/completed"',
    b'"method":"turn/completed"',
    b'"method":"item/commandExecution/requestApproval"',
    b'"method":"thread/tokenUsage/updated"',
    b'"method":"error"',
    b'"type":"commandExecution"',
    b'"type":"contextCompaction"',
    b'"codexErrorInfo":{"httpConnectionFailed":{"httpStatusCode":401}}',
    b'"status":"interrupted"',
    b'"error":{"code":-32600,"message":"no"}',
)
CLAUDE = (
    b'"type":"assistant"',
    b'"type":"user"',
    b'"type":"result"',
    b'"type":"tool_use"',
    b'"type":"tool_result"',
    b'"type":"control_request"',
    b'"type":"control_response"',
    b'"subtype":"can_use_tool"',
    b'"subtype":"task_started"',
    b'"subtype":"api_retry"',
    b'"request_id":"supervisor-1"',
    b'"parent_tool_use_id":"c"',
    b'"is_error":true',
    b'"isReplay":true',
)
JSONL = (
    b'"type":"result"',
    b'"type":"tool_use"',
    b'"type":"tool_result"',
    b'"type":"assistant"',
    b'"type":"item.completed"',
    b'"type":"turn.completed"',
    b'"type":"step_finish"',
    b'"type":"turn_end"',
    b'"role":"tool"',
    b'"status":"success"',
    b'"is_error":false',
    b'"content":[{"type":"text","text":"x"}]',
    b'"content":{"0":1}',
    b'"usage":{"input_tokens":1e400}',
    b'"usage":{"input_tokens":-5,"output_tokens":true}',
)
PLAN = (b"agents:", b"tasks:", b"limits:", b"policy:", b"ladder:", b"depends_on: [a]", b"adapter: scripted", b"- id: a")
ASKED = (b'"do":"abort"', b'"do":"follow"', b'"id":"a"', b'"scope":"tool"', b'"now":1', b'"within_s":-1')
RECORD = (
    b'"outcome":"transition"',
    b'"outcome":"born"',
    b'"entity_type":"turn"',
    b'"entity_type":"nothing"',
    b'"event":"AbortRecord"',
    b'"event":"tool_started"',
    b'"metadata":{}',
    b'"metadata":{"call_id":7}',
    b'"cause_id":3',
    b'"seq":0',
)
DELIVERY = (
    b"x-hub-signature-256: sha256=00",
    b"x-signature-ed25519: 00",
    b"x-slack-request-timestamp: 1800000000",
    b"webhook-signature: v1,AAAA",
    b"authorization: Bearer x",
    b'"type":"url_verification"',
    b'"type":1',
    b'"id":{}',
    b'"event":[]',
    b'"commits":[{"id":NaN}]',
    b"1e999",
    b"\\ud800",
)
TRIGGERS = (
    b"triggers:",
    b"schedule: {cron: '* * 31 2 *'}",
    b"cron: '0-59/7 */2 L * MON#5'",
    b"every_s: 10",
    b"timezone: Europe/Berlin",
    b"timezone: ../../etc/passwd",
    b"webhook: {provider: github, secret: {env: HOME}}",
    b"watch: {folder: inbox, match: ['*']}",
    b"plan: plan.yaml",
    b"task: {id: t, agent: a, prompt: p}",
    b"missed: all",
    b"overlap: queue",
)
LINE = (b'"event_type":"turn_state_transition"', b'"from_state":"IDLE"', b'"trigger":"x"', b'"timestamp":"2026-13-45"')

TARGETS: Mapping[str, Target] = {
    one.name: one
    for one in (
        Target("acp", 0.15, ACP, simple(agent("acp"))),
        Target("claude", 0.1, CLAUDE, simple(agent("claude"))),
        Target("codex", 0.1, CODEX, simple(agent("codex"))),
        Target("jsonl", 0.05, JSONL, simple(agent("jsonl"))),
        Target("command", 0.05, (), simple(agent("command"))),
        Target("plan", 0.1, PLAN, plans),
        Target("webhook", 0.05, DELIVERY, simple(webhook)),
        Target("triggers", 0.02, TRIGGERS, definitions),
        Target("request", 0.05, ASKED, simple(request)),
        Target("lines", 0.2, LINE, simple(lines)),
        Target("tails", 0.1, LINE, tails),
        Target("records", 0.13, RECORD, simple(records)),
        Target("journal", 0.02, (), journals),
        Target("rows", 0.002, (b'{"id":"a"}', b"null", b"session", b"Running", b"turn", b"1e999"), rows),
    )
}
