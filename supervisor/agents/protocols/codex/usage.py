"""Usage of codex threads: running totals become differences.

Each thread has a total of its own. The total of a resumed thread counts from the first report after loading. A total
that falls adds nothing; a repeated total is no request.
"""

from __future__ import annotations

from supervisor.agents.protocols.codex.messages import Tokens, TokenUsageUpdated
from supervisor.ports import Usage

__all__ = ["THREADS_MAX", "CodexUsageMeter"]

THREADS_MAX = 1_000
"""Threads of sub-agents whose totals are kept; usage of further threads is not counted."""

_NOTHING = Tokens()


class CodexUsageMeter:
    """Last reported totals of one conversation's threads."""

    def __init__(self) -> None:
        self._totals: dict[str, Tokens] = {}
        self._loaded: str | None = None

    def loaded(self, thread_id: str) -> None:
        """Mark a thread as resumed: its earlier usage was counted by an earlier process."""
        self._loaded = thread_id

    def told(self, told: TokenUsageUpdated, *, in_turn: bool) -> list[Usage]:
        """Return the usage that a ``thread/tokenUsage/updated`` adds; nothing if it adds none."""
        thread, total = told.thread_id, told.token_usage.total
        before = self._totals.get(thread) or self._first(told, in_turn)
        if thread not in self._totals and len(self._totals) >= THREADS_MAX:
            return []
        self._totals[thread] = total
        into = max(0, total.input_tokens - before.input_tokens)
        out = max(0, total.output_tokens - before.output_tokens)
        if not (into or out):
            return []
        cached = max(0, total.cached_input_tokens - before.cached_input_tokens)
        return [Usage(_said(told), into, out, cached_tokens=cached, requests=1)]

    def _first(self, told: TokenUsageUpdated, in_turn: bool) -> Tokens:
        if told.thread_id != self._loaded:
            return _NOTHING
        total, last = told.token_usage.total, told.token_usage.last
        if not in_turn:
            return total
        return Tokens(
            input_tokens=max(0, total.input_tokens - last.input_tokens),
            cached_input_tokens=max(0, total.cached_input_tokens - last.cached_input_tokens),
            output_tokens=max(0, total.output_tokens - last.output_tokens),
        )


def _said(told: TokenUsageUpdated) -> dict[str, int]:
    total, window = told.token_usage.total, told.token_usage.model_context_window
    said = {
        "input_tokens": total.input_tokens,
        "cached_input_tokens": total.cached_input_tokens,
        "output_tokens": total.output_tokens,
        "reasoning_output_tokens": total.reasoning_output_tokens,
        "used": told.token_usage.last.total_tokens,
    }
    return said if window is None else {**said, "size": window}
