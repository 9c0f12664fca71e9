"""Growth curves as one picture: a panel for each quantity, the same colours in all, log scales on both axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers import need


class Point(NamedTuple):
    """Point of a growth curve."""

    quantity: str
    unit: str
    who: str
    actors: int
    value: float


STYLES: dict[str, dict[str, Any]] = {
    "actors, asyncio": {"color": "#0b5fa5", "linestyle": "-", "marker": "o", "linewidth": 4.0, "markersize": 8},
    "actors, trio": {"color": "#2f9e6e", "linestyle": "-", "marker": "s"},
    "bare tasks, asyncio": {"color": "#0b5fa5", "linestyle": "--", "marker": "o", "markerfacecolor": "white"},
    "bare tasks, trio": {"color": "#2f9e6e", "linestyle": "--", "marker": "s", "markerfacecolor": "white"},
}
COLUMNS = 3


def draw(points: Sequence[Point], path: Path) -> None:
    """Draw the growth curves and write the picture to *path*.

    Raises:
        Missing: matplotlib is not installed.
    """
    need("matplotlib").use("agg")
    pyplot: Any = need("matplotlib.pyplot")
    quantities = list(dict.fromkeys((point.quantity, point.unit) for point in points))
    lines = -(-(len(quantities) + 1) // COLUMNS)
    figure, axes = pyplot.subplots(lines, COLUMNS, figsize=(5 * COLUMNS, 4 * lines), layout="constrained")
    panels = list(axes.flat)
    for panel, (quantity, unit) in zip(panels, quantities, strict=False):
        _panel(panel, quantity, unit, [point for point in points if point.quantity == quantity])
    for panel in panels[len(quantities) :]:
        panel.axis("off")
    handles, labels = panels[0].get_legend_handles_labels()
    panels[len(quantities)].legend(handles, labels, loc="center", frameon=False, fontsize=12, handlelength=3.5)
    figure.suptitle("What it costs as the number of actors grows (less is better; flat is linear)", fontsize=14)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(panel: Any, quantity: str, unit: str, points: Sequence[Point]) -> None:
    for who, style in STYLES.items():
        curve = [(point.actors, point.value) for point in points if point.who == who]
        if curve:
            panel.plot(*zip(*curve, strict=True), label=who, **{"markersize": 5, "linewidth": 1.6, **style})
    panel.set_xscale("log")
    panel.set_yscale("log")
    _plain_ticks(panel, [point.value for point in points])
    panel.set_title(quantity, fontsize=12, loc="left")
    panel.set_ylabel(unit)
    panel.set_xlabel("actors")
    panel.grid(True, which="major", alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)


def _plain_ticks(panel: Any, values: Sequence[float]) -> None:
    """Label the axes with plain numbers, at 1, 2 and 5 of each decade, with space above and below the values."""
    ticker: Any = need("matplotlib.ticker")
    panel.set_ylim(min(values) / 1.6, max(values) * 1.6)
    panel.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.12g}"))
        axis.set_minor_formatter(ticker.NullFormatter())
