"""``supervisor events``: the records of all entities or of one, including future ones.

Past records are read from the journal; new ones come from the running supervisor, which has them before the journal. A
tool call has no log of its own: its records are those of its turn that are about the call.
"""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import click
import msgspec

from supervisor.cli.calls import ToolCallIndex
from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import unknown_id
from supervisor.cli.options import examples, json_option, say, state_dir_option, warn
from supervisor.cli.rendering import event_line, json_line
from supervisor.control.error_messages import NotRunning
from supervisor.diagnostics.tree_view import tool_calls
from supervisor.journal.history import History
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.turn import split_call
from supervisor.lifecycles.types import INTEGER_MAX, LifecycleEvent


@click.command("events", epilog=examples("supervisor events fix -f"))
@click.argument("entity_id", metavar="[ID]", required=False, shell_complete=complete_ids())
@click.option("-f", "--follow", is_flag=True, help="Continue until the supervisor ends.")
@click.option(
    "--after", type=click.IntRange(0, INTEGER_MAX), default=0, metavar="SEQ", help="Only records after this number."
)
@state_dir_option
@json_option
def events(entity_id: str | None, follow: bool, after: int, state_dir: Path, as_json: bool) -> None:
    """ID is the id of a session, turn, agent, task or tool call."""
    records = _Records(state_dir, entity_id, as_json=as_json)
    last = records.read(after=after, follow=follow)
    if follow:
        import anyio  # here, since an event loop is needed only to follow

        anyio.run(records.follow, last)


class _Records:
    """Printer of the records of *entity_id*, or of all records, which also reports how many are in an archive."""

    def __init__(self, state_dir: Path, entity_id: str | None, *, as_json: bool) -> None:
        self._state_dir, self._id, self._as_json = state_dir, entity_id, as_json
        self._entity: str | None = None
        self._call: int | None = None
        if entity_id is not None:
            self._entity, self._call = split_call(entity_id)
        self._calls = ToolCallIndex()

    def read(self, *, after: int, follow: bool) -> int:
        """Print the journal's records after number *after*; return the number of the last record.

        Raises:
            UnknownId: no record is about that id, and *follow* is false.
        """
        last = after
        with History(StateDir.open(self._state_dir, create=False).journal) as reader:
            if not follow:
                self._check_known(reader)
            for event in self._where(reader).events(self._entity):  # from the first: what starts a call names it
                self._show(event, after)
                last = max(last, event.seq)
            archived = (
                reader.live.records_in_gaps(after) if self._entity is None else 0
            )  # what is lost is no part of it
        if archived:
            words = "`supervisor events ID` prints those of one entity, `supervisor journal export` every transition"
            warn(f"{archived} records are in an archive: {words}")
        return last

    def _where(self, history: History) -> History | JournalReader:
        """Return the source of the records: the journal alone for all entities; for one entity with the archives, if
        its first record is not in the journal."""
        if self._entity is None:
            return history.live
        first = next(iter(history.live.events(self._entity)), None)
        return history.live if first is not None and first.entity_seq == 1 else history

    def _check_known(self, reader: History) -> None:
        if self._id is None or self._entity is None:
            return
        row = reader.entity(self._entity)
        if row is None or (self._call is not None and self._id not in tool_calls(row)):
            raise unknown_id(reader, self._id)

    async def follow(self, after: int) -> None:
        """Print records as they happen until the supervisor ends; return at once if none runs."""
        from supervisor.control.client import ReplyLost, request
        from supervisor.control.requests import Follow

        asked = Follow(after=after, id=self._entity)
        try:
            async with aclosing(request(StateDir(self._state_dir).control_socket, asked)) as answers:
                async for answer in answers:
                    self._show(msgspec.convert(answer["event"], LifecycleEvent), after)
        except NotRunning:
            return
        except ReplyLost:  # a viewer has asked for nothing that could be lost
            root = self._state_dir
            warn(f"the supervisor on {root} was killed; `supervisor run PLAN.yaml` there continues an interrupted plan")

    def _show(self, event: LifecycleEvent, after: int) -> None:
        label = self._calls.label(event)
        about_it = self._call is None or self._calls.take(event) == self._call
        if about_it and event.seq > after:
            say(json_line(event) if self._as_json else event_line(event, call=label))
