"""Find the client's tool for shell commands or for sub-agents, and fill in arguments that fit its schema. Pure.

Every agent has other names for these tools. The names here were read from requests of agents; add new names to the
tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from supervisor.mock_model.request import Tool, mapping, word

SHELL_TOOLS: Final = (
    "bash",
    "shell",
    "exec_command",
    "shell_command",
    "local_shell",
    "run_shell_command",
    "execute_command",
    "run_commands",
    "run_command",
    "terminal",
    "execute_bash",
    "developer__shell",
    "run_terminal_cmd",
)
AGENT_TOOLS: Final = (
    "agent",
    "task",
    "spawn_agent",
    "delegate",
    "codebase_investigator",
    "generalist",
    "subagent",
    "use_subagents",
)
WRITE_TOOLS: Final = ("write", "write_file", "writefile", "write_to_file", "create", "create_file", "fs_write")
_PATHS: Final = ("file_path", "filePath", "path", "filename", "target_file", "absolute_path")
_CONTENTS: Final = ("content", "contents", "file_text")
NEVER_TIMES_OUT_MS: Final = 600_000
FILLER: Final = "stub"
BACKGROUND: Final = ("is_background", "run_in_background")
"""Parameters by which shell tools leave a command running."""


def find(tools: Sequence[Tool], names: Sequence[str]) -> Tool | None:
    """Return the tool whose name comes first in *names*, else a tool whose name begins or ends with a name in
    *names*."""
    named = {tool.name.casefold(): tool for tool in tools}
    for name in names:
        if name in named:
            return named[name]
    for name in names:
        for other, tool in named.items():
            if other.endswith(name) or other.startswith(name):
                return tool
    return None


def shell_call(tool: Tool, command: str) -> dict[str, Any]:
    """Return arguments that make *tool* run *command* and wait for the end of the command."""
    return _filled(tool.schema, {"command": command, "cmd": command, "commands": command})


def background_call(tool: Tool, command: str) -> dict[str, Any]:
    """Return arguments that make *tool* start *command* and leave it running."""
    given = mapping(tool.schema.get("properties"))
    named = next((name for name in BACKGROUND if name in given), None)
    if named is None:
        return shell_call(tool, f"({command}) >/dev/null 2>&1 &")
    return {**shell_call(tool, command), named: True}


def write_call(tool: Tool, path: str, text: str) -> dict[str, Any]:
    """Return arguments that make *tool* write *text* to the file *path*."""
    given = {**dict.fromkeys(_PATHS, path), **dict.fromkeys(_CONTENTS, text), "command": "create"}
    return _filled(tool.schema, given)


def find_writer(tools: Sequence[Tool]) -> Tool | None:
    """Return the tool that writes a file: one that takes a path and a content, by preference one in
    ``WRITE_TOOLS``."""
    able = [tool for tool in tools if _takes(tool, _PATHS) and _takes(tool, _CONTENTS)]
    return find(able, WRITE_TOOLS) or (able[0] if able else None)


def _takes(tool: Tool, names: Sequence[str]) -> bool:
    return not mapping(tool.schema.get("properties")).keys().isdisjoint(names)


def delegation(tool: Tool, prompt: str) -> dict[str, Any]:
    """Return arguments that make *tool* give *prompt* to a sub-agent."""
    given = dict.fromkeys(("prompt", "message", "objective", "request", "task"), prompt)
    return _filled(tool.schema, {**given, "subagent_type": "general-purpose", "description": FILLER})


def _filled(schema: dict[str, Any], given: dict[str, str]) -> dict[str, Any]:
    """Return the values in *given* for which the schema has a property, and valid values for the other required
    properties."""
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    arguments: dict[str, Any] = {}
    for name, raw in mapping(schema.get("properties")).items():
        form = mapping(raw)
        if name in given:
            arguments[name] = _typed(form, given[name], name)
        elif name == "yield_time_ms":
            arguments[name] = NEVER_TIMES_OUT_MS
        elif name in BACKGROUND or name in required:
            arguments[name] = _filler(form, name)
    return arguments


def _type(form: dict[str, Any]) -> str:
    kind = form.get("type")
    return word(kind[0] if isinstance(kind, list) and kind else kind)


def _typed(form: dict[str, Any], text: str, name: str) -> Any:
    """Return *text*, or, if the property *name* is a list, the list that the tool needs: an argv, or a list of
    commands."""
    if _type(form).casefold() != "array":
        return text
    return ["bash", "-lc", text] if name == "command" else [text]


def _filler(form: dict[str, Any], name: str) -> Any:
    options = form.get("enum")
    if isinstance(options, list) and options:
        return options[0]
    match _type(form).casefold():
        case "boolean":
            return False
        case "integer" | "number":
            return NEVER_TIMES_OUT_MS if "ms" in name or "timeout" in name else 1
        case "array":
            return []
        case "object":
            return {}
        case _:
            return FILLER
