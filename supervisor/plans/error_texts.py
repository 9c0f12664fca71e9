"""Error texts for invalid plans: the field, the value, and the fix. Pure.

Every kind of validation error that the plan's models can raise has a text of its own here; any other kind keeps the
text of pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ValidationError

from supervisor.plans.source import FieldPath, Source, spelled

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Problem = tuple[FieldPath, str]
"""Problem of a plan: the path of the field, and the text."""

ModelAt = Callable[[FieldPath], type[BaseModel] | None]

_WANTED: Final = {
    "agents": "a mapping of names to agents, for example {helper: {adapter: scripted}}",
    "tasks": "a list of tasks, for example [{id: hello, agent: helper, prompt: '@say hello'}]",
    "adapter": "one of command, acp, jsonl, scripted, or an adapter of a plug-in",
    "known": "the name of an agent of the catalogue, for example claude",
    "mapping": "the path of a mapping of its lines, for example agent.toml",
    "arguments": "more arguments as a list, for example [--model, small]",
    "quirks": "a mapping, for example {needs_kill: true}",
    "telemetry": "a mapping, for example {metrics: true}",
    "plugins": "a list of names of plug-ins, for example [tidy], or [] for none",
    "access": "a mapping, for example {initial: {coder: trusted}}",
    "completion": "a list of signals, for example [{glob_exists: dist/*.whl}]",
    "review": "a mapping, for example {agent: reviewer}",
    "with": "a mapping of the verifier's options, for example {suffix: .py}",
    "id": "a name of its own, for example build",
    "agent": "the name of one of the agents",
    "command": "the argv as a list, for example [git, status]",
    "depends_on": "a list of task ids, for example [build]",
    "mcp_servers": "a mapping of names to servers, for example {files: {command: [mcp-files]}}",
    "servers": "a list of names of programs that the agent keeps from turn to turn, for example [gopls]",
    "options": "a mapping of the agent's settings to their values, for example {effort: high}",
    "headers": "a mapping of headers to their values, for example {X-Team: blue}",
    "inherit_env": "a list of names of variables, for example [PATH, HOME]",
    "env": "a mapping of variables to their values, for example {LANG: C}",
    "acceptance": "a list of tests, for example [{unit_tests: [pytest, -q]}]",
    "unit_tests": "the argv as a list, for example [pytest, -q]",
    "lint": "the argv as a list, for example [ruff, check]",
    "validation": "a list of tests, for example [{unit_tests: [pytest, -q]}]",
    "capabilities": "a list of names, for example [python]",
    "permissions": "allow, deny, ask, or a mapping, for example {default: ask}",
    "rules": "a list of rules, for example [{then: allow, kind: read}]",
    "roles": "a list of names, for example [backend]",
    "files": "a list of paths, for example [src/parser]",
    "fallback_agents": "a list of names of agents, for example [senior]",
    "subtasks": "a list of tasks, for example [{id: part, prompt: '@say hello'}]",
    "when": "a condition, for example {task: build, is: failed}",
    "workers": "a mapping of names to workers, for example {local: {slots: 2}}",
    "task_lifecycle": "a mapping, for example {max_attempts: 5}",
    "circuit_breaker": "a mapping, for example {max_error_repeats: 2}",
    "checkpoint": "a mapping, for example {enabled: true}",
    "save_on_states": "a list of states of a run, for example [COMPLETED, FAILED]",
    "retry_budget": "a mapping, for example {share: 0.2, least: 10}",
    "policy": "a mapping, for example {tool_to_sibling: true}",
    "ladder": "a mapping, for example {request_s: 5}",
    "limits": "a mapping, for example {turn_timeout_s: 600}",
    "budget": "a mapping, for example {tokens: 200000, cost_usd: 5}",
    "session_budget": "a mapping, for example {turns: 20}",
    "turn_budget": "a mapping, for example {tool_calls: 100}",
    "hand_back": "a mapping, for example {wall_s: 30}",
    "loops": "a mapping, for example {same_call_max: 5}",
    "model_trouble": "a mapping, for example {retries_max: 10}",
    "at_once": "a list of problems, for example [auth, quota]",
    "liveness": "a mapping, for example {snapshot_s: 30}",
    "default": "a mapping, for example {wake: 3, stop: 5, kill: 7}",
    "large": "a mapping, for example {wake: 5, stop: 8, kill: 12}",
    "tests": "a mapping, for example {wake: 8, stop: 12, kill: 16}",
    "wake": "a number of snapshots, for example 3",
    "stop": "a number of snapshots, for example 5",
    "kill": "a number of snapshots, for example 7",
    "triggers": "a mapping of names to triggers, for example {hourly: {schedule: {every_s: 3600}, plan: p.yaml}}",
    "schedule": "a mapping, for example {cron: '0 3 * * *', timezone: Europe/Berlin}",
    "webhook": "a mapping, for example {provider: github, secret: {env: HOOK_SECRET}}",
    "provider": "one of github, gitlab, slack, discord, generic",
    "secret": "a mapping, for example {env: HOOK_SECRET}, or {file: secrets/hook}",
    "events": "a list of names of events, for example [push]",
    "watch": "a mapping, for example {folder: inbox, match: ['*.md']}",
    "folder": "the path of a directory, for example inbox",
    "match": "a list of patterns, for example ['*.md']",
    "task": "a task, for example {id: fix, agent: helper, prompt: Fix it}",
    "values": "a mapping of names to paths in the event, for example {title: issue.title}",
    "only": "a mapping of paths to lists of values, for example {ref: [refs/heads/main]}",
}


_NAMED: Final = {
    "agents": "an agent, for example {adapter: scripted}",
    "workers": "a worker, for example {slots: 2}",
    "triggers": "a trigger, for example {schedule: {every_s: 3600}, plan: plan.yaml}",
}
_SECONDS: Final = (
    "default_timeout",
    "validation_timeout",
    "base_retry_delay",
    "max_retry_delay",
    "cooldown_period",
)
"""Fields of the specification that are durations although their names do not end in ``_s``."""
_RANGES: Final = {
    "share": "a number from 0 to 1",
    "jitter_percentage": "a number from 0 to 100",
    "cost_usd": "US dollars > 0",
}


class FieldErrors(ValueError):
    """Error of a model: the problems between its fields, by their paths within the model."""

    def __init__(self, found: Iterable[Problem]) -> None:
        self.found = tuple(found)
        super().__init__("; ".join(f"{spelled(path)}: {words}" if path else words for path, words in self.found))


def complaints(error: ValidationError, source: Source, model_at: ModelAt) -> Iterator[Problem]:
    """Yield each validation error as a problem of the plan in *source*."""
    for one in error.errors(include_url=False):
        path: FieldPath = one["loc"]
        cause = one.get("ctx", {}).get("error")
        if isinstance(cause, FieldErrors):
            yield from (((*path, *inner), words) for inner, words in cause.found)
        elif path and path[-1] == "[key]":
            yield path[:-1], _bad_name(path[-2])
        elif one["type"] != "too_short" or not one["input"]:  # a list of bad items is not a short one
            yield path, _words(one, path, source, model_at)


def _words(one: ErrorDetails, path: FieldPath, source: Source, model_at: ModelAt) -> str:
    field, given, context = str(path[-1]) if path else "", one["input"], one.get("ctx", {})
    match one["type"]:
        case "extra_forbidden":
            return f"unknown key; {_known_keys(field, model_at(path[:-1]))}"
        case "missing":
            return f"missing; give {_wanted(path)}"
        case "literal_error" | "enum":
            return f"{_shown(given)} is not one of {_choices(context['expected'])}{_guess(given, context['expected'])}"
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than" | "finite_number":
            return f"{given} is {_out_of_bounds(one['type'], field, given)}; give {_bounded(field, context)}"
        case "string_pattern_mismatch":
            return _bad_name(given)
        case "too_short":
            return f"is empty; give {_wanted(path)}"
        case "string_type":
            return _not_text(given, source.written(path))
        case "value_error":
            return str(context["error"])
        case "int_type" | "float_type" | "int_from_float" | "bool_type":
            return f"{_shown(given)} is {_kind(given)}; give {_number(field, one['type'])}"
        case "tuple_type" | "dict_type" | "mapping_type" | "model_type" | "model_attributes_type":
            return f"{_shown(given)} is {_kind(given)}; give {_wanted(path)}"
        case _:
            return f"{_shown(given)}: {one['msg']}"


def _known_keys(key: str, model: type[BaseModel] | None) -> str:
    fields = {str(field.validation_alias or name): field for name, field in model.model_fields.items()} if model else {}
    known = sorted(fields, key=lambda name: not fields[name].is_required())
    near = get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"the keys here are {', '.join(known)}"


def _wanted(path: FieldPath) -> str:
    if not path:
        return "a mapping of keys to values"
    field = next((part for part in reversed(path) if isinstance(part, str)), "")
    if field in ("tasks", "subtasks", "") and isinstance(path[-1], int):
        return "a task, for example {id: hello, agent: helper, prompt: '@say hello'}"
    if len(path) == 2 and path[0] in _NAMED:
        return _NAMED[str(path[0])]
    return _WANTED.get(field, "a value")


def _choices(expected: str) -> str:
    return expected.replace("'", "").replace(" or ", ", ")


def _guess(given: Any, expected: str) -> str:
    near = get_close_matches(given, _choices(expected).split(", "), n=1) if isinstance(given, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _out_of_bounds(kind: str, field: str, given: Any) -> str:
    if kind == "finite_number":
        return "not a length of time" if _unit(field) else "too large"
    if kind.startswith("less"):
        return "too large"
    return "negative" if given < 0 else "too small"


def _bounded(field: str, context: Mapping[str, Any]) -> str:
    """Return the valid range of a number as text: its unit and its bound."""
    if field in _RANGES:
        return _RANGES[field]
    if "lt" in context:
        return f"a number below {context['lt']}"
    if unit := _unit(field):
        return f"{unit} > 0" if "gt" in context else f"{unit} >= 0"
    return f"{context['ge']} or more"


def _unit(field: str) -> str:
    if field.endswith("_s") or field in _SECONDS:
        return "seconds"
    return "milliseconds" if field.endswith("_ms") else ""


def _number(field: str, kind: str) -> str:
    if kind == "bool_type":
        return "true or false"
    match _RANGES.get(field) or _unit(field):
        case "seconds":
            return "seconds >= 0, for example 2.5"
        case "milliseconds":
            return "milliseconds >= 0, for example 500"
        case "":
            return "a whole number, for example 3"
        case wanted:
            return wanted


def _not_text(given: Any, written: str | None) -> str:
    if isinstance(given, dict | list) or written is None:
        return f"{_shown(given)} is {_kind(given)}; give text"
    if written == "":
        return "has no value; give text, or '' for none"
    return f"{written} is read as {_kind(given)}; quote it to make it text: {written!r}"


def _bad_name(given: object) -> str:
    rule = "it must begin with a letter or a digit and have at most 64 letters, digits and _ . -"
    return f"{given!r} cannot be a name: {rule}"


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(given: Any) -> str:
    match given:
        case None:
            return "no value"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(given).__name__}"
