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
    Delegate,
    Drop,
    Fail,
    Hang,
    Loop,
    Run,
    Say,
    Slow,
    Spent,
    Use,
    answers_in,
    spent_in,
)
from supervisor.mock_model.request import Call, Ending, ModelAnswer, ModelRequest, Reply, Tool, mapping
from supervisor.mock_model.tools import AGENT_TOOLS, SHELL_TOOLS, delegation, find, shell_call

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
            results -= 1
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
        case Drop(clean):
            return ModelAnswer(pieces=(OPENING,), ending=Ending.UNFINISHED if clean else Ending.TORN, spent=spent)
        case Slow(pieces, every_s):
            return ModelAnswer(
                pieces=tuple(f"slow {number} " for number in range(pieces)), pause_s=every_s, spent=spent
            )
    if request.schema is not None:
        return ModelAnswer(pieces=(json.dumps(_of_form(request.schema)),), spent=spent)
    if isinstance(answer, Say):
        return ModelAnswer(pieces=(answer.text,), spent=spent)
    call = _call(request.tools, answer)
    return (
        ModelAnswer(call=call, spent=spent)
        if call
        else ModelAnswer(pieces=(_no_tool(request.tools, answer),), spent=spent)
    )


def _call(tools: Sequence[Tool], answer: Run | Loop | Delegate | Use) -> Call | None:
    match answer:
        case Run(command) | Loop(command):
            tool = find(tools, SHELL_TOOLS)
            return Call(tool, shell_call(tool, command)) if tool else None
        case Delegate(prompt):
            tool = find(tools, AGENT_TOOLS)
            return Call(tool, delegation(tool, prompt)) if tool else None
        case Use(name, arguments):
            tool = next((one for one in tools if one.name == name), None)
            return Call(tool, arguments) if tool else None


def _no_tool(tools: Sequence[Tool], answer: Run | Loop | Delegate | Use) -> str:
    wanted = "shell tool" if isinstance(answer, Run | Loop) else "tool for sub-agents"
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
