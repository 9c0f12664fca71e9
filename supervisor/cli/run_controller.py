"""What a running plan is told from outside: stop, stop now, read the plan again; and what its terminal and systemd
are told of that.

The first SIGINT or SIGTERM drains, the next one stops everything now, SIGHUP reads the plan again. A stop from another
terminal is told of too. Each thing is said once, whoever asked for it. When the work has ended, whom no task waits for
goes on for ``drain_s`` at most; a signal ends that.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from actors import ActorStopped, AskTimeout
from supervisor.cli.options import warn
from supervisor.embedding.runtime import Supervisor
from supervisor.host.shutdown import LAST_RECORDS_S
from supervisor.plans import BadPlan, Plan
from supervisor.ports.systemd import Notifier
from supervisor.work.plan_runner import PlanRunner

__all__ = ["RunController"]

PROGRESS_S = 10.0
"""How often a drain tells how far it is, if nothing has ended meanwhile."""
BEATS = 2
"""Signs of life within the time in which systemd wants one, as sd_watchdog_enabled(3) advises."""
CLOSE_S = 30.0
"""The keeper, the journal's last snapshot and the interpreter, on a machine with much to do."""
BEAT_S = 30.0
"""How long the scheduler may take to answer before it is asked again: by then systemd has long acted."""
TOO_LATE = "not reloaded: the run is ending"


class RunController:
    """Attends to one run.

    Args:
        load: reads and checks the plan again.
        apply: makes what it says about agents and settings hold for what begins from now on.
    """

    def __init__(
        self, sup: Supervisor, runner: PlanRunner, *, load: Callable[[], Plan], apply: Callable[[Plan], None]
    ) -> None:
        self._sup, self._runner = sup, runner
        self._load, self._apply = load, apply
        self._systemd = Notifier()
        self._announced: set[str] = set()

    async def run_until_cancelled(
        self, *, task_status: TaskStatus[anyio.CancelScope] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Until the scope handed out is cancelled: then the run ends by itself, and that is no news. Signals are heard
        until the caller is cancelled, who waits for the end."""
        with anyio.open_signal_receiver(*_signals()) as signals:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_stops)
                group.start_soon(self._watch_disk)
                group.start_soon(self._send_heartbeats)
                self._systemd.ready()
                task_status.started(group.cancel_scope)
                async for number in signals:
                    await (self._reload() if number == signal.SIGHUP else self._stop(number))
            async for number in signals:
                if number == signal.SIGHUP:
                    self._say(TOO_LATE)
                elif self._sup.unanswered:  # what closes after that has its bounds: no signal breaks it off
                    await self._end(number, now=True)

    def closing(self, *, drains: bool) -> None:
        """The run is over; where the supervisor *drains*, it waits for those who are at work all the same."""
        if not (drains and self._sup.unanswered):
            self._systemd.stopping("closing", self._end_s)
        elif not self._sup.stopping.is_set():  # else that is known
            drain_s = self._sup.settings.drain_s
            words = (
                f"closing: somebody is at work for whom no task waits, for {drain_s:g} s at most; signal to end it now"
            )
            self._announce_once(words, drain_s + self._end_s)

    # ------------------------------------------------------------------ stops
    async def _stop(self, number: int) -> None:
        await self._end(number, now=self._sup.stopping.is_set())

    async def _end(self, number: int, *, now: bool) -> None:
        self._say_stopping() if now else self._say_draining()
        await self._sup.stop(now=now, actor=f"signal:{signal.Signals(number).name}")

    async def _watch_stops(self) -> None:
        await self._sup.stopping.wait()
        if self._sup.failure is None and not self._sup.stop_now.is_set():
            self._say_draining()
            await self._report_progress()
        await self._sup.stop_now.wait()
        if self._sup.failure is None:
            self._say_stopping()

    async def _report_progress(self) -> None:
        """How many tasks a drain still waits for: when one has ended, and from time to time."""
        until_s = anyio.current_time() + self._sup.settings.drain_s
        told = self._sup.under_way()
        while told and (left_s := until_s - anyio.current_time()) > 0:
            with anyio.move_on_after(min(PROGRESS_S, left_s)) as waited:
                await self._sup.answer_or_stop()
            count = self._sup.under_way()
            if self._sup.stop_now.is_set():
                return
            if count and (count != told or waited.cancelled_caught):
                left_s = until_s - anyio.current_time()
                self._say(f"draining: {count} {'task' if count == 1 else 'tasks'} under way, {left_s:.0f} s left")
            told = count

    def _say_draining(self) -> None:
        drain_s = self._sup.settings.drain_s
        words = (
            f"draining: no task starts any more, those under way have {drain_s:g} s;"
            " signal again to stop everything now"
        )
        self._announce_once(words, drain_s + self._end_s)

    def _say_stopping(self) -> None:
        self._announce_once("stopping everything now", self._end_s)

    @property
    def _end_s(self) -> float:
        """What an end may take that is not waited with: the ladder, the last records, and what closes after them."""
        return self._sup.settings.policy.value().ladder.total_s + LAST_RECORDS_S + CLOSE_S

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
        """A plan with a fault changes nothing. A stop has more weight than a new plan."""
        if self._sup.stopping.is_set():
            self._say(TOO_LATE)
            return
        self._systemd.reloading()
        try:
            plan = await anyio.to_thread.run_sync(self._load)
            added = self._runner.check(plan)
            self._apply(plan)
            self._runner.add(plan)
            self._say(f"reloaded: {', '.join(added) + ' added' if added else 'no task is new'}")
        except (BadPlan, ValueError) as error:  # a plug-in that came meanwhile is not loaded
            self._say(f"not reloaded, nothing has changed: {error}")
        finally:
            self._systemd.ready()

    # ------------------------------------------------------------------ the disk
    async def _watch_disk(self) -> None:
        """Tell systemd of outages; the terminal and the log hear of them by themselves."""
        while True:
            outage = await self._sup.degraded()
            if not self._sup.stopping.is_set():
                self._systemd.status(outage.words)
            await self._sup.journal_writer.disk.up.wait()
            if not self._sup.stopping.is_set():
                self._systemd.ready()

    # ------------------------------------------------------------------ alive
    async def _send_heartbeats(self) -> None:
        """A sign of life for systemd, each of them by way of the kernel's dispatcher: a loop alone proves little."""
        if self._systemd.watchdog_s is None:
            return
        while True:
            with suppress(AskTimeout, ActorStopped):  # then there is no sign of life, and systemd decides
                await self._sup.heartbeat(timeout_s=BEAT_S)
                self._systemd.alive()
            await anyio.sleep(self._systemd.watchdog_s / BEATS)


def _signals() -> list[signal.Signals]:
    """Under ``nohup`` SIGHUP is ignored, and that stays so."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]
