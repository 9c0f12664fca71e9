"""How much of what an agent says is believed to be meant: names have a length, explanations too, and a list an end.

A codec bounds a line (8 MiB); what comes of it goes into records, which are kept for ever, and into prompts. What names
something must be whole, so one that is too long breaks the protocol; what explains something is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from supervisor.ports import (
    ChildAsked,
    ConversationNamed,
    FileAsked,
    Malformed,
    ModelErrorReported,
    Out,
    PermissionAsked,
    Ready,
    TerminalKilled,
    TerminalOpened,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    Usage,
)

__all__ = [
    "CALLS_MAX",
    "CHILDREN_MAX",
    "COMMAND_BYTES_MAX",
    "FILE_BYTES_MAX",
    "ID_CHARS_MAX",
    "OPEN_CALLS_MAX",
    "OPTIONS_MAX",
    "PATH_CHARS_MAX",
    "PERMISSIONS_MAX",
    "PROMPT_CHARS_MAX",
    "TERMINALS_BYTES_MAX",
    "TERMINALS_MAX",
    "UNREAD_BYTES_MAX",
    "UNREAD_S",
    "USAGE_BYTES_MAX",
    "VARIABLES_BYTES_MAX",
    "VARIABLES_MAX",
    "WORDS_CHARS_MAX",
    "bounded",
]

ID_CHARS_MAX: Final = 256
"""Of what names a call, a request, a terminal, a conversation or a child."""
WORDS_CHARS_MAX: Final = 2_000
"""Of a title, an error, or anything else that people read; a longer one is cut."""
OPTIONS_MAX: Final = 64
"""Ways to answer one permission request."""
PERMISSIONS_MAX: Final = 64
"""Permissions that an agent may wait for at once, and files that one of them may name: all of it stands in its turn's
data."""
PROMPT_CHARS_MAX: Final = 1024 * 1024
"""Of what a child session is asked."""
USAGE_BYTES_MAX: Final = 16 * 1024
"""Of what an agent says of its use, as JSON; of more only the size is kept."""
COMMAND_BYTES_MAX: Final = 128 * 1024
"""Of a command that an agent asks us to run, all its words: what Linux takes for one of them."""
VARIABLES_MAX: Final = 256
"""Variables that it asks for on top of its own."""
VARIABLES_BYTES_MAX: Final = 64 * 1024
"""Of their names and values."""
PATH_CHARS_MAX: Final = 4_096
"""Of a working directory, or a file: PATH_MAX of Linux."""
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of a file that we read or write for an agent: half of a line, which its text has to fit into with escapes."""
OPEN_CALLS_MAX: Final = 256
"""Tool calls that an agent may have open at once: each is a scope, and stands in its turn's data."""
CALLS_MAX: Final = 10_000
"""Tool calls of one turn: each is two records, which are kept."""
TERMINALS_MAX: Final = 256
"""Terminals that one agent may have and not have released: each is a process, a warden and a handful of descriptors
while it runs, and its output (1 MiB, if the agent does not ask for more) until it is released."""
TERMINALS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of output that is kept for the terminals of one agent, all together: eight times the most that one of them may have.
What comes on top cuts the beginning of the output that it belongs to."""
UNREAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Written for an agent, or a server, that it has not read yet: above this an agent is not heard, so that it asks for no
more. One reply may be larger (a file of FILE_BYTES_MAX), and then is all that waits."""
UNREAD_S: Final = 30.0
"""Seconds that an agent may take none of what waits for it, while more than UNREAD_BYTES_MAX do: then the conversation
ends. An agent that writes all its requests before it reads a reply would otherwise wait for us for ever, as we for it;
the slowest answer of a living program that was measured took 3 s."""
CHILDREN_MAX: Final = 64
"""Child sessions that one session may have at once by the wish of its agent."""

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
)
_WORDS: Final = ("title", "detail", "error", "info", "why", "words")


def bounded(out: Out) -> Out:
    """*out* as it may be kept; or :class:`Malformed`, which says what was too long."""
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
    PermissionAsked: _of_permission,
    ChildAsked: _of_child,
    FileAsked: _of_file,
    TerminalOpened: _of_terminal,
    Usage: _of_usage,
}
_BOUNDED: Final = (
    *(ChildAsked, FileAsked, Malformed, PermissionAsked, Ready, TerminalKilled, TerminalOpened),
    *(ModelErrorReported, ConversationNamed, ToolClosed, ToolOpened, TurnEnded, Usage),
)


def _those_of(kind: type[msgspec.Struct], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name in kind.__struct_fields__)


_FIELDS: Final[Mapping[type, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    kind: (_those_of(kind, _IDS), _those_of(kind, _WORDS)) for kind in _BOUNDED
}
