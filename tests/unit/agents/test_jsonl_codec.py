"""The codec for programs that print lines of JSON: a mapping defines the lines, and only a line makes a success."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from supervisor import AgentConfig, open_supervisor
from supervisor.agent_catalogue import known_agent
from supervisor.agent_catalogue.line_rules import LineMapping
from supervisor.agents.protocols.jsonl.codec import JsonlCodec, amount_at, fits, look, text_at
from supervisor.lifecycles.types import ModelProblem
from supervisor.ports import (
    THIS_CONVERSATION,
    CloseInput,
    ConversationNamed,
    ModelErrorReported,
    Out,
    Ready,
    Send,
    Signal,
    StrayLine,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    TurnEnding,
    Usage,
)

RULES: list[dict[str, Any]] = [
    {"when": {"type": "hello"}, "says": "session", "id": "id"},
    {"when": {"type": "say"}, "says": "text", "text": "text"},
    {"when": {"type": "call"}, "says": "tool_begin", "id": "id", "title": "name", "kind": "name", "asked": "with"},
    {"when": {"type": "back"}, "says": "tool_end", "id": "id", "failed": {"ok": False}, "answered": "result"},
    {"when": {"type": "used"}, "says": "usage", "input": "in", "output": "out", "cost": "usd", "scope": "turn"},
    {"when": {"type": "again"}, "says": "trouble", "status": "code", "attempt": "n", "retry_ms": "ms", "words": "why"},
    {"when": {"type": "over", "text": "[API Error*"}, "says": "end", "stop": "error", "words": "text"},
    {"when": {"type": "over", "good": True}, "says": "end", "stop": "end_turn"},
    {"when": {"type": "over"}, "says": "end", "stop": "error", "words": "why", "status": "code"},
]


def mapping(**more: Any) -> LineMapping:
    return LineMapping.model_validate({"prompt": "stdin", "kinds": {"sh": "execute"}, "rules": RULES, **more})


def codec(**more: Any) -> JsonlCodec:
    """Return a codec with its prompt in progress."""
    made = JsonlCodec(mapping(**more))
    made.argv(["agent"], "work", "new")
    made.start("/")
    made.prompt("work")
    return made


def line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


def told(lines: Iterable[bytes], status: int | None = 0, **more: Any) -> list[Out]:
    """Return the reports for an agent process that prints *lines* and exits with *status*, without those that the end
    of the turn is near."""
    made = codec(**more)
    outs = [*made.feed(b"".join(lines)), *made.feed(b""), *made.exited(status)]
    return [one for one in outs if not isinstance(one, TurnEnding)]


def test_a_reported_end_is_told_at_once() -> None:
    """A line for the end of the turn is reported at once, and the end itself when the program has exited."""
    made = codec()
    assert made.feed(line("over", good=True)) == [TurnEnding()]
    assert made.exited(-15) == [TurnEnded("end_turn")]


def test_a_program_that_is_ended_after_its_result_changes_the_result_no_more() -> None:
    """A line that a program prints while it is ended for staying after its result does not change the result."""
    made = codec()
    assert made.feed(line("over", good=True)) == [TurnEnding()]
    assert made.settled() == []
    assert made.feed(line("over", why="terminated")) == []
    assert made.exited(-15) == [TurnEnded("end_turn")]


# ------------------------------------------------------------------------------------------------------ the turn's end
@pytest.mark.parametrize("status", [0, 1, -9, None])
def test_an_exit_status_is_no_success(status: int | None) -> None:
    """A turn without a line that reports its end has failed, whatever the exit status."""
    (ended,) = told([], status)
    assert isinstance(ended, TurnEnded)
    assert ended.stop == "error"
    assert ended.error.endswith("and did not say how its turn ended")


@pytest.mark.parametrize("status", [0, 1, -9, None])
def test_a_last_word_is_believed_whatever_the_exit_status(status: int | None) -> None:
    """The end that the agent's last line reports, success or failure, counts whatever the exit status."""
    assert told([line("over", good=True)], status) == [TurnEnded("end_turn")]
    assert told([line("over", good=False, why="no", code=500)], status) == [TurnEnded("error", "no", status=500)]


