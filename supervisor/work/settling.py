"""Wait until the processes of a turn have ended, so that the work does not change while it is checked.

An agent may state that it is done while a command that it has started still runs in the background and writes.
Therefore work is checked (completion signals, acceptance tests, review), merged and closed only when no process of its
turn runs any more: every descendant of the agent that was started since the agent's first prompt. The agent itself is
not waited for, nor processes that it had started before that prompt, nor its servers (``policies/call_processes.py``):
they serve the next turn as well.

The processes have ``settle_s`` to end by themselves. Then they are ended by the stages terminate and kill (SIGTERM and
SIGKILL, with the times of the session's policy), and are named in the result. A process that cannot be ended, or cannot
be listed, is reported as unknown. If there is no such process, the only wait is that for the shim's reply to one
request.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.task_run import TaskRun, TurnSettling
from supervisor.policies.call_processes import ProcessSeen
from supervisor.policies.stage_deadlines import EXITING_S
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.sessions.connection import Connection
from supervisor.sessions.live_session import LiveSession
from supervisor.work.task_execution import TaskExecution

_log = get_logger()

ANSWER_S: Final = 5.0
"""Seconds within which a shim must reply with the processes below it; measured: a few ms."""

NAMED_MAX: Final = 10
"""Maximal number of processes that are named in a remark."""

SETTLED: Final = "TurnSettled"
"""Name of the fact of a task about the processes of its turn that had to be ended, or are unknown."""

OUTSIDE: Final = "ChangedOutside"
"""Name of the fact of a task about changes of the user's own checkout while its agent worked."""

UNKNOWN: Final = "unknown whether processes of its turn still ran when it was judged: they cannot be listed"


async def settle_turn(sup: SupervisorCore, execution: TaskExecution) -> None:
    """Wait until no process of the task's turn runs. Processes that had to be ended, or are unknown, are added to the
    remarks of the task."""
    session = sup.registry.sessions.get(execution.session_id)
    if session is None or session.connection is None:
        return
    if session.connection.outlived:
        _remark(execution, f"ended when its program had exited: {_named(session.connection.outlived)}")
    await _TurnSettlement(sup, execution, session, session.connection).run()


async def note_outside_changes(sup: SupervisorCore, execution: TaskExecution) -> None:
    """Add to the remarks of the task, and to its records, what has changed in the user's own checkout while its agent
    worked."""
    if not (changes := await sup.verification.outside_changes(execution.session_id)):
        return
    for words in changes:
        _remark(execution, f"while it worked, {words}")
        _log.warning("the user's checkout was changed while a task worked", task=execution.name, what=words)
    sup.registry.record_fact(execution.id, OUTSIDE, execution.cause, {"changes": changes})


class _TurnSettlement:
    """Waits for the processes of one turn, and ends those that do not end by themselves."""

    def __init__(
        self, sup: SupervisorCore, execution: TaskExecution, session: LiveSession, connection: Connection
    ) -> None:
        self._sup, self._execution, self._connection = sup, execution, connection
        self._timers = sup.timers
        self._settle_s = sup.registry.entity(execution.session_id).data.limits.settle_s
        self._ladder = session.policy.ladder

    async def run(self) -> None:
        found = await self._look()
        if not found:
            self._conclude({}, found)
            return
        until = self._sup.journal_writer.clock.now() + self._settle_s
        await self._record(TurnSettling(waits_for=_named(found), until=until))
        found = await self._wait(self._settle_s)
        ended: dict[int, ProcessSeen] = {}
        stages = (signal.SIGTERM, self._ladder.terminate_s), (signal.SIGKILL, self._ladder.kill_s)
        for number, within_s in stages:
            if found:
                ended.update((one.pid, one) for one in found)
                found = await self._wait(within_s, number)
        if found and all(one.exiting for one in found):  # they run no code any more
            found = await self._wait(EXITING_S)
        self._conclude(ended, found)
        await self._record(TurnSettling())

    async def _look(self, number: int = 0) -> tuple[ProcessSeen, ...] | None:
        """Return the processes of the turn that run, after sending each of them signal *number* unless that is 0;
        ``None`` if they cannot be listed. (An agent may have stopped its shim, which then does not reply.)"""
        with self._timers.limit(ANSWER_S):
            found = await self._connection.processes_of_turn()
            if found and number:
                self._connection.signal_processes(found, number)
            return found
        return None

    async def _wait(self, within_s: float, number: int = 0) -> tuple[ProcessSeen, ...] | None:
        """Wait until all processes of the turn have ended, or for *within_s* seconds; return the processes that still
        run. A process that ends may have started another one, so each round lists the processes anew."""
        with self._timers.limit(within_s):
            while found := await self._look(number):
                for one in found:
                    await self._connection.wait_process_exit(one.pid)
        return await self._look()

    async def _record(self, event: TurnSettling) -> None:
        """Record that the run waits for its processes. For a run that was cancelled or split just now, record
        nothing."""
        if self._execution.has_run and self._execution.run is TaskRun.IN_PROGRESS:
            with suppress(Refused):
                self._execution.apply([event])
                await self._execution.recorded()

    def _conclude(self, ended: dict[int, ProcessSeen], left: tuple[ProcessSeen, ...] | None) -> None:
        for one in left or ():
            ended.pop(one.pid, None)
        if ended:
            _remark(self._execution, f"ended after settle_s ({self._settle_s:g} s): {_named(ended.values())}")
        if left:
            _remark(self._execution, f"unknown whether they ended, not even SIGKILL was seen to work: {_named(left)}")
        if left is None:
            _remark(self._execution, UNKNOWN)


def _remark(execution: TaskExecution, words: str) -> None:
    execution.remarks.append(words)
    execution.note(SETTLED, {}, words)


def _named(processes: Iterable[ProcessSeen]) -> str:
    """Return the processes as a text in one line: ``make -j4 (pid 12), ...``."""
    words = [f"{one.command or '(no command line)'} (pid {one.pid})" for one in processes]
    more = f" and {len(words) - NAMED_MAX} more" if len(words) > NAMED_MAX else ""
    return f"{', '.join(words[:NAMED_MAX])}{more}"
