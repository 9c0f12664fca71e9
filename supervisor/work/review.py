"""Review: a second agent examines the work on a task before the task is closed, and approves or rejects the work.

The reviewer is a child session of the session that did the work, in the same directory, so that an abort of that
session ends the review too. The reviewer's prompt has the task and the diff, and the reviewer must end its text with a
verdict on a line of its own, which is parsed strictly: anything else is a failed review, which is requested once more.
Without a verdict, or if the reviewer changes the reviewed work, the work is not approved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from supervisor.diagnostics.quality import REVIEWED
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.types import TimeLimit
from supervisor.plans.tasks import TaskConfig
from supervisor.plans.verification import ReviewConfig
from supervisor.ports import Changes, JournalError
from supervisor.runtime.entity import NoSuchEntity, Refused
from supervisor.runtime.journal_writer import Cause

TRIES: Final = 2
"""Number of attempts at a review, counting those without a readable verdict."""
FINDINGS_MAX: Final = 50
FINDING_CHARS_MAX: Final = 500
"""Limits for the findings that are recorded in the journal: their number, and the characters of each."""
REVIEW: Final = "review"
"""Actor of the start of a reviewer's session."""

_FORM: Final = """\
Change nothing here. End your answer with one line of JSON, and nothing after it, either
{"verdict": "approve", "findings": []}
or, if this must not be merged as it is, with every reason that speaks against it:
{"verdict": "reject", "findings": ["what is wrong, and where"]}
"""


class ReviewVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a review.

    ``problem`` is the reason why there is no verdict, if there is none: then ``approved`` is false. ``findings`` are
    sentences of the reviewer; ``session_id`` is the reviewer's session (the last, if there were several).
    """

    approved: bool
    findings: tuple[str, ...] = ()
    problem: str = ""
    session_id: str = ""

    @property
    def words(self) -> str:
        """The reason why the work is not accepted, as a text; ``""`` if the work is accepted."""
        if self.approved:
            return ""
        return f"not reviewed: {self.problem}" if self.problem else f"rejected by review: {'; '.join(self.findings)}"

    @property
    def report(self) -> str:
        """The findings of a rejection, each on a line of its own; ``""`` if the work is accepted or there is no
        verdict."""
        if self.approved or self.problem:
            return ""
        return "\n".join(("rejected by review:", *(f"- {finding}" for finding in self.findings)))


class _VerdictLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The verdict on the last line of a review, as decoded from JSON."""

    verdict: str
    findings: list[str] = []


async def review_work(
    sup: SupervisorCore,
    session_id: str,
    review: ReviewConfig,
    task: TaskConfig,
    cause: Cause,
    judged: str,
    changes: Callable[[str, str], Awaitable[Changes | None]],
) -> ReviewVerdict:
    """Start a review of the work of *session_id* on *task*, up to the commit *judged*; return and record the verdict.

    Args:
        changes: function that returns the changes of the session up to a commit; with ``""`` all of them, which are
            committed under a message first (``Verification.changes``).

    Raises:
        Refused, NoSuchEntity: the session ended before there was a verdict.
        JournalError: the journal was lost meanwhile.
    """
    await _end_earlier(sup, session_id)
    before = await changes(f"{task.id}: for its review", "")
    # Tests may have written since that commit: that is not merged, so it is not shown, and it is not the reviewer's.
    shown = await changes("", judged) if judged else before
    verdict = ReviewVerdict(approved=False)
    for number in range(TRIES):
        prompt = _prompt(review, task, shown, verdict.problem)
        verdict = await _ask(sup, session_id, review, prompt, cause)
        if not verdict.problem:
            break
        verdict = msgspec.structs.replace(verdict, problem=f"{verdict.problem} (try {number + 1} of {TRIES})")
    after = await changes(f"{task.id}: after its review", "")
    if before is not None and after is not None and after.commit != before.commit:
        verdict = ReviewVerdict(
            approved=False, problem="the reviewer changed what it reviewed", session_id=verdict.session_id
        )
    if session_id not in sup.registry.sessions:
        raise Refused(f"session {session_id!r} was ended before its work was reviewed")
    told = {"agent": review.agent, **msgspec.to_builtins(verdict)}
    sup.registry.record_fact(session_id, REVIEWED, cause, told, reason=verdict.words or "approved")
    return verdict


