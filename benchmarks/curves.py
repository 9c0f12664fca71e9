"""Quantities over time as an SVG document: a panel for each quantity, from zero, so that a constant quantity looks
flat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

COLUMNS: Final = 3
WIDTH, HEIGHT = 320.0, 200.0
LEFT, TOP, BOTTOM, RIGHT = 60.0, 30.0, 30.0, 16.0
HEAD: Final = 40.0
ROOM: Final = 1.2
"""Top of a panel, as a multiple of the largest value in the panel."""


class Curve(NamedTuple):
    """Curve of a quantity: its name, and points of (minutes, value), in order."""

    name: str
    points: Sequence[tuple[float, float]]


def drawn(title: str, curves: Sequence[Curve], *, warm_until: float) -> str:
    """Draw an SVG document; the time before *warm_until* (minutes), which has no aim, is shaded."""
    rows = -(-len(curves) // COLUMNS)
    width, height = COLUMNS * WIDTH, HEAD + rows * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" font-family="sans-serif">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        _text(12, 26, title, size=16),
    ]
    for number, curve in enumerate(curves):
        row, column = divmod(number, COLUMNS)
        parts += _panel(curve, column * WIDTH, HEAD + row * HEIGHT, warm_until)
    return "\n".join([*parts, "</svg>", ""])


def _panel(curve: Curve, x: float, y: float, warm_until: float) -> Iterator[str]:
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    last = max((minute for minute, _ in curve.points), default=0.0) or 1.0
    top = max((value for _, value in curve.points), default=0.0) * ROOM or 1.0
    left, floor = x + LEFT, y + TOP + high
    warm = wide * min(1.0, warm_until / last)
    yield f'<rect x="{left:.1f}" y="{y + TOP:.1f}" width="{warm:.1f}" height="{high:.1f}" fill="#f0f0f0"/>'
    yield _text(left, y + TOP - 8, curve.name, size=13)
    for share in (0.0, 0.5, 1.0):
        level = floor - high * share
        yield f'<path d="M{left:.1f} {level:.1f}h{wide:.1f}" stroke="#cccccc"/>'
        yield _text(left - 6, level + 4, f"{top * share:,.4g}", anchor="end")
    yield _text(left + wide, floor + 16, f"{last:.3g} min", anchor="end")
    path = " ".join(f"{left + wide * at / last:.1f},{floor - high * value / top:.1f}" for at, value in curve.points)
    yield f'<polyline points="{path}" fill="none" stroke="#0072B2" stroke-width="1.5"/>'


def _text(x: float, y: float, words: str, *, size: int = 11, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'
