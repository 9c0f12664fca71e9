"""The adapters by name: the one place that turns a word of a plan into a codec.

Every name gives a factory, since a codec is one conversation and is never used twice. ``scripted`` speaks ACP like
any other agent; only its program is ours. Plug-ins may add names; ours are never theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from supervisor.agent_catalogue import LineMapping
from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.agents.protocols.claude.codec import ClaudeCodec
from supervisor.agents.protocols.codex.codec import CodexCodec
from supervisor.agents.protocols.command import CommandCodec
from supervisor.agents.protocols.jsonl.codec import JsonlCodec
from supervisor.ports import Codec, Wishes

__all__ = ["WISHING", "MakeCodec", "adapters", "codec_for", "scripted_command"]

_CODECS: Final[Mapping[str, Callable[[], Codec]]] = MappingProxyType(
    {
        "acp": AcpCodec,
        "claude": ClaudeCodec,
        "codex": CodexCodec,
        "command": CommandCodec,
        "scripted": partial(AcpCodec, silent=True),
    }
)
WISHING: Final[Mapping[str, Callable[..., Codec]]] = MappingProxyType({"acp": AcpCodec, "claude": ClaudeCodec})
"""The adapters that take what a plan wishes of an agent."""
_NO_WISHES: Final = Wishes()
MAPPED: Final = "jsonl"
"""The adapter that has to be told what lines mean."""

MakeCodec = Callable[[], Codec]
"""Makes a codec for one conversation."""


def adapters() -> tuple[str, ...]:
    """The names that :func:`codec_for` knows by itself."""
    return (*_CODECS, MAPPED)


def codec_for(
    adapter: str,
    more: Mapping[str, MakeCodec] = MappingProxyType({}),
    *,
    wishes: Wishes = _NO_WISHES,
    mapping: LineMapping | None = None,
) -> MakeCodec:
    """What makes a new codec for *adapter*, one of ours or of *more*, the plug-ins'.

    Args:
        wishes: what the plan wishes of the agent, for the adapters that take any.
        mapping: what the agent's lines mean, for the adapter ``jsonl``.

    Raises:
        ValueError: no adapter has that name; the message lists those there are. ``jsonl`` was given no mapping.
    """
    if adapter in WISHING:
        return partial(WISHING[adapter], wishes=wishes)
    if adapter == MAPPED:
        if mapping is None:
            raise ValueError("adapter: 'jsonl' needs to be told what lines mean; give a mapping")
        return partial(JsonlCodec, mapping)
    made = _CODECS.get(adapter) or more.get(adapter)
    if made is None:
        raise ValueError(f"adapter: unknown name {adapter!r}; use one of: {', '.join([*adapters(), *more])}")
    return made


def scripted_command() -> tuple[str, ...]:
    """The command line of the scripted agent: this interpreter, isolated from site packages and the environment."""
    return (sys.executable, "-I", "-S", str(Path(__file__).with_name("scripted_agent.py")))
