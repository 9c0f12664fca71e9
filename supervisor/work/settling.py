"""Wait until the processes of a turn have ended, so that the work which is judged afterwards does not change any more.

An agent may say that it is done while a command that it has started still runs in the background and writes. Therefore
work is judged (completion checks, acceptance tests, review), merged and closed only when nothing of its turn runs any
more: everything below the agent that was born since its first prompt. The agent itself is not waited for, nor what it
had started before that prompt, nor its servers (``policies/call_processes.py``): they serve the next turn as well.

The processes have ``settle_s`` to end by themselves. Then they are ended by the last two stages of an abort, SIGTERM
and SIGKILL with the times of the session's policy, and are named in the result. A process that cannot be ended, or
cannot be listed, is reported as unknown. Where an agent has no such process, the answer to one question is all that is
waited for.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from supervisor.host.supervision import Supervisor
from supervisor.lifecycles.task_run import TaskRun, TurnSettling
from supervisor.policies.call_processes import ProcessSeen
from supervisor.runtime.entity import Refused
from supervisor.runtime.live_session import Connection, LiveSession
from supervisor.work.task_execution import TaskExecution

ANSWER_S: Final = 5.0
"""Seconds in which a shim says what runs below it; measured: a few ms."""

NAMED_MAX: Final = 10
"""Number of processes that are named in a remark."""

SETTLED: Final = "TurnSettled"
"""The fact of a task that says which processes of its turn had to be ended, or are unknown."""

UNKNOWN: Final = "unknown whether processes of its turn still ran when it was judged: they cannot be listed"


async def settle_turn(sup: Supervisor, execution: TaskExecution) -> None:
    """Return when no process of the task's turn runs. Processes that were ended, or are unknown, are among its
    remarks."""
    session = sup.registry.sessions.get(execution.session_id)
    if session is None or session.connection is None:
        return
    if session.connection.outlived:
        _remark(execution, f"ended when its program had exited: {_named(session.connection.outlived)}")
    await _TurnSettlement(sup, execution, session, session.connection).run()


class _TurnSettlement:
    """The wait for the processes of one turn."""

    def __init__(self, sup: Supervisor, execution: TaskExecution, session: LiveSession, connection: Connection) -> None:
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
        self._conclude(ended, found)
        await self._record(TurnSettling())

    async def _look(self, number: int = 0) -> tuple[ProcessSeen, ...] | None:
        """Return the processes that run, each sent signal *number* unless that is 0; ``None`` where they cannot be
        listed. An agent may have stopped its shim: then no answer comes."""
        with self._timers.limit(ANSWER_S):
            found = await self._connection.processes_of_turn()
            if found and number:
                self._connection.signal_processes(found, number)
            return found
        return None

    async def _wait(self, within_s: float, number: int = 0) -> tuple[ProcessSeen, ...] | None:
        """Return the processes that still run when all have ended, or after *within_s* seconds. A process that ends may
        have started another one, so each round asks anew."""
        with self._timers.limit(within_s):
            while found := await self._look(number):
                for one in found:
                    await self._connection.wait_process_exit(one.pid)
        return await self._look()

    async def _record(self, event: TurnSettling) -> None:
        """Record that the run settles. A run that was cancelled or split just now has no such record."""
        if self._execution.has_run and self._execution.run is TaskRun.IN_PROGRESS:
            with suppress(Refused):
                await self._execution.post(event)

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
    """Return ``make -j4 (pid 12), ...``, in one line."""
    words = [f"{one.command or '(no command line)'} (pid {one.pid})" for one in processes]
    more = f" and {len(words) - NAMED_MAX} more" if len(words) > NAMED_MAX else ""
    return f"{', '.join(words[:NAMED_MAX])}{more}"
