"""Commands about sessions that no plan has started: ``session start``, ``session close``; and ``attach``.

``attach`` only looks and sends messages. Whatever ends it (the end of the input, ``~.``, Ctrl-C, a closed terminal),
the session goes on.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import Any, Final

import click

from supervisor.cli.completion import complete_ids
from supervisor.cli.logs import TranscriptLines, line_json
from supervisor.cli.lookup import LOOK_AGAIN_S, living_session, open_journal, with_run
from supervisor.cli.options import PATH, examples, json_option, run_option, say, state_dir_option, warn
from supervisor.cli.rendering import json_text
from supervisor.cli.sessions import explained, operator, send_message, send_request
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput, ControlError, NotRunning
from supervisor.control.requests import Close, Prompt, Send, Start
from supervisor.diagnostics.outcomes import Outcomes
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.task import ENDS_WELL, TaskEnd
from supervisor.lifecycles.types import DeliveryPoint, Kind
from supervisor.ports import Reader

SHOWN_MAX: Final = 20
"""Largest number of lines from before that ``attach`` shows."""
_DETACH: Final = "~."
_INPUT_BYTES_MAX: Final = 65_536


@click.group(
    "session",
    epilog=examples('supervisor session start coder "Fix the tests" --wait', "supervisor session close coder"),
)
def session_group() -> None:
    pass


@session_group.command("start", epilog=examples('supervisor session start coder "Fix the tests"'))
@click.argument("agent")
@click.argument("prompt", required=False)
@click.option("--name", metavar="NAME", help="Name of the session; by default that of the agent.")
@click.option("--parent", metavar="ID", help="Session that the new one is a child of.")
@click.option("--dir", "directory", type=PATH, metavar="DIR", help="Working directory of the agent.")
@click.option("--wait", is_flag=True, help="Wait for the end of the turn, and print its result.")
@state_dir_option
@json_option
def start_command(
    agent: str,
    prompt: str | None,
    name: str | None,
    parent: str | None,
    directory: Path | None,
    wait: bool,
    state_dir: Path,
    as_json: bool,
) -> int:
    """Start a session in the running supervisor, and have AGENT work on PROMPT.

    AGENT is the name of an agent that the supervisor knows. The session goes on until it is closed, and `supervisor
    attach` gives it more work. If the name was used before, a number is appended. Exit status with --wait: 0 the turn
    was completed, 1 it was not.
    """
    if wait and prompt is None:
        raise BadInput("--wait: there is no turn to wait for; give a PROMPT, too")
    where = None if directory is None else str(directory.absolute())
    given: dict[str, Any] = {
        "name": name or agent,
        "agent": agent,
        "parent": parent,
        "directory": where,
        "by": operator(),
    }
    answer = send_request(state_dir, Start(**given, prompt=None if wait else prompt))
    session, result = str(answer["session"]), None
    if wait and prompt is not None:
        goes_on = f"the turn of {session} goes on; `supervisor attach {session}` follows it"
        request = Prompt(id=session, text=prompt, wait=True, by=operator())
        result = send_request(state_dir, request, goes_on)["result"]
    if as_json:
        say(json_text({**answer, "result": result}))
    else:
        _say_started(session, result)
    return DONE if result is None or result["outcome"] == TaskEnd.COMPLETED else WORK_FAILED


def _say_started(session: str, result: dict[str, Any] | None) -> None:
    if result is None:
        say(f"session {session}")
        return
    say(result["text"] or f"{session}: {result['outcome']}")
    if result["outcome"] != TaskEnd.COMPLETED:
        warn(f"{session}: {result['outcome']}: {result['error']}")


@session_group.command("close", epilog=examples("supervisor session close coder"))
@click.argument("session", metavar="ID", shell_complete=complete_ids(Kind.SESSION, living=True))
@click.option("--reason", default="no more work", metavar="TEXT", show_default=True, help="Reason to record.")
@state_dir_option
@json_option
def close_command(session: str, reason: str, state_dir: Path, as_json: bool) -> None:
    """End a session as completed, with everything below it, and wait for its end."""
    try:
        request = Close(id=session, reason=reason, by=operator())
        answer = send_request(state_dir, request, f"the close of {session} goes on")
    except (NotRunning, ControlError) as error:
        raise explained(state_dir, session, "close", error) from None
    say(json_text(answer) if as_json else f"session {session} is closed")


# --------------------------------------------------------------------------------------------------------- attach
@click.command("attach", epilog=examples("supervisor attach fix"))
@click.argument("entity_id", metavar="ID", shell_complete=complete_ids(Kind.TASK, Kind.SESSION, living=True))
@run_option
@state_dir_option
@json_option
def attach_command(entity_id: str, run: str | None, state_dir: Path, as_json: bool) -> int:
    """Follow what the agent of a session writes, and type messages to it, one in a line.

    ID is a session, or a task for the session that works on it. A message gets a turn of its own, right after the turn
    under way. Ctrl-D, Ctrl-C or a line `~.` leaves the session, which goes on. Exit status: 0 you have left it, or it
    has ended well; 1 it has ended otherwise.
    """
    with open_journal(state_dir) as (state, reader):
        session = living_session(state, reader, with_run(entity_id, run))
        attached = _Attached(state, reader, session, as_json=as_json)
        try:
            return attached.follow()
        except KeyboardInterrupt:
            attached.say_left()
            return DONE


class _Attached:
    """A terminal that follows a session."""

    def __init__(self, state: StateDir, reader: Reader, session: str, *, as_json: bool) -> None:
        self._state, self._reader, self._session = state, reader, session
        self._as_json = as_json
        self._lines = TranscriptLines(state.transcript(session), session, 0.0)
        self._typed = b""

    def follow(self) -> int:
        """Print output and send lines until the input or the session ends; return the exit status."""
        warn(f"attached to {self._session}: Ctrl-D or {_DETACH} leaves it, and it goes on")
        self._print([line for _, line in self._lines.take(end=False)][-SHOWN_MAX:])
        while True:
            running = self._state.lock_holder() is not None  # asked first: what comes before the end is still read
            row = self._reader.entity(self._session)
            assert row is not None, "rows stay"
            goes_on = running and not row.ended
            self._print([line for _, line in self._lines.take(end=not goes_on)])
            if not goes_on:
                end = Outcomes([row]).of(row) or "its supervisor has ended"
                warn(f"{self._session}: {end}")
                return DONE if end in ENDS_WELL else WORK_FAILED
            if not self._send_typed():
                self.say_left()
                return DONE

    def say_left(self) -> None:
        """Say that the session goes on, and how to come back."""
        warn(f"left {self._session}, which goes on; `supervisor attach {self._session}` comes back")

    def _print(self, lines: list[str]) -> None:
        for line in lines:
            say(line_json(self._session, line) if self._as_json else line)
        sys.stdout.flush()

    def _send_typed(self) -> bool:
        """Wait a moment for typed lines, and send them; return false when the user leaves. The descriptor is read
        itself: a thread that waits for a line could not be ended."""
        ready, _, _ = select.select([0], [], [], LOOK_AGAIN_S)
        if not ready:
            return True
        data = os.read(0, _INPUT_BYTES_MAX)
        *lines, self._typed = (self._typed + data).split(b"\n")
        if not data and self._typed:  # a last line without its end
            lines, self._typed = [self._typed], b""
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            if text == _DETACH:
                return False
            if text.strip():
                self._send(text)
        return bool(data)

    def _send(self, text: str) -> None:
        # This point, and no other, gives a session at rest a turn, too.
        request = Send(id=self._session, text=text, urgent=True, at=DeliveryPoint.TURN_END, by=operator())
        try:
            send_message(self._state.root, request)
        except (ControlError, BadInput) as error:
            warn(f"not sent: {error}")
