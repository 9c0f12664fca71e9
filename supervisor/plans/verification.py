"""Completion checks and reviews, as a plan writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import Field

from supervisor.plans.completion_checks import CompletionCheck
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import Duration, InnerPath, Model, Text

_KINDS: Final = ("glob_exists", "file_contains", "answer_contains")


class CompletionConfig(Model):
    """Completion check: what must be present before an agent's report that it is done is accepted."""

    glob_exists: InnerPath | None = Field(
        default=None, description="Pattern (*, ?, **) that a file or directory must match."
    )
    file_contains: InnerPath | None = Field(default=None, description="Path of a file that must contain the text.")
    text: Text = Field(default="", description="Text for file_contains, which requires it.")
    answer_contains: Text | None = Field(default=None, description="Text that the agent's last answer must contain.")

    def problems(self) -> Iterator[Problem]:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            yield (), f"says {' and '.join(given) or 'nothing'}; give exactly one of {', '.join(_KINDS)}"
        elif self.answer_contains == "":
            yield ("answer_contains",), "is empty; give what the agent must say"
        elif (given[0] == "file_contains") is not bool(self.text):
            say = "missing; give what the file must contain" if not self.text else "is for file_contains; remove it"
            yield ("text",), say

    def value(self) -> CompletionCheck:
        if self.answer_contains is not None:
            return CompletionCheck(kind="answer_contains", text=self.answer_contains)
        kind = "glob_exists" if self.glob_exists is not None else "file_contains"
        return CompletionCheck(kind=kind, path=self.glob_exists or self.file_contains or "", text=self.text)


class ReviewConfig(Model):
    """Review of the work by a second agent after the tests have passed."""

    agent: str = Field(description="Name of the reviewing agent, which does none of the work.")
    prompt: Text = Field(
        default="", description="Text that is added to the reviewer's prompt, for example what matters beside the task."
    )
    timeout_s: Duration | None = Field(
        default=None, description="Seconds that a review may take; by default the time-out of a turn."
    )
