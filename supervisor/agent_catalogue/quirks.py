"""Quirks: behaviour of an agent that differs from its protocol, as data of the catalogue that the runtime follows.

Each quirk was measured, and `supervisor agents probe` measures it again. An agent without quirks is expected to follow
its protocol.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool

from supervisor.agent_catalogue.data import Data, Word, Words
from supervisor.agent_catalogue.line_rules import UsageScope
from supervisor.policies.text_patterns import ReportPattern


class ErrorReport(Data):
    """Last words by which an agent reports that its model has failed, although its protocol reports a success.

    ``pattern`` describes the report, from its beginning to the end of the agent's text: ``*`` stands for any text,
    and white space counts as one space. A text that matches a pattern of ``unless`` is no report.
    """

    pattern: Annotated[Word, Field(pattern=r"^[^*]{4}")]
    unless: Words = ()


class Quirks(Data):
    """Known quirks of one variant of an agent.

    ``cancel_leaves_tool``: the agent answers a cancel while its tool continues, so the agent's program is ended too,
    and the next program resumes the conversation. ``needs_kill``: a working agent ignores SIGTERM, so the supervisor
    does not wait after SIGTERM before it kills. ``exit_status_lies``: exit status 0 does not mean success, so the
    adapter ``command`` cannot run the agent. ``usage_scope``: scope of the tokens that the agent reports over ACP, a
    total of the turn if nothing is said. ``error_reports``: words by which the agent reports that its model has failed.
    """

    cancel_leaves_tool: StrictBool = False
    needs_kill: StrictBool = False
    exit_status_lies: StrictBool = False
    usage_scope: UsageScope = "turn"
    error_reports: tuple[ErrorReport, ...] = ()

    @property
    def reports(self) -> tuple[ReportPattern, ...]:
        """The patterns of ``error_reports``."""
        return tuple(ReportPattern(one.pattern, one.unless) for one in self.error_reports)


NO_QUIRKS = Quirks()
