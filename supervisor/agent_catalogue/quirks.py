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

    In a pattern ``*`` stands for any text, and white space counts as one space.
    """

    pattern: Annotated[Word, Field(pattern=r"^[^*]{4}")] = Field(
        description="Pattern for the report, up to the end of the agent's text; no * is among its first four "
        "characters.",
    )
    unless: Words = Field(
        default=(), description="Patterns for texts that are no reports, although pattern matches them."
    )


class Quirks(Data):
    """Known quirks of one variant of an agent: behaviour that differs from its protocol."""

    cancel_leaves_tool: StrictBool = Field(
        default=False,
        description="Whether the agent confirms a cancel while its tool still runs; agent and tools are then ended.",
    )
    needs_kill: StrictBool = Field(
        default=False, description="Whether the agent ignores SIGTERM while it works; it is then killed without a wait."
    )
    exit_status_lies: StrictBool = Field(
        default=False,
        description="Whether exit status 0 does not mean success; the adapter command refuses such an agent.",
    )
    denial_ends_turn: StrictBool = Field(
        default=False,
        description="Whether a permission that is denied ends the agent's turn, which the agent reports as a success.",
    )
    usage_scope: UsageScope = Field(
        default="turn",
        description="What the tokens count that the agent reports over ACP: the last request, the turn so far, "
        "everything since the last result or since the process started, or the whole conversation.",
    )
    error_reports: tuple[ErrorReport, ...] = Field(
        default=(), description="Last words by which the agent reports that its model has failed."
    )

    @property
    def reports(self) -> tuple[ReportPattern, ...]:
        """The patterns of ``error_reports``."""
        return tuple(ReportPattern(one.pattern, one.unless) for one in self.error_reports)


NO_QUIRKS = Quirks()
