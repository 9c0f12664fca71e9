"""What a codec answers where its protocol has no such thing: nothing.

Most agents run their own commands, edit their own files and start their own sub-agents: they never ask us for any, so
an answer has nobody to go to; and some have no way to be told anything within a turn. A codec that has it says so by
a method of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.ports import Out

__all__ = ["CodecDefaults"]


class CodecDefaults:
    """The parts of :class:`supervisor.ports.Codec` that many protocols do not have."""

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
