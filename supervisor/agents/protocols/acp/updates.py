"""Read usage, tool call contents and model errors from an ACP agent's updates; running totals become differences.

Cost is reported as a total of the conversation; tokens as a total of the turn, either in the response to a prompt
(still a draft of the protocol) or in ``_meta.usage`` of an update. ``used`` and ``size`` of an update describe the
context and count for no budget. A total that falls adds nothing. The protocol has no message for a model request that
fails and is repeated; agents that report it use ``_meta.modelTrouble`` of an update. Nothing here writes messages.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw

from supervisor.agents.protocols.acp import messages
from supervisor.lifecycles.types import ModelProblem
from supervisor.policies.loop_detection import EDITS
from supervisor.ports import ModelErrorReported, Usage

__all__ = ["COST_MAX", "AcpUsageMeter", "arguments_and_result_of", "detail_of", "model_trouble_of"]

COST_MAX: Final = 1e9
"""Largest cost that is believed, in US dollars."""


class AcpUsageMeter:
    """Last reported totals of one conversation."""

    def __init__(self) -> None:
        self._cost_usd = 0.0
        self._used = messages.TurnUsage()

    def begin(self) -> None:
        """Begin another turn: its token totals count from zero."""
        self._used = messages.TurnUsage()

    def update(self, update: messages.UsageUpdate) -> Usage:
        """Return the usage that a ``usage_update`` adds."""
        said: dict[str, Any] = {"used": update.used, "size": update.size}
        added_usd = 0.0
        if update.cost is not None:
            said["cost"] = {"amount": update.cost.amount, "currency": update.cost.currency}
            if update.cost.currency == "USD" and 0 <= update.cost.amount <= COST_MAX:
                added_usd = max(0.0, update.cost.amount - self._cost_usd)
                self._cost_usd += added_usd
        return self._usage(said, update.turn_used, added_usd)

    def at_end(self, answer: messages.PromptResponse) -> list[Usage]:
        """Return the usage that the response to a prompt adds to the updates before it."""
        used = self._usage({}, answer.used)
        return [used] if used.input_tokens or used.output_tokens or used.requests else []

    def _usage(self, said: dict[str, Any], used: messages.TurnUsage | None, added_usd: float = 0.0) -> Usage:
        if used is None:
            return Usage(said, cost_usd=added_usd)
        before = self._used
        self._used = messages.TurnUsage(*map(max, used, before))
        into, out, cached, requests = (now - then for now, then in zip(self._used, before, strict=True))
        told = {name: amount for name, amount in used._asdict().items() if amount or name.endswith("put_tokens")}
        return Usage({**said, **told}, into, out, added_usd, cached, requests)


KINDS: Final = {
    **{one.value: one for one in ModelProblem},
    "authentication_failed": ModelProblem.AUTH,
    "billing_error": ModelProblem.QUOTA,
    "server_error": ModelProblem.SERVER,
}
"""Kinds of model errors: ours, and the ``errorKind`` words of claude-agent-acp 0.49."""


def model_trouble_of(update: messages.InfoUpdate) -> list[ModelErrorReported]:
    """Return the model error that an update reports in its ``_meta``."""
    told = update.meta.get("modelTrouble") if isinstance(update.meta, dict) else None
    if not isinstance(told, dict):
        return []
    status, retry_ms, words = (
        messages.amount(told.get("status")),
        messages.amount(told.get("retryMs")),
        told.get("message"),
    )
    trouble = ModelErrorReported(
        KINDS.get(str(told.get("errorKind")), ModelProblem.UNKNOWN),
        status=status if status is not None and 400 <= status < 600 else None,
        attempt=messages.amount(told.get("attempt")) or 0,
        retry_s=retry_ms / 1000 if retry_ms is not None else None,
        words=words if isinstance(words, str) else "",
    )
    return [trouble]


def arguments_and_result_of(tool: messages.ToolUpdate) -> tuple[bytes, bytes]:
    """Return the arguments and the result in an update of a call; ``b""`` for what it does not hold.

    The content of an edit counts as its arguments. The id of a terminal is no result: the terminal's output is.
    """
    asked, content = _bytes(tool.raw_input), _bytes(tool.content)
    if b'"terminalId"' in content:
        content = b""
    if tool.kind in EDITS and not asked:
        asked, content = content, b""
    return asked, _bytes(tool.raw_output) + content


def detail_of(tool: messages.ToolUpdate) -> str:
    """Return what a person needs to see of a call to judge it: the arguments, or else the content."""
    return (_bytes(tool.raw_input) or _bytes(tool.content)).decode(errors="replace")


def _bytes(raw: object) -> bytes:
    """Return *raw* as bytes; ``b""`` for an empty value."""
    data = bytes(raw) if isinstance(raw, Raw) else b""
    return b"" if data in (b"null", b"{}", b"[]", b'""') else data
