"""Event stream of the HTTP API (Server-Sent Events): a snapshot with its sequence, then every record.

The contract, which docs/how-to/event-stream.md explains::

    GET /api/v1/events              event: snapshot, id: 120   the entities that live at record 120
                                    event: record,   id: 121   each record after it, once, in order
    GET /api/v1/events?after=121    event: record,   id: 122   exactly what came after 121, then what comes
                                    event: resync              records after 121 are in an archive, or the number is of
                                    event: snapshot, id: 900   another journal: a snapshot follows
    at the end                      event: end                 stopped, closing or slow; reconnect unless it is stopped

``Last-Event-ID`` counts as ``after``. A comment comes after ``HEARTBEAT_S`` seconds of silence, which also finds out
that the reader has left: a client that is gone without a word is noticed by a write only.

A reader delays nobody. It takes records from the buffer of all readers (``event_hub``), or, if it is further behind,
from the journal; if they were moved to an archive meanwhile, it gets ``end``, and ``resync`` when it comes back.
The supervisor's records end when all its sessions have ended: then ``end`` is sent, and the response is over, whatever
the server's own deadlines are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final

import anyio
import anyio.to_thread
import msgspec
from fastapi import APIRouter, Header, Query, Request
from fastapi.sse import format_sse_event
from starlette.responses import Response

from supervisor.control.http.admission import STALL_S, Receive, Send
from supervisor.control.http.callers import client_of
from supervisor.control.http.errors import Problem
from supervisor.control.http.event_hub import EncodedRecord, EventHub, encode_record
from supervisor.control.http.queries import ERRORS, supervisor_of
from supervisor.control.http.views import Views
from supervisor.diagnostics.tree_view import tree
from supervisor.host.api import Supervisor
from supervisor.lifecycles.record_ids import id_after
from supervisor.lifecycles.types import INTEGER_MAX, Kind, LifecycleEvent, RecordId
from supervisor.ports import EntityRow, Origin

HEARTBEAT_S: Final = 10.0
CLOSE_S: Final = 1.0
"""Seconds that a stream has for its last event when the server closes."""
STREAMS_MAX: Final = 512
"""Number of streams that may be open at the same time."""
AGENT_STREAMS_MAX: Final = 8
"""Number of streams that one sender who is no operator may have open: agents must not take them all."""
PIECE_MAX: Final = 64
"""Number of records that are sent in one piece: a slow reader has ``STALL_S`` for each."""
READ_MAX: Final = 64
"""Number of records that are read from the journal at once."""
RETRY_MS: Final = 1_000
"""Pause before a browser reconnects."""


class _Wanted:
    """Filter of records: only those of the entity *root* and everything below it, and of some *kinds* of entities."""

    def __init__(self, sup: Supervisor, root: str | None, kinds: Collection[str]) -> None:
        self._sup, self.root, self._kinds = sup, root, frozenset(kinds)
        self._inside: set[str] = {root} if root is not None else set()

    def below(self, rows: Collection[EntityRow]) -> list[EntityRow]:
        """Return those of *rows* that lie in the subtree, and remember their ids."""
        if self.root is None:
            return [row for row in rows if not self._kinds or row.kind in self._kinds]
        for row in sorted(rows, key=lambda row: row.born_seq):
            if row.parent_id in self._inside:
                self._inside.add(row.id)
        inside = [row for row in rows if row.id in self._inside]
        return [row for row in inside if not self._kinds or row.kind in self._kinds]

    async def includes(self, record: LifecycleEvent) -> bool:
        if self.root is not None and record.outcome == "born":
            self.below(await self._sup.core.journal.entities(ids=[record.entity_id]))
        is_inside = self.root is None or record.entity_id in self._inside
        return is_inside and (not self._kinds or record.entity_type in self._kinds)


class _Stream(Response):
    """Class of the response in the document."""

    media_type = "text/event-stream"


class EventStream(_Stream):
    """Response that goes on until the client leaves, or the supervisor or the server ends."""

    def __init__(self, request: Request, after: RecordId | None, wanted: _Wanted) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._sup, self._app, self.client = supervisor_of(request), request.app, client_of(request)
        self._views: Views = request.app.state.views
        self._after, self._wanted = after, wanted
        self._lock = anyio.Lock()
        self._written_at = anyio.current_time()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self._app.state.streams.add(self)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_client, receive, group.cancel_scope)
                group.start_soon(self._beat, send)
                with anyio.CancelScope() as writing:
                    group.start_soon(self._watch_closing, writing)
                    await self._write(send, format_sse_event(retry=RETRY_MS))
                    reason = await self._send_records(send)
                if writing.cancelled_caught:
                    reason = "closing"
                with anyio.move_on_after(STALL_S if reason == "slow" else CLOSE_S):
                    await self._write(send, _event("end", {"reason": reason}))
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                group.cancel_scope.cancel()
        finally:
            self._app.state.streams.discard(self)

    async def _send_records(self, send: Send) -> str:
        """Send the snapshot and the records; return why no more come."""
        hub = self._sup.core.part(EventHub)
        await hub.start()
        position = await self._begin(send, hub)
        while True:
            found = hub.after(position)
            if found is None:
                found = await self._read(position)
                if not found or found[0].record.seq != id_after(position):
                    return "slow"  # what follows was moved to an archive meanwhile
            elif not found:
                if hub.is_over:
                    return "stopped"
                await hub.wait()
                continue
            for first in range(0, len(found), PIECE_MAX):
                part = found[first : first + PIECE_MAX]
                wanted = [one.data for one in part if await self._wanted.includes(one.record)]
                if wanted:
                    await self._write(send, b"".join(wanted))
            position = found[-1].record.seq

    async def _read(self, position: RecordId) -> Sequence[EncodedRecord]:
        """Return records after *position* that the hub no longer has, from the journal."""
        records = await self._sup.core.journal.events(after_seq=position, limit=READ_MAX)
        return [encode_record(one) for one in records]

    async def _begin(self, send: Send, hub: EventHub) -> RecordId:
        """Send the snapshot, unless the records after the given number can be sent; return the number after which the
        records begin."""
        if self._after is not None:
            if self._wanted.root is None and hub.has(self._after):
                return self._after
            why, rows = await anyio.to_thread.run_sync(self._gap, self._after)
            self._wanted.below(rows)
            if not why:
                return self._after
            await self._write(send, _event("resync", {"reason": why}))
        seq, rows = await anyio.to_thread.run_sync(self._views.snapshot)
        nodes = await anyio.to_thread.run_sync(tree, self._wanted.below(rows))
        await self._write(send, _event("snapshot", {"seq": seq, "nodes": nodes}, seq))
        return seq

    def _gap(self, after: RecordId) -> tuple[str, list[EntityRow]]:
        """Return why the records after *after* cannot be sent, ``""`` if they can; and the entities of the journal, by
        which records are assigned to a subtree."""
        with self._sup.reader() as reader:
            last, archived = reader.last_seq, reader.archived_records(after)
            rows = reader.entities()
        if after > last:
            return f"the journal has no record {after} yet: the number is of another journal", rows
        return f"{archived} records after {after} are in an archive" if archived else "", rows

    async def _write(self, send: Send, data: bytes, *, after_s: float = 0.0) -> None:
        """Send *data*; with *after_s* only if nothing was sent for so many seconds."""
        async with self._lock:  # a heartbeat must not be sent within an event
            if anyio.current_time() < self._written_at + after_s:
                return
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._written_at = anyio.current_time()

    async def _beat(self, send: Send) -> None:
        while True:
            await anyio.sleep_until(self._written_at + HEARTBEAT_S)
            await self._write(send, format_sse_event(comment="alive"), after_s=HEARTBEAT_S)

    async def _watch_client(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _watch_closing(self, scope: anyio.CancelScope) -> None:
        await self._app.state.closing()
        scope.cancel()


def _event(name: str, data: object, seq: RecordId | None = None) -> bytes:
    return format_sse_event(
        event=name, data_str=msgspec.json.encode(data).decode(), id=None if seq is None else str(seq)
    )


router = APIRouter(prefix="/api/v1", responses=ERRORS, tags=["events"])
_CONTENT: Final = {
    "text/event-stream": {
        "schema": {
            "type": "string",
            "description": "Events `snapshot`, `record`, `resync` and `end`, each with its data as a line of JSON.",
        }
    }
}


@router.get(
    "/events",
    response_class=_Stream,
    responses={200: {"description": "The stream.", "content": _CONTENT}},
)
async def events(
    request: Request,
    after: Annotated[
        int | None, Query(ge=0, le=INTEGER_MAX, description="the number of the last record that is not wanted")
    ] = None,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=INTEGER_MAX, description="as `after`, which a browser sets when it reconnects")
    ] = None,
    id: Annotated[str | None, Query(description="the id of the only entity wanted, with everything below it")] = None,
    kind: Annotated[list[Kind] | None, Query(description="the only kinds of entities wanted; repeatable")] = None,
) -> Response:
    """Follow the records: a snapshot, then every record as it becomes durable. See the how-to on the event stream."""
    streams = request.app.state.streams
    client = client_of(request)
    own = sum(one.client.key == client.key for one in streams)
    if len(streams) >= STREAMS_MAX or (client.caller.origin is not Origin.OPERATOR and own >= AGENT_STREAMS_MAX):
        raise Problem(503, f"{len(streams)} event streams are open; close some of them, or ask again later")
    begin = last_event_id if last_event_id is not None else after  # a browser reconnects with the URL of the beginning
    wanted = _Wanted(supervisor_of(request), id, [str(one) for one in kind or ()])
    return EventStream(request, None if begin is None else RecordId(begin), wanted)
