"""What an ACP agent tells of its use, and of its calls: running totals become what each adds.

Cost is told as a total of the conversation, tokens as a total of the turn: in the prompt's answer, which is still a
draft of the protocol, or in ``_meta.usage`` of an update. ``used`` and ``size`` of an update are the context's, and
count for nothing. A total that falls adds nothing. Nothing here writes messages.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw

import supervisor.adapters.acp_messages as wire
from supervisor.loops import EDITS
from supervisor.ports import Usage

__all__ = ["COST_MAX", "Meter", "told_of"]

COST_MAX: Final = 1e9
"""US dollars that are believed."""


class Meter:
    """The totals of one conversation that were told last."""

    def __init__(self) -> None:
        self._cost_usd = 0.0
        self._tokens = (0, 0)

    def begin(self) -> None:
        """Another turn: its tokens count from nothing."""
        self._tokens = (0, 0)

    def update(self, update: wire.UsageUpdate) -> Usage:
        """What a ``usage_update`` says."""
        said: dict[str, Any] = {"used": update.used, "size": update.size}
        added_usd = 0.0
        if update.cost is not None:
            said["cost"] = {"amount": update.cost.amount, "currency": update.cost.currency}
            if update.cost.currency == "USD" and 0 <= update.cost.amount <= COST_MAX:
                added_usd = max(0.0, update.cost.amount - self._cost_usd)
                self._cost_usd += added_usd
        return self._usage(said, update.tokens, added_usd)

    def at_end(self, answer: wire.Prompted) -> list[Usage]:
        """What the answer to a prompt adds to what was said before."""
        used = self._usage({}, answer.tokens)
        return [used] if used.input_tokens or used.output_tokens else []

    def _usage(self, said: dict[str, Any], tokens: tuple[int, int] | None, added_usd: float = 0.0) -> Usage:
        if tokens is None:
            return Usage(said, cost_usd=added_usd)
        before = self._tokens
        self._tokens = max(tokens[0], before[0]), max(tokens[1], before[1])
        into, out = self._tokens[0] - before[0], self._tokens[1] - before[1]
        return Usage({**said, "input_tokens": tokens[0], "output_tokens": tokens[1]}, into, out, added_usd)


def told_of(tool: wire.ToolUpdate) -> tuple[bytes, bytes]:
    """The arguments and the result that a word about a call tells; ``b""``: nothing.

    The content of an edit says what it does. A terminal's name is no result: what it writes is.
    """
    asked, content = _bytes(tool.raw_input), _bytes(tool.content)
    if b'"terminalId"' in content:
        content = b""
    if tool.kind in EDITS and not asked:
        asked, content = content, b""
    return asked, _bytes(tool.raw_output) + content


def _bytes(raw: object) -> bytes:
    """What was told, without what stands for nothing."""
    data = bytes(raw) if isinstance(raw, Raw) else b""
    return b"" if data in (b"null", b"{}", b"[]", b'""') else data
