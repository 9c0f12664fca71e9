"""Definitions of triggers: the file ``config/triggers.yaml`` of the state directory, read and checked as a whole.

Whatever is wrong is reported as in a plan, with line, field, value and fix; nothing of a file with an error is used.
Secrets are read from the file or the variable that the definition names: the triggers file has none. Relative paths are
relative to the directory of the daemon.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from pydantic import Field, ValidationError

from supervisor.lifecycles.trigger import Overlap
from supervisor.plans.agents import AgentConfig
from supervisor.plans.error_texts import Problem, complaints
from supervisor.plans.fields import Count, Duration, Model, Name, Several, Text
from supervisor.plans.loading import model_at, prompt_words
from supervisor.plans.plan import Plan
from supervisor.plans.source import BadPlan, Source, read_source
from supervisor.plans.tasks import TaskConfig, every_task
from supervisor.triggers.event_values import VALUES_MAX, add_values
from supervisor.triggers.schedule import Missed, Schedule, check_cron, read_zone
from supervisor.triggers.signatures import Provider, check_secret

WATCHES_MAX: Final = 20
STARTS_PER_HOUR_MAX: Final = 1_000
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ: Final = 0o077
_SECRET_BYTES_MAX: Final = 4_096


class SecretConfig(Model):
    """Place of a secret."""

    env: Text | None = Field(default=None, description="Variable of the daemon's environment that has the secret.")
    file: Text | None = Field(default=None, description="File that has the secret, and that only its owner may read.")

    def problems(self) -> Iterator[Problem]:
        if (self.env is None) is (self.file is None):
            yield (), "give either env, the name of a variable, or file, the path of a file"


class ScheduleConfig(Model):
    """Times at which a trigger fires: cron or every_s."""

    cron: Text | None = Field(default=None, description="Five fields, by the rules of Debian's cron.")
    timezone: Text = Field(default="UTC", description="Time zone of cron, such as Europe/Berlin.")
    every_s: Annotated[Count, Field(ge=10)] | None = Field(
        default=None, description="Whole seconds between two runs, by elapsed time, 10 or more."
    )
    missed: Missed = Field(
        default=Missed.SKIP,
        description="Treatment of the times that passed without a daemon: skip, once (one run for all), or all.",
    )

    def problems(self) -> Iterator[Problem]:
        if (self.cron is None) is (self.every_s is None):
            yield (), "give either cron or every_s"
            return
        try:
            zone = read_zone(self.timezone)
        except ValueError as error:
            yield ("timezone",), str(error)
            return
        if self.cron is not None:
            try:
                check_cron(self.cron, zone, time.time())
            except ValueError as error:
                yield ("cron",), str(error)

    def value(self) -> Schedule:
        """Return the schedule as its occurrences are computed."""
        return Schedule(self.cron or "", read_zone(self.timezone), self.every_s or 0)


class WebhookConfig(Model):
    """Requests of a provider to ``POST /hooks/NAME``."""

    provider: Provider = Field(description="Sender, which decides how a request is signed.")
    secret: SecretConfig = Field(description="Secret of the signature; for discord the public key of the application.")
    events: Several[Text] = Field(default=(), description="Names of events that are taken; by default all.")
    bytes_max: Annotated[Count, Field(le=8 * 1024 * 1024)] = Field(
        default=1024 * 1024, description="Largest body in bytes; a larger one is refused before it is read."
    )
    requests_per_minute: Annotated[Count, Field(le=6_000)] = Field(
        default=60, description="Requests of one address that are taken in a minute; more are refused unread."
    )


class WatchConfig(Model):
    """Files that are watched."""

    folder: Text = Field(description="Directory whose files are watched, with all directories below it.")
    match: Several[Text] = Field(default=("*",), description="Patterns of paths below the folder, such as '*.md'.")
    settle_s: Duration = Field(default=2.0, description="Seconds without a change after which a change is taken.")


class TriggerConfig(Model):
    """Trigger: one source (schedule, webhook or watch), and what a delivery starts (a plan or one task)."""

    schedule: ScheduleConfig | None = Field(default=None, description="Times at which the trigger fires.")
    webhook: WebhookConfig | None = Field(default=None, description="Requests over HTTP.")
    watch: WatchConfig | None = Field(default=None, description="Files whose changes fire the trigger.")
    plan: Text | None = Field(default=None, description="Plan that a delivery starts; it is read at each start.")
    task: TaskConfig | None = Field(
        default=None,
        description="Task that a delivery starts, with an agent of the daemon's configuration.",
    )
    values: Mapping[Name, Text] = Field(
        default={}, description="Values of the event that prompts get as data: names, and dotted paths in the event."
    )
    only: Mapping[Text, Several[Text]] = Field(
        default={}, description="Values that the event must have: dotted paths, and lists of the values."
    )
    overlap: Overlap = Field(
        default=Overlap.SKIP, description="Treatment of a delivery while a run of the trigger goes on."
    )
    starts_per_hour: Annotated[Count, Field(le=STARTS_PER_HOUR_MAX)] = Field(
        default=10, description="Largest number of runs that are started within an hour."
    )

    @property
    def starts(self) -> str:
        """Text for people about what a delivery starts."""
        return self.plan or (f"task {self.task.id}" if self.task is not None else "")

    @property
    def source_text(self) -> str:
        """Text for people about the source of the trigger, which changes with its times."""
        if self.schedule is not None and self.schedule.every_s:
            return f"every {self.schedule.every_s} s"
        if self.schedule is not None:
            return f"cron {self.schedule.cron} {self.schedule.timezone}"
        if self.webhook is not None:
            return f"webhook {self.webhook.provider.value}"
        return f"watch {self.watch.folder}" if self.watch is not None else ""

    def problems(self) -> Iterator[Problem]:
        sources = [name for name in ("schedule", "webhook", "watch") if getattr(self, name) is not None]
        if len(sources) != 1:
            yield (), f"has {' and '.join(sources) or 'no source'}; give one of schedule, webhook and watch"
        if (self.plan is None) is (self.task is None):
            yield (), "give either plan, the path of a plan, or task, with id, agent and prompt"
        if len(self.values) > VALUES_MAX:
            yield ("values",), f"has {len(self.values)} values; give {VALUES_MAX} or fewer"
        if self.watch is not None and self.overlap is not Overlap.SKIP:
            yield ("overlap",), "a watch has skip: what changes during its run counts as written by the run"
        if self.only and self.webhook is None:
            yield ("only",), "belongs to a webhook; leave it out"
        missed = self.schedule.missed if self.schedule is not None else Missed.SKIP
        if missed is Missed.ALL and self.overlap is Overlap.SKIP:
            yield ("schedule", "missed"), "all needs overlap: queue or allow, else each run skips those after it"


class TriggersFile(Model):
    """File of the triggers."""

    triggers: Mapping[Name, TriggerConfig] = Field(description="Triggers by name.")

    def problems(self) -> Iterator[Problem]:
        watches = [name for name, one in self.triggers.items() if one.watch is not None]
        if len(watches) > WATCHES_MAX:
            yield ("triggers",), f"{len(watches)} triggers watch files; give {WATCHES_MAX} or fewer"


class Definition(NamedTuple):
    """Trigger of a checked file: its name, its configuration, a digest of that, a text that names its source, and the
    value of its secret (``""``: it has none)."""

    name: str
    config: TriggerConfig
    digest: str
    source_text: str
    secret: str

    def __repr__(self) -> str:  # without the secret
        return f"<Definition {self.name}>"


def load_definitions(path: Path, directory: Path, *, with_secrets: bool = True) -> dict[str, Definition]:
    """Read and check the triggers file at *path*, ``config/triggers.yaml`` of a state directory; *directory* is the
    working directory of the daemon. Without *with_secrets*, secrets are neither read nor checked.

    Raises:
        BadPlan: one line for every problem.
    """
    source = read_source(path)
    _check_writers(path)
    try:
        file = TriggersFile.model_validate(source.data)
    except ValidationError as error:
        raise source.bad(complaints(error, source, partial(model_at, root=TriggersFile))) from None
    problems: list[Problem] = []
    found = {
        name: _define(name, one, directory, path.parent.parent, problems, with_secrets)
        for name, one in file.triggers.items()
    }
    if problems:
        raise source.bad(problems)
    return found


def _check_writers(path: Path) -> None:
    """Check that only the owner of the file may change it, since whoever writes it may start plans.

    Raises:
        BadPlan: others may write the file or replace it.
    """
    for one in (path, path.parent):
        status = one.stat()
        if status.st_mode & _OTHERS_WRITE or status.st_uid not in (0, os.geteuid()):
            raise BadPlan(f"{path}: other users may write {one}, or own it; `chmod go-w {one}` and chown it")
    if path.is_symlink():
        raise BadPlan(f"{path}: is a symbolic link, which others may direct elsewhere; put the file itself there")


def writable_by_agents(path: Path) -> str:
    """Return a sentence if agents, which run as this user, can write the triggers file, or replace it or a folder above
    it; ``""`` if they cannot."""
    own = os.geteuid()
    chains = {Path(os.path.abspath(path)): None, path.resolve(): None}  # a link on the way can be replaced, too
    changed = next((one for chain in chains for one in _changeable(chain, own)), "")
    if not changed:
        return ""
    fix = "`Who can write the file` in docs/how-to/triggers.md says how to take that from them"
    return f"agents run as the user of the daemon, and can {changed}: a change takes effect at a reload; {fix}"


def _changeable(path: Path, own: int) -> Iterator[str]:
    """Yield what the user *own* can do to the file at *path*, or to a folder above it, so that the daemon reads another
    file."""
    if _may_write(path, own):
        yield f"write {path}"
    for one in (path, *path.parents[:-1]):
        above, status = one.parent.stat(), one.lstat()
        keeps = above.st_mode & stat.S_ISVTX and own not in (0, status.st_uid, above.st_uid)
        # Nobody can rename a place where a file system is mounted.
        if _may_write(one.parent, own) and not keeps and not os.path.ismount(one):
            yield f"replace {one}"


def _may_write(path: Path, own: int) -> bool:
    """Return whether the user *own* may write *path*, or may give itself the right to; a group counts as everybody."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return False
    status = path.stat()
    return own in (0, status.st_uid) or bool(status.st_mode & _OTHERS_WRITE)


