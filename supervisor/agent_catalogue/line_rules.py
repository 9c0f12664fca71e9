"""What a program says in lines of JSON, as data: how it is given a prompt, and which line means what.

A mapping is a list of rules. A rule that fits a line says one thing of it; nothing in it is code. Of a turn it says how
it ended: without a line that a rule takes for the end, a turn has failed, whatever the exit status.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping as Table
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, model_validator

from supervisor.agent_catalogue.data import Data, Word, Words

__all__ = [
    "ID",
    "PROMPT",
    "CompactionRule",
    "EndRule",
    "LineMapping",
    "LineRule",
    "RequestRule",
    "Rule",
    "SessionRule",
    "TextRule",
    "ToolBeginRule",
    "ToolEndRule",
    "TroubleRule",
    "UsageRule",
    "Wanted",
]

PROMPT: Final = "{prompt}"
ID: Final = "{id}"
"""What arguments write where the prompt, or the name of a conversation, shall stand."""

Scalar = bool | int | float | str


def _one_of(given: Any) -> tuple[Scalar, ...]:
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not values or not all(isinstance(one, bool | int | float | str) for one in values):
        raise ValueError(f"{given!r} is no value to look for; give a text, a number, true, false, or a list of these")
    return values


Wanted = Annotated[tuple[Any, ...], BeforeValidator(_one_of)]
"""What a value must be: one of these. In a text ``*`` stands for any text; ``"*"`` alone for whatever is there."""


def _path(path: str) -> str:
    if not path or not all(path.split(".")):
        raise ValueError(f"{path!r} is no path; give keys with dots between them, for example message.content")
    return path


Path = Annotated[Word, AfterValidator(_path)]
Paths = Annotated[Words, AfterValidator(lambda paths: tuple(_path(one) for one in paths))]
"""Where a value stands: of several places, the first that has it."""


class LineRule(Data):
    """Which lines a rule is about, and where in them it looks.

    ``when``: what must stand where in the line, ``unless``: what must not. ``each``: where in it a list stands; the
    rule is then about each item of that: ``where`` says what must stand in it, and all other paths begin there.
    """

    when: Table[Path, Wanted] = Field(min_length=1)
    unless: Table[Path, Wanted] = {}
    each: Path | None = None
    where: Table[Path, Wanted] = {}

    @model_validator(mode="after")
    def _items_need_a_list(self) -> LineRule:
        if self.where and self.each is None:
            raise ValueError("where: is about the items of a list; say with `each` where that stands")
        return self


class SessionRule(LineRule):
    """The program's own name for the conversation, by which it can be gone on with."""

    says: Literal["session"]
    id: Paths


class TextRule(LineRule):
    """Something it says, thinks, or notes."""

    says: Literal["text", "thought", "log"]
    text: Paths


class ToolBeginRule(LineRule):
    """A tool call began. ``kind``: where its kind stands; ``LineMapping.kinds`` says what that is in our words."""

    says: Literal["tool_begin"]
    id: Paths
    title: Paths = ()
    kind: Paths = ()
    asked: Paths = ()


class ToolEndRule(LineRule):
    """A tool call returned; it has failed where all of ``failed`` stands in the line."""

    says: Literal["tool_end"]
    id: Paths
    failed: Table[Path, Wanted] = {}
    answered: Paths = ()


class RequestRule(LineRule):
    """It makes a request to its model."""

    says: Literal["request"]


class UsageRule(LineRule):
    """What it has used: since it last said so (``each``), or since it began (``total``). ``cost``: US dollars."""

    says: Literal["usage"]
    input: Paths = ()
    output: Paths = ()
    cost: Paths = ()
    counts: Literal["each", "total"] = "each"


class EndRule(LineRule):
    """The program's word on the turn. Where several rules fit one line, the first counts; of several lines, the last.

    ``words``: why it ended so; ``status``: where the status of the model server's answer stands.
    """

    says: Literal["end"]
    stop: Literal["end_turn", "refusal", "max_tokens", "max_turns", "cancelled", "error"]
    words: Paths = ()
    status: Paths = ()


class TroubleRule(LineRule):
    """The model failed or turned it away, and it tries again by itself."""

    says: Literal["trouble"]
    status: Paths = ()
    attempt: Paths = ()
    retry_ms: Paths = ()
    words: Paths = ()


class CompactionRule(LineRule):
    """Its context is being compacted, or has been."""

    says: Literal["compaction"]
    active: StrictBool


Rule = Annotated[
    SessionRule
    | TextRule
    | ToolBeginRule
    | ToolEndRule
    | RequestRule
    | UsageRule
    | EndRule
    | TroubleRule
    | CompactionRule,
    Field(discriminator="says"),
]


class LineMapping(Data):
    """How one program is spoken to, and what its lines mean.

    The command line is the plan's command, then ``new_arguments`` or ``resume_arguments``, then ``prompt_arguments``.
    With ``prompt = "stdin"`` the prompt goes to standard input: it may be long there, and nobody sees it in a list of
    processes. ``new_arguments``: how a name that we choose is given to a new conversation; without them the program
    tells its own. ``resume_arguments``: how a conversation is gone on with; without them it cannot be. ``interrupt``:
    the signal that asks it to stop.
    """

    prompt: Literal["argument", "stdin"] = "argument"
    prompt_arguments: Words = ()
    new_arguments: Words = ()
    resume_arguments: Words = ()
    interrupt: Literal["INT", "TERM", "HUP", "KILL"] = "INT"
    kinds: Table[Word, Word] = {}
    rules: tuple[Rule, ...] = Field(min_length=1)

    @property
    def interrupt_number(self) -> int:
        """The number of the signal that asks it to stop."""
        return signal.Signals[f"SIG{self.interrupt}"].value

    @model_validator(mode="before")
    @classmethod
    def _argument_by_default(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("prompt", "argument") == "argument":
            return {"prompt_arguments": (PROMPT,), **given}
        return given

    @model_validator(mode="after")
    def _holds_together(self) -> LineMapping:
        if problem := _problem(self):
            raise ValueError(problem)
        return self


def _problem(mapping: LineMapping) -> str:
    """What in it cannot be meant; nothing, where all of it can."""
    placed = any(PROMPT in word for word in mapping.prompt_arguments)
    if mapping.prompt == "argument" and not placed:
        return f"prompt_arguments: none of them says {PROMPT}; write it where the prompt shall stand, or use stdin"
    if mapping.prompt == "stdin" and placed:
        return f"prompt_arguments: {PROMPT} stands in them, and the prompt goes to standard input; remove one of both"
    for name, words in (("new_arguments", mapping.new_arguments), ("resume_arguments", mapping.resume_arguments)):
        if words and not any(ID in word for word in words):
            return f"{name}: none of them says {ID}; write it where the name of the conversation shall stand"
    if mapping.new_arguments and not mapping.resume_arguments:
        return "new_arguments: a name is of no use without resume_arguments; give both, or none"
    if not any(isinstance(one, EndRule) and one.stop == "end_turn" for one in mapping.rules):
        return 'rules: none says = "end" with stop = "end_turn"; without it no turn can ever succeed'
    return ""
