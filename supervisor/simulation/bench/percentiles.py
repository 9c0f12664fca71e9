"""Percentiles by nearest rank: each is a value that was there, never one between two, so no rounding depends on a
machine. What never happened counts as later than everything that did."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["Summary", "nearest_rank", "summary_of"]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A sample. ``None`` as a percentile: never, or an empty sample; ``total`` is of what happened."""

    count: int
    never: int
    total: float
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


def nearest_rank(ordered: Sequence[float], count: int, percent: int) -> float | None:
    """The smallest value that at least *percent* of *count* are not above; *ordered* holds those that happened."""
    rank = -(-count * percent // 100)
    return ordered[max(rank, 1) - 1] if 0 < rank <= len(ordered) else None


def summary_of(sample: Sequence[float | None], decimals: int) -> Summary:
    """The sample in a few numbers, rounded to so many decimals."""
    happened = sorted(round(one, decimals) if decimals else one for one in sample if one is not None)
    at = {f"p{percent}": nearest_rank(happened, len(sample), percent) for percent in (50, 90, 99)}
    return Summary(
        count=len(sample),
        never=len(sample) - len(happened),
        total=round(sum(happened), decimals),
        max=nearest_rank(happened, len(sample), 100),
        **at,
    )