def _define(
    name: str, config: TriggerConfig, directory: Path, state_root: Path, problems: list[Problem], with_secrets: bool
) -> Definition:
    place = ("triggers", name)
    secret = ""
    if (hook := config.webhook) is not None and with_secrets:
        try:
            secret = _read_secret(hook.secret, directory)
            check_secret(hook.provider, secret)
        except ValueError as error:
            problems.append(((*place, "webhook", "secret"), str(error)))
    if config.watch is not None:
        folder = (directory / config.watch.folder).resolve()
        if not folder.is_dir():
            problems.append(((*place, "watch", "folder"), f"no directory {str(folder)!r}; make it first"))
        elif folder.is_relative_to(state_root.resolve()):
            words = f"{str(folder)!r} belongs to the supervisor, which writes there; watch another directory"
            problems.append(((*place, "watch", "folder"), words))
    if config.plan is not None:
        try:
            read_source(directory / config.plan)
        except BadPlan as error:
            problems.append(((*place, "plan"), str(error)))
    plain = config.model_dump(mode="json")
    return Definition(name, config, digest_of(plain), config.source_text, secret)


def _read_secret(config: SecretConfig, directory: Path) -> str:
    """Return the value of a secret.

    Raises:
        ValueError: there is none, or others may read its file.
    """
    if config.env is not None:
        if not (value := os.environ.get(config.env, "")):
            raise ValueError(f"the variable {config.env} is not set in the daemon's environment; set it")
        return value
    path = directory / (config.file or "")
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS_READ:
                raise ValueError(f"others may read {path}; `chmod 600` it")
            return file.read(_SECRET_BYTES_MAX).decode().strip()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; give a file with the secret") from None


