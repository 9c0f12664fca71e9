"""The table: each figure, the other side, and whether the aim is met, or by how much it is missed.

The table has a verdict for each backend. "missed by 30 %" means 30 % more than the aim allows, of time, bytes, or the
ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.harness import BACKENDS, Aim, Case, Found, Line

WIDTHS = (38, 8, 8, 5, 41, 8, 8, 13, 13, 17, 0)
TITLES = ("what", *BACKENDS, "unit", "against", *BACKENDS, "ratio", "ratio", "aim", "met")
LEFT = {0, 3, 4, 9, 10}
NONE = "-"


def figure(value: float | None) -> str:
    """Return a value as text with about three digits; ``NONE`` if there is no value."""
    if value is None:
        return NONE
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def aim_text(aim: Aim | None, unit: str) -> str:
    if aim is None:
        return ""
    mark = " *" if aim.source else ""
    if aim.kind == "value":
        return f"<= {aim.limit:g} {unit}{mark}"
    return f"<= {aim.limit:g}x{mark}" if aim.kind == "times" else f">= {aim.limit:g}x as fast{mark}"


def verdict(aim: Aim | None, found: Found) -> str:
    """Return the verdict on a figure: ``met``, ``missed by ...``, or that it is unknown; ``""`` without an aim."""
    if aim is None:
        return ""
    excess = aim.excess(found.value, found.ratio)
    if excess is None:
        return "not measured"
    return "met" if excess <= 1 else f"missed by {(excess - 1) * 100:.0f} %"


def ratio_text(aim: Aim | None, found: Found) -> str:
    """Return the ratio as text, in the sense of the aim: the multiple of the cost, or of the speed."""
    if found.ratio is None:
        return NONE
    if aim is not None and aim.kind == "faster" and found.ratio:
        return f"{1 / found.ratio:.2f}x as fast"
    return f"{found.ratio:.2f}x"


def heading() -> str:
    return _line(TITLES)


def rows(case: Case, found: Mapping[str, Sequence[Found]], missing: str) -> Iterator[str]:
    """Yield the lines of the table for one case."""
    for number, line in enumerate(case.lines):
        yield _row(line, case.against, {backend: found[backend][number] for backend in found}, missing)


def _row(line: Line, against: str, found: Mapping[str, Found], missing: str) -> str:
    sides = [found.get(backend) for backend in BACKENDS]
    return _line(
        (
            line.what,
            *(figure(one.value if one else None) for one in sides),
            line.unit,
            f"{against} (missing)" if missing else against,
            *(figure(one.other if one else None) for one in sides),
            *(ratio_text(line.aim, one) if one else NONE for one in sides),
            aim_text(line.aim, line.unit),
            _verdicts([verdict(line.aim, one) for one in sides if one]),
        )
    )


def _verdicts(said: Sequence[str]) -> str:
    return said[0] if len(set(said)) == 1 else " / ".join(said)


def _line(cells: Sequence[str]) -> str:
    padded = (f"{c:<{w}}" if n in LEFT else f"{c:>{w}}" for n, (c, w) in enumerate(zip(cells, WIDTHS, strict=True)))
    return "  ".join(padded).rstrip()


def footnotes(missing: Mapping[str, None] | Sequence[str]) -> Iterator[str]:
    """Yield notes on how to read the table, and on peers that are missing."""
    yield "Figures are medians; ratios are medians of each round's: how often theirs ours costs, unless it says so."
    yield "* what prototypes reached, or our reading of 'delays nobody'; others are the issue's. Met: asyncio / trio."
    for why in missing:
        yield f"missing: {why}"
