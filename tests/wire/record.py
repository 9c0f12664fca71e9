"""Records a conversation with a real agent, for ``test_wire_logs.py``. A tool for developers, not a test.

    python -m tests.wire.record claude-tool --adapter claude --env ANTHROPIC_BASE_URL=http://127.0.0.1:18080 \\
        'prompt:RUN[[echo hello]]' -- claude
    python -m tests.wire.record --tell

Steps, in order; each waits for its end, 60 s at most:

prompt:TEXT    give it, and wait until its turn has ended        begin:TEXT    ... until a tool call is open
silent:TEXT    ... until nothing has come for 3 s                interrupt     and wait until the turn has ended
steer:TEXT     say it within the turn                            end_call[:N]  end the Nth call (the last one)
quiet          until nothing has come for 3 s                    wait          until the turn has ended
kill           end the process (resume with --resume)

Permissions are answered as ``--permissions`` says, commands that the agent asks for are run to their end. What names
this machine is replaced before anything is written: the scratch directory, the command's directory, ports of loopback,
UUIDs, and what ``--hide`` names. Long texts and lists are cut. What the codec tells is taken from a replay of the
result. After a change of a codec ``--tell`` brings both files of every log up to it: look at the difference.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from supervisor.ports import (
    CloseInput,
    FileRequested,
    Malformed,
    Out,
    PermissionNeeded,
    Ready,
    Send,
    Signal,
    TerminalOpened,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    TurnEnding,
)
from supervisor.ports.input_limits import QUIET_S
from tests.wire.replaying import LOGS, WireEntry, codec_named, logs, read_log, replay, told_lines

STEP_S = 60.0
SILENT_S = 3.0
TEXT_CHARS_MAX = 300
LIST_MAX = 12
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NEW_ID = "00000000-0000-4000-8000-000000000000"
OTHERS = "00000000-0000-4000-9000-"


class Recording:
    """Conversation that is being recorded."""

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        self.entries = [WireEntry("do", "codec", [asked.adapter])]
        self._codec: Any = codec_named(asked.adapter)
        self._allow = f"{asked.permissions}_once"
        self._told: list[Out] = []
        self._open: list[str] = []
        self._rest = b""
        text = next((step.partition(":")[2] for step in asked.steps if ":" in step), "")
        argv = self._ask("argv", list(asked.command), text, NEW_ID, asked.resume)
        self._cwd = str(folder / "scratch")
        env = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), "LANG": "C.UTF-8", **dict(asked.env)}
        Path(self._cwd).mkdir(), Path(env["HOME"]).mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            argv, cwd=self._cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._ending = False
        """True while late messages of a turn whose end was reported are waited for."""
        self._take(self._ask("start", self._cwd, asked.resume))

    def _ask(self, method: str, *args: Any) -> Any:
        shown = [one.decode(errors="replace") if isinstance(one, bytes) else one for one in args]
        self.entries.append(WireEntry("do", method, shown))
        return getattr(self._codec, method)(*args)

    def _take(self, outs: Iterable[Out] | None) -> None:
        for out in outs or ():
            self._told.append(out)
            match out:
                case Send(data):
                    self.entries += [WireEntry("in", line) for line in data.decode().splitlines()]
                    assert self._process.stdin is not None
                    self._process.stdin.write(data)
                    self._process.stdin.flush()
                case CloseInput():
                    assert self._process.stdin is not None
                    self._process.stdin.close()
                case Signal(number):
                    self._process.send_signal(number)
                case TurnEnding():
                    self._ending = not self._codec.one_shot
                case ToolOpened():
                    self._open.append(out.call_id)
                case PermissionNeeded(request_id, _, options):
                    chosen = next((option for option, kind in options if kind == self._allow), None)
                    self._take(self._ask("permission", request_id, chosen))
                case TerminalOpened():
                    self._run(out)
                case FileRequested(request_id, path, content):
                    self._take(self._ask("file_answered", request_id, *self._file(Path(path), content)))
            print("   ", "" if isinstance(out, Send) else next(told_lines([out]))[:200].rstrip(), flush=True)

    def _file(self, path: Path, text: str | None) -> tuple[str, str]:
        try:
            return (path.read_text() if text is None else ["", path.write_text(text)][0], "")
        except OSError as error:
            return "", str(error)

    def _run(self, asked: TerminalOpened) -> None:
        done = subprocess.run(asked.argv, cwd=asked.cwd or self._cwd, capture_output=True, check=False)
        self._take(self._ask("terminal_output", asked.terminal_id, done.stdout + done.stderr))
        self._take(self._ask("terminal_exited", asked.terminal_id, done.returncode))

    def _until(self, reached: Callable[[Out], bool] | None, heard: int = 0) -> None:
        """Listen until a report after number *heard* for which *reached* is true; without *reached*, until nothing has
        come for a while."""
        ends = time.monotonic() + STEP_S
        while reached is None or not any(reached(one) for one in self._told[heard:]):
            if self._ending and not self._selector.select(QUIET_S):
                self._ending = False
                self._take(self._ask("settled"))
                continue
            if not self._selector.select(SILENT_S if reached is None else STEP_S) or time.monotonic() > ends:
                if reached is None:
                    return
                sys.exit(f"nothing came for {STEP_S} s; the last words: {self._told[-3:]}")
            if not self._listen():
                return

    def _listen(self) -> bool:
        data = os.read(self._process.stdout.fileno(), 65536)  # type: ignore[union-attr]
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.entries.append(WireEntry("out", line.decode()))
            self._take(self._codec.feed(line + b"\n"))
        return bool(data)

    # ------------------------------------------------------------------ steps
    def ready(self) -> None:
        self._until(lambda one: isinstance(one, Ready | Malformed))

    def step(self, step: str) -> None:
        name, _, text = step.partition(":")
        print(">>>", step, flush=True)
        heard = len(self._told)
        if name in ("prompt", "begin", "silent"):
            self._take(self._ask("prompt", text))
            wanted = TurnEnded if name == "prompt" else ToolOpened | TurnEnded
            self._until((lambda one: isinstance(one, wanted)) if name != "silent" else None, heard)
        elif name in ("interrupt", "wait"):
            self._take(self._ask("interrupt") if name == "interrupt" else ())
            self._until(lambda one: isinstance(one, TurnEnded), heard)
        elif name == "steer":
            self._take(self._ask("steer", text))
        elif name == "quiet":
            self._until(None)
        elif name == "end_call":
            self._take(self._ask("end_call", self._open[int(text or 0) - 1]))
            self._until(lambda one: isinstance(one, ToolClosed), heard)
        elif name == "kill":
            self.kill()
        else:
            sys.exit(f"there is no step {name!r}")

    def kill(self) -> None:
        """Kill the program and its process group; processes that left the group are not killed."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        if self._process.poll() is None:
            self._take(self._ask("close"))
        while self._listen():
            pass
        self.entries.append(WireEntry("do", "eof"))
        self._take(self._codec.feed(b""))
        self._take(self._ask("exited", self._process.wait(STEP_S)))


