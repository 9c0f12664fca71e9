"""Adapters: one codec per way of talking to an agent, all behind :class:`supervisor.ports.Codec`.

A codec is sans-I/O: it owns no process, file, clock or task, so the simulator runs the same one. Only
``scripted_agent`` is a program, and it is never imported here: it runs as a process of its own.
"""

from __future__ import annotations

from supervisor.adapters.acp import AcpCodec
from supervisor.adapters.catalogue import adapters, codec_for, scripted_command
from supervisor.adapters.codex import CodexCodec
from supervisor.adapters.command import CommandCodec

__all__ = ["AcpCodec", "CodexCodec", "CommandCodec", "adapters", "codec_for", "scripted_command"]
