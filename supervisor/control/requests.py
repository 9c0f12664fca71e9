"""Requests to a running supervisor: a pydantic model for each operation; the JSON object on the wire has its fields.

The field ``do`` names the operation. The field ``by`` names the sender of a command for the records; the supervisor
replaces ``by`` if the sender is no operator. ``supervisor.control.operations`` has the table of the operations. This
module imports neither a supervisor nor plans, since every client imports this module.

A request with an invalid field cannot be made: the error names the field, the value and the fix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, Strict, ValidationError, model_validator

from supervisor.control.error_messages import BadInput
from supervisor.lifecycles.types import INTEGER_MAX, AbortScope, DeliveryPoint, Verb

Flag = Annotated[bool, Strict()]
Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Number = Annotated[int, Strict(), Field(ge=0, le=INTEGER_MAX)]
ABOUT_TASKS: Final = tuple(verb for verb in Verb if verb not in (Verb.SPLIT, Verb.ADD))
"""Commands about tasks that a request ``steer`` gives; the others need tasks to add."""
_SHOWN_MAX: Final = 60
"""Maximal number of characters of a value in an error message."""


class BadRequest(BadInput):
    """Raised for a request with invalid fields."""


class Request(BaseModel):
    """Base class of the requests. The description of a field is part of error messages and of the tools for agents."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    do: str = Field(description="the name of the operation")

    @property
    def title(self) -> str:
        """The request as text, for the refusal of it."""
        return self.do

    @property
    def only_reads(self) -> bool:
        """Whether the request changes nothing, although others of its operation do."""
        return False

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            raise BadRequest(_error_text(error, cls)) from None


class Command(Request):
    """Base class of the requests whose sender is recorded."""

    by: str = Field(default="control", description="the name of the sender, for the records")


class Ping(Request):
    """Ask whether the supervisor answers, and for its pid, an outage, and processes of unknown origin."""

    do: Literal["ping"] = Field(default="ping", description="ping, the name of the operation")


class Inspect(Request):
    """Ask for the present activity of a live entity."""

    do: Literal["inspect"] = Field(default="inspect", description="inspect, the name of the operation")
    id: str = Field(description="the id of a live session, turn, agent, task (RUN#TASK, or its name) or tool call")


class Permissions(Request):
    """Ask for the permission requests that wait for an answer."""

    do: Literal["permissions"] = Field(default="permissions", description="permissions, the name of the operation")


class Processes(Request):
    """Ask for the processes of live sessions, and the calls that they belong to."""

    do: Literal["processes"] = Field(default="processes", description="processes, the name of the operation")
    id: str | None = Field(
        default=None, description="the id of the only session wanted, with all below it; or of a task (RUN#TASK)"
    )


class Stalls(Request):
    """Ask for the agents at work that make no progress."""

    do: Literal["stalls"] = Field(default="stalls", description="stalls, the name of the operation")


class AccessLevels(Request):
    """Ask for the trust levels of the agents."""

    do: Literal["access_levels"] = Field(
        default="access_levels", description="access_levels, the name of the operation"
    )


class Follow(Request):
    """Ask for the records of the journal, those to come included."""

    do: Literal["follow"] = Field(default="follow", description="follow, the name of the operation")
    after: Number = Field(default=0, description="the number of the last record that is not wanted")
    id: str | None = Field(default=None, description="the id of the only entity whose records are wanted")


class Abort(Command):
    """Abort a tool call, a session, or the siblings of a session, or ask for the plan of such an abort."""

    do: Literal["abort"] = Field(default="abort", description="abort, the name of the operation")
    id: str = Field(description="the id of a tool call or session, or of a task (RUN#TASK) for its session")
    scope: AbortScope = Field(
        description="tool, that call; sibling, the siblings of the session; session, the session with all below it"
    )
    reason: str = Field(default="", description="the reason, for the record")
    dry_run: Flag = Field(default=False, description="true to return only the plan: what would end, and the plan's id")
    now: Flag = Field(default=False, description="true to kill at once, without asking first")
    within_s: Seconds | None = Field(default=None, description="the seconds that the whole abort may take, 0 or more")
    plan: str | None = Field(default=None, description="the id of the only plan to carry out, as a dry run returned it")

    @property
    def title(self) -> str:
        return f"abort {self.id}"

    @property
    def only_reads(self) -> bool:
        return self.dry_run


class Send(Command):
    """Send a message to a session."""

    do: Literal["send"] = Field(default="send", description="send, the name of the operation")
    id: str = Field(description="the id of a session, or of a task (RUN#TASK) for its session")
    text: str = Field(description="the text for the agent")
    urgent: Flag = Field(default=False, description="true to interrupt the turn instead of waiting for the next prompt")
    at: DeliveryPoint | None = Field(
        default=None, description=f"the point at which an urgent message is delivered: {', '.join(DeliveryPoint)}"
    )

    @property
    def title(self) -> str:
        return f"send to {self.id}"


