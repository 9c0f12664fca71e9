"""Values that describe a temporary outage to operators: of the journal, and of a resource of the machine.

A client of the control socket needs these values without the runtime, so this module imports nothing of the runtime.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """Outage of the journal: ``since`` is Unix time, ``why`` the last error of the disk, ``attempts`` the number of
    tries, and ``waiting`` the number of records that waited at the last try."""

    since: float
    why: str
    attempts: int
    waiting: int

    @property
    def words(self) -> str:
        """Sentence for people, with the state, its begin and its cause, and the functions that still work."""
        at = datetime.fromtimestamp(self.since).astimezone().strftime("%H:%M:%S")
        return (
            f"degraded since {at}: {self.why}; {self.waiting} {'record waits' if self.waiting == 1 else 'records wait'}"
            " in memory, nothing new begins, aborts and kills go on; it recovers by itself when the disk does"
        )


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """Shortage of a resource that launches wait for: ``since`` is the begin as Unix time, ``lacks`` the resource,
    ``waiting`` the number of waiting launches."""

    since: float
    lacks: str
    waiting: int

    @property
    def words(self) -> str:
        """Sentence for people, with the state, its begin, and the way to end it."""
        at = datetime.fromtimestamp(self.since).astimezone().strftime("%H:%M:%S")
        who = "1 program waits" if self.waiting == 1 else f"{self.waiting} programs wait"
        return (
            f"since {at} {who} for {self.lacks} to start: no task fails by that, and it goes on by itself when some are"
            " free; raise the limit (`ulimit`), or run fewer tasks at once"
        )
