"""Context window of an agent's model: when the context is to be compacted before the next prompt. Pure.

An agent that reports how full its context is, and has a command that compacts it, is given that command when the report
reaches ``NEAR`` of the window. Agents that compact by themselves do so later, when the window is full; compacting
between two prompts interrupts no work.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NEAR: Final = 0.85
"""Part of the window from which on the context is compacted before the next prompt."""


class ContextUse(NamedTuple):
    """Tokens in the context of a conversation, and the tokens that the window of its model holds."""

    tokens: int
    window: int

    @property
    def is_near(self) -> bool:
        """Whether the context nears the limit of the window. A window of 0 tokens is not known."""
        return self.window > 0 and self.tokens >= NEAR * self.window

    @property
    def words(self) -> str:
        """Text such as ``88 % of the context window is used (176000 of 200000 tokens)``."""
        return f"{self.tokens / self.window:.0%} of the context window is used ({self.tokens} of {self.window} tokens)"
