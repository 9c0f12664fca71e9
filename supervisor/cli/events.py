"""``supervisor events``: the records of all entities or of one, including future ones.

A tool call has no log of its own: its records are those of its turn that are about the call.
"""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import click

from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import open_journal, unknown_id, with_run
from supervisor.cli.options import examples, json_option, run_option, say, state_dir_option, warn
from supervisor.cli.rendering import event_line, json_line
from supervisor.control.ping import ReplyLost
from supervisor.diagnostics.tool_calls import ToolCallIndex
from supervisor.diagnostics.tree_view import tool_calls
from supervisor.lifecycles.events import PermissionAnswered, PermissionRequested
from supervisor.lifecycles.turn import split_call, split_permission
from supervisor.lifecycles.types import INTEGER_MAX, LifecycleEvent, RecordId
from supervisor.ports import Reader


@click.command("events", epilog=examples("supervisor events fix -f"))
@click.argument("entity_id", metavar="[ID]", required=False, shell_complete=complete_ids())
@click.option("-f", "--follow", is_flag=True, help="Continue until the supervisor ends.")
@click.option(
    "--after", type=click.IntRange(0, INTEGER_MAX), default=0, metavar="SEQ", help="Only records after this number."
)
@run_option
@state_dir_option
@json_option
def events(entity_id: str | None, follow: bool, after: int, run: str | None, state_dir: Path, as_json: bool) -> None:
    """ID is the id of a session, turn, agent, task (RUN#TASK), run or tool call. With --run, ID is the name of a task;
    without ID, the records of the run itself are printed."""
    if run is not None:
        entity_id = with_run(entity_id, run) if entity_id is not None else run
    with open_journal(state_dir) as (_, reader):
        records = _Records(reader, entity_id, as_json=as_json)
        last = records.read(after=RecordId(after), follow=follow)
        if follow:
            import anyio  # here, since an event loop is needed only to follow

            anyio.run(records.follow, last, state_dir)


class _Records:
    """Printer of the records of *entity_id*, or of all records, which also reports how many are in an archive."""

    def __init__(self, reader: Reader, entity_id: str | None, *, as_json: bool) -> None:
        self._reader, self._id, self._as_json = reader, entity_id, as_json
        self._entity: str | None = None
        self._call: int | None = None
        self._permission: int | None = None
        if entity_id is not None:
            self._entity, self._call = split_call(entity_id)
            if self._call is None:
                self._entity, self._permission = split_permission(entity_id)
        self._calls = ToolCallIndex()

    def read(self, *, after: RecordId, follow: bool) -> RecordId:
        """Print the journal's records after number *after*; return the number of the last record.

        Raises:
            UnknownId: no record is about that id, and *follow* is false.
        """
        last, reader = after, self._reader
        if not follow:
            self._check_known()
        # From the first record, also with *after*: what starts a call names it.
        for event in reader.events(self._entity, archived=self._is_archived()):
            self._show(event, after)
            last = max(last, event.seq)
        if self._entity is None and (archived := reader.archived_records(after)):
            words = "`supervisor events ID` prints those of one entity, `supervisor journal export` every transition"
            warn(f"{archived} records are in an archive: {words}")
        return last

    def _is_archived(self) -> bool:
        """Return whether the first record of the one entity that is printed is not in the journal."""
        if self._entity is None:
            return False
        first = next(iter(self._reader.events(self._entity)), None)
        return first is None or first.entity_seq != 1

    def _check_known(self) -> None:
        if self._id is None or self._entity is None:
            return
        row = self._reader.entity(self._entity)
        if row is None or (self._call is not None and self._id not in tool_calls(row)):
            raise unknown_id(self._reader, self._id)

    async def follow(self, after: RecordId, state_dir: Path) -> None:
        """Print records as they happen until the supervisor ends; return at once if none runs."""
        try:
            async with aclosing(self._reader.follow(self._entity, after)) as events:
                async for event in events:
                    self._show(event, after)
        except ReplyLost:  # a viewer has asked for nothing that could be lost
            words = "was killed; `supervisor run PLAN.yaml` there continues an interrupted plan"
            warn(f"the supervisor on {state_dir} {words}")

    def _show(self, event: LifecycleEvent, after: RecordId) -> None:
        label = self._calls.label(event)
        about_it = self._call is None or self._calls.take(event) == self._call
        if self._permission is not None:
            is_answered = event.event in (PermissionAnswered.spelled, PermissionRequested.spelled)
            about_it = is_answered and event.metadata.get("number") == self._permission
        if about_it and event.seq > after:
            say(json_line(event) if self._as_json else event_line(event, call=label))
