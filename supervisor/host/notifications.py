"""Notifications: tell commands and web addresses what a person should know, as ``notify`` of the settings says.

Theory of operation
-------------------
Each target has a loop of its own. The loop reads the durable records from the last one of which the target was told,
makes a notice of each that somebody should know of (``diagnostics.notices``), and sends the notices one after another.
So a target that is slow or away holds up nobody else: a loop that falls too far behind reads on from the journal.

Each notice is sent at least once. After a failure it is sent again, with a growing pause, for ``GIVE_UP_S``; then the
notice is logged and left out. What was told is remembered after it was told: a supervisor that is killed in between
tells it again, with the same id.

When the supervisor ends, its records end, too, and the loops with them: the end of a run is told before the supervisor
is gone, unless the target takes longer than services may take to close.

An outage of the journal has no record. It is told when it begins and when it ends, by each loop's neighbour, and is not
remembered.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors import Backoff
from actors.one_shot_event import OneShotEvent
from actors.waiting import any_of
from supervisor.diagnostics.notices import Notice, notice_of
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.types import RecordId
from supervisor.ports.logs import get_logger
from supervisor.ports.notices import NoticeKind, NoticePort, NoticeTarget
from supervisor.runtime.subscriptions import SubscriptionLagged

GIVE_UP_S: Final = 3600.0
"""Seconds for which a notice is sent again."""
BACKOFF: Final = Backoff(base_s=1.0, factor=2.0, cap_s=60.0)

_log = get_logger()


class Notifications:
    """Service that tells the targets of one supervisor's settings.

    Args:
        sup: the supervisor.
        port: port by which notices are sent and remembered.
    """

    def __init__(self, sup: SupervisorCore, port: NoticePort) -> None:
        self._sup, self._port = sup, port
        self._told: dict[str, RecordId] = dict(port.told())
        self._rng = sup.registry.system.rng("notices")
        self._options = f" --state-dir {shlex.quote(sup.state_dir)}" if sup.state_dir else ""

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Tell the targets until the records of the supervisor end; begin anew with the settings of each
        ``reconfigure``."""
        task_status.started()
        is_over = False
        while not is_over:
            targets, changed = self._sup.settings.notice_targets, self._sup.setups.configured
            if not targets:
                await any_of(changed, self._sup.services.closing)
                is_over = not changed.is_set()
                continue
            async with anyio.create_task_group() as group:
                group.start_soon(self._cancel_after, changed, group.cancel_scope)
                group.start_soon(self._tell_of_outages, targets)
                async with anyio.create_task_group() as loops:
                    for target in targets:
                        loops.start_soon(self._tell_records, target)
                is_over = True
                group.cancel_scope.cancel()

    async def _cancel_after(self, changed: OneShotEvent, scope: anyio.CancelScope) -> None:
        await changed.wait()
        scope.cancel()

    async def _tell_records(self, target: NoticeTarget) -> None:
        """Tell *target* of all records from the last one of which it was told; of a new target, from now on."""
        last = self._told.get(target.id)
        if last is None:
            last = self._sup.journal.last_seq
            self._remember(target, last)
        while True:
            with suppress(SubscriptionLagged):
                async with self._sup.subscriptions.open(last) as records:
                    async for record in records:
                        last = record.seq
                        notice = notice_of(record, self._options)
                        if notice is not None and notice.kind in target.kinds:
                            await self._tell(target, notice)
                            self._remember(target, last)
                return

    async def _tell_of_outages(self, targets: Sequence[NoticeTarget]) -> None:
        interested = [one for one in targets if NoticeKind.JOURNAL in one.kinds]
        while interested and not self._sup.stopping.is_set():
            outage = await self._sup.journal_writer.disk.wait_down()
            await self._tell_journal(interested, f"the journal cannot be written: {outage.why}", outage.since)
            await self._sup.shutdown.wait_writable()
            if self._sup.journal_writer.disk.outage is None:
                await self._tell_journal(
                    interested, "the journal can be written again", self._sup.journal_writer.clock.wall.time()
                )

    async def _tell_journal(self, targets: Sequence[NoticeTarget], text: str, since: float) -> None:
        kind = NoticeKind.JOURNAL
        notice = Notice(id=f"{kind}-{since:.3f}", kind=kind, entity="journal", text=text, at=since)
        async with anyio.create_task_group() as group:
            for target in targets:
                group.start_soon(self._tell, target, notice)

    async def _tell(self, target: NoticeTarget, notice: Notice) -> None:
        """Send *notice* until *target* accepts it, or for ``GIVE_UP_S``."""
        payload, timers, failures = msgspec.json.encode(notice) + b"\n", self._sup.timers, 0
        began_s = timers.now()
        while problem := await self._port.send(target, payload):
            failures += 1
            if timers.now() - began_s >= GIVE_UP_S:
                _log.error("a notice was not accepted, and is left out", to=target.id, notice=notice.id, why=problem)
                return
            if failures == 1:
                _log.warning("a notice was not accepted; it is sent again", to=target.id, notice=notice.id, why=problem)
            await anyio.sleep(BACKOFF.delay_s(failures, self._rng))

    def _remember(self, target: NoticeTarget, last: RecordId) -> None:
        self._told[target.id] = last
        try:
            self._port.note_told(self._told)
        except OSError as error:  # the notice may be told again after a restart
            _log.warning("it could not be noted who was told", to=target.id, why=str(error))
