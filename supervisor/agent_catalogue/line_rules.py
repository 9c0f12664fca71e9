"""Line mapping: the meaning of a program's output lines (JSON objects), as data, and the way in which the program
receives its prompt.

A mapping is a list of rules; no rule contains code. A rule that matches a line reports one fact. The end of a turn is
such a fact, too: without a line that matches a rule for the end, the turn has failed, whatever the exit status.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping as Table
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, model_validator

from supervisor.agent_catalogue.data import Data, Word, Words
from supervisor.policies.permissions import CALL_KINDS

PROMPT: Final = "{prompt}"
ID: Final = "{id}"
"""Placeholders in arguments: for the prompt, and for the id of the conversation."""

Scalar = bool | int | float | str


def _one_of(given: Any) -> tuple[Scalar, ...]:
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not values or not all(isinstance(one, bool | int | float | str) for one in values):
        raise ValueError(f"{given!r} is not a value to match; give a text, a number, true, false, or a list of these")
    return values


Wanted = Annotated[tuple[Any, ...], BeforeValidator(_one_of)]
"""Type of the values that a rule accepts at a path: the value must match one of them. In a text ``*`` stands for any
text; ``"*"`` alone matches any value that is present."""


def _path(path: str) -> str:
    if not path or not all(path.split(".")):
        raise ValueError(f"{path!r} is not a path; give keys with dots between them, for example message.content")
    return path


Path = Annotated[Word, AfterValidator(_path)]
Paths = Annotated[Words, AfterValidator(lambda paths: tuple(_path(one) for one in paths))]
"""Type of the paths at which a value is looked up: the first path with a value counts."""


def _call_kind(kind: str) -> str:
    if kind not in CALL_KINDS:
        raise ValueError(f"{kind!r} is no kind of a tool call; give one of {', '.join(CALL_KINDS)}")
    return kind


CallKind = Annotated[Word, AfterValidator(_call_kind)]


class LineRule(Data):
    """Condition of a rule, and the part of the line that the rule reads.

    ``when`` lists values that must be present in the line, ``unless`` values that must not. ``each`` is the path of a
    list; the rule then applies to each item that matches ``where``, and all other paths begin at the item.
    """

    when: Table[Path, Wanted] = Field(min_length=1)
    unless: Table[Path, Wanted] = {}
    each: Path | None = None
    where: Table[Path, Wanted] = {}

    @model_validator(mode="after")
    def _items_need_a_list(self) -> LineRule:
        if self.where and self.each is None:
            raise ValueError("where: needs each, the path of the list whose items it selects; add each")
        return self


class SessionRule(LineRule):
    """Rule for a line in which the program reports its own id of the conversation, by which the conversation can be
    resumed."""

    says: Literal["session"]
    id: Paths


class TextRule(LineRule):
    """Rule for a line with text of an answer, a thought or a log line."""

    says: Literal["text", "thought", "log"]
    text: Paths


class ToolBeginRule(LineRule):
    """Rule for a line that reports the begin of a tool call. ``kind`` is the path of the call's kind, which
    ``LineMapping.kinds`` translates into our kinds."""

    says: Literal["tool_begin"]
    id: Paths
    title: Paths = ()
    kind: Paths = ()
    asked: Paths = ()


class ToolEndRule(LineRule):
    """Rule for a line that reports the end of a tool call; the call failed if all values of ``failed`` are present in
    the line."""

    says: Literal["tool_end"]
    id: Paths
    failed: Table[Path, Wanted] = {}
    answered: Paths = ()


class RequestRule(LineRule):
    """Rule for a line which shows that the program makes a request to its model."""

    says: Literal["request"]


UsageScope = Literal["request", "turn", "result", "process", "conversation"]
"""Type of the scope of reported usage: the last ``request`` to the model, the ``turn`` so far, everything since the
last ``result`` or since the start of the ``process``, or the whole ``conversation``, also the part of it that earlier
processes had."""


class UsageRule(LineRule):
    """Rule for a line that reports usage, of the given scope. ``cost`` is in US dollars."""

    says: Literal["usage"]
    scope: UsageScope
    input: Paths = ()
    output: Paths = ()
    cost: Paths = ()


class EndRule(LineRule):
    """Rule for a line that reports the end of the turn. Of several rules that match a line the first counts, of several
    such lines the last.

    ``words`` is the path of the reason; ``status`` the path of the model server's HTTP status.
    """

    says: Literal["end"]
    stop: Literal["end_turn", "refusal", "max_tokens", "max_turns", "cancelled", "error"]
    words: Paths = ()
    status: Paths = ()


class TroubleRule(LineRule):
    """Rule for a line that reports a failed or refused request to the model, which the program repeats."""

    says: Literal["trouble"]
    status: Paths = ()
    attempt: Paths = ()
    retry_ms: Paths = ()
    words: Paths = ()


class CompactionRule(LineRule):
    """Rule for a line which reports that a compaction of the program's context begins or ends."""

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


