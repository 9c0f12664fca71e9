"""Control of a running plan from outside (drain, stop, reload), and reports about it to the terminal and to systemd.

The first SIGINT or SIGTERM drains, the next stops everything. SIGHUP reads the plan again, or drains if it comes
because the terminal was closed. A stop from another terminal is reported, too. Each change is announced once, whoever
requested it. After the work has ended, sessions that no task waits for continue for at most ``drain_s`` seconds; a
signal ends these sessions at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from supervisor.cli.options import warn
from supervisor.cli.terminal import ControllingTerminal
from supervisor.control.process_setup import came_early, signals_to_handle
from supervisor.daemon.reports import send_heartbeats, watch_disk
from supervisor.host.supervision import SupervisorCore
from supervisor.plans import BadPlan, Plan
from supervisor.ports.systemd import Notifier
from supervisor.runtime.entity import Refused
from supervisor.sessions.shutdown import LAST_RECORDS_S
from supervisor.work.plan_runner import PlanRunner

PROGRESS_S = 10.0
"""Seconds between reports during a drain in which no task ends."""
CLOSE_S = 30.0
"""Seconds that the fork server, the journal's last snapshot and the interpreter may take to end on a busy machine."""
TOO_LATE = "not reloaded: the run is ending"


class RunController:
    """Control of one run.

    Args:
        load: reads and checks the plan again.
        apply: applies the plan's agents and settings to everything that begins from now on.
    """

    def __init__(
        self, sup: SupervisorCore, runner: PlanRunner, *, load: Callable[[], Plan], apply: Callable[[Plan], None]
    ) -> None:
        self._sup, self._runner = sup, runner
        self._load, self._apply = load, apply
        self._systemd = Notifier()
        self._terminal = ControllingTerminal()
        self._announced: set[str] = set()

    async def run_until_cancelled(
        self, *, task_status: TaskStatus[anyio.CancelScope] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Handle signals until cancelled. A cancel of the scope passed to ``task_status`` means that the run ends by
        itself, which is not announced; after that, a signal only makes the end come sooner."""
        with anyio.open_signal_receiver(*signals_to_handle()) as signals:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_stops)
                group.start_soon(watch_disk, self._sup, self._systemd)
                group.start_soon(send_heartbeats, self._sup, self._systemd)
                self._systemd.ready()
                task_status.started(group.cancel_scope)
                if came_early():
                    await self._hang_up()
                async for number in signals:
                    await (self._hang_up() if number == signal.SIGHUP else self._stop(number))
            async for number in signals:
                if number == signal.SIGHUP:
                    self._say(TOO_LATE)
                elif self._sup.requests.unanswered:  # what closes after that has its bounds: no signal breaks it off
                    await self._end(number, now=True)

    def closing(self, *, drains: bool) -> None:
        """Announce the end of the run. If the supervisor *drains*, the end waits for sessions that still work."""
        if not (drains and self._sup.requests.unanswered):
            self._systemd.stopping("closing", self._end_s)
        elif not self._sup.stopping.is_set():  # else that is known
            drain_s = self._sup.settings.drain_s
            words = f"closing: sessions that no task waits for may work for {drain_s:g} s; signal again to end them now"
            self._announce_once(words, drain_s + self._end_s)

    # ------------------------------------------------------------------ stops
    async def _stop(self, number: int) -> None:
        await self._end(number, now=self._sup.stopping.is_set())

    async def _hang_up(self) -> None:
        """Drain if the terminal has gone; else read the plan again. A closing terminal may send SIGHUP more than once,
        so a later one does not end the drain. A run in the background of a script, which the terminal does not
        interrupt either, goes on without the terminal."""
        if not self._terminal.has_gone:
            await self._reload()
        elif not self._sup.stopping.is_set() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            await self._end(signal.SIGHUP, now=False)

    async def _end(self, number: int, *, now: bool) -> None:
        self._say_stopping() if now else self._say_draining()
        self._sup.shutdown.stop(f"signal:{signal.Signals(number).name}", now=now)

    async def _watch_stops(self) -> None:
        await self._sup.stopping.wait()
        if self._sup.shutdown.error is None and not self._sup.stop_now.is_set():
            self._say_draining()
            await self._report_progress()
        await self._sup.stop_now.wait()
        if self._sup.shutdown.error is None:
            self._say_stopping()

    async def _report_progress(self) -> None:
        """Report the number of turns for which a drain waits, whenever a turn has ended and every ``PROGRESS_S``
        seconds. The turns of sub-agents count, too."""
        until_s = anyio.current_time() + self._sup.settings.drain_s
        reported = len(self._sup.requests.waiting)
        while reported and (left_s := until_s - anyio.current_time()) > 0:
            with anyio.move_on_after(min(PROGRESS_S, left_s)) as waited:
                await self._sup.shutdown.answer_or_stop()
            count = len(self._sup.requests.waiting)
            if self._sup.stop_now.is_set():
                return
            if count and (count != reported or waited.cancelled_caught):
                left_s = max(0.0, until_s - anyio.current_time())
                self._say(f"draining: {count} {'turn' if count == 1 else 'turns'} in progress, {left_s:.0f} s left")
            reported = count

    def _say_draining(self) -> None:
        drain_s = self._sup.settings.drain_s
        words = f"draining: no task starts, tasks in progress have {drain_s:g} s; signal again to stop everything now"
        self._announce_once(words, drain_s + self._end_s)

    def _say_stopping(self) -> None:
        self._announce_once("stopping everything now", self._end_s)

    @property
    def _end_s(self) -> float:
        """Seconds that an end without a drain may take: the termination stages, the last records, and the closing of
        the journal and the process."""
        return self._sup.settings.abort_policy.ladder.total_s + LAST_RECORDS_S + CLOSE_S

    def _announce_once(self, words: str, within_s: float) -> None:
        if words not in self._announced:
            self._announced.add(words)
            self._systemd.stopping(words, within_s)
            self._say(words)

    def _say(self, words: str) -> None:
        with suppress(OSError):
            warn(words)

    # ------------------------------------------------------------------ the plan again
    async def _reload(self) -> None:
        """Read the plan again. An invalid plan changes nothing; a stop takes precedence over a new plan."""
        if self._sup.stopping.is_set():
            self._say(TOO_LATE)
            return
        self._systemd.reloading()
        try:
            plan = await anyio.to_thread.run_sync(self._load)
            added = self._runner.check(plan)
            self._apply(plan)
            await self._runner.commands.add_plan(plan, by="signal:SIGHUP")
            self._say(f"reloaded: {', '.join(added) + ' added' if added else 'no task is new'}")
        except (BadPlan, Refused, ValueError) as error:  # a plug-in that came meanwhile is not loaded
            self._say(f"not reloaded, nothing has changed: {error}")
        finally:
            self._systemd.ready()
