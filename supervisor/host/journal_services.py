"""Loops of two services for a journal on disk: compact the journal, and check that the journal is still there.

A compaction that fails is logged and tried again the next time: a journal that is too long is no reason to end a
session. A journal that was deleted or replaced is such a reason: no record would be saved from then on.
"""

from __future__ import annotations

from typing import Final

import anyio

from actors import failpoint
from supervisor.host.supervision import SupervisorCore
from supervisor.ports import Compacted, JournalError, Retention
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused

CHECK_S: Final = 1.0
"""Seconds between two checks of the journal. Each commit checks too, but a supervisor that waits commits nothing."""

_FIRST_S: Final = 60.0
"""Seconds until the first compaction, unless the settings have a shorter interval."""
_log = get_logger()


async def compact(supervisor: SupervisorCore, retention: Retention | None = None) -> Compacted:
    """Move entities that ended long ago from the journal of *supervisor* to the archive; implements
    ``Supervisor.compact``."""
    if supervisor.upkeep is None:
        raise Refused("this supervisor's journal is not on a disk: there is nothing to compact")
    compacted = await supervisor.upkeep.compact(
        retention or supervisor.settings.retention.value(), lambda: list(supervisor.registry.entities)
    )
    if compacted.entities:
        await _forget_archived_keys(supervisor)
    return compacted


async def _forget_archived_keys(supervisor: SupervisorCore) -> None:
    """Forget the idempotency keys of the runs that the journal does not have any more, as the next supervisor would not
    know them either."""
    by_key = supervisor.recovered_work.earlier.by_key
    ended = dict(by_key)
    await supervisor.journal_writer.durable()  # a run that has ended just now is in the journal then
    kept = {row.id for row in await supervisor.journal.entities(ids=[one.workstream for one in ended.values()])}
    for key in [key for key, one in ended.items() if one.workstream not in kept]:
        del by_key[key]


async def compact_periodically(supervisor: SupervisorCore) -> None:
    """Compact the journal of *supervisor* every ``settings.retention.every_s`` seconds, until cancelled."""
    every_s = _FIRST_S
    while True:
        failpoint.crash("service", "compaction")
        await anyio.sleep(min(every_s, supervisor.settings.retention.every_s))
        every_s = supervisor.settings.retention.every_s
        try:
            compacted = await compact(supervisor)
        except (JournalError, OSError) as error:
            _log.warning("the journal could not be compacted; it is tried again later", error=str(error))
        else:
            if compacted.archives:
                _log.info("the journal was compacted", records=compacted.records, left=compacted.records_left)


async def watch_journal(supervisor: SupervisorCore) -> None:
    """Check every second whether the journal of *supervisor* is still there; return when the journal is lost."""
    while supervisor.journal_writer.error is None:
        failpoint.crash("service", "journal")
        await anyio.sleep(CHECK_S)
        await supervisor.journal_writer.check()