def is_one_shot(adapter: str, mapping: LineMapping | None) -> bool:
    """Return whether each prompt is a new run of a program that remembers nothing of the prompt before: of the adapter
    ``command``, or of a program that prints lines of JSON and cannot resume a conversation."""
    return adapter == "command" or (mapping is not None and not mapping.resume_arguments)


class LineMapping(Data):
    """Line mapping of a program: the arguments of its command line, and the meaning of its output lines.

    The command line is the plan's command, then ``new_arguments`` or ``resume_arguments``, then ``prompt_arguments``.
    With ``prompt = "stdin"`` the prompt is written to standard input, where it may be long and is not visible in a list
    of processes. ``new_arguments`` pass an id that the supervisor chooses to a new conversation; without them the
    program reports an id of its own. ``resume_arguments`` resume a conversation; without them no conversation can be
    resumed. ``interrupt`` is the signal that requests the program to stop.
    """

    prompt: Literal["argument", "stdin"] = "argument"
    prompt_arguments: Words = ()
    new_arguments: Words = ()
    resume_arguments: Words = ()
    interrupt: Literal["INT", "TERM", "HUP", "KILL"] = "INT"
    kinds: Table[Word, CallKind] = {}
    rules: tuple[Rule, ...] = Field(min_length=1)

    @property
    def interrupt_number(self) -> int:
        """Number of the signal ``interrupt``."""
        return signal.Signals[f"SIG{self.interrupt}"].value

    @model_validator(mode="before")
    @classmethod
    def _argument_by_default(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("prompt", "argument") == "argument":
            return {"prompt_arguments": (PROMPT,), **given}
        return given

    @model_validator(mode="after")
    def _is_consistent(self) -> LineMapping:
        placed = any(PROMPT in word for word in self.prompt_arguments)
        if self.prompt == "argument" and not placed:
            fix = 'put it where the prompt goes, or set prompt = "stdin"'
            raise ValueError(f"prompt_arguments: none contains {PROMPT}; {fix}")
        if self.prompt == "stdin" and placed:
            raise ValueError(f'prompt_arguments: contain {PROMPT}, but prompt = "stdin"; remove one of the two')
        for name, words in (("new_arguments", self.new_arguments), ("resume_arguments", self.resume_arguments)):
            if words and not any(ID in word for word in words):
                raise ValueError(f"{name}: none contains {ID}; put it where the id of the conversation goes")
        if self.new_arguments and not self.resume_arguments:
            raise ValueError("new_arguments: need resume_arguments, too; give both or neither")
        if not any(isinstance(one, EndRule) and one.stop == "end_turn" for one in self.rules):
            fix = "add one, without it no turn can succeed"
            raise ValueError(f'rules: no rule has says = "end" and stop = "end_turn"; {fix}')
        return self
