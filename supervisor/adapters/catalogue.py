"""The adapters by name: the one place that turns a word of a plan into a codec.

Every name gives a factory, since a codec is one conversation and is never used twice. ``scripted`` speaks ACP like
any other agent; only its program is ours. Plug-ins may add names; ours are never theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from supervisor.adapters.acp import AcpCodec
from supervisor.adapters.command import CommandCodec
from supervisor.ports import Codec

__all__ = ["MakeCodec", "adapters", "codec_for", "scripted_command"]

_CODECS: Final[Mapping[str, Callable[[], Codec]]] = MappingProxyType(
    {"acp": AcpCodec, "command": CommandCodec, "scripted": AcpCodec}
)


MakeCodec = Callable[[], Codec]
"""Makes a codec for one conversation."""


def adapters() -> tuple[str, ...]:
    """The names that :func:`codec_for` knows by itself."""
    return tuple(_CODECS)


def codec_for(adapter: str, more: Mapping[str, MakeCodec] = MappingProxyType({})) -> MakeCodec:
    """What makes a new codec for *adapter*, one of ours or of *more*, the plug-ins'.

    Raises:
        ValueError: no adapter has that name; the message lists those there are.
    """
    made = _CODECS.get(adapter) or more.get(adapter)
    if made is None:
        raise ValueError(f"adapter: unknown name {adapter!r}; use one of: {', '.join([*_CODECS, *more])}")
    return made


def scripted_command() -> tuple[str, ...]:
    """The command line of the scripted agent: this interpreter, isolated from site packages and the environment."""
    return (sys.executable, "-I", "-S", str(Path(__file__).with_name("scripted_agent.py")))
