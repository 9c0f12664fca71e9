"""Plots of distributions as SVG: the same bytes on every machine, for the same numbers.

Only sums, products and square roots are computed, which IEEE 754 rounds exactly, and every number is written with one
decimal. A curve is the share of a sample up to a value (an ECDF). Events that never happened (``None``) are in the
sample too, so a curve that ends below 1 shows the share of these events. Colours are those of Okabe and Ito, which
people with any kind of colour vision can distinguish; each curve is thinner than the curve below, so that both stay
visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import Final, Literal, NamedTuple
from xml.sax.saxutils import escape

COLOURS: Final = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES: Final = ("", "7 3", "2 2.5", "10 3 2 3")
"""Dash patterns of curves: if there are more curves than colours, each further round of colours has another pattern."""
WIDTHS: Final = (5.0, 1.6)
"""Widths of the first curve and of the last curve, in pixels."""

COLUMNS: Final = 3
PANEL: Final = (360.0, 270.0)
LEFT, RIGHT, TOP, BOTTOM = 52.0, 18.0, 34.0, 46.0
MARGIN, HEAD, LEGEND_LINE = 16.0, 62.0, 24.0
TICKS_MAX: Final = 6

Sample = Sequence[float | None]


class Panel(NamedTuple):
    """Panel of a figure: axes with one curve for each sample. ``scale``: scale of the horizontal axis, linear in the
    values or in their square roots; ``root`` gives more room to small values."""

    title: str
    unit: str
    samples: Mapping[str, Sample]
    scale: Literal["linear", "root"] = "linear"
    of: str = "runs"
    """Unit of the sample, for the label of the vertical axis (``share of runs``)."""


class _Axis(NamedTuple):
    """Horizontal axis, which maps values from 0 to *top* to pixels."""

    top: float
    left: float
    width: float
    root: bool

    def x(self, value: float) -> float:
        share = sqrt(value / self.top) if self.root else value / self.top
        return self.left + self.width * share


def figure(title: str, subtitle: str, panels: Sequence[Panel]) -> str:
    """Return an SVG document with all panels under a title, and one legend for all."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.samples))
    rows = -(-len(panels) // COLUMNS)
    legend = [*_legend(names)]
    lines = max((line for _, line, _ in legend), default=0) + 1
    width = 2 * MARGIN + COLUMNS * PANEL[0]
    height = HEAD + lines * LEGEND_LINE + rows * PANEL[1] + MARGIN
    below = HEAD + lines * LEGEND_LINE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        _text(MARGIN, 26, title, size=17, weight="bold"),
        _text(MARGIN, 46, subtitle, fill="#444444", size=12),
        *(_key(names, number, line, x) for number, line, x in legend),
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, COLUMNS)
        parts += _panel(panel, names, MARGIN + column * PANEL[0], below + row * PANEL[1])
    return "\n".join([*parts, "</svg>", ""])


# ------------------------------------------------------------------------------------------------------- the legend
def _legend(names: Sequence[str]) -> Iterator[tuple[int, int, float]]:
    """Yield, for each curve, the number of the curve, the line of the legend, and the horizontal position there."""
    x, line = MARGIN, 0
    for number, name in enumerate(names):
        wide = 46.0 + 7.0 * len(name)
        if x + wide > MARGIN + COLUMNS * PANEL[0]:
            x, line = MARGIN, line + 1
        yield number, line, x
        x += wide


def _key(names: Sequence[str], number: int, line: int, x: float) -> str:
    y = HEAD + LEGEND_LINE * line + 4
    stroke = _stroke(number, len(names))
    return f'<path d="M{x:.1f} {y:.1f}h26" fill="none" {stroke}/>\n' + _text(x + 32, y + 4, names[number], size=12)


def _stroke(number: int, count: int) -> str:
    thick, thin = WIDTHS
    width = thick - (thick - thin) * (number / max(1, count - 1))
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="{width:.1f}" stroke-linejoin="round"{dashed}'


