"""Adapters: one codec per way of talking to an agent, all behind :class:`supervisor.ports.Codec`.

A codec is sans-I/O: it owns no process, file, clock or task, so the simulator runs the same one. Only
``scripted_agent`` is a program, and it is never imported here: it runs as a process of its own.
"""

from __future__ import annotations

from supervisor.agents.codecs import adapters, codec_for, scripted_command
from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.agents.protocols.codex.codec import CodexCodec
from supervisor.agents.protocols.command import CommandCodec

__all__ = ["AcpCodec", "CodexCodec", "CommandCodec", "adapters", "codec_for", "scripted_command"]
