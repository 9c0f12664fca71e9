"""The upkeep of a journal on disk: what ended long ago goes to the archive, now and then, while the supervisor runs,
and each second it is looked whether the journal is still there.

What goes wrong with the archive is logged and tried again the next time: a journal that is too long is no reason to
end anything. A journal that was deleted or replaced is: what is recorded from then on is nowhere.
"""

from __future__ import annotations

from typing import Final

import anyio

from supervisor.host.supervision import Supervisor
from supervisor.ports import JournalError
from supervisor.ports.logs import get_logger

__all__ = ["keep_up", "watch_journal"]

CHECK_S: Final = 1.0
"""How often it is looked whether the journal is still there, beside every commit: a run that waits records nothing."""

_FIRST_S: Final = 60.0
"""When a supervisor first looks, unless it looks more often than that."""
_log = get_logger()


async def keep_up(supervisor: Supervisor) -> None:
    """Compact the journal of *supervisor* as often as its settings say, for ever."""
    every_s = _FIRST_S
    while True:
        await anyio.sleep(min(every_s, supervisor.settings.retention.every_s))
        every_s = supervisor.settings.retention.every_s
        try:
            told = await supervisor.compact()
        except (JournalError, OSError) as error:
            _log.warning("the journal could not be compacted; it is tried again later", error=str(error))
        else:
            if told.archives:
                _log.info("the journal was compacted", records=told.records, left=told.records_left)


async def watch_journal(supervisor: Supervisor) -> None:
    """Look each second whether the journal of *supervisor* is still there, until it is lost."""
    while supervisor.failure is None:
        await anyio.sleep(CHECK_S)
        await supervisor.journal_writer.check()
