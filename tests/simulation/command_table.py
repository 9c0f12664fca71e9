"""Table of the commands about a task: every command in every phase of the task, with the answer, the states that the
task passes through from the command on, its end, and the last reason. Tests of it are in ``test_command_table``; tests
of races between a command and an event, or a kill of the supervisor, take their expectations from here, too.

The rows say what a user is told by docs/spec/rules.md and docs/reference, and not what the code happens to do. Where
rules and documentation are silent, a row records what happens today; the comment ``silent`` marks these rows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pytest

from tests.simulation.task_phases import COMMANDS, PHASES, Seen

AGAIN = "OPEN CLAIMED IN_PROGRESS DONE CLOSED"
"""States of a task that is given to another session, and completed."""
GOES_ON = "goes on"
"""The states, the end and the reason are those of the phase without a command."""
MERGED = "merged into supervisor/r"


class Row(NamedTuple):
    """Expectation for one command in some phases. *answer* and *reason* are the beginnings of the texts."""

    command: str
    phases: str
    answer: str
    then: str = GOES_ON
    end: str = "completed"
    reason: str = MERGED


BEFORE_MERGE = "claimed turn delay between cooling checked reviewed split"
LIVE = f"{BEFORE_MERGE} merged"
"""Phases in which the task has a session."""
WAITING = "reclaim approval blocked"
"""Phases in which the last session has ended, and the task has not."""
NO_SESSION = f"planned queued {WAITING} failed"
BY_ME = ("CANCELLED", "aborted", "aborted by me: enough")
WITH_SESSION = ("CANCELLED", "aborted", "enough")
ENDING = ("CANCELLED", "aborted", "the supervisor is ending")
NOT_STARTED = ("CANCELLED", "aborted", "session 'w0t0' is not started: the supervisor is ending")
AT_ONCE = ("CANCELLED", "aborted", "stopped at once")
GIVEN_UP = ("CANCELLED", "cancelled", "cancelled by host")
SPLIT = "WAITING_FOR_SUBTASKS DONE CLOSED"
NO_ID = "unknown: nothing alive has the id"
NOT_ALIVE = "unknown: nothing alive has the id"
NO_PROMPT = "refused: w0t0 works for a task and may get no further prompt"
NO_SIBLINGS = "bad: w0t0 is a root session and has no siblings"

ROWS = (
    Row("approve", "planned", "OPEN"),
    Row("approve", "approval", "CLOSED"),
    Row("reject", "planned", "CANCELLED", "CANCELLED", "rejected", "rejected by me: enough"),
    Row("reject", "approval", "FAILED", "FAILED OPEN CLAIMED IN_PROGRESS DONE PENDING_APPROVAL CLOSED"),
    # ------------------------------------------------------------------ ends on purpose: rule 51
    Row("cancel", f"queued {LIVE} {WAITING}", "CANCELLED", *BY_ME),
    Row("abort_session", "planned queued", NO_ID),  # silent: a task without a session has nothing to abort
    Row("abort_session", LIVE, "ended", *WITH_SESSION),
    Row("abort_session", WAITING, "already ended, and task w0t0 is cancelled", *WITH_SESSION),
    Row("abort_session", "failed", "already ended"),
    Row("close", "planned queued failed", "closed"),  # silent: there is no session, and no error
    Row("close", f"{LIVE} {WAITING}", "closed", *WITH_SESSION),
    Row("stop", f"planned queued {WAITING}", "drain", *ENDING),
    Row("stop", "between", "drain", *NOT_STARTED),  # silent: only when a slot is free
    Row("stop", "delay cooling", "drain", *ENDING),
    Row("stop", "claimed turn checked reviewed merged split failed", "drain"),  # silent about claimed and split
    Row("stop_now", f"planned queued {WAITING}", "now", *ENDING),
    Row("stop_now", "between", "now", *NOT_STARTED),
    Row("stop_now", "claimed turn checked reviewed merged", "now", *AT_ONCE),
    Row("stop_now", "delay cooling", "now", *ENDING),
    Row("stop_now", "split", "now", "BLOCKED CANCELLED", "blocked", "its subtask w0t0s7 did not complete"),  # silent
    Row("stop_now", "failed", "now"),
    Row("give_up", f"planned queued {BEFORE_MERGE} {WAITING}", "given up", *GIVEN_UP),
    Row("give_up", "merged", "given up", "CLOSED", reason="verified; nobody goes on with its plan"),  # its branch waits
    Row("give_up", "failed", "given up"),
    # ------------------------------------------------------------------ another try
    Row("retry", "delay", "RETRYING"),
    Row("retry", "cooling", "PENDING"),
    Row("retry", "reclaim", "PENDING"),
    Row("retry", "failed", "OPEN", AGAIN),
    Row("retry", "blocked", "RETRYING"),  # silent: nothing is tried, since the task stays blocked
    Row("retry", "planned queued claimed turn between merged approval split", "refused: needs no retry: its run is"),
    Row("requeue", "turn delay between cooling", "OPEN", AGAIN),  # silent: after a delay, the whole delay is waited for
    Row("unclaim", "claimed", "OPEN", AGAIN),
    # ------------------------------------------------------------------ kept as it is: rule 51a
    Row("keep", "turn", "IN_PROGRESS"),
    Row("keep", "delay between cooling", "refused: cannot be kept: no agent works on it now"),
    # ------------------------------------------------------------------ blocked, split
    Row("block", "claimed turn delay between cooling", "BLOCKED", f"BLOCKED {AGAIN}"),
    Row("unblock", "blocked", "OPEN"),
    Row("split", "queued", "WAITING_FOR_SUBTASKS", SPLIT, reason="nothing to merge: its subtasks did the work"),
    Row("split", "claimed turn", "WAITING_FOR_SUBTASKS", SPLIT),
    Row("split", "delay between cooling", "WAITING_FOR_SUBTASKS", SPLIT),  # silent: a failed attempt's work is merged
    Row("split", "reclaim", "WAITING_FOR_SUBTASKS", SPLIT, reason="nothing to merge:"),
    # ------------------------------------------------------------------ messages: rule 49
    Row("send", NO_SESSION, NOT_ALIVE),
    Row("send", "turn checked reviewed merged split", NO_PROMPT),
    Row("send", "claimed delay between cooling", "sent, read"),
    Row("send_now", NO_SESSION, NOT_ALIVE),
    Row("send_now", "claimed turn delay between cooling", "sent, read"),
    Row("send_now", "checked reviewed split", "refused: the work of w0t0 is being checked"),
    Row("send_now", "merged", "sent, never read"),  # silent; rule 50 wants that to be said
    Row("send_at_turn_end", NO_SESSION, NOT_ALIVE),
    Row("send_at_turn_end", "claimed turn delay between cooling", "sent, read"),
    Row("send_at_turn_end", "checked reviewed split", "sent, read"),  # silent: in a turn beside the tests or the review
    Row("send_at_turn_end", "merged", "sent, never read"),  # silent, as above
    # ------------------------------------------------------------------ aborts that spare the task: rule 9
    Row("abort_sibling", "planned queued", NO_ID),
    Row("abort_sibling", LIVE, NO_SIBLINGS),
    Row("abort_sibling", f"{WAITING} failed", "already ended"),
    Row("abort_tool", "planned queued claimed", NO_ID),
    Row("abort_tool", "turn", "ended"),
    Row("abort_tool", f"delay between cooling checked reviewed merged split {WAITING} failed", "already ended"),
)
"""Every cell that is not refused with the text of its phase (``PHASES``)."""

CELLS = {(row.command, phase): row for row in ROWS for phase in row.phases.split()}
REFUSALS = ("refused", "unknown", "bad")


def has_no_effect(command: str, phase: str) -> bool:
    """Return whether the command is refused in the phase, or finds that its target has ended."""
    row = CELLS.get((command, phase))
    return row is None or (row.then == GOES_ON and row.answer.startswith((*REFUSALS, "already ended", "closed")))


def effective_cells(commands: Collection[str] = COMMANDS) -> list[object]:
    """Return the cells in which one of the *commands* has an effect, as parameters of a test: command, phase, row."""
    return [
        pytest.param(command, phase, row, id=f"{command}-{phase}")
        for (command, phase), row in CELLS.items()
        if command in commands and not has_no_effect(command, phase)
    ]


def effect_of(row: Row, phase: str) -> tuple[str, str, str]:
    """Return what is expected after a command: the states of the task, its end, and the beginning of the last
    reason."""
    if row.then != GOES_ON:
        return row.then, row.end, row.reason
    end, reason = ("failed", "RuntimeError: it broke") if phase == "failed" else ("completed", MERGED)
    return PHASES[phase].then, end, reason


def check_effect(seen: Seen, row: Row, phase: str) -> None:
    """Check what was seen after a command."""
    then, end, reason = effect_of(row, phase)
    assert (seen.then, seen.end, seen.reason[: len(reason)]) == (then, end, reason)
