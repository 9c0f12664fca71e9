"""Defaults for the optional methods of a codec.

Most agents run their own commands, edit their own files and start their own sub-agents: they never ask us for these, so
there is no request to answer. Some agents cannot take a message within a turn. A codec of a protocol that has such a
feature overrides the method.
"""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.ports import Out

__all__ = ["CodecDefaults"]


class CodecDefaults:
    """The optional part of :class:`supervisor.ports.Codec`: every method does nothing and returns nothing."""

    def steer(self, text: str) -> Iterable[Out] | None:
        return None

    def end_call(self, call_id: str) -> Iterable[Out] | None:
        return None

    def permission(self, request_id: str, option_id: str | None) -> Iterable[Out]:
        return []

    def terminal_output(self, terminal_id: str, data: bytes) -> Iterable[Out]:
        return []

    def terminal_exited(self, terminal_id: str, status: int | None) -> Iterable[Out]:
        return []

    def file_answered(self, request_id: str, text: str, why: str = "") -> Iterable[Out]:
        return []

    def child_ended(self, request_id: str, outcome: str, text: str) -> Iterable[Out]:
        return []
