"""Codec for programs that serve one prompt and print lines of JSON, whose meaning a line mapping describes.

A process serves one prompt. A turn succeeds only if a line matches a rule for a successful end; the exit status has no
influence. The turn is over when the program has exited; ``TurnEnding`` tells before that the program has reported an
end. A line that is not a JSON object is log text; a line that begins with ``{`` and is not JSON is a ``StrayLine``.
More than ``STRAY_LINES_MAX`` of these in a row end the conversation, and later output of the program is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final

import msgspec

from supervisor.agent_catalogue.line_rules import (
    ID,
    PROMPT,
    CompactionRule,
    EndRule,
    LineMapping,
    RequestRule,
    SessionRule,
    TextRule,
    ToolBeginRule,
    ToolEndRule,
    TroubleRule,
    UsageRule,
    UsageScope,
)
from supervisor.agents.protocols.codec_base import (
    CodecDefaults,
    StrayLines,
    ToolCallTable,
    exit_words,
)
from supervisor.lifecycles.types import ModelProblem
from supervisor.policies.error_classification import problem_of
from supervisor.policies.text_patterns import matches
from supervisor.ports import (
    THIS_CONVERSATION,
    CloseInput,
    Compaction,
    ConversationNamed,
    ModelErrorReported,
    Out,
    Ready,
    Send,
    Signal,
    StrayLine,
    Text,
    TurnEnded,
    TurnEnding,
    Usage,
)
from supervisor.ports.input_limits import LINE_BYTES_MAX, LineBuffer
from supervisor.ports.json_text import decodable

COUNT_MAX: Final = 10**12
"""Largest number, of tokens or of dollars, that is accepted from a program."""


_MS: Final = 1000.0


_decode: Final = msgspec.json.Decoder().decode


def look(value: Any, path: str) -> Any:
    """Return the value at *path* within *value*, or ``None``. The path consists of keys, or positions in lists, with
    dots between them."""
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 10:
            value = value[int(part)] if int(part) < len(value) else None
        else:
            return None
    return value


def first(value: Any, paths: Iterable[str]) -> Any:
    """Return the first value that is present at one of *paths*."""
    return next((found for path in paths if (found := look(value, path)) is not None), None)


def fits(value: Any, wanted: Mapping[str, tuple[Any, ...]]) -> bool:
    """Return whether *value* holds, at every path of *wanted*, one of the wanted values of that path."""
    return all(any(_same(look(value, path), one) for one in values) for path, values in wanted.items())


def _same(found: Any, wanted: Any) -> bool:
    if wanted == "*":
        return found is not None
    if isinstance(wanted, str):
        return isinstance(found, str) and matches(found, wanted)
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def text_at(value: Any, paths: Iterable[str]) -> str:
    """Return the first value present at *paths* as text: a value that is not text as JSON, a missing value as
    ``""``."""
    found = first(value, paths)
    if found is None or isinstance(found, str):
        return found or ""
    parts = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    texts = [one["text"] for one in parts if isinstance(one.get("text"), str)]  # [{"text": ...}, ...]
    return "".join(texts) or msgspec.json.encode(found).decode()


def amount_at(value: Any, paths: Iterable[str]) -> float | None:
    """Return the first value present at *paths* if this value is a number from 0 to ``COUNT_MAX``, otherwise
    ``None``."""
    found = first(value, paths)
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        return None
    return found if 0 <= found <= COUNT_MAX else None


def bytes_at(value: Any, paths: Iterable[str]) -> bytes:
    """Return the first value present at *paths* as JSON, for a digest; ``b""`` for a missing value."""
    found = first(value, paths)
    return msgspec.json.encode(found) if found is not None else b""


class JsonlUsageMeter:
    """Last totals of the turn that one run of a program reported: input tokens, output tokens and US dollars. A total
    that is smaller than the total before adds nothing."""

    def __init__(self) -> None:
        self._totals = [0.0, 0.0, 0.0]

    def usage(self, reported: Sequence[float | None], scope: UsageScope) -> Usage:
        """Return the *reported* usage of that scope: the total of a conversation unchanged, otherwise the amounts that
        this report adds to the reports before. An amount of ``None`` is not reported."""
        added = amounts = [one or 0.0 for one in reported]
        if scope in ("turn", "process"):  # a process serves one turn
            before, self._totals = self._totals, [max(pair) for pair in zip(amounts, self._totals, strict=True)]
            added = [now - was for now, was in zip(self._totals, before, strict=True)]
        said = dict(zip(("input_tokens", "output_tokens", "cost_usd"), reported, strict=True))
        used = {name: amount for name, amount in said.items() if amount is not None}
        total_of = THIS_CONVERSATION if scope == "conversation" else None
        return Usage(used, int(added[0]), int(added[1]), added[2], total_of=total_of)


class JsonlCodec(CodecDefaults):
    """Conversation with one run of a program. Call ``argv`` first: this method decides the id of the conversation."""

    def __init__(self, mapping: LineMapping, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._mapping = mapping
        self._lines = LineBuffer(line_bytes_max)
        self._calls = ToolCallTable()
        self._spent = JsonlUsageMeter()
        self._chosen: str | None = None
        """Id of the conversation that the supervisor chose, for this process or for an earlier one."""
        self._confirmed = False
        self._interrupted = False
        self._compacting = False
        self._over = False
        self._strays = StrayLines()
        self._is_settled = False
        """Whether the program is being ended because it stayed after its result: what it reports then is about its own
        end."""
        self._end: TurnEnded | None = None
        """Last end of the turn that the program has reported; ``None`` before such a report."""
        self._handlers: dict[str, Callable[[Any, Any], Iterator[Out]]] = {
            "session": self._session,
            "text": self._text,
            "thought": self._text,
            "log": self._text,
            "tool_begin": self._tool_begun,
            "tool_end": self._tool_ended,
            "request": self._requested,
            "usage": self._used,
            "end": self._ended,
            "trouble": self._troubled,
            "compaction": self._compacted,
        }

    # ------------------------------------------------------------------------------------------ our requests
    @property
    def one_shot(self) -> bool:
        return True

    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        arguments = self._mapping.resume_arguments if resume_id is not None else self._mapping.new_arguments
        self._chosen = (resume_id or new_id) if arguments else None
        named = (word.replace(ID, self._chosen or "") for word in arguments)
        return (*command, *named, *(word.replace(PROMPT, prompt) for word in self._mapping.prompt_arguments))

    def start(self, cwd: str, resume_id: str | None = None) -> list[Out]:
        lost = resume_id is not None and self._chosen != resume_id
        words = "supervisor: the conversation cannot be resumed: the mapping has no resume_arguments\n"
        return [*([Text("log", words)] if lost else []), Ready(self._chosen)]

    def prompt(self, text: str) -> list[Out]:
        return [Send(text.encode()), CloseInput()] if self._mapping.prompt == "stdin" else [CloseInput()]

    def settled(self) -> list[Out]:
        self._is_settled = True
        return []

    def interrupt(self) -> list[Out]:
        self._interrupted = True
        return [Signal(self._mapping.interrupt_number)]

    def close(self) -> list[Out]:
        return []

    # ------------------------------------------------------------------------------------------ output of the program
    def feed(self, data: bytes) -> list[Out]:
        outs: list[Out] = []
        if not data and not self._lines.unfinished:
            return outs
        for line in self._lines.feed(data or b"\n"):  # a last line may lack its end
            if self._over:
                break
            outs += self._strays.add(line) if isinstance(line, StrayLine) else self._line(line)
            self._over = self._over or self._strays.are_too_many
        return outs

    def exited(self, status: int | None) -> list[Out]:
        if self._over:
            return []
        outs = self.feed(b"")
        if self._over:
            return outs
        self._over = True
        if self._interrupted and (self._end is None or self._end.stop != "end_turn"):
            return [*outs, *self._calls.close_all("failed"), TurnEnded("cancelled")]
        why = f"the agent {exit_words(status)} and did not say how its turn ended{self._strays.words}"
        silent = TurnEnded("error", why)
        return [*outs, self._end or silent]

    # ------------------------------------------------------------------------------------------ a line
    def _line(self, line: str) -> list[Out]:
        try:
            value = _decode(decodable(line))
        except (msgspec.DecodeError, RecursionError) as error:
            if not line.lstrip().startswith("{"):
                return _note(line)
            return self._strays.add(StrayLine(line, f"the agent wrote a line that is not JSON: {error}"))
        if not isinstance(value, dict):
            return _note(line)
        self._strays.clear()
        return list(self._rules(value))

    def _rules(self, line: dict[str, Any]) -> Iterator[Out]:
        """Apply each rule that matches the line, in the order of the rules; of several matching end rules only the
        first counts."""
        ended = False
        for rule in self._mapping.rules:
            if not fits(line, rule.when) or (rule.unless and fits(line, rule.unless)):
                continue
            if ended and isinstance(rule, EndRule):
                continue
            items = [line] if rule.each is None else look(line, rule.each)
            for item in items if isinstance(items, list) else ():
                if fits(item, rule.where):
                    ended = ended or isinstance(rule, EndRule)
                    yield from self._handlers[rule.says](rule, item)

    # ------------------------------------------------------------------------------------------ what rules say
    def _session(self, rule: SessionRule, item: Any) -> Iterator[Out]:
        """Report the program's own id of the conversation, which takes precedence over an id that the supervisor
        chose."""
        name = text_at(item, rule.id)
        if name and not self._confirmed and self._mapping.resume_arguments:
            self._confirmed = True
            yield ConversationNamed(name)

    def _text(self, rule: TextRule, item: Any) -> Iterator[Out]:
        kind = "message" if rule.says == "text" else rule.says
        if said := text_at(item, rule.text):
            yield Text(kind, said if kind == "message" else f"{said}\n")

    def _tool_begun(self, rule: ToolBeginRule, item: Any) -> Iterator[Out]:
        call_id = text_at(item, rule.id)
        if call_id:
            kind = self._mapping.kinds.get(text_at(item, rule.kind), "other")
            yield from self._calls.open(call_id, text_at(item, rule.title) or call_id, kind)
            self._calls.record_digests(call_id, asked=bytes_at(item, rule.asked))

    def _tool_ended(self, rule: ToolEndRule, item: Any) -> Iterator[Out]:
        call_id = text_at(item, rule.id)
        failed = bool(rule.failed) and fits(item, rule.failed)
        self._calls.record_digests(call_id, answered=bytes_at(item, rule.answered))
        yield from self._calls.close(call_id, "failed" if failed else "completed")

    def _requested(self, rule: RequestRule, item: Any) -> Iterator[Out]:
        yield Usage({}, requests=1)

    def _used(self, rule: UsageRule, item: Any) -> Iterator[Out]:
        reported = [amount_at(item, paths) for paths in (rule.input, rule.output, rule.cost)]
        if any(reported):
            yield self._spent.usage(reported, rule.scope)

    def _ended(self, rule: EndRule, item: Any) -> Iterator[Out]:
        words = text_at(item, rule.words)
        status = amount_at(item, rule.status)
        error = (words or "the agent said that its turn failed") if rule.stop == "error" else ""
        if not self._is_settled:
            self._end = TurnEnded(rule.stop, error, status=int(status) if status else None)
            yield TurnEnding()

    def _troubled(self, rule: TroubleRule, item: Any) -> Iterator[Out]:
        words = text_at(item, rule.words)
        status, attempt, retry_ms = (amount_at(item, paths) for paths in (rule.status, rule.attempt, rule.retry_ms))
        code = int(status) if status else None
        problem = problem_of(words, code) or ModelProblem.UNKNOWN
        retry_s = None if retry_ms is None else retry_ms / _MS
        yield ModelErrorReported(problem, code, int(attempt or 0), retry_s, words)

    def _compacted(self, rule: CompactionRule, item: Any) -> Iterator[Out]:
        if rule.active != self._compacting:
            self._compacting = rule.active
            yield Compaction(rule.active)


def _note(line: str) -> list[Out]:
    return [Text("log", f"{line}\n")] if line.strip() else []