class Start(Command):
    """Start a session."""

    do: Literal["start"] = Field(default="start", description="start, the name of the operation")
    name: str = Field(description="the name of the session: letters, digits, '.', '_' and '-'")
    agent: str | None = Field(
        default=None, description="the name of a configured agent; without it, the agent of the parent"
    )
    parent: str | None = Field(default=None, description="the id of the session that the new session is a child of")
    directory: str | None = Field(
        default=None, description="the working directory of the agent, instead of the configured one"
    )
    prompt: str | None = Field(default=None, description="the first prompt, which the agent begins to work on at once")

    @property
    def title(self) -> str:
        return f"the start of {self.name}"


class Prompt(Command):
    """Give a session a prompt, a task for its agent."""

    do: Literal["prompt"] = Field(default="prompt", description="prompt, the name of the operation")
    id: str = Field(description="the id of a session")
    text: str = Field(description="the prompt for the agent")
    wait: Flag = Field(default=False, description="true to reply when the turn has ended, with its result")

    @property
    def title(self) -> str:
        return f"a prompt for {self.id}"


class Close(Command):
    """Close a session, which has no more work."""

    do: Literal["close"] = Field(default="close", description="close, the name of the operation")
    id: str = Field(description="the id of a session")
    reason: str = Field(default="no more work", description="the reason, for the record")

    @property
    def title(self) -> str:
        return f"the close of {self.id}"


class Answer(Command):
    """Answer a permission request."""

    do: Literal["answer"] = Field(default="answer", description="answer, the name of the operation")
    id: str = Field(description="the id of a permission request")
    allow: Flag = Field(description="true to allow, false to deny")
    always: Flag = Field(
        default=False, description="true to give the same answer to the same request later in the session"
    )
    because: str = Field(default="", description="the reason, for the record")

    @property
    def title(self) -> str:
        return f"an answer to {self.id}"


class Steer(Command):
    """Give a command about tasks of the running plan."""

    do: Literal["steer"] = Field(default="steer", description="steer, the name of the operation")
    verb: Verb = Field(description=f"one of {', '.join(ABOUT_TASKS)}")
    tasks: tuple[str, ...] = Field(
        default=(), description="a list of tasks: names, or RUN#TASK where two runs have the name"
    )
    all_planned: Flag = Field(default=False, description="true for all tasks that wait for approval before they begin")
    run: str = Field(default="", description="with all_planned: the id of the only run whose tasks are meant")
    on: tuple[str, ...] = Field(default=(), description="a list of what blocked tasks wait for: tasks, or other things")
    reason: str = Field(default="", description="the reason, for the record")
    command_id: str | None = Field(
        default=None, description="an id of your own: a command with this id takes effect once"
    )

    @property
    def title(self) -> str:
        return " ".join([self.verb, *self.tasks])

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.verb not in ABOUT_TASKS:
            operation = "split" if self.verb is Verb.SPLIT else "add_tasks"
            raise BadRequest(f"verb: {self.verb} needs new tasks; give them with do: {operation}")
        if self.all_planned and (self.tasks or self.command_id is not None):
            raise BadRequest(
                "all_planned: these may be other tasks each time; name the tasks, or give neither tasks nor command_id"
            )
        if self.run and not self.all_planned:
            raise BadRequest(f"run: {self.run!r} is for all_planned; name the tasks as RUN#TASK instead")
        if self.all_planned and self.verb not in (Verb.APPROVE, Verb.REJECT):
            raise BadRequest(f"all_planned: planned tasks can be approved or rejected, not {self.verb}; name the tasks")
        if not self.all_planned and not self.tasks:
            raise BadRequest("tasks: none is named; give at least one task id")
        if bool(self.on) is not (self.verb is Verb.BLOCK):
            raise BadRequest("on: names what a task waits for; give it with block, and with no other verb")
        return self


class AddTasks(Command):
    """Add tasks to a running plan."""

    do: Literal["add_tasks"] = Field(default="add_tasks", description="add_tasks, the name of the operation")
    run: str = Field(default="", description="the id of the run, such as r1; may be left out where only one goes on")
    tasks: str | list[dict[str, Any]] = Field(
        description="a list of tasks, or its YAML text, with the keys that the tasks of a plan have"
    )
    source: str = Field(default="tasks", description="the name of that text in error messages")
    reason: str = Field(default="", description="the reason, for the record")
    command_id: str | None = Field(
        default=None, description="an id of your own: a command with this id takes effect once"
    )

    @property
    def title(self) -> str:
        return f"an addition to {self.run or 'the run'}"


class Split(Command):
    """Split a task of the running plan into subtasks."""

    do: Literal["split"] = Field(default="split", description="split, the name of the operation")
    task: str = Field(description="the task: its name, or RUN#TASK where two runs have the name")
    subtasks: str = Field(description="a list of tasks as YAML text, with the keys that the tasks of a plan have")
    source: str = Field(default="subtasks", description="the name of that text in error messages")
    reason: str = Field(default="", description="the reason, for the record")
    command_id: str | None = Field(
        default=None, description="an id of your own: a command with this id takes effect once"
    )

    @property
    def title(self) -> str:
        return f"{self.do} {self.task}"


