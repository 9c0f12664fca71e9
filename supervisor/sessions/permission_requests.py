"""The permissions that the agent of one link waits for: each is asked of its turn once, and answered once.

What an agent is trusted with decides first, then what a human has settled for its session, then the policy. Nothing is
open longer than its turn: whoever asked in one that is interrupted, or over, is told that nothing was chosen.

What an agent has us do for it, run a command say, is decided in the same way, whether it has asked before or not: a
*service*. What was allowed when it asked is not asked about a second time (``permissions.covers``): once for each
permission that was for once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from supervisor.lifecycles.events import PermissionAnswered, PermissionRequested
from supervisor.policies.access import call_refusal
from supervisor.policies.permissions import (
    Decision,
    OptionChoice,
    PermissionPolicy,
    PermissionRequest,
    PolicyDecision,
    choose_option,
    covers,
    decide_permission,
    decide_service,
)
from supervisor.ports import Codec, PermissionAsked
from supervisor.ports.input_limits import PERMISSIONS_MAX, bounded
from supervisor.runtime.agent_io import AgentIO
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import LiveSession

__all__ = ["PermissionRequests", "ServiceDecided"]

ServiceDecided = Callable[[str], None]
"""Hears why a service is not done; ``""``: it is to be done."""

_ALLOW: Final = "allow"
_CHOICES: Final = ((_ALLOW, "allow_once"), ("deny", "reject_once"))
"""What a human may answer about a service."""


class PermissionRequests:
    """What is asked over one link.

    Args:
        directory: what relative paths are meant in.
        codec: what is chosen is told the agent in its words.
        wire: takes that.
    """

    def __init__(
        self, registry: EntityRegistry, session: LiveSession, directory: str, codec: Codec, agent_io: AgentIO
    ) -> None:
        self._registry = registry
        self._session = session
        self._directory = directory
        self._codec, self._agent_io = codec, agent_io
        self._asked = 0
        self._open: dict[str, tuple[int, PermissionAsked, bool]] = {}
        self._services: dict[str, ServiceDecided] = {}
        """Those of the open ones that are about a service, by their request's id."""
        self._allowed: dict[str, tuple[PermissionAsked, bool]] = {}
        """What the agent has asked for and was allowed, by its request's id; and whether for good."""

    def begin_turn(self) -> None:
        """Another turn: its permissions count from 1, and what was allowed once is over."""
        self._asked = 0
        self._allowed = {key: one for key, one in self._allowed.items() if one[1]}

    def handle_request(self, asked: PermissionAsked, turn_id: str | None, cause: Cause) -> str:
        """Its turn hears of it, and answers. Between turns there is nobody to ask, and nothing that could wait.

        Returns:
            Why the agent may not ask for that any more; ``""`` where it may.
        """
        decided = self._ruling(_wish_of(asked), decide_permission)
        choice = choose_option(asked.options, allow=decided.decision is Decision.ALLOW)
        if turn_id is None:
            self._note(asked, choice, decided.why, cause)
            self._say(asked.request_id, choice.option)
        elif len(self._open) >= PERMISSIONS_MAX:
            return f"the agent waits for {len(self._open)} permissions; the most is {PERMISSIONS_MAX}"
        else:
            self._await(asked, turn_id, decided, choice, cause)
        return ""

    def _await(
        self, asked: PermissionAsked, turn_id: str, decided: PolicyDecision, choice: OptionChoice, cause: Cause
    ) -> None:
        self._asked += 1
        self._open[asked.request_id] = self._asked, asked, decided.decision is Decision.ASK
        self._registry.send(turn_id, self._requested(asked, decided, choice), cause=cause)

    def _ruling(
        self, wish: PermissionRequest, by_policy: Callable[[PermissionPolicy, PermissionRequest, str], PolicyDecision]
    ) -> PolicyDecision:
        if why := call_refusal(self._session.rights, wish.kind):
            return PolicyDecision(Decision.DENY, why)
        if (settled := self._session.standing_decisions.get(wish)) is not None:
            return PolicyDecision(settled, "settled before, for this session")
        return by_policy(self._session.profile.permissions, wish, self._directory)

    def decide_service(
        self, wish: PermissionRequest, detail: str, turn_id: str | None, cause: Cause, served: ServiceDecided
    ) -> str | None:
        """Decide whether *wish* is done for the agent: why not, ``""`` where it is; ``None``: a human decides, and
        *served* is told."""
        decided = self._ruling(wish, decide_service)
        if decided.decision is Decision.ALLOW or (decided.decision is Decision.ASK and self._was_allowed(wish)):
            return ""
        if decided.decision is Decision.DENY:
            return f"not permitted ({decided.why})"
        if turn_id is None:
            return f"not permitted ({decided.why}, and between turns nobody is asked)"
        if len(self._open) >= PERMISSIONS_MAX:
            return f"not permitted: {len(self._open)} permissions wait for a human already, the most there may be"
        request_id = f"supervisor:{self._asked + 1}"
        asked = PermissionAsked(request_id, wish.title, _CHOICES, wish.kind, wish.tool, detail, wish.paths)
        cut = bounded(asked)
        assert isinstance(cut, PermissionAsked), "its ids are ours, and its path has been bounded"
        self._services[request_id] = served
        self._await(cut, turn_id, decided, choose_option(_CHOICES, allow=False), cause)
        return None

    def _was_allowed(self, wish: PermissionRequest) -> bool:
        for request_id, (asked, for_good) in self._allowed.items():
            if covers(_wish_of(asked), asked.detail, wish, self._directory):
                if not for_good and wish.kind != "read":
                    del self._allowed[request_id]
                return True
        return False

    def _requested(self, asked: PermissionAsked, decided: PolicyDecision, choice: OptionChoice) -> PermissionRequested:
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
            within_s=self._session.profile.permissions.answer_within_s,
            decision=decided.decision.value,
            option=choice.option,
            kind=choice.kind,
            why=decided.why,
        )

    def _note(self, asked: PermissionAsked, choice: OptionChoice, why: str, cause: Cause) -> None:
        told = {"title": asked.title, "option": choice.option, "kind": choice.kind, "by": "policy", "why": why}
        self._registry.record_fact(self._session.session_id, "PermissionAnswered", cause, told)

    def answer(self, request_id: str, option: str | None) -> None:
        """The answer is on record: tell the agent, unless it waits no more."""
        _, asked, by_person = self._open.pop(request_id, (0, None, False))
        if asked is not None:
            self._session.progressed = True
            kind = dict(asked.options).get(option or "", "")
            # A rule has looked at the title, which is the agent's own word: only what a person has allowed covers more.
            if kind.startswith("allow") and by_person and request_id not in self._services:
                self._allowed[request_id] = asked, kind == "allow_always"
            self._say(request_id, option)

    def _say(self, request_id: str, option: str | None) -> None:
        served = self._services.pop(request_id, None)
        if served is None:
            self._agent_io.put(self._codec.permission(request_id, option))
        else:
            served("" if option == _ALLOW else "not permitted: nobody has allowed it, or it was denied")

    def withdraw(self, turn_id: str, why: str, cause: Cause) -> None:
        """Nobody has to answer any more what that turn has asked."""
        asked, self._open = self._open, {}
        for request_id, (number, _, _) in asked.items():
            withdrawn = PermissionAnswered(number=number, decision="withdrawn", by="supervisor", why=why)
            self._registry.send(turn_id, withdrawn, cause=cause)
            self._say(request_id, None)


def _wish_of(asked: PermissionAsked) -> PermissionRequest:
    return PermissionRequest(title=asked.title, kind=asked.tool_kind, tool=asked.tool, paths=asked.paths)
