"""The permissions that the agent of one link waits for: each is asked of its turn once, and answered once.

What an agent is trusted with decides first, then what a human has settled for its session, then the policy. Nothing is
open longer than its turn: whoever asked in one that is interrupted, or over, is told that nothing was chosen.
"""

from __future__ import annotations

from supervisor.access import call_refusal
from supervisor.bounds import PERMISSIONS_MAX
from supervisor.ledger import Cause
from supervisor.lifecycles.events import PermissionAnswered, PermissionRequested
from supervisor.permissions import Choice, Decision, Ruling, Wish, choice_of, ruling
from supervisor.ports import Codec, PermissionAsked
from supervisor.tree import Tree
from supervisor.wire import Wire
from supervisor.work import Work

__all__ = ["Asking"]


class Asking:
    """What is asked over one link.

    Args:
        directory: what relative paths are meant in.
        codec: what is chosen is told the agent in its words.
        wire: takes that.
    """

    def __init__(self, tree: Tree, work: Work, directory: str, codec: Codec, wire: Wire) -> None:
        self._tree = tree
        self._work = work
        self._directory = directory
        self._codec, self._wire = codec, wire
        self._asked = 0
        self._open: dict[str, int] = {}

    def begin(self) -> None:
        """Another turn: its permissions count from 1."""
        self._asked = 0

    def ask(self, asked: PermissionAsked, turn_id: str | None, cause: Cause) -> str:
        """Its turn hears of it, and answers. Between turns there is nobody to ask, and nothing that could wait.

        Returns:
            Why the agent may not ask for that any more; ``""`` where it may.
        """
        decided = self._ruling(asked)
        choice = choice_of(asked.options, allow=decided.decision is Decision.ALLOW)
        if turn_id is None:
            self._note(asked, choice, decided.why, cause)
            self._say(asked.request_id, choice.option)
        elif len(self._open) >= PERMISSIONS_MAX:
            return f"the agent waits for {len(self._open)} permissions; the most is {PERMISSIONS_MAX}"
        else:
            self._asked += 1
            self._open[asked.request_id] = self._asked
            self._tree.tell(turn_id, self._requested(asked, decided, choice), cause=cause)
        return ""

    def _ruling(self, asked: PermissionAsked) -> Ruling:
        if why := call_refusal(self._work.rights, asked.tool_kind):
            return Ruling(Decision.DENY, why)
        wish = Wish(title=asked.title, kind=asked.tool_kind, tool=asked.tool, paths=asked.paths)
        if (settled := self._work.settled.get(wish)) is not None:
            return Ruling(settled, "settled before, for this session")
        return ruling(self._work.profile.permissions, wish, self._directory)

    def _requested(self, asked: PermissionAsked, decided: Ruling, choice: Choice) -> PermissionRequested:
        return PermissionRequested(
            number=self._asked,
            request_id=asked.request_id,
            title=asked.title,
            tool_kind=asked.tool_kind,
            tool=asked.tool,
            detail=asked.detail,
            paths=asked.paths,
            options=asked.options,
            asked=decided.decision is Decision.ASK,
            within_s=self._work.profile.permissions.answer_within_s,
            decision=decided.decision.value,
            option=choice.option,
            kind=choice.kind,
            why=decided.why,
        )

    def _note(self, asked: PermissionAsked, choice: Choice, why: str, cause: Cause) -> None:
        told = {"title": asked.title, "option": choice.option, "kind": choice.kind, "by": "policy", "why": why}
        self._tree.note(self._work.session_id, "PermissionAnswered", cause, told)

    def answer(self, request_id: str, option: str | None) -> None:
        """The answer is on record: tell the agent, unless it waits no more."""
        if self._open.pop(request_id, None) is not None:
            self._work.moved = True
            self._say(request_id, option)

    def _say(self, request_id: str, option: str | None) -> None:
        self._wire.put(self._codec.permission(request_id, option))

    def withdraw(self, turn_id: str, why: str, cause: Cause) -> None:
        """Nobody has to answer any more what that turn has asked."""
        asked, self._open = self._open, {}
        for request_id, number in asked.items():
            withdrawn = PermissionAnswered(number=number, decision="withdrawn", by="supervisor", why=why)
            self._tree.tell(turn_id, withdrawn, cause=cause)
            self._say(request_id, None)
