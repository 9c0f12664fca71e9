"""Port to whoever is told of what happens: a command or a web address that gets each notice, and the memory of what
was told."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from supervisor.lifecycles.types import RecordId


class NoticeKind(StrEnum):
    """Kinds of notices: a permission or an approval waits for a person, a run has ended, most of a budget, or all of
    it, is used, the journal cannot be written."""

    PERMISSION = "permission"
    APPROVAL = "approval"
    RUN = "run"
    BUDGET = "budget"
    JOURNAL = "journal"


class NoticeTarget(NamedTuple):
    """Receiver of notices: a *command*, which gets a notice as JSON on its standard input, or a *url*, to which the
    JSON is posted with these *headers*. *kinds* are the kinds of notices that it gets."""

    kinds: frozenset[NoticeKind]
    command: tuple[str, ...] = ()
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        """The receiver's name in the memory and in logs. It has no header, which may be a secret."""
        return self.url or " ".join(self.command)


class NoticePort(Protocol):
    """Port by which notices are sent and remembered."""

    async def send(self, target: NoticeTarget, payload: bytes) -> str:
        """Send one notice. Return ``""`` if the target has accepted the notice, else the problem."""
        ...

    def told(self) -> Mapping[str, RecordId]:
        """Return, by the target's id, the number of the last record of which the target was told."""
        ...

    def note_told(self, last: Mapping[str, RecordId]) -> None:
        """Remember *last*, as for ``told``.

        Raises:
            OSError: the system refuses.
        """
        ...
