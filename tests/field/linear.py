"""Kit for tests of linear time: all regular expressions of the product, inputs that make a pattern slow, and a check of
the growth of the time.

A pattern is attacked at its repetitions: for each repeated part an input repeats that part very often, behind a text
that leads to it and before an end that makes the match fail. Beginnings of a matching text are repeated too, since a
search starts again at each of them.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import math
import pkgutil
import re
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants as opcodes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import actors
import supervisor
from supervisor.policies import error_classification

RATIO_MAX = 2.5
"""Largest allowed ratio of the times for an input of twice the size and for the input; linear growth is 2,
quadratic 4."""
HOPELESS = 6.0
"""Ratio of times of a doubled input above which the input is not doubled again."""
CHARS_MAX = 8_192
"""Length in characters above which an input is not doubled."""
SLOW_MAX = 3
"""Number of doublings in a row that are too slow, from which on the growth is not linear."""
MEASURABLE_S = 0.0003
"""Seconds below which times are not compared, since clock and caches would decide the result."""
SETTLED_S = 0.002
"""Seconds of a run from which an input whose time has grown linearly so far is not doubled again."""
MANY = 32
"""Number of times from which on a part of a pattern that may come so often counts as repeated."""
ALPHABET = [*"aAeyJzZ019", *" -_/.:=@'\"[]{}()\\~+,;\n\t", "\x1b", "\x00", "é"]
TAILS = ("", "\x00", "\n!", "]")
RE_FUNCTIONS = {"compile", "match", "search", "sub", "subn", "findall", "finditer", "fullmatch", "split"}
_REPEATS = (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT)


# ------------------------------------------------------------------------------------- the patterns of the product
def patterns() -> dict[tuple[str, int], str]:
    """Return every regular expression of the product as (text, flags), with the place where it was found."""
    found: dict[tuple[str, int], str] = {}
    for package in (actors, supervisor):
        for path in _sources(package):
            for call in _calls_of_re(path):
                if isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str):
                    found.setdefault((call.args[0].value, _flags(call)), f"{path.name}:{call.lineno}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                held = vars(importlib.import_module(module.name))
                for name in sorted(held):
                    for pattern in _compiled(held[name], 4):
                        if isinstance(pattern.pattern, str):
                            found.setdefault((pattern.pattern, pattern.flags & ~re.UNICODE), f"{module.name}.{name}")
    for row in error_classification.TABLE:  # compiled on first use
        found.setdefault((row.pattern, re.IGNORECASE.value), "error_classification.TABLE")
    return found


def dynamic_patterns() -> list[str]:
    """Return the places inside of functions where ``re`` is called with a pattern that is no literal."""
    found = []
    for path in _sources(supervisor):
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        found += [
            f"{path.name}: {one.name}"
            for one in functions
            for call in ast.walk(one)
            if _is_call_of_re(call) and not isinstance(call.args[0], ast.Constant)  # type: ignore[attr-defined]
        ]
    return sorted(set(found))


def _sources(package: ModuleType) -> list[Path]:
    """Return the paths of the modules of *package* that use ``re``."""
    return [one for one in sorted(Path(package.__path__[0]).rglob("*.py")) if "import re\n" in one.read_text()]


def _calls_of_re(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if _is_call_of_re(node)]  # type: ignore[misc]


def _is_call_of_re(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in RE_FUNCTIONS
        and bool(node.args)
    )


def _flags(call: ast.Call) -> int:
    names = [one.attr for one in ast.walk(call) if isinstance(one, ast.Attribute) and hasattr(re.RegexFlag, one.attr)]
    return int(sum({re.RegexFlag[name] for name in names}, re.RegexFlag(0)))


def _compiled(value: Any, depth: int) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, tuple | list):
        for one in value:
            yield from _compiled(one, depth - 1)
    elif depth and isinstance(value, dict):
        for one in value.values():
            yield from _compiled(one, depth - 1)


# ------------------------------------------------------------------------------------------------- hard inputs
def attacks(pattern: str, flags: int = 0) -> list[tuple[str, str, str]]:
    """Return inputs that may make the pattern slow, as ``(head, repeated, tail)``: the text *repeated* is to be
    repeated."""
    tree = parser.parse(pattern, flags)
    found: dict[tuple[str, str], None] = {}
    for head, bodies in _repeated(tree, ""):
        for body in bodies:
            found[head, body] = None
            if head:
                found["", head + body] = None
                found["", head + body * MANY] = None
    whole = _sample(tree)
    for end in range(1, min(len(whole), 48) + 1):
        found["", whole[:end]] = None
    return [(head, body, tail) for head, body in found if body for tail in TAILS]


def _repeated(items: Any, head: str) -> Iterator[tuple[str, list[str]]]:
    """Yield texts for each part of the parsed pattern that may be repeated often, with a text that leads to the
    part."""
    for op, value in items:
        if op in _REPEATS:
            _, most, body = value
            if most is opcodes.MAXREPEAT or most > MANY:
                chars = [one for one in ALPHABET if _fits(body, one)] if len(body) == 1 else []
                pairs = [one + other for one, other in itertools.pairwise(chars)]
                yield head, list(dict.fromkeys([*_spread(chars), *_spread(pairs), *_samples(body)]))
            yield from _repeated(body, head)
        elif op is opcodes.BRANCH:
            for branch in value[1]:
                yield from _repeated(branch, head)
        else:
            for inner in _inner(op, value):
                yield from _repeated(inner, head)
        head += _sample([(op, value)])


def _spread(chars: list[str], most: int = 5) -> list[str]:
    step = max(1, len(chars) // most)
    return chars[::step][:most]


def _inner(op: Any, value: Any) -> list[Any]:
    if op is opcodes.SUBPATTERN:
        return [value[3]]
    if op is opcodes.ATOMIC_GROUP:
        return [value]
    if op in (opcodes.ASSERT, opcodes.ASSERT_NOT):
        return [value[1]]
    return []


def _samples(items: Any) -> list[str]:
    """Return texts that match the parsed pattern: one for each branch of its first choice, or one if it has no
    choice."""
    for op, value in items:
        branches = value[1] if op is opcodes.BRANCH else None
        if branches is not None:
            return [_sample(branch) for branch in branches][:6]
        if inner := _inner(op, value):
            return _samples(inner[0])
    return [_sample(items)]


def _sample(items: Any) -> str:
    """Return a short text that matches the parsed pattern."""
    return "".join(_sample_of(op, value) for op, value in items)


def _sample_of(op: Any, value: Any) -> str:
    if op is opcodes.LITERAL:
        return chr(value)
    if op is opcodes.BRANCH:
        return _sample(value[1][0])
    if op in _REPEATS:
        return _sample(value[2]) * min(max(value[0], 1), MANY)
    if op is opcodes.ASSERT:
        return _sample(value[1]) if value[0] < 0 else ""
    if op in (opcodes.IN, opcodes.ANY, opcodes.NOT_LITERAL):
        known = next((one for one in ALPHABET if _fits([(op, value)], one)), None)
        return known or next((one for one in string.printable if _fits([(op, value)], one)), "")
    return "".join(_sample(inner) for inner in _inner(op, value) if op is not opcodes.ASSERT_NOT)


def _fits(items: Any, char: str) -> bool:
    """Return whether the pattern item *items[0]* matches the character."""
    op, value = items[0]
    if op is opcodes.LITERAL:
        return chr(value) == char
    if op is opcodes.NOT_LITERAL:
        return chr(value) != char
    if op is opcodes.ANY:
        return char != "\n"
    if op is not opcodes.IN:
        return False
    negated = value[0][0] is opcodes.NEGATE
    return any(_in_class(kind, what, char) for kind, what in value) != negated


def _in_class(kind: Any, what: Any, char: str) -> bool:
    if kind is opcodes.LITERAL:
        return chr(what) == char
    if kind is opcodes.RANGE:
        return bool(what[0] <= ord(char) <= what[1])
    if kind is opcodes.CATEGORY:
        name = str(what).rpartition("_")[2].lower()
        held = {"digit": char.isdigit(), "space": char.isspace(), "word": char.isalnum() or char == "_"}[name]
        return bool(held != ("NOT" in str(what)))
    return False


# ------------------------------------------------------------------------------------------------------- growth
def growth(run: Callable[[str], object], attack: tuple[str, str, str], chars_max: int = CHARS_MAX) -> str:
    """Return a description of how the time of *run* grows faster than linearly on that attack; ``""`` if it does not.

    The input is doubled, beginning with two repetitions. Growth is too fast when ``SLOW_MAX`` doublings in a row are
    too slow (fewer may be due to a change of method at some size, or to a repetition with a bound, which grows faster
    only up to its bound), or one is much too slow and takes more than ``SETTLED_S``, so that even an exponential
    pattern does not hang the test. A doubling that looks too slow is measured again, more often, before it counts,
    since the machine may be busy.
    """
    head, body, tail = attack
    count, last_s, slow = 2, _timed(run, head + body * 2 + tail), list[str]()
    while len(head) + len(body) * count <= chars_max:
        # Half of the way first: from 16 to 32 repetitions, an exponential pattern goes from 2 ms to minutes.
        between_s = _timed(run, head + body * (count + count // 2) + tail) if count <= MANY else 0.0
        if between_s > max(SETTLED_S, last_s * HOPELESS**2):
            return f"{head!r} + {body!r} * {count + count // 2} + {tail!r}: {between_s * 1000:.2f} ms"
        count *= 2
        took_s = _timed(run, head + body * count + tail)
        found = ""
        if took_s > MEASURABLE_S and took_s > last_s * RATIO_MAX:
            found = _confirmed(run, attack, count)
        slow = [*slow, found] if found else []
        if len(slow) == SLOW_MAX or (slow and took_s > max(SETTLED_S, last_s * HOPELESS)):
            return slow[-1]
        if took_s > SETTLED_S and not slow:
            break
        last_s = took_s
    return ""


def _confirmed(run: Callable[[str], object], attack: tuple[str, str, str], count: int) -> str:
    """Measure *count* repetitions and half of them again, more often each time; return ``""`` as soon as the ratio of
    the times is right, else a description of the times.

    The two inputs take turns, and the shortest time of each counts: a neighbour that fills the caches of the processor
    slows down both, and is away in one of the turns.
    """
    head, body, tail = attack
    short, long = head + body * (count // 2) + tail, head + body * count + tail
    short_s = long_s = math.inf
    for repetitions in (3, 6, 12, 24):
        for _ in range(repetitions):
            short_s, long_s = min(short_s, _timed(run, short)), min(long_s, _timed(run, long))
        if long_s <= max(MEASURABLE_S, RATIO_MAX * short_s):
            return ""
        if long_s > HOPELESS * short_s:
            break
    return f"{head!r} + {body!r} * {count} + {tail!r}: {short_s * 1000:.2f} ms for half of it, {long_s * 1000:.2f} ms"


def _timed(run: Callable[[str], object], text: str) -> float:
    began = time.thread_time()
    run(text)
    return time.thread_time() - began
