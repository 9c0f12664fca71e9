"""Lists that only a running supervisor has: the processes of sessions, agents without progress, trust levels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio

from supervisor.cli.options import say, warn
from supervisor.cli.rendering import columns, json_text
from supervisor.cli.terminal import table_width
from supervisor.control.client import answers_to
from supervisor.control.requests import AccessLevels, Processes, Request, Stalls
from supervisor.journal.statedir import StateDir

_PROCESS_HEADS: Final = ("PID", "PARENT", "AGENT", "ROLE", "AGE", "CALLS", "COMMAND")
_STALL_HEADS: Final = ("SESSION", "SILENT", "TAKEN", "NEXT", "ABORTED IN")
_RIGHTS: Final = ("WRITES", "NETWORK", "FILES", "DIRECTORIES", "SPLITS")
_LEVEL_HEADS: Final = ("AGENT", "LEVEL", "SUCCESSES", "VIOLATIONS", *_RIGHTS, "LAST CHANGE")


def _ask(state_dir: Path, request: Request) -> dict[str, Any]:
    """Send a request to the supervisor, and return the one line of the reply."""
    return anyio.run(answers_to, StateDir(state_dir).control_socket, request)[0]


def show_processes(state_dir: Path, *, as_json: bool) -> None:
    """Print the processes of live sessions, each with the open calls that it belongs to."""
    answer = _ask(state_dir, Processes())
    rows = [
        (
            str(one["pid"]),
            str(one["parent"]),
            one["agent"],
            f"{one['role']}, exiting" if one["exiting"] else one["role"],
            f"{one['age_s']:.0f} s",
            ", ".join(one["calls"]) or "-",
            one["command"],
        )
        for one in answer["processes"]
    ]
    _print(answer, _PROCESS_HEADS, rows, "no session has a process", as_json=as_json)
    if answer["unlisted"]:
        warn(f"unknown which processes these sessions have: {', '.join(answer['unlisted'])}")


def show_stalls(state_dir: Path, *, as_json: bool) -> None:
    """Print the agents at work that make no progress, with what follows."""
    answer = _ask(state_dir, Stalls())
    rows = [
        (
            one["session"],
            f"{one['silent_s']:.0f} s",
            ", ".join(one["taken"]) or "-",
            f"{one['next']} in {one['next_in_s']:.0f} s" if one["next"] else "the time-out of its turn",
            "-" if one["ends_in_s"] is None else f"{one['ends_in_s']:.0f} s",
        )
        for one in answer["stalls"]
    ]
    _print(answer["stalls"], _STALL_HEADS, rows, "every agent at work makes progress", as_json=as_json)


def show_levels(state_dir: Path, *, as_json: bool) -> None:
    """Print the trust level of each agent, its record, and what the level permits."""
    answer = _ask(state_dir, AccessLevels())
    rows = [
        (
            one["agent"],
            one["level"],
            str(one["successes"]),
            str(one["violations"]),
            "yes" if one["may_write"] else "no",
            "yes" if one["may_use_network"] else "no",
            str(one["files_max"]),
            ", ".join(one["directories"]) or "any",
            "yes" if "split" in one["transitions"] else "no",
            one["last_change"] or "-",
        )
        for one in answer["access_levels"]
    ]
    none = "no agent has a trust level; the settings say with `access` that there are some"
    _print(answer["access_levels"], _LEVEL_HEADS, rows, none, as_json=as_json)


def _print(document: Any, heads: Sequence[str], rows: Sequence[Sequence[str]], none: str, *, as_json: bool) -> None:
    say(json_text(document) if as_json else columns(heads, rows, table_width()) if rows else none)
