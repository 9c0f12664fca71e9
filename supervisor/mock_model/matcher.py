"""Decide the answer to a request from the script in the prompt, the progress of the conversation, and the client's
tools. Pure.

The answer depends only on the client's request, and on the number of requests with the prompt that have failed so far.
A client or server that is killed and started again therefore continues where the conversation was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from supervisor.mock_model.answers import (
    CALLS,
    Answer,
    Background,
    Delegate,
    Drop,
    Edit,
    Fail,
    Hang,
    Loop,
    Parallel,
    Run,
    Say,
    Slow,
    Spent,
    Use,
    answers_in,
    spent_in,
)
from supervisor.mock_model.request import Call, Ending, ModelAnswer, ModelRequest, Reply, Tool, mapping
from supervisor.mock_model.tools import (
    AGENT_TOOLS,
    SHELL_TOOLS,
    background_call,
    delegation,
    find,
    find_writer,
    shell_call,
    write_call,
)

Called = Run | Loop | Parallel | Background | Edit | Delegate | Use
"""Answers that call a tool of the client."""

OPENING: Final = "stub: this is not the whole"
DONE: Final = "stub: done"


def answer_to(request: ModelRequest, failed: int = 0) -> Answer:
    """Return the script's answer to *request*; *failed* is the number of requests with the same prompt to which the
    server has already replied with a failure."""
    steps = answers_in(request.text)
    results = request.results
    for step in steps:
        if isinstance(step, Fail) and step.times is not None and failed >= step.times:
            failed -= step.times
        elif isinstance(step, CALLS) and results:
            results = max(0, results - (len(step.commands) if isinstance(step, Parallel) else 1))
        else:
            return step
    return Say(DONE) if steps else Say()


def reply_to(request: ModelRequest, answer: Answer, spent: Spent | None = None) -> Reply:
    """Return *answer* as a reply to *request*, with calls of the client's own tools; a failure is returned unchanged.

    If the client demands JSON of a certain schema, the reply is JSON with values that fit the schema.
    """
    if isinstance(answer, Fail):
        return answer
    spent = spent or spent_in(request.text)
    match answer:
        case Hang(mute):
            return ModelAnswer(pieces=(OPENING,), ending=Ending.MUTE if mute else Ending.HANG, spent=spent)
        case Drop(clean, after_bytes):
            ending = Ending.UNFINISHED if clean else Ending.TORN
            return ModelAnswer(pieces=(OPENING,), ending=ending, cut_bytes=after_bytes, spent=spent)
        case Slow(pieces, every_s):
            return ModelAnswer(
                pieces=tuple(f"slow {number} " for number in range(pieces)), pause_s=every_s, spent=spent
            )
    if request.schema is not None:
        return ModelAnswer(pieces=(json.dumps(_of_form(request.schema)),), spent=spent)
    if isinstance(answer, Say):
        return ModelAnswer(pieces=(answer.text,), spent=spent)
    calls = _calls(request.tools, answer)
    if not calls:
        return ModelAnswer(pieces=(_no_tool(request.tools, answer),), spent=spent)
    return ModelAnswer(calls=calls, spent=spent)


def _calls(tools: Sequence[Tool], answer: Called) -> tuple[Call, ...]:
    """Return the calls that *answer* stands for; none if the client has no such tool."""
    if isinstance(answer, Use):
        tool = next((one for one in tools if one.name == answer.tool), None)
    elif isinstance(answer, Edit):
        tool = find_writer(tools)
    else:
        tool = find(tools, AGENT_TOOLS if isinstance(answer, Delegate) else SHELL_TOOLS)
    if tool is None:
        return ()
    match answer:
        case Run(command) | Loop(command):
            return (Call(tool, shell_call(tool, command)),)
        case Parallel(commands):
            return tuple(Call(tool, shell_call(tool, command)) for command in commands)
        case Background(command):
            return (Call(tool, background_call(tool, command)),)
        case Edit(path, text):
            return (Call(tool, write_call(tool, path, text)),)
        case Delegate(prompt):
            return (Call(tool, delegation(tool, prompt)),)
        case Use(_, arguments):
            return (Call(tool, arguments),)


def _no_tool(tools: Sequence[Tool], answer: Called) -> str:
    wanted = "shell tool"
    wanted = "tool for sub-agents" if isinstance(answer, Delegate) else wanted
    wanted = "tool that writes files" if isinstance(answer, Edit) else wanted
    wanted = f"tool {answer.tool!r}" if isinstance(answer, Use) else wanted
    return f"stub: no {wanted} among {', '.join(tool.name for tool in tools) or 'no tools'}"


def _of_form(schema: dict[str, Any], depth: int = 0) -> Any:
    """Return a simple value that a JSON schema accepts."""
    if isinstance(options := schema.get("enum"), list) and options:
        return options[0]
    kind = schema.get("type")
    match str(kind[0] if isinstance(kind, list) and kind else kind).casefold():
        case "object" if depth < 10:
            fields = mapping(schema.get("properties"))
            return {name: _of_form(mapping(form), depth + 1) for name, form in fields.items()}
        case "array":
            return []
        case "boolean":
            return False
        case "integer" | "number":
            return 1
        case _:
            return "stub"