# ----------------------------------------------------------------------------------------------------------- panels
def _panel(panel: Panel, names: Sequence[str], x: float, y: float) -> Iterator[str]:
    width, height = PANEL[0] - LEFT - RIGHT, PANEL[1] - TOP - BOTTOM
    largest = max((one for sample in panel.samples.values() for one in sample if one is not None), default=0.0)
    ticks = _ticks(largest, root=panel.scale == "root")
    axis = _Axis(ticks[-1], x + LEFT, width, panel.scale == "root")
    floor = y + TOP + height
    yield _text(x + LEFT, y + TOP - 12, panel.title, size=13, weight="bold")
    yield from _values(axis, ticks, y + TOP, floor)
    yield from _shares(axis, y + TOP, height)
    yield _text(x + LEFT + width / 2, floor + 34, panel.unit, anchor="middle", fill="#444444")
    middle = y + TOP + height / 2
    turned = f' transform="rotate(-90 {x + 14:.1f} {middle:.1f})"'
    yield _text(x + 14, middle, f"share of {panel.of}", anchor="middle", fill="#444444", more=turned)
    if not any(panel.samples.values()):
        yield _text(x + LEFT + width / 2, middle, f"there were no {panel.of}", anchor="middle", fill="#444444")
    for number, name in enumerate(names):
        if panel.samples.get(name):
            yield _curve(panel.samples[name], axis, floor, height, _stroke(number, len(names)))


def _shares(axis: _Axis, top: float, height: float) -> Iterator[str]:
    """Draw the horizontal lines of the grid, labelled with shares."""
    for quarter in range(5):
        y = top + height * (1 - quarter / 4)
        colour = "#888888" if quarter == 0 else "#dddddd"
        yield f'<path d="M{axis.left:.1f} {y:.1f}h{axis.width:.1f}" stroke="{colour}" stroke-width="1"/>'
        yield _text(axis.left - 6, y + 4, f"{quarter / 4:.2f}", anchor="end")


def _values(axis: _Axis, ticks: Sequence[float], top: float, floor: float) -> Iterator[str]:
    """Draw the vertical lines of the grid, labelled with values."""
    for tick in ticks:
        x = axis.x(tick)
        yield f'<path d="M{x:.1f} {top:.1f}V{floor + 4:.1f}" stroke="#eeeeee" stroke-width="1"/>'
        yield _text(x, floor + 17, _number(tick), anchor="middle")


def _curve(sample: Sample, axis: _Axis, floor: float, height: float, stroke: str) -> str:
    """Draw the curve of a sample: a step at each value where the share rises; several steps within a pixel become one
    step."""
    happened = sorted(one for one in sample if one is not None)
    steps: dict[str, str] = {}
    for number, value in enumerate(happened, 1):
        steps[f"{axis.x(value):.0f}"] = f"{floor - height * number / len(sample):.1f}"
    path = "".join(f"H{x}V{y}" for x, y in steps.items())
    start = next(iter(steps), f"{axis.left:.0f}")
    return f'<path d="M{start} {floor:.1f}{path}H{axis.left + axis.width:.0f}" fill="none" {stroke}/>'


# ------------------------------------------------------------------------------------------------------------ ticks
def _ticks(largest: float, *, root: bool) -> list[float]:
    """Return round numbers for the ticks of an axis, from 0 to the first round number that is not below *largest*."""
    step = _step(largest, 0.1, TICKS_MAX - 3) if root else _step(largest, 1.0, TICKS_MAX - 1)
    ticks = [step * number for number in range(TICKS_MAX + 2) if step * (number - 1) < largest or number < 2]
    # On a root axis the first step is a large part of the width: a quarter of it has room to stand there.
    return [0.0, step / 4, *ticks[1:]] if root else ticks


def _step(largest: float, step: float, steps_max: int) -> float:
    """Return the distance between two ticks: a round number, at least *step*."""
    while True:
        for factor in (1.0, 2.0, 5.0):
            if largest <= step * factor * steps_max:
                return step * factor
        step *= 10.0


def _number(value: float) -> str:
    """Format a number for an axis: ``250k``, not ``250000``."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 11,
    anchor: str = "start",
    weight: str = "normal",
    fill: str = "#111111",
    more: str = "",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
        f' fill="{fill}"{more}>{escape(words)}</text>'
    )