def digest_of(plain: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]


def compose(definition: Definition, directory: Path, values: Mapping[str, str]) -> tuple[str, str]:
    """Return the text of the plan that a delivery with *values* starts, and the path of its file (``""``: it is a
    task).

    Raises:
        BadPlan: the file of the plan cannot be read.
    """
    config = definition.config
    if config.task is not None:
        plan: Any = {"tasks": [config.task.model_dump(mode="json", exclude_unset=True)], "workstream": definition.name}
        path = ""
    else:
        source: Source = read_source(directory / (config.plan or ""))
        plan, path = source.data, str(directory / (config.plan or ""))
    add_values(plan, values)
    return msgspec.json.encode(plan).decode(), path


def unsafe_agent(plan: Plan) -> str:
    """Return why values must not go to the prompts of a plan: an agent that may execute its prompt as a program, or
    that has it in its command line; ``""`` if no task has such an agent."""
    for one in every_task(plan.tasks):
        review = plan.review_of(one.task)
        reviewers = () if review is None else (review.agent,)
        for name in dict.fromkeys((one.task.agent, *one.task.fallback_agents, *reviewers)):
            if reason := _reason(plan.agent_configs[name]):
                fix = "leave values out, or use an agent that reads its prompt as text"
                return f"values: agent {name!r} of task {one.task.id!r} {reason}; {fix}"
    return ""


def _reason(agent: AgentConfig) -> str:
    if agent.is_command:
        return "is a command, which may execute its prompt"
    return "has its prompt in its command line" if prompt_words(agent) else ""
