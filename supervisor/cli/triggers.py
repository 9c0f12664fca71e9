"""``supervisor triggers``: what starts plans without a person, when, and what became of each delivery."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from supervisor.cli.lookup import open_journal
from supervisor.cli.options import PATH, check_workdir, examples, json_option, say, state_dir_option, warn
from supervisor.cli.rendering import clock, columns, json_text
from supervisor.control.error_messages import BadInput
from supervisor.daemon.config import DaemonConfig, load_config
from supervisor.diagnostics.outcomes import data_of
from supervisor.journal.statedir import StateDir, StateDirError
from supervisor.lifecycles.trigger import (
    DeliveryAccepted,
    DeliveryQueued,
    DeliveryRefused,
    RunEnded,
    RunStarted,
    StartFailed,
)
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.plans.source import BadPlan
from supervisor.plugins.reading import load_plan
from supervisor.ports import EntityRow

if TYPE_CHECKING:
    from supervisor.triggers.definitions import Definition

COMING: Final = 10
_EVENT_BYTES_MAX: Final = 8 * 1024 * 1024
_WORDS: Final[Mapping[str, str]] = {
    DeliveryAccepted.spelled or "": "accepted",
    DeliveryQueued.spelled or "": "queued",
    DeliveryRefused.spelled or "": "refused",
    RunStarted.spelled or "": "started",
    StartFailed.spelled or "": "failed",
    RunEnded.spelled or "": "ended",
}

workdir_option = click.option(
    "--workdir", type=PATH, default=Path(), show_default=True, help="Working directory of the daemon."
)


@click.group(
    "triggers",
    epilog=examples(
        "supervisor triggers list",
        "supervisor triggers next nightly",
        "supervisor triggers test push --event push.json",
        "supervisor triggers history push",
    ),
)
def triggers_group() -> None:
    """Triggers are in config/triggers.yaml of the state directory; a daemon reads it if its configuration says
    `triggers: true`."""


def _definitions(state_dir: Path, workdir: Path) -> dict[str, Definition]:
    """Return the definitions of the triggers.

    Raises:
        BadInput: the file is missing or has an error, or the libraries are not installed.
    """
    check_workdir(workdir)
    with _reported():
        from supervisor.triggers.definitions import load_definitions

        return load_definitions(StateDir(state_dir).triggers, workdir.resolve(), with_secrets=False)


@contextmanager
def _reported() -> Iterator[None]:
    """Turn the errors of the definitions and of plans into bad input."""
    try:
        yield
    except BadPlan as error:
        raise BadInput(str(error)) from None
    except ModuleNotFoundError as error:
        fix = "pip install 'supervisor-runtime[triggers]'"
        raise BadInput(f"triggers: the library {error.name} is not installed; {fix}") from None


def _definition(state_dir: Path, workdir: Path, name: str) -> Definition:
    found = _definitions(state_dir, workdir)
    if name not in found:
        raise BadInput(f"NAME: {name!r} is no trigger; the triggers are {', '.join(found) or 'none'}")
    return found[name]


def _entities(state_dir: Path) -> list[EntityRow]:
    """Return the rows of all triggers of the journal; none if there is no journal yet."""
    with suppress(StateDirError), open_journal(state_dir) as (_, reader):
        return [row for row in reader.entities() if row.kind == Kind.TRIGGER]
    return []


# --------------------------------------------------------------------------------------------------------------- list
@triggers_group.command("list", epilog=examples("supervisor triggers list --json"))
@state_dir_option
@workdir_option
@json_option
def list_command(state_dir: Path, workdir: Path, as_json: bool) -> None:
    """List the triggers of the file, with their state in the daemon, and when schedules fire next."""
    definitions = _definitions(state_dir, workdir)
    from supervisor.triggers.definitions import writable_by_agents
    from supervisor.triggers.schedule import local_text

    rows = {data_of(row)["name"]: row for row in _entities(state_dir) if not row.ended}
    found = []
    for name, one in definitions.items():
        row, coming = rows.get(name), ""
        if one.config.schedule is not None:
            schedule = one.config.schedule.value()
            coming = local_text(next(schedule.after(_base(row, one)), 0.0), schedule)
        found.append(
            {
                "name": name,
                "source": one.source_text,
                "starts": one.config.starts,
                "state": row.state if row is not None else "not in a daemon yet",
                "next": coming,
            }
        )
    heads = ("NAME", "SOURCE", "STARTS", "STATE", "NEXT")
    say(json_text(found) if as_json else columns(heads, [[*one.values()] for one in found]))
    if reason := writable_by_agents(StateDir(state_dir).triggers):
        warn(reason)


def _base(row: EntityRow | None, definition: Definition) -> float:
    """Return the Unix time after which the next occurrence is looked for: an interval counts from the last one."""
    now, schedule = time.time(), definition.config.schedule
    if row is None or schedule is None or schedule.every_s is None or data_of(row)["definition"] != definition.digest:
        return now
    decided_s = float(data_of(row)["decided_s"])
    return decided_s + max(0, (now - decided_s) // schedule.every_s) * schedule.every_s


# --------------------------------------------------------------------------------------------------------------- next
@triggers_group.command("next", epilog=examples("supervisor triggers next nightly"))
@click.argument("name", metavar="NAME")
@state_dir_option
@workdir_option
@json_option
def next_command(name: str, state_dir: Path, workdir: Path, as_json: bool) -> None:
    """Print the coming ten times of a schedule: local time with its offset, and UTC."""
    one = _definition(state_dir, workdir, name)
    from supervisor.triggers.schedule import local_text, occurrence_id

    if one.config.schedule is None:
        raise BadInput(f"NAME: {name!r} is a {one.source_text}; only a schedule has times")
    schedule = one.config.schedule.value()
    row = next((row for row in _entities(state_dir) if not row.ended and data_of(row)["name"] == name), None)
    times = list(islice(schedule.after(_base(row, one)), COMING))
    found = [{"local": local_text(at, schedule), "utc": occurrence_id(at)} for at in times]
    say(json_text(found) if as_json else "\n".join(f"{one['local']}  {one['utc']}" for one in found))


# --------------------------------------------------------------------------------------------------------------- test
class _Trial(NamedTuple):
    """Result of a trial: what the event would start, the values and the prompts of the tasks; or the reason why the
    delivery would be refused."""

    starts: str
    values: Mapping[str, str]
    prompts: Mapping[str, str]
    refused: str = ""


@triggers_group.command("test", epilog=examples("supervisor triggers test push --event push.json"))
@click.argument("name", metavar="NAME")
@click.option("--event", "event_file", type=PATH, required=True, metavar="FILE", help="JSON document of the event.")
@click.option("--event-name", default="", metavar="EVENT", help="Name of the event, such as push.")
@click.option("--config", type=PATH, metavar="FILE", help="Configuration of the daemon, with the agents.")
@state_dir_option
@workdir_option
@json_option
def test_command(
    name: str, event_file: Path, event_name: str, config: Path | None, state_dir: Path, workdir: Path, as_json: bool
) -> None:
    """Print what an event would start, and with which prompts; nothing is started. The exit status is 1 if it would
    start nothing."""
    one = _definition(state_dir, workdir, name)
    with _reported():
        known = load_config(config) if config is not None else DaemonConfig()
        trial = _try(one, _document(event_file), event_name, known, workdir.resolve())
    if as_json:
        say(json_text(trial._asdict()))
    elif trial.refused:
        say(f"refused: {trial.refused}")
    else:
        say(f"starts {trial.starts}")
        say("\n".join(f"--- prompt of {task}\n{prompt}" for task, prompt in trial.prompts.items()))
    if trial.refused:
        click.get_current_context().exit(1)


def _document(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_EVENT_BYTES_MAX))
    except OSError as error:
        raise BadInput(f"--event: {path} cannot be read: {error.strerror}; give a file with JSON") from None
    except ValueError as error:
        raise BadInput(f"--event: {path} is not JSON: {error}; give the body that the sender sends") from None
    if not isinstance(found, dict):
        raise BadInput(f"--event: {path} is not a JSON object; give the body that the sender sends")
    return found


def _try(definition: Definition, document: Mapping[str, Any], event: str, known: DaemonConfig, workdir: Path) -> _Trial:
    """Return what the document would start.

    Raises:
        BadPlan: the plan has an error.
    """
    from supervisor.triggers.definitions import compose, unsafe_agent
    from supervisor.triggers.event_values import take_values, why_not_meant

    config = definition.config
    if config.webhook and (why := why_not_meant(document, event, config.webhook.events, config.only)):
        return _Trial(config.starts, {}, {}, why)
    values = take_values(document, config.values)
    text, path = compose(definition, workdir, values)
    source = Path(path or f"trigger {definition.name}")
    plan = load_plan(source, content=text.encode(), base=source.parent if path else workdir, agents=known.agents)
    if values and (why := unsafe_agent(plan)):
        raise BadPlan(f"triggers.{definition.name}.{why}")
    return _Trial(config.starts, values, {task.id: task.prompt for task in plan.tasks})


# ------------------------------------------------------------------------------------------------------------ history
@triggers_group.command("history", epilog=examples("supervisor triggers history push --json"))
@click.argument("name", metavar="[NAME]", required=False)
@state_dir_option
@json_option
def history_command(name: str | None, state_dir: Path, as_json: bool) -> None:
    """Print every delivery that is in the journal, with what it started, or why it was refused; the newest last.
    Requests to webhooks that are not there have no TRIGGER."""
    found: list[tuple[str, LifecycleEvent]] = []
    with open_journal(state_dir) as (_, reader):
        named = {row.id: str(data_of(row)["name"]) for row in reader.entities() if row.kind == Kind.TRIGGER}
        if name is not None and name not in named.values():
            names = ", ".join(one for one in named.values() if one) or "none"
            raise BadInput(f"NAME: {name!r} has no records; the triggers are {names}")
        for entity_id, trigger in named.items():
            if name in (None, trigger):
                found += [(trigger, one) for one in reader.events(entity_id) if one.event in _WORDS]
    found.sort(key=lambda one: one[1].seq)
    lines = [_line(trigger, one) for trigger, one in found]
    if as_json:
        say(json_text(lines))
    else:
        heads = ("TIME", "TRIGGER", "DELIVERY", "OUTCOME", "RUN", "WHY")
        rows = [[clock(one["time"]), *(str(one[key]) or "-" for key in [*one][1:])] for one in lines]
        say(columns(heads, rows))


def _line(trigger: str, record: LifecycleEvent) -> dict[str, Any]:
    more = record.metadata.get("unrecorded", 0)
    return {
        "time": record.timestamp,
        "trigger": trigger,
        "delivery": record.metadata.get("delivery", ""),
        "outcome": _WORDS[record.event],
        "run": record.metadata.get("run", ""),
        "why": record.reason + (f" (and {more} refused before it, without a record)" if more else ""),
    }
