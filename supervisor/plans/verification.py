"""Completion checks and reviews, as a plan writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from supervisor.plans.completion_checks import CompletionCheck
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import Duration, InnerPath, Model, Text

_KINDS: Final = ("glob_exists", "file_contains", "answer_contains")


class CompletionConfig(Model):
    """Completion check: what must be present before an agent's report that it is done is accepted."""

    glob_exists: InnerPath | None = None
    file_contains: InnerPath | None = None
    text: Text = ""
    answer_contains: Text | None = None

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
    """Review of the work by a second agent after the tests have passed; *prompt* says what matters beside the task."""

    agent: str
    prompt: Text = ""
    timeout_s: Duration | None = None
