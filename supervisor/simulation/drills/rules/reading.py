"""Reading: lines cut anywhere, output that is kept in part, amounts that may be anything, and answers that are offered.

What comes from an agent is drawn here as no agent of a run writes it, and read a second time in the plainest way.
"""

from __future__ import annotations

from typing import Any, Final

from supervisor.agents.protocols.acp.messages import Used, used_of
from supervisor.agents.protocols.acp.terminals import Terminal
from supervisor.agents.protocols.framing import Lines
from supervisor.policies.permissions import (
    Choice,
    Decision,
    PermissionPolicy,
    PermissionRule,
    Wish,
    choice_of,
    ruling,
)
from supervisor.simulation.drills.desk import Desk

__all__ = ["READING"]

LIMIT: Final = 40
PARTS: Final = (
    b"a",
    b"line\n",
    b"\n",
    "é€\U0001f600".encode(),
    b"\xff\n",
    b"x" * 30,
    b"\xe2\x82",
    b"\xac\n",
    b"{}\n{}\n",
)


async def lines(desk: Desk) -> None:
    """However a stream is cut: the same lines; in place of one that is too long, or no text, that it is so."""
    for number in range(30):
        chance = desk.chance.below(number)
        data = b"".join(chance.choice(PARTS, "part", place) for place in range(chance.integer(1, 14, "parts")))
        given: list[str | None] = []
        reader, at = Lines(LIMIT), 0
        while at < len(data):
            size = chance.choice((1, 3, 7, 50, 1000), "size", at)
            given += [one if isinstance(one, str) else None for one in reader.feed(data[at : at + size])]
            at += size
        *whole, rest = data.split(b"\n")
        wanted = [None if len(line) > LIMIT or not _is_text(line) else line.decode() for line in whole]
        wanted += [None] if len(rest) > LIMIT else []
        desk.same("lines", given, wanted)
        desk.same("a line that has begun", reader.unfinished, bool(rest))
        desk.same("how it ends", len(reader.end()), int(0 < len(rest) <= LIMIT))
        desk.same("after the end", (reader.unfinished, reader.feed(b"ok\n")), (False, ["ok"]))


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


async def outputs(desk: Desk) -> None:
    """A terminal keeps the end of what was written, in whole characters, and says whether that is all."""
    for number in range(20):
        chance = desk.chance.below(number)
        limit = chance.choice((0, 1, 5, 16, 64), "limit")
        terminal, written = Terminal(limit_bytes=limit, implicit=False), b""
        for place in range(chance.integer(1, 12, "parts")):
            part = chance.choice(("é€\U0001f600", "abc", "x\n", "ü"), "part", place).encode()
            cut = chance.integer(0, len(part), "cut", place)
            for piece in (part[:cut], part[cut:]):
                terminal.add(piece)
            written += part
        kept = written[max(0, len(written) - limit) :]
        while kept and kept[0] & 0xC0 == 0x80:
            kept = kept[1:]
        shown = terminal.output()
        desk.same(f"what is kept of {limit} bytes", shown["truncated"], len(written) > limit)
        desk.same("the end of it", shown["output"], kept.decode())
        desk.same("running", "exitStatus" in shown, False)
    terminal = Terminal(limit_bytes=None, implicit=True)
    terminal.add(b"a\xe2\x82")
    desk.same("half a character waits", terminal.output()["output"], "a")
    terminal.exit(-9)
    desk.same("and is none in the end", terminal.output()["output"], "a\N{REPLACEMENT CHARACTER}")
    desk.same("a signal", terminal.exit_status(), {"exitCode": None, "signal": "SIGKILL"})
    terminal.release()
    terminal.add(b"more")
    desk.same("what was released", terminal.output()["output"], "")
    ended = Terminal(limit_bytes=10, implicit=False)
    ended.exit(3)
    desk.same("a status", (ended.exit_status(), ended.running), ({"exitCode": 3, "signal": None}, False))


