"""Find attempts in which nothing was done, although the agent reports success.

Agents end a turn well when their model has failed, when a permission was denied, or when the supervisor cannot read
what a new version prints. An attempt in which the agent made no call, changed nothing in its workspace and gave no
answer has therefore failed, whatever the agent reports. Acceptance tests know better: with tests, the tests decide. A
``command`` that is no known agent is not judged like this: exit status 0 is the word of its author.

The search reads facts that were there anyway, and only for an attempt without an answer: the records of the turns, and
the times of the files.
"""

from __future__ import annotations

from typing import Final

from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.types import RecordId
from supervisor.ports import Outcome
from supervisor.sessions.live_session import LiveSession
from supervisor.work.task_execution import TaskExecution

NOTHING_DONE: Final = (
    "nothing was done: the agent reports success, but it made no call, changed nothing in its workspace and gave no"
    " answer"
)


async def find_empty(sup: SupervisorCore, execution: TaskExecution, outcome: Outcome) -> str:
    """Return the reason why the attempt under way, which has ended well, counts as failed: nothing was done in it;
    ``""`` if something was done, or if that is unknown."""
    session = sup.registry.sessions.get(execution.session_id)
    if execution.task.acceptance or session is None or not session.profile.has_model:
        return ""
    if outcome.text.removeprefix(session.answered).strip():
        return ""
    if not session.first_prompt_sent.is_set():  # an earlier supervisor saw the answer
        return ""
    began_seq = await execution.began_seq()
    if await _has_called(sup, session, began_seq):
        return ""
    records = await sup.journal.events(entity_id=session.session_id, after_seq=began_seq)
    # From its first prompt on: the workspace was made before, and a one-shot program begins its work at its launch.
    since = next((record.timestamp for record in records if record.event == "PromptReady"), None)
    if since is None or await sup.verification.changed_since(session.session_id, session.directory, since):
        return ""
    return NOTHING_DONE


async def _has_called(sup: SupervisorCore, session: LiveSession, began_seq: RecordId) -> bool:
    """Return whether the agent has made a call in a turn that was opened after the record *began_seq*."""
    name, _, number = sup.registry.entity(session.session_id).data.turn_id.rpartition(":t")
    for one in range(int(number or 0), 0, -1):
        records = await sup.journal.events(entity_id=f"{name}:t{one}")
        if not records or records[0].seq <= began_seq:
            break
        if any(record.event == "tool_started" for record in records):
            return True
    return False