# ------------------------------------------------------------------------------------------------------------ neutral
class Neutral:
    """Replacement of everything in a log that identifies the machine on which it was recorded."""

    def __init__(self, hidden: Iterable[tuple[str, str]]) -> None:
        self._hidden = sorted(hidden, key=lambda one: -len(one[0]))
        self._ids: dict[str, str] = {}

    def entry(self, entry: WireEntry) -> WireEntry:
        if entry.at == "do":
            return WireEntry("do", entry.data, self.value(entry.args))
        try:
            data = json.dumps(self.value(json.loads(entry.data)), ensure_ascii=False, separators=(",", ":"))
        except ValueError:
            data = self.value(entry.data)
        return WireEntry(entry.at, data)

    def value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.value(key): self.value(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.value(one) for one in value[:LIST_MAX]]
        if not isinstance(value, str):
            return value
        for real, shown in self._hidden:
            value = value.replace(real, shown)
        value = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8080", value)
        value = _UUID.sub(lambda found: self._named(found[0]), value)
        return value if len(value) <= TEXT_CHARS_MAX else value[:TEXT_CHARS_MAX] + "..."

    def _named(self, real: str) -> str:
        """Keep ids that we chose; a codec may derive ids from the one it was given."""
        return real if real.startswith(NEW_ID[:24]) else self._ids.setdefault(real, f"{OTHERS}{len(self._ids) + 1:012}")


def pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} has no '='")
    return name, value


def tell(log: Path) -> None:
    """Write the codec's reports of a log, and its messages to the agent into the log."""
    entries, told = replay(read_log(log))
    log.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in entries))
    log.with_suffix(".told").write_text("".join(told_lines(told)))


def written(entries: Iterable[WireEntry]) -> list[Any]:
    """Return the data written to the agent, decoded if it is JSON."""
    found: list[Any] = []
    for entry in entries:
        if entry.at == "in":
            try:
                found.append(json.loads(entry.data))
            except ValueError:
                found.append(entry.data)
    return found


def record(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="wire-") as scratch:
        folder = Path(os.path.realpath(scratch))
        if asked.home:
            (folder / "home").symlink_to(Path(asked.home).resolve())
        recording = Recording(asked, folder)
        recording.ready()
        for step in asked.steps:
            recording.step(step)
        recording.end()
        hidden = [
            (str(folder / "scratch"), "/scratch"),
            (str(folder / "home"), "/agent-home"),
            (str(folder), "/folder"),
        ]
        hidden += [(str(folder).replace("/", "-"), "-folder"), *asked.hide]
        hidden += [(str(Path(one).parent), "/agents") for one in asked.command if one.startswith("/")]
        neutral = Neutral(hidden)
        entries = [neutral.entry(one) for one in recording.entries]
    if written(entries) != written(replay(entries).entries):
        sys.exit("a replay writes something else to the agent than the recording did; is the codec deterministic?")
    log = LOGS / f"{asked.name}.jsonl"
    log.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in entries))
    tell(log)
    print(f"{log}: {len(entries)} entries, {log.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tell", action="store_true", help="only write what the codecs tell of all logs")
    parser.add_argument("--adapter", default="acp", help="or jsonl:NAME, with the mapping of that name")
    parser.add_argument("--env", type=pair, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--hide", type=pair, action="append", default=[], metavar="REAL=SHOWN")
    parser.add_argument("--home", help="a prepared HOME")
    parser.add_argument("--permissions", choices=("allow", "reject"), default="allow")
    parser.add_argument("--resume", help="load this conversation")
    parser.add_argument("name", nargs="?")
    parser.add_argument("steps", nargs="*", metavar="STEP")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    asked = parser.parse_intermixed_args(sys.argv[1:at])
    asked.command = sys.argv[at + 1 :]
    if asked.tell:
        for log in logs():
            tell(log)
    elif not (asked.name and asked.command):
        parser.error("give NAME, STEPs, and the agent's command after --")
    else:
        record(asked)


if __name__ == "__main__":
    main()