async def amounts(desk: Desk) -> None:
    """Whole numbers that can be counted; anything else was not told; a total counts what it does not name."""
    most = 2**53
    for told in (0, 1, most, most + 1, -1, True, 1.0, "1", None):
        wanted = told if type(told) is int and 0 <= told <= most else None
        given = used_of({"inputTokens": told})
        desk.same(f"{told!r} tokens", given, None if wanted is None else Used(wanted, 0, 0, 0))
    for usage, used in (
        ({"inputTokens": 5, "outputTokens": 2, "totalTokens": 10}, Used(8, 2, 0, 0)),
        ({"input_tokens": 5, "output_tokens": 2, "total_tokens": 3}, Used(5, 2, 0, 0)),
        ({"cachedReadTokens": 4}, Used(0, 0, 4, 0)),
        ({"requests": 3}, Used(0, 0, 0, 3)),
        ({"other": 3}, None),
        ([], None),
        (None, None),
    ):
        desk.same(f"{usage}", used_of(usage), used)


# ------------------------------------------------------------------------------------------------------- permissions
ONCE: Final = {True: "allow_once", False: "reject_once"}
FOR_GOOD: Final = {True: "allow_always", False: "reject_always"}


async def choices(desk: Desk) -> None:
    """Never more than was decided; less where there is nothing else; the first option that says so."""
    kinds = ("allow_once", "allow_always", "reject_once", "reject_always")
    for number in range(40):
        chance = desk.chance.below(number)
        offered = [(f"o{place}", chance.choice(kinds, "kind", place)) for place in range(chance.integer(0, 4, "many"))]
        for allow in (True, False):
            for always in (True, False):
                able = [ONCE[allow]] if allow and not always else [ONCE[allow], FOR_GOOD[allow]]
                able.sort(key=lambda kind: (kind in FOR_GOOD.values()) is not always)
                found = next((one for kind in able for one in offered if one[1] == kind), (None, None))
                given = choice_of(offered, allow=allow, always=always)
                desk.same(f"{offered}, {allow}, {always}", given, Choice(*found))


def _rule(then: Decision, **given: Any) -> PermissionPolicy:
    other = Decision.ASK if then is not Decision.ASK else Decision.DENY
    return PermissionPolicy(default=other, rules=(PermissionRule(then=then, **given),))


async def rulings(desk: Desk) -> None:
    """The first rule that fits in everything it says; paths are meant in the directory, all of them to be allowed."""
    wish = Wish(title="rm x", kind="execute", tool="bash", paths=("src/a", "docs/b"))
    for given, fits in (
        ({}, True),
        ({"kinds": ("execute", "edit")}, True),
        ({"kinds": ("edit",)}, False),
        ({"title": "rm *"}, True),
        ({"title": "RM *"}, False),
        ({"tool": "ba?h"}, True),
        ({"tool": "zsh"}, False),
        ({"kinds": ("execute",), "tool": "zsh"}, False),
    ):
        for then in Decision:
            made = ruling(_rule(then, **given), wish, "/w")
            desk.same(f"{given}: {then}", made.decision is then, fits)
            desk.same("what decided", made.why.startswith("rule: " if fits else "default: "), True)
    for path, all_of, some in (("src/*", False, True), ("*", True, True), ("/w/*", True, True), ("/x/*", False, False)):
        for then in Decision:
            made = ruling(_rule(then, path=path), wish, "/w")
            desk.same(f"{path}: {then}", made.decision is then, all_of if then is Decision.ALLOW else some)
    bare = ruling(_rule(Decision.DENY, path="*"), Wish(title="x"), "/w")
    desk.same("who names no path", bare.decision, Decision.ASK)
    up = ruling(_rule(Decision.ALLOW, path="*"), Wish(title="x", paths=("../out",)), "/w/in")
    desk.same("a way out of the directory", up.decision, Decision.ASK)
    both = PermissionPolicy(rules=(PermissionRule(then=Decision.DENY), PermissionRule(then=Decision.ASK)))
    desk.same("two that fit", ruling(both, wish, "/w").decision, Decision.DENY)
    desk.same("none", ruling(PermissionPolicy(), wish, "/w").decision, Decision.ALLOW)


READING = (lines, outputs, amounts, choices, rulings)
