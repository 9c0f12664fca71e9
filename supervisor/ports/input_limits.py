"""Size limits on agent output: identifiers are rejected when too long, free text is cut, lists end.

``LineBuffer`` splits output into lines of at most 8 MiB; the values in a line go into records, which are never deleted,
and into prompts. An identifier must be complete, so one that is too long breaks the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from supervisor.ports import (
    ChildRequested,
    ConversationNamed,
    FileRequested,
    Malformed,
    ModelErrorReported,
    Out,
    PermissionNeeded,
    Ready,
    RequestRefused,
    StrayLine,
    TerminalKilled,
    TerminalOpened,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    Usage,
)

ID_CHARS_MAX: Final = 256
"""Largest number of characters in the id or name of a call, a request, a terminal, a conversation or a child
session."""
WORDS_CHARS_MAX: Final = 2_000
"""Largest number of characters in a title, an error, or any other text for people; a longer text is cut."""
OPTIONS_MAX: Final = 64
"""Largest number of options in one permission request."""
PERMISSIONS_MAX: Final = 64
"""Largest number of permissions that an agent may wait for at once, and of files that one of these requests may name:
both are in the turn's data."""
PROMPT_CHARS_MAX: Final = 1024 * 1024
"""Largest number of characters in the prompt of a child session."""
USAGE_BYTES_MAX: Final = 16 * 1024
"""Largest number of bytes in an agent's usage report, as JSON; of a larger report only the size is recorded."""
COMMAND_BYTES_MAX: Final = 128 * 1024
"""Largest number of bytes in the words of a command that the supervisor runs for an agent: Linux's limit for one
word."""
VARIABLES_MAX: Final = 256
"""Largest number of environment variables that a command adds to the agent's environment."""
VARIABLES_BYTES_MAX: Final = 64 * 1024
"""Largest number of bytes in the names and values of these variables."""
PATH_CHARS_MAX: Final = 4_096
"""Largest number of characters in the path of a working directory or a file: PATH_MAX of Linux."""
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest number of bytes in a file that the supervisor reads or writes for an agent: half of a line, which must hold
the file's text with escapes."""
OPEN_CALLS_MAX: Final = 256
"""Largest number of tool calls that an agent may have open at once: each call has a cancel scope, and is in its turn's
data."""
CALLS_MAX: Final = 10_000
"""Largest number of tool calls in one turn: each call is two records, which are never deleted."""
TERMINALS_MAX: Final = 256
"""Largest number of terminals that an agent has not released: each is a process, a shim and a handful of descriptors
while it runs, and its output (1 MiB, if the agent does not ask for more) until it is released."""
TERMINALS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest number of bytes of output held for all terminals of one agent: eight times the most of one terminal. Further
output removes the beginning of the output of the same terminal."""
UNREAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest number of bytes that wait until an agent, or a server, reads them: above this limit the output of the agent
is not read, so that the agent requests no more. A single reply may be larger (a file of FILE_BYTES_MAX); then nothing
else waits."""
UNREAD_S: Final = 30.0
"""Seconds that an agent may read nothing while more than UNREAD_BYTES_MAX wait for it; then the conversation ends. An
agent that writes all its requests before it reads a reply would otherwise block for ever, and the supervisor with it;
the slowest reply of a living program that was measured took 3 s."""
LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Longest line, in bytes without the newline, that is accepted from an agent: the byte limit of a mailbox."""
QUIET_S: Final = 0.5
"""Seconds of silence after which nothing more of a turn is expected from an agent that stays alive."""
STRAY_LINES_MAX: Final = 1_000
"""Largest number of lines in a row that are no messages of an agent's protocol: a program that writes more of them does
not speak the protocol, and is ended."""
STRAY_CHARS_MAX: Final = 200
"""Largest number of characters of such a line that are recorded, or quoted in an error; the transcript has the whole
line."""
STRAYS_RECORDED_MAX: Final = 100
"""Largest number of such lines of one agent that are recorded; the transcript has all."""
CHILDREN_MAX: Final = 64
"""Largest number of child sessions that one session may have at once by request of its agent."""

_IDS: Final = (
    "call_id",
    "request_id",
    "terminal_id",
    "resume_id",
    "name",
    "agent",
    "tool_kind",
    "tool",
    "parent",
    "stop",
    "total_of",
)
_WORDS: Final = ("title", "detail", "error", "info", "what", "why", "words")


def bounded(out: Out) -> Out:
    """Return *out*, cut to the limits, or a :class:`Malformed` that names the limit."""
    names = _FIELDS.get(type(out))
    if names is None:
        return out
    ids, words = names
    for name in ids:
        if len(getattr(out, name) or "") > ID_CHARS_MAX:
            return _too_long(name, len(getattr(out, name)), ID_CHARS_MAX)
    more = _MORE.get(type(out))
    if more is not None and (wrong := more(out)) is not None:
        return wrong
    cut = {name: _cut(getattr(out, name)) for name in words if len(getattr(out, name)) > WORDS_CHARS_MAX}
    return msgspec.structs.replace(out, **cut) if cut else out


def _too_long(what: str, chars: int, most: int) -> Malformed:
    return Malformed(f"the agent gave a {what} of {chars} characters; the most is {most}")


def _cut(text: str) -> str:
    return f"{text[:WORDS_CHARS_MAX]}... ({len(text)} characters)"


def _of_file(asked: Any) -> Out | None:
    chars = len(asked.path)
    return _too_long("path of a file", chars, PATH_CHARS_MAX) if chars > PATH_CHARS_MAX else None


def _of_permission(asked: Any) -> Out | None:
    if len(asked.options) > OPTIONS_MAX:
        return Malformed(f"the agent gave {len(asked.options)} options for one permission; the most is {OPTIONS_MAX}")
    longest = max((len(word) for option in asked.options for word in option), default=0)
    if longest > ID_CHARS_MAX:
        return _too_long("option", longest, ID_CHARS_MAX)
    if len(asked.paths) > PERMISSIONS_MAX:
        return Malformed(f"the agent named {len(asked.paths)} files for one permission; the most is {PERMISSIONS_MAX}")
    chars = max(map(len, asked.paths), default=0)
    return _too_long("path", chars, PATH_CHARS_MAX) if chars > PATH_CHARS_MAX else None


def _of_child(asked: Any) -> Out | None:
    chars = len(asked.prompt)
    return _too_long("prompt for a child", chars, PROMPT_CHARS_MAX) if chars > PROMPT_CHARS_MAX else None


def _of_terminal(asked: Any) -> Out | None:
    command = sum(len(word.encode(errors="replace")) for word in asked.argv)
    variables = sum(len(f"{name}={value}".encode(errors="replace")) for name, value in asked.env.items())
    for what, count, unit, most in (
        ("command", command, "bytes", COMMAND_BYTES_MAX),
        ("environment", len(asked.env), "variables", VARIABLES_MAX),
        ("environment", variables, "bytes", VARIABLES_BYTES_MAX),
        ("working directory", len(asked.cwd or ""), "characters", PATH_CHARS_MAX),
    ):
        if count > most:
            return Malformed(f"the agent gave a {what} of {count} {unit} for a terminal; the most is {most}")
    return None


def _of_usage(usage: Any) -> Out | None:
    size = len(msgspec.json.encode(usage.used))
    return msgspec.structs.replace(usage, used={"omitted_bytes": size}) if size > USAGE_BYTES_MAX else None


_MORE: Final[Mapping[type, Callable[[Any], Out | None]]] = {
    PermissionNeeded: _of_permission,
    ChildRequested: _of_child,
    FileRequested: _of_file,
    TerminalOpened: _of_terminal,
    Usage: _of_usage,
}
_BOUNDED: Final = (
    *(ChildRequested, FileRequested, Malformed, PermissionNeeded, Ready, TerminalKilled, TerminalOpened),
    *(ModelErrorReported, ConversationNamed, RequestRefused, ToolClosed, ToolOpened, TurnEnded, Usage),
)


def _those_of(kind: type[msgspec.Struct], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name in kind.__struct_fields__)


_FIELDS: Final[Mapping[type, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    kind: (_those_of(kind, _IDS), _those_of(kind, _WORDS)) for kind in _BOUNDED
}


class LineBuffer:
    """Splitter of a byte stream into lines: call :meth:`feed` with each chunk and :meth:`end` when the stream ends.

    The same bytes give the same lines, however the bytes are cut into chunks. For a line longer than *limit_bytes* a
    single ``StrayLine`` with the line's beginning is returned, and the line's other bytes up to the newline are dropped
    as they arrive, so that a line never takes more memory than the limit. Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, limit_bytes: int = LINE_BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()
        self._dropping = False

    @property
    def unfinished(self) -> bool:
        """True while an incomplete line waits for its newline."""
        return self._dropping or bool(self._held)

    def feed(self, data: bytes) -> list[str | StrayLine]:
        """Return the lines that *data* completes, without newlines; a ``StrayLine`` is returned in the place of a line
        that is too long."""
        found: list[str | StrayLine] = []
        start = 0
        if not self.unfinished and data.endswith(b"\n") and len(data) <= self._limit_bytes:
            return [line.decode(errors="replace") for line in data[:-1].split(b"\n")]
        while (end := data.find(b"\n", start)) >= 0:
            found += self._hold(data[start:end])
            found += self._complete()
            start = end + 1
        return found + self._hold(data[start:])

    def end(self) -> list[str]:
        """Handle the end of the stream: return the incomplete line that is left, if any; its newline will never
        arrive."""
        return self._complete() if self.unfinished else []

    def _hold(self, part: bytes) -> list[StrayLine]:
        if self._dropping:
            return []
        if len(self._held) + len(part) <= self._limit_bytes:
            self._held += part
            return []
        shown = min(self._limit_bytes, 4 * STRAY_CHARS_MAX)  # a character has at most 4 bytes
        begun = (bytes(self._held[:shown]) + part[:shown])[:shown]
        self._held.clear()
        self._dropping = True
        why = f"longer than {self._limit_bytes} bytes, the most a message may have; the rest of it was dropped"
        return [StrayLine(begun.decode(errors="replace")[:STRAY_CHARS_MAX], why)]

    def _complete(self) -> list[str]:
        if self._dropping:
            self._dropping = False
            return []
        line = self._held.decode(errors="replace")
        self._held.clear()
        return [line]
