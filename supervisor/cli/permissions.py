"""The commands about permissions: ``permissions`` lists those that wait for a human, ``answer`` answers one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from supervisor.cli.rendering import columns, duration, json_text
from supervisor.cli.sessions import ask, operator
from supervisor.policies.permissions import OpenPermission
from supervisor.policies.redaction import printable

__all__ = ["answer", "permissions"]

Say = Callable[[str], None]


def permissions(state_dir: Path, say: Say, *, as_json: bool) -> None:
    """Print the permissions that wait for an answer, oldest first."""
    told = ask(state_dir, {"do": "permissions"})["permissions"]
    say(json_text(told) if as_json else _text(msgspec.convert(told, list[OpenPermission])))


def _text(waiting: Sequence[OpenPermission]) -> str:
    if not waiting:
        return "no permission waits for an answer"
    heads = ("ID", "AGENT", "KIND", "TITLE", "LEFT", "OFFERS")
    rows = ((one.id, one.agent, _kind(one), one.title, duration(one.left_s), ", ".join(one.options)) for one in waiting)
    details = [f"\n{printable(one.id)}:\n{_indented(one.detail)}" for one in waiting if one.detail]
    return "\n".join([columns(heads, rows), *details])


def _kind(one: OpenPermission) -> str:
    return f"{one.kind} ({one.tool})" if one.tool else one.kind


def _indented(detail: str) -> str:
    return "\n".join(f"  {printable(line)}" for line in detail.splitlines())


def answer(
    state_dir: Path, permission_id: str, say: Say, *, allow: bool, always: bool, because: str, as_json: bool
) -> None:
    """Answer one; whoever comes second is refused."""
    asked = {"do": "answer", "permission": permission_id, "allow": allow, "always": always, "because": because}
    told = ask(state_dir, {**asked, "by": operator()})["answered"]
    for_good = " for good" if (told["kind"] or "").endswith("_always") else ""
    nothing = (
        "" if told["option"] is not None else " (the agent offers no such answer, and is told that nothing was chosen)"
    )
    words = f"{printable(permission_id)}: {'allowed' if allow else 'denied'}{for_good}{nothing}"
    say(json_text(told) if as_json else words)