class Submit(Command):
    """Ask a daemon to run a plan."""

    do: Literal["submit"] = Field(default="submit", description="submit, the name of the operation")
    plan: str | dict[str, Any] | None = Field(
        default=None, description="the plan, as YAML or JSON text or as an object; with resume it may be left out"
    )
    path: str | None = Field(
        default=None, description="the absolute path of the plan's file, for relative paths in the plan and for errors"
    )
    directory: str = Field(description="the absolute path of the directory in which agents without a cwd work")
    environment: dict[str, str] = Field(
        default={}, description="variables that every agent of the plan gets, by name; only the names are recorded"
    )
    instead: dict[str, str] = Field(
        default={}, description="agents of the catalogue that replace agents of the plan, by the name in the plan"
    )
    name: str | None = Field(default=None, description="a name for the run, instead of the plan's key workstream")
    fail_fast: Flag = Field(default=False, description="true to end the run at the first task that has failed for good")
    plugins: Flag = Field(default=True, description="false to use no installed plug-in")
    key: str | None = Field(
        default=None, min_length=1, description="an id of your own: a request with this key begins one run"
    )
    resume: str | None = Field(
        default=None, min_length=1, description="the id of the run whose open and cancelled tasks are to be done"
    )

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if not self.plan and self.resume is None:
            raise BadRequest("plan: missing; give the text of a plan, or with resume the id of a run")
        for field, path in (("path", self.path), ("directory", self.directory)):
            if path is not None and (not path.startswith("/") or "\0" in path):
                raise BadRequest(f"{field}: {path!r} is not absolute; give the whole path")
        for name, value in self.environment.items():
            if not name or "=" in name or "\0" in name + value:
                raise BadRequest(f"environment: {name!r} is no variable; names are not empty and have no '='")
        return self


class CancelRun(Command):
    """Give up the run of a plan."""

    do: Literal["cancel_run"] = Field(default="cancel_run", description="cancel_run, the name of the operation")
    run: str = Field(description="the id of a run, such as r1")
    reason: str = Field(default="", description="the reason, for the record")

    @property
    def title(self) -> str:
        return f"the cancellation of {self.run}"


class MergeRun(Command):
    """Merge the branch of a run that has ended, or whose merge is held, or ask for the plan of that merge."""

    do: Literal["merge_run"] = Field(default="merge_run", description="merge_run, the name of the operation")
    run: str = Field(description="the id of a run, such as r1")
    dry_run: Flag = Field(default=False, description="true to return only the merge plan, and merge nothing")
    commit: str = Field(default="", description="the only commit to merge, as a dry run returned it")

    @property
    def title(self) -> str:
        return f"the merge of {self.run}"

    @property
    def only_reads(self) -> bool:
        return self.dry_run


class Reload(Command):
    """Have a daemon read its configuration again."""

    do: Literal["reload"] = Field(default="reload", description="reload, the name of the operation")


class Stop(Command):
    """End the supervisor, after the turns under way or at once."""

    do: Literal["stop"] = Field(default="stop", description="stop, the name of the operation")
    now: Flag = Field(default=False, description="true to abort everything instead of letting turns finish")


class Page(Command):
    """Ask for a link to the page for people."""

    do: Literal["page"] = Field(default="page", description="page, the name of the operation")

    @property
    def title(self) -> str:
        return "a link to the page"


class Compact(Request):
    """Move entities that ended long ago from the journal to the archive. Bounds that are given replace those of the
    plan."""

    do: Literal["compact"] = Field(default="compact", description="compact, the name of the operation")
    keep_s: Seconds | None = Field(default=None, description="the seconds for which entities are kept after their end")
    records_max: Annotated[int, Strict(), Field(ge=1, le=INTEGER_MAX)] | None = Field(
        default=None, description="the largest number of records to keep, 1 or more"
    )


def unknown_field(name: str, do: str, fields: Iterable[str]) -> str:
    """Return the error text for a field that the operation *do*, which has *fields*, does not have."""
    return f"{name}: unknown field; the fields of {do} are: {', '.join(fields) or 'none'}"


def _error_text(error: ValidationError, model: type[Request]) -> str:
    """Return a text with the field, the value and the fix for each error."""
    fields = model.model_fields
    texts = []
    for one in error.errors(include_url=False):
        field, value = str(one["loc"][0]) if one["loc"] else "", repr(one["input"])
        shown = value if len(value) <= _SHOWN_MAX else f"{value[: _SHOWN_MAX - 3]}..."
        wanted = fields[field].description or repr(fields[field].default) if field in fields else ""
        match one["type"]:
            case "missing":
                texts.append(f"{field}: missing; give {wanted}")
            case "extra_forbidden":
                known = [name for name in fields if name != "do"]
                texts.append(unknown_field(field, fields["do"].default, known))
            case _:
                texts.append(f"{field}: {shown} is not valid; give {wanted}")
    return "\n".join(texts)