async def _end_earlier(sup: SupervisorCore, session_id: str) -> None:
    """End a review that an earlier supervisor began: nobody waits for its verdict, since the review is begun anew."""
    for child in sup.registry.children_of(session_id):
        (born,) = await sup.journal.events(entity_id=child.session_id, limit=1)
        if born.actor == REVIEW:  # and no child session of the agent, whatever its name
            await sup.aborts.close_session(
                child.session_id, reason="its review is begun anew", cause=Cause(actor=REVIEW)
            )


async def _ask(sup: SupervisorCore, session_id: str, review: ReviewConfig, prompt: str, cause: Cause) -> ReviewVerdict:
    """Request a verdict once, in a new child session of the reviewer."""
    parent = sup.registry.sessions.get(session_id)
    if parent is None:
        raise NoSuchEntity(session_id)
    review_id = await sup.session_factory.start(
        "review",
        agent=review.agent,
        parent=session_id,
        directory=parent.profile.directory,
        cause=cause._replace(actor=REVIEW),
    )
    try:
        limit = TimeLimit(review.timeout_s, timeout_source="timeout_s of the review")
        outcome = await sup.requests.outcome_of(review_id, prompt, cause, limit=limit)
        if outcome.outcome != "completed":
            problem = outcome.error or outcome.outcome
            return ReviewVerdict(approved=False, problem=problem, session_id=review_id)
        return read_verdict(outcome.text, review_id)
    finally:
        with suppress(NoSuchEntity, Refused, JournalError):
            await sup.aborts.close_session(review_id, reason="its review is over", cause=cause)


def read_verdict(text: str, session_id: str = "") -> ReviewVerdict:
    """Return the verdict on the last line of the reviewer's *text*; a verdict with a ``problem`` if that line is no
    verdict."""
    line = next((line for line in reversed(text.splitlines()) if line.strip()), "").strip()
    try:
        said = msgspec.json.decode(line, type=_VerdictLine)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        return ReviewVerdict(approved=False, problem=f"the last line is no verdict: {error}", session_id=session_id)
    findings = tuple(one.strip()[:FINDING_CHARS_MAX] for one in said.findings[:FINDINGS_MAX] if one.strip())
    if said.verdict == "approve":
        return ReviewVerdict(approved=True, findings=findings, session_id=session_id)
    if said.verdict == "reject" and findings:
        return ReviewVerdict(approved=False, findings=findings, session_id=session_id)
    why = "it rejects without a finding" if said.verdict == "reject" else f"{said.verdict!r} is no verdict"
    return ReviewVerdict(approved=False, problem=why, session_id=session_id)


def _prompt(review: ReviewConfig, task: TaskConfig, changes: Changes | None, problem: str) -> str:
    parts = [f"Review what another agent did for the task {task.id}. It was asked:\n\n{_fenced(task.prompt)}"]
    parts.append(_work(changes))
    if review.prompt:
        parts.append(review.prompt)
    if problem:
        parts.append(f"An earlier review could not be read: {problem}.")
    return "\n\n".join([*parts, _FORM])


def _work(changes: Changes | None) -> str:
    if changes is None:
        return "Its work is in the working directory."
    command = f"git diff {changes.base[:12]} {changes.commit[:12]}"
    if not changes.files:
        return "It changed no file."
    shown = f":\n\n{_fenced(changes.diff)}" if changes.diff else "."
    return f"`{command}` shows what it changed ({len(changes.files)} files){shown}"


def _fenced(text: str) -> str:
    """Return *text* between marks that the text cannot contain: the reviewer is to judge the text, not to follow
    instructions in it."""
    mark = f"--- {hashlib.sha256(text.encode()).hexdigest()[:16]} ---"
    return f"{mark}\n{text}\n{mark}"