def test_of_several_rules_the_first_counts() -> None:
    """If several rules for the end match one line, the first rule counts."""
    ended = told([line("over", good=True, text="[API Error: 401 no]")])
    assert ended == [TurnEnded("error", "[API Error: 401 no]")]


def test_of_several_last_words_the_last_counts() -> None:
    """If several lines report an end of the turn, the last line counts."""
    good, bad = line("over", good=True), line("over", good=False, why="no")
    assert told([bad, good]) == [TurnEnded("end_turn")]
    assert told([good, bad]) == [TurnEnded("error", "no")]


def test_a_last_line_needs_no_newline() -> None:
    """A last line without a newline is read."""
    assert told([line("over", good=True).rstrip()]) == [TurnEnded("end_turn")]


def test_a_stream_that_is_cut_is_told() -> None:
    """An incomplete line at the end of the output is reported, and quoted in the error of the turn."""
    stray, ended = told([line("over", good=True)[:-8]])
    assert isinstance(stray, StrayLine)
    assert isinstance(ended, TurnEnded)
    assert ended.error.endswith('its last line was no message: \'{"type": "over", "good"\'')


def test_a_line_that_is_half_an_object_costs_nothing() -> None:
    """A line that begins like an object and is no JSON is reported, and the lines after it count."""
    stray, ended = told([b"{oops\n", line("over", good=True)])
    assert isinstance(stray, StrayLine)
    assert (stray.line, ended) == ("{oops", TurnEnded("end_turn"))


def test_half_a_character_is_replaced() -> None:
    """Half a surrogate pair in a text becomes U+FFFD, a whole pair its character."""
    said, _ = told([rb'{"type":"say","text":"a\ud83d b\ud83d\ude00"}' + b"\n"])
    assert said == Text("message", "a\ufffd b\U0001f600")


def test_a_line_that_is_no_json_is_a_note() -> None:
    """A line that is not a JSON object is reported as log text."""
    assert told([b"Warning: no colours\n", b"\n", b"[1]\n", line("over", good=True)]) == [
        Text("log", "Warning: no colours\n"),
        Text("log", "[1]\n"),
        TurnEnded("end_turn"),
    ]


# ------------------------------------------------------------------------------------------------------ the interrupt
@pytest.mark.parametrize(("name", "number"), [("INT", signal.SIGINT), ("KILL", signal.SIGKILL)])
def test_an_interrupt_is_the_signal_of_the_mapping(name: str, number: int) -> None:
    """An interrupt sends the signal that the mapping names."""
    assert codec(interrupt=name).interrupt() == [Signal(number)]


def test_an_interrupted_turn_is_cancelled_with_its_calls() -> None:
    """An interrupted turn is reported as cancelled, its open calls as failed, also after an incomplete last line."""
    made = codec()
    made.feed(line("call", id="c", name="sh"))
    made.interrupt()
    stray, *outs = [*made.feed(b'{"type": "ba'), *made.feed(b""), *made.exited(-2)]
    assert isinstance(stray, StrayLine)
    assert outs == [ToolClosed("c", "failed"), TurnEnded("cancelled")]


def test_a_turn_that_was_over_when_it_was_interrupted_has_succeeded() -> None:
    """A turn whose success was reported before the interrupt stays a success."""
    made = codec()
    made.feed(line("over", good=True))
    made.interrupt()
    assert made.exited(-2) == [TurnEnded("end_turn")]


# ------------------------------------------------------------------------------------------------------ what it says
def test_calls_are_told_with_what_they_are() -> None:
    """A tool call is reported with title, kind, digests and outcome; a second begin line of a closed call opens
    nothing."""
    outs = told(
        [
            line("call", id="c", name="sh", **{"with": {"cmd": "ls"}}),
            line("back", id="c", ok=False, result="no"),
            line("call", id="c", name="sh"),
            line("call", id="d", name="other"),
            line("back", id="d", ok=True),
            line("over", good=True),
        ]
    )
    opened, closed, *rest = outs
    assert opened == ToolOpened("c", "sh", "execute")
    assert isinstance(closed, ToolClosed)
    assert (closed.outcome, bool(closed.asked), bool(closed.answered)) == ("failed", True, True)
    assert rest == [ToolOpened("d", "other"), ToolClosed("d", "completed"), TurnEnded("end_turn")]


