"""Usage as a program reports it: as amounts, or as running totals, of which only the difference counts.

A total that falls adds nothing.
"""

from __future__ import annotations

from supervisor.ports import Usage

__all__ = ["JsonlUsageMeter"]


class JsonlUsageMeter:
    """Last reported totals of one run: input tokens, output tokens and US dollars."""

    def __init__(self) -> None:
        self._totals = [0.0, 0.0, 0.0]

    def usage(self, tokens_in: float, tokens_out: float, cost_usd: float, *, total: bool) -> Usage:
        """Return the reported usage, and what it adds to the reports before."""
        told = [tokens_in, tokens_out, cost_usd]
        added = self._added(told) if total else told
        used = {"input_tokens": int(tokens_in), "output_tokens": int(tokens_out), "cost_usd": cost_usd}
        return Usage(used, int(added[0]), int(added[1]), float(added[2]))

    def _added(self, told: list[float]) -> list[float]:
        before, self._totals = self._totals, [max(pair) for pair in zip(told, self._totals, strict=True)]
        return [now - was for now, was in zip(self._totals, before, strict=True)]
