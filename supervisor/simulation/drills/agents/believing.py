"""Belief: what of an agent's words is kept whole, what is cut, and what breaks its protocol (docs/security.md).

What names something must be whole; what explains something is cut; lists have an end. Which of the two a word is
stands in this room's own table, made from what each word is said to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from supervisor.lifecycles.types import ModelProblem
from supervisor.ports import (
    CallKept,
    ChildAsked,
    Compaction,
    FileAsked,
    Heard,
    Malformed,
    ModelTrouble,
    Named,
    Out,
    PermissionAsked,
    Ready,
    TerminalKilled,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    Usage,
)
from supervisor.ports.input_limits import bounded
from supervisor.simulation.drills.desk import Desk

__all__ = ["BELIEVING"]

NAME_MAX: Final = 256
WORDS_MAX: Final = 2_000
PATH_MAX: Final = 4_096
KIB: Final = 1024

SAID: Final[tuple[tuple[Any, str, str], ...]] = (
    (ToolOpened("c", "title", "read", "above"), "call_id tool_kind parent", "title"),
    (ToolClosed("c", "completed", "x", "y"), "call_id", ""),
    (
        PermissionAsked("r", "title", (("a", "b"),), "read", "t", "why", ("f",)),
        "request_id tool_kind tool",
        "title detail",
    ),
    (FileAsked("r", "path", "text"), "request_id", ""),
    (TerminalOpened("t", "c", ("ls",), None, {}), "terminal_id call_id", ""),
    (TerminalKilled("t"), "terminal_id", ""),
    (ChildAsked("r", "name", "prompt", "agent", "call"), "request_id name agent call_id", ""),
    (Ready("id", "info"), "resume_id", "info"),
    (Named("id"), "resume_id", ""),
    (ModelTrouble(ModelProblem.SERVER, 500, words="no"), "", "words"),
    (TurnEnded("end_turn", "error"), "stop", "error"),
    (Malformed("why"), "", "why"),
    (Usage({"a": 1}, 5), "", ""),
)
"""What an agent may say: which of its words name something, and which explain something."""


def _but(said: Any, **more: Any) -> Any:
    return msgspec.structs.replace(said, **more)


def _kept(desk: Desk, said: Out) -> None:
    desk.same(f"{type(said).__name__}, which is kept", bounded(said), said)


def _refused(desk: Desk, what: str, said: Any, number: int) -> None:
    """It breaks the protocol, and the number that was too much is told."""
    given = bounded(said)
    told = isinstance(given, Malformed) and str(number) in given.why
    desk.same(f"{what} of {number}", (type(given), told), (Malformed, True))


async def words(desk: Desk) -> None:
    """Of each word: as long as it may be, one longer, and what becomes of the others beside it."""
    for said, names, explained in SAID:
        _kept(desk, said)
        for name in names.split():
            _kept(desk, _but(said, **{name: "x" * NAME_MAX}))
            _refused(desk, name, _but(said, **{name: "x" * (NAME_MAX + 1)}), NAME_MAX + 1)
        for name in explained.split():
            _kept(desk, _but(said, **{name: "x" * WORDS_MAX}))
            chars = WORDS_MAX + desk.chance.integer(1, 3_000, type(said).__name__, name)
            text = "ab" * chars
            given: Any = bounded(_but(said, **{name: text[:chars]}))
            shown = getattr(given, name)
            desk.same(f"the beginning of a long {name}", shown[:WORDS_MAX], text[:WORDS_MAX])
            desk.same(f"what is said of its end: {shown[WORDS_MAX:]}", str(chars) in shown[WORDS_MAX:], True)
            desk.same(f"how much longer a cut {name} is", len(shown) < WORDS_MAX + 40, True)
            desk.same(f"all that is beside a long {name}", _but(given, **{name: ""}), _but(said, **{name: ""}))
    for nothing in (ChildAsked("r", "n", "p", None, None), Ready(), TerminalOpened("t", "c", (), None, {})):
        _kept(desk, nothing)
    for said in (Text("message", "x" * 9_000), Heard(), Compaction(True), CallKept("c", "x" * 9_000)):
        _kept(desk, said)


async def lists(desk: Desk) -> None:
    """Options and files of a permission, a child's prompt, a file's path, a command and its variables, a report."""
    asked: Any = SAID[2][0]
    for most, key in ((64, "options"), (64, "paths")):
        one: Any = ("a", "b") if key == "options" else "f"
        _kept(desk, _but(asked, **{key: (one,) * most}))
        _refused(desk, key, _but(asked, **{key: (one,) * (most + 1)}), most + 1)
        _kept(desk, _but(asked, **{key: ()}))
    long = "x" * (NAME_MAX + 1)
    _kept(desk, _but(asked, options=(("a", "b"), (long[1:], long[1:]))))
    for option in ((long, "b"), ("a", long)):
        _refused(desk, "an option", _but(asked, options=(("a", "b"), option, ("c", "d"))), len(long))
    _kept(desk, _but(asked, paths=("a", "x" * PATH_MAX)))
    _refused(desk, "a path", _but(asked, paths=("a", "x" * (PATH_MAX + 1), "b")), PATH_MAX + 1)
    for made, most in (
        (lambda chars: FileAsked("r", "x" * chars), PATH_MAX),
        (lambda chars: ChildAsked("r", "n", "x" * chars, None, None), KIB * KIB),
        (lambda chars: TerminalOpened("t", "c", ("ls",), "x" * chars, {}), PATH_MAX),
        (lambda size: TerminalOpened("t", "c", ("x" * 5, "y" * (size - 5)), None, {}), 128 * KIB),
        (lambda size: TerminalOpened("t", "c", ("\u00e4" * (size // 2), "y" * (size % 2)), None, {}), 128 * KIB),
        (lambda many: TerminalOpened("t", "c", (), None, {str(one): "" for one in range(many)}), 256),
        (lambda size: TerminalOpened("t", "c", (), None, {"A": "x", "B": "y" * (size - 5)}), 64 * KIB),
    ):
        _kept(desk, made(most))
        _refused(desk, "what is asked for", made(most + 1), most + 1)


async def reports(desk: Desk) -> None:
    """Of a report of use that is too long only its size is kept, and the amounts."""
    empty = len(b'{"a":""}')
    used: Mapping[str, Any] = {"a": "x" * (16 * KIB - empty)}
    _kept(desk, Usage(dict(used), 1, 2, 0.5))
    long = Usage({"a": f"{used['a']}x"}, 1, 2, 0.5)
    desk.same("a report that is too long", bounded(long), _but(long, used={"omitted_bytes": 16 * KIB + 1}))


BELIEVING = (words, lists, reports)