def test_of_a_total_only_what_it_adds_counts() -> None:
    """Of repeated totals of usage only the increase counts, and a falling total adds nothing."""
    lines = [line("used", **{"in": into, "out": 1, "usd": usd}) for into, usd in ((10, 0.5), (30, 0.5), (5, 0.25))]
    used = [one for one in told(lines) if isinstance(one, Usage)]
    assert [(one.input_tokens, one.output_tokens, one.cost_usd) for one in used] == [
        (10, 1, 0.5),
        (20, 0, 0.0),
        (0, 0, 0.0),
    ]


@pytest.mark.parametrize("scope", ["request", "result", "conversation"])
def test_usage_of_another_scope_is_reported_as_it_is(scope: str) -> None:
    """Usage of a request or of a result is reported unchanged with each line; the total of a conversation too, marked
    as such, since the codec does not know what earlier processes have reported."""
    usage = {"when": {"type": "used"}, "says": "usage", "input": "in", "cost": "usd", "scope": scope}
    lines = [line("used", **{"in": 10, "usd": 0.5}), line("used", **{"in": 10})]
    used = [one for one in told(lines, rules=[usage, *RULES[-2:]]) if isinstance(one, Usage)]
    total_of = THIS_CONVERSATION if scope == "conversation" else None
    assert used == [
        Usage({"input_tokens": 10, "cost_usd": 0.5}, 10, 0, 0.5, total_of=total_of),
        Usage({"input_tokens": 10}, 10, total_of=total_of),
    ]


def test_trouble_with_the_model_is_told_as_such() -> None:
    """A model error in a line is reported with the kind that its HTTP status means, and with its delay in seconds."""
    (trouble, _) = told([line("again", code=429, n=2, ms=1500, why="slow down")])
    assert trouble == ModelErrorReported(ModelProblem.RATE_LIMIT, 429, 2, 1.5, "slow down")


# ------------------------------------------------------------------------------------------------------ conversations
NAMING = {"new_arguments": ["--new", "{id}"], "resume_arguments": ["--again={id}"]}


def test_a_prompt_goes_where_the_mapping_says() -> None:
    """The prompt is written to the standard input or put into the command line, as the agent's mapping says."""
    by_input, by_argument = (
        JsonlCodec(mapping()),
        JsonlCodec(mapping(prompt="argument", prompt_arguments="--do={prompt}")),
    )
    assert by_input.argv(["agent", "-x"], "-work") == ("agent", "-x")
    assert by_input.prompt("-work") == [Send(b"-work"), CloseInput()]
    assert by_argument.argv(["agent", "-x"], "-work") == ("agent", "-x", "--do=-work")
    assert by_argument.prompt("-work") == [CloseInput()]


def test_a_conversation_has_the_name_that_we_choose() -> None:
    """The conversation id that the supervisor chose is reported before the prompt, and the next process resumes by that
    id."""
    first, second = JsonlCodec(mapping(**NAMING)), JsonlCodec(mapping(**NAMING))
    assert first.argv(["agent"], "work", "n") == ("agent", "--new", "n")
    assert first.start("/") == [Ready("n")]
    assert second.argv(["agent"], "work", "other", "n") == ("agent", "--again=n")
    assert second.start("/", "n") == [Ready("n")]


def test_a_conversation_may_have_the_program_s_own_name() -> None:
    """If the program names its conversation itself, that id is reported once, instead of the id that the supervisor
    chose."""
    made = JsonlCodec(mapping(resume_arguments="{id}"))
    made.argv(["agent"], "work", "n")
    assert made.start("/") == [Ready()]
    assert made.feed(line("hello", id="its own") * 2) == [ConversationNamed("its own")]


def test_a_conversation_that_cannot_be_gone_on_with_is_begun_anew() -> None:
    """If the mapping has no resume arguments, a new conversation begins, and the log says so."""
    made = JsonlCodec(mapping())
    assert made.argv(["agent"], "work", "n", "old") == ("agent",)
    note, ready = made.start("/", "old")
    assert isinstance(note, Text)
    assert (note.kind, ready) == ("log", Ready())
    assert made.feed(line("hello", id="own")) == []


