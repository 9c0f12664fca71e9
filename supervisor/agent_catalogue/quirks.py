"""Quirks: behaviour of an agent that differs from its protocol, as data of the catalogue that the runtime follows.

Each quirk was measured, and `supervisor agents probe` measures it again. An agent without quirks is expected to follow
its protocol.
"""

from __future__ import annotations

from pydantic import StrictBool

from supervisor.agent_catalogue.data import Data
from supervisor.agent_catalogue.line_rules import UsageScope


class Quirks(Data):
    """Known quirks of one variant of an agent.

    ``cancel_leaves_tool``: the agent answers a cancel while its tool continues, so the agent's program is ended too,
    and the next program resumes the conversation. ``needs_kill``: a working agent ignores SIGTERM, so the supervisor
    does not wait after SIGTERM before it kills. ``exit_status_lies``: exit status 0 does not mean success, so the
    adapter ``command`` cannot run the agent. ``usage_scope``: scope of the tokens that the agent reports over ACP, a
    total of the turn if nothing is said.
    """

    cancel_leaves_tool: StrictBool = False
    needs_kill: StrictBool = False
    exit_status_lies: StrictBool = False
    usage_scope: UsageScope = "turn"


NO_QUIRKS = Quirks()
