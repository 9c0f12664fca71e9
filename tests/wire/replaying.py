"""Replay a recorded conversation through its codec, without agent, process or clock.

The codec gets the calls and the agent's output of the recording. Its messages to the agent must equal the recorded
ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from supervisor.agent_catalogue.catalogue import mapping_named
from supervisor.agents.codecs import codec_for
from supervisor.ports import Codec, Out, Send

LOGS = Path(__file__).parent


class WireEntry(msgspec.Struct, omit_defaults=True):
    """Line of a log: ``at`` is ``in``, ``out`` or ``do``; ``args`` are the arguments of a ``do``."""

    at: str
    data: str
    args: list[Any] = []


def logs() -> list[Path]:
    """Return every log by name."""
    return sorted(LOGS.glob("*.jsonl"))


def read_log(path: Path) -> list[WireEntry]:
    """Return the entries of a log.

    Raises:
        msgspec.ValidationError: a line is not an entry.
    """
    return [msgspec.json.decode(line, type=WireEntry) for line in path.read_bytes().splitlines()]


class Replayed(NamedTuple):
    """Log as it would be recorded today with the same agent output, and the codec's reports."""

    entries: list[WireEntry]
    told: list[Out]


def replay(entries: Iterable[WireEntry]) -> Replayed:
    """Run a log through a new codec."""
    first, *rest = entries
    codec = codec_named(first.args[0])
    again, told = [first], list[Out]()
    for entry in rest:
        if entry.at == "in":
            continue
        again.append(entry)
        for out in _asked(codec, entry):
            if isinstance(out, Send):
                again += [WireEntry("in", line) for line in out.data.decode().splitlines()]
            else:
                told.append(out)
    return Replayed(again, told)


def codec_named(name: str) -> Codec:
    """Return a new codec of that adapter, or for ``jsonl:gemini`` of that adapter with the catalogue's mapping."""
    adapter, _, mapping = name.partition(":")
    return codec_for(adapter, mapping=mapping_named(mapping) if mapping else None)()


def _asked(codec: Codec, entry: WireEntry) -> Iterable[Out]:
    if entry.at == "out":
        return codec.feed(entry.data.encode() + b"\n")
    args = [one.encode() if entry.data == "terminal_output" and at else one for at, one in enumerate(entry.args)]
    answered = codec.feed(b"") if entry.data == "eof" else getattr(codec, entry.data)(*args)
    return () if entry.data == "argv" else answered or ()


def told_lines(told: Iterable[Out]) -> Iterator[str]:
    """Return each report on a line: its name, and its fields that differ from the defaults."""
    for out in told:
        fields = {
            field.name: getattr(out, field.name)
            for field in msgspec.structs.fields(out)
            if getattr(out, field.name) != field.default
        }
        yield f"{type(out).__name__} {msgspec.json.encode(fields, order='sorted').decode()}\n"