PROGRAM = """
import json, sys
prompt = sys.stdin.read()
print("a note")
for said in ({"type": "hello", "id": "talk"}, {"type": "say", "text": " ".join([prompt, *sys.argv[1:]])}):
    print(json.dumps(said))
if not prompt.startswith("fail"):
    print(json.dumps({"type": "over", "good": True}))
"""


@pytest.mark.anyio
async def test_the_next_prompt_goes_on_with_the_conversation(tmp_path: Path) -> None:
    """Each prompt starts a process of its own; the second resumes the conversation, and exit status 0 alone is no
    success."""
    program, file = tmp_path / "agent.py", tmp_path / "m.json.toml"
    program.write_text(PROGRAM)
    rules = "\n".join(f"[[rules]]\n{_toml(rule)}" for rule in RULES)
    file.write_text(f'prompt = "stdin"\nresume_arguments = ["--again", "{{id}}"]\n{rules}')
    agent = AgentConfig(adapter="jsonl", command=(sys.executable, str(program)), mapping=str(file))
    async with open_supervisor(agents={"a": agent}) as sup:
        session = await sup.start_session("s", agent="a")
        assert (await session.run("one")).text == "one"
        assert (await session.run("two")).text == "two --again talk"
        failed = await session.run("fail")
        assert not failed.ok
        assert failed.text.endswith(" --again talk")
        assert "did not say how its turn ended" in failed.error


def _toml(rule: dict[str, Any]) -> str:
    return "\n".join(f"{key} = {_value(value)}" for key, value in rule.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


# ------------------------------------------------------------------------------------------------------ where it looks
@pytest.mark.parametrize(
    ("path", "found"),
    [("a.b.0.c", 1), ("a.b.1", None), ("a.b.x", None), ("a.b.c", None), ("d", None), ("d.e", None), ("a.b.-1", None)],
)
def test_a_path_leads_to_a_value_or_to_nothing(path: str, found: object) -> None:
    """``look`` returns the value at a path of keys and positions, or ``None``."""
    assert look({"a": {"b": [{"c": 1}]}, "d": None}, path) == found


@pytest.mark.parametrize(
    ("value", "wanted", "does"),
    [
        ("abc", "abc", True),
        ("abc", "a*", True),
        ("abc", "*c", True),
        ("abc", "a*b*c", True),
        ("ab", "ab*b", False),
        ("abxab", "ab*ab", True),
        ("[API Error: 1]", "[API Error*", True),
        ("abc", "A*", False),
        ("a*", "a*", True),
        (1, True, False),
        (True, True, True),
        (False, "*", True),
        (None, "*", False),
        (5, "*5", False),
        (1, 1.0, True),
    ],
)
def test_a_value_is_what_is_wanted_or_not(value: object, wanted: object, does: bool) -> None:
    """``fits`` accepts a value that is equal, or a text that matches the pattern; a truth value does not equal a
    number."""
    assert fits({"a": value}, {"a": (wanted,)}) is does


@pytest.mark.parametrize("number", [-1, 1e400, float("nan"), True, "7", None, 10**13])
def test_a_number_that_cannot_be_believed_is_none(number: object) -> None:
    """``amount_at`` returns ``None`` for a negative, infinite or absurd amount, and for a value that is no number."""
    assert amount_at({"a": number}, ("a",)) is None


def test_the_parts_of_a_text_are_one_text() -> None:
    """``text_at`` joins a list of text parts into one text, and returns another value as JSON."""
    assert text_at({"a": [{"text": "x"}, {"image": 1}, {"text": "y"}]}, ("b", "a")) == "xy"
    assert text_at({"a": {"b": 1}}, ("a",)) == '{"b":1}'


@pytest.mark.parametrize("name", ["gemini", "qwen", "opencode", "pi", "codex", "claude", "vibe"])
def test_no_line_of_another_program_is_a_success(name: str) -> None:
    """No agent's mapping takes the end line of another program for a success."""
    made = JsonlCodec(known_agent(name).variant("jsonl").mapping or mapping())
    made.argv(["agent"], "work", "n")
    made.feed(b'{"type": "done"}\n{"status": "success"}\n{"type": "result", "subtype": "success"}\n')
    (*_, ended) = made.exited(0)
    assert isinstance(ended, TurnEnded)
    assert ended.stop == "error"
