"""Table of adapters: the only module that turns an adapter's name in a plan into a codec.

A name stands for a factory of codecs, because a codec serves one conversation and is never reused. ``scripted`` uses
ACP like any other agent; the only difference is that the agent's program is part of this package. Plug-ins may add
adapters but cannot replace the adapters of this table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from supervisor.agent_catalogue import NO_QUIRKS, LineMapping, Quirks
from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.agents.protocols.claude.codec import ClaudeCodec
from supervisor.agents.protocols.codex.codec import CodexCodec
from supervisor.agents.protocols.command import CommandCodec
from supervisor.agents.protocols.jsonl.codec import JsonlCodec
from supervisor.ports import AgentOptions, Codec

_CODECS: Final[Mapping[str, Callable[[], Codec]]] = MappingProxyType(
    {
        "acp": AcpCodec,
        "claude": ClaudeCodec,
        "codex": CodexCodec,
        "command": CommandCodec,
        "scripted": partial(AcpCodec, silent=True),
    }
)
_NO_OPTIONS: Final = AgentOptions()
MAPPED: Final = "jsonl"
"""Adapter that needs a line mapping: a description of the meaning of the lines that a program prints."""

MakeCodec = Callable[[], Codec]
"""Type of a factory that makes a codec for one conversation."""


def adapters() -> tuple[str, ...]:
    """Return the adapter names that :func:`codec_for` knows without plug-ins."""
    return (*_CODECS, MAPPED)


def codec_for(
    adapter: str,
    more: Mapping[str, MakeCodec] = MappingProxyType({}),
    *,
    agent_options: AgentOptions = _NO_OPTIONS,
    mapping: LineMapping | None = None,
    quirks: Quirks = NO_QUIRKS,
) -> MakeCodec:
    """Return the factory of codecs for *adapter*, which is an adapter of this module or of *more*, the plug-ins'
    adapters.

    Args:
        agent_options: the plan's settings for the agent (model, mode, tool servers, whether to ask); adapters other
            than ``acp``, ``claude`` and ``codex`` ignore them.
        mapping: the meaning of the agent's lines, for the adapter ``jsonl``.
        quirks: the agent's differences from its protocol; of these only the adapter ``acp`` needs one, the scope of the
            reported usage.

    Raises:
        ValueError: no adapter has that name (the message lists the names), or ``jsonl`` was given no mapping.
    """
    match adapter:
        case "acp":
            return partial(AcpCodec, agent_options=agent_options, usage_scope=quirks.usage_scope)
        case "claude":
            return partial(ClaudeCodec, agent_options=agent_options)
        case "codex":
            return partial(CodexCodec, agent_options=agent_options)
        case "jsonl":
            if mapping is None:
                raise ValueError("adapter: 'jsonl' needs a mapping of the program's lines; give one")
            return partial(JsonlCodec, mapping)
    made = _CODECS.get(adapter) or more.get(adapter)
    if made is None:
        raise ValueError(f"adapter: unknown name {adapter!r}; use one of: {', '.join([*adapters(), *more])}")
    return made


def scripted_command() -> tuple[str, ...]:
    """Return the command line of the scripted agent: this Python interpreter, without site packages and environment
    variables, and the agent's file."""
    return (sys.executable, "-I", "-S", str(Path(__file__).with_name("scripted_agent.py")))
