"""Schemas of the responses: made from the values that the runtime returns, with a description for each field.

The runtime's values are msgspec structs, which are encoded as they are; FastAPI only needs their schema. ``schema_of``
makes a pydantic model from a struct, so that a field exists once, and takes the descriptions from ``FIELDS``. A test
finds a field without a description.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, create_model

from supervisor.control.http.views import Detail, Health, Line, Usage
from supervisor.diagnostics.causal_trace import Annotation, Explanation, SpineStep
from supervisor.diagnostics.quality import Check, QualityTotals, TaskQuality
from supervisor.diagnostics.run_graph import RunGraph, TaskNode
from supervisor.diagnostics.run_summary import RunSummary
from supervisor.diagnostics.task_status import DeadLetter
from supervisor.diagnostics.tool_calls import ToolCall
from supervisor.diagnostics.tree_view import Node
from supervisor.diagnostics.visual_state import Inspected, TaskStack
from supervisor.lifecycles.types import Ending, HeldBy, LifecycleEvent
from supervisor.plans.task_control import CommandResult
from supervisor.policies.abort_plan import (
    AbortPlan,
    CallBeside,
    Crossing,
    EndingNode,
    NodeReceipt,
    PlannedNode,
    PlannedProcess,
    ProcessFate,
    Receipt,
    SparedNode,
    UncrossedEdge,
)
from supervisor.policies.access import AccessLevel
from supervisor.policies.budgets import Amounts, Budget
from supervisor.policies.call_processes import LiveProcess
from supervisor.policies.liveness import SilentAgent
from supervisor.policies.permissions import OpenPermission
from supervisor.policies.stage_deadlines import StageDeadlines
from supervisor.ports import Compacted, MergePlan, UnidentifiedProcess
from supervisor.ports.outages import Outage, Shortage
from supervisor.sessions.inspection import LiveProcesses

_ID: Final = "the id of the entity: lead (a session), lead:t1 (a turn), lead:t1:c2 (a tool call), r1#fix (a task), ..."
_KIND: Final = "the kind of the entity: session, agent, turn, tool, permission, task, run, job, workstream or worker"
_STATE: Final = "the state in the entity's state table; open for a tool call"
_LINE: Final = {
    "id": _ID,
    "kind": _KIND,
    "state": _STATE,
    "visual": "the visual state of an agent, or of a session's newest agent; null for other entities",
    "age_s": "the seconds from the first record until now, or until the end",
    "parent": "the id of the entity above; null for none",
    "ended": "whether the entity has ended",
    "pid": "the process id of an agent; null if it has none",
    "note": "a text for people: what the entity waits for, and why it ended",
    "outcome": "the word for the end of a session, task or plan run; empty before the end",
    "supervised": "false for what a dead supervisor has left",
    "ending": "the stage in which the termination of a session is; null before and after",
    "silent_s": "the seconds since the last output or record of a living session, or of the session that works on a "
    "task; null for others",
    "used": "null in lists; /api/v1/usage has the amounts",
    "born_at": "the Unix time of the first record",
    "changed_at": "the Unix time of the last record",
    "seq": "the number of the first record: the order of creation",
}
_AMOUNTS: Final = {
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "cost_usd": "cost in US dollars, as the agents report it",
    "turns": "turns",
    "tool_calls": "tool calls",
    "wall_s": "seconds of turns; two turns at once use two seconds per second",
    "cached_tokens": "the part of input_tokens that was read from a cache",
    "requests": "requests to a model",
}

_RUN: Final = {
    "id": "the id of the run, such as r1",
    "plan": "the name of the plan",
    "state": "the state of the run: planned, ready, executing, validating, completed, failed or cancelled",
    "outcome": "the word for the end; empty before the end",
    "supervised": "false for a run that a dead supervisor has left",
    "tasks": "the number of tasks of the plan",
    "done": "the number of tasks that are completed, skipped or rejected",
    "tokens": "the tokens that its agents have reported",
    "cost_usd": "the cost that its agents have reported, in US dollars",
    "started_at": "the Unix time of the first record",
    "took_s": "the seconds until the end, or until now",
    "held_by": "what holds the run, with the command that helps; empty for nothing",
}

FIELDS: Final[Mapping[type[msgspec.Struct], Mapping[str, str]]] = {
    Line: _LINE,
    Detail: {
        **_LINE,
        "entity_seq": "the number of the last record among those of the entity",
        "data": "the data of the entity, as its state table keeps them",
        "used": "the amounts used by the entity and everything below it; null if none are reported",
        "budget": "the amounts that a live session may still use; null for others",
    },
    Node: {
        "id": _ID,
        "kind": _KIND,
        "state": _STATE,
        "note": _LINE["note"],
        "outcome": _LINE["outcome"],
        "ended": _LINE["ended"],
        "supervised": _LINE["supervised"],
        "ending": _LINE["ending"],
        "silent_s": _LINE["silent_s"],
        "used": "null in this tree; /api/v1/usage has the amounts",
        "children": "the entities below",
    },
    LifecycleEvent: {
        "seq": "the number of the record; records are numbered from 1, and never again",
        "timestamp": "the Unix time, for people",
        "monotonic_s": "the time of the decisions, in seconds, which never goes back",
        "entity_type": _KIND,
        "entity_id": _ID,
        "entity_seq": "the number among the records of this entity, from 1",
        "event": "the name of the event, or of the fact",
        "from_status": "the state before",
        "to_status": "the state after",
        "outcome": "transition, born (the first record), refused (not allowed in the state), stale (came too late) or "
        "fact (no event)",
        "actor": "the person or program that caused it",
        "reason": "the reason that was given",
        "transition_reason": "why it ended or was tried again (specification, TransitionReason)",
        "abort_reason": "why it was aborted (specification, AbortReason)",
        "abort_id": "the id of the abort that it belongs to",
        "cause_id": "the number of the record that caused it; null for a root event",
        "severity": "debug, info, warning, error or critical",
        "metadata": "the fields of the event",
    },
    ToolCall: {
        "id": "the id of the call, such as lead:t1:c2",
        "turn": "the id of the turn",
        "title": "the command, or the description that the agent gives",
        "kind": "the kind of tool: execute, edit, read, fetch, other, ...",
        "state": "open, or the outcome: completed, failed, aborted or unknown",
        "within": "the id of the call that contains this call; empty for none",
        "reason": "why the call failed or was aborted",
        "began_at": "the Unix time of its start",
        "ended_at": "the Unix time of its end; null while it is open",
    },
    OpenPermission: {
        "id": "the id of the request, such as lead:t1:p1: POST /api/v1/permissions/ID answers it",
        "session": "the id of the session",
        "agent": "the name of the agent",
        "title": "what the agent wants to do",
        "kind": "the kind of action: execute, edit, read, ...",
        "tool": "the name of the tool, if the agent says it",
        "detail": "the command or the paths",
        "options": "the kinds of answers that the agent offers",
        "left_s": "the seconds until the request is denied",
    },
    Amounts: _AMOUNTS,
    Budget: {
        "tokens": "input and output tokens; null is no bound",
        "cost_usd": "US dollars; null is no bound",
        "turns": "turns; null is no bound",
        "tool_calls": "tool calls; null is no bound",
        "wall_s": "seconds of turns; null is no bound",
    },
    Usage: {"id": _ID, "used": "the amounts used by the entity and everything below it"},
    Inspected: {
        "id": _ID,
        "kind": _KIND,
        "state": _STATE,
        "phase": "live or stopping",
        "reason": "the reason of a stop",
        "cancelled_for": "why the cancel scopes around it were cancelled",
        "children": "the ids of the actors below",
        "tasks": "the asynchronous tasks that run, with their stacks",
        "queued": "the numbers of messages in the mailbox, by lane",
        "handled": "the number of messages handled",
        "late_replies": "the number of replies that came too late",
        "timers": "the number of timers that are set",
        "agent": "the id of the current agent",
        "pid": "the process id of the agent",
        "turn": "the id of the current turn",
        "open_calls": "the ids of the open tool calls",
        "permissions": "the ids of the permission requests that wait for a person",
        "checkpoint": "the checkpoint with which the entity begins",
        "held_by": "the obstacle outside of the work that holds a step of a task; null for none",
        "ending": _LINE["ending"],
    },
    HeldBy: {
        "what": "the obstacle, in the words after `held by`",
        "fix": "the command, or the act, that removes it",
        "path": "the lock, the checkout or the directory",
        "files": "the files that differ there",
        "pid": "the process that holds it; 0 if it is not known",
        "program": "the program that holds it",
        "since": "the Unix time since when it holds the step; 0: since the step was tried first",
        "pause_s": "the largest number of seconds until the step is tried again",
    },
    Ending: {
        "stage": "the termination stage: request, cancel, terminate, kill, ...",
        "deadline": "the Unix time at which the stage is over; null if none is known",
    },
    TaskStack: {"name": "the name of the task", "stack": "file:line in function, the outermost call first"},
    MergePlan: {
        "branch": "the branch of the run",
        "commit": "the commit of that branch, which is merged",
        "target": "the branch that it is merged into",
        "target_commit": "the commit that the target is at",
        "base": "the last commit that both have",
        "files": "the paths that the run changes",
        "whole": "whether all of these paths are listed",
        "behind": "the number of commits of the target that the branch does not have",
        "conflicts": "the paths in conflict with these",
        "is_merged": "whether the target has the commit already",
        "run": "the id of the run",
        "tasks": "the names of the tasks whose work is merged",
        "left_out": "the names of the tasks whose work is not, each with its end",
    },
    AbortPlan: {
        "target": "the id that the abort names",
        "scope": "the scope of the abort",
        "nodes": "everything that would end, leaves first",
        "already_ended": "whether the target has ended with everything below it",
        "deadline_s": "the seconds after which the last of them has ended",
        "id": "the id of the plan: POST /api/v1/aborts/ID executes it",
        "now": "whether it begins at the kill stage",
        "crossings": "the levels that the abort spreads to, as the abort policy allows",
        "ending": "the sessions in reach that are being ended already",
        "spared": "the sessions in reach that live on, each with the reason",
        "uncrossed": "the levels that the abort does not spread to, since a policy does not allow it",
        "beside": "the other calls of the turn, which end if the agent does not end the call alone",
    },
    Receipt: {
        "abort_id": "the id of the abort in the records",
        "target": "the id that the abort names",
        "scope": "the scope of the abort",
        "reason": "the reason that was given",
        "already_ended": "whether the target had ended, or was being ended",
        "nodes": "the end of each entity",
        "processes": "the end of each process tree",
        "survivors": "the number of processes that live on, or unknown",
        "killed_at": "the Unix time at which the last of them had ended",
        "recorded_at": "the Unix time at which that was on the disk; null if it is not yet",
        "joined": "the id of the abort that was ending the target already",
        "cancelled_task": "the name of the task that the abort cancels",
        "spared": "the sessions in reach that live on",
        "outage": "why the end is not recorded yet; null if it is",
        "beside": "the calls that have ended with the target, since its turn was interrupted",
    },
    CallBeside: {"id": "the id of the call", "title": "what the agent calls it"},
    PlannedNode: {
        "id": _ID,
        "kind": _KIND,
        "scope": "the scope by which the abort reaches it",
        "edge": "the policy edge by which the abort reaches it; null if it was named, or lies below",
        "reason": "the reason of its end",
        "mode": "the loosest cancel mode on the way to it; only wait_completed is waited for",
        "due": "the seconds from the abort at which each termination stage is over; null for none",
        "processes": "its processes",
    },
    StageDeadlines: {
        "request_s": "the end of the stage request",
        "cancel_s": "the end of the stage cancel",
        "terminate_s": "the end of the stage terminate",
        "kill_s": "the end of the stage kill",
    },
    PlannedProcess: {"owner": "the id of the agent or call", "pid": "the process id"},
    Crossing: {
        "edge": "the policy edge",
        "ruled_by": "the session whose policy has the edge",
        "scope": "the scope on the new level",
        "after": "the edge of the step before; null for the first step",
    },
    EndingNode: {"id": _ID, "edge": "the policy edge by which the abort reaches it; null for none"},
    SparedNode: {
        "id": _ID,
        "parent": "the nearest session above that lives on; null if it becomes a root session",
        "reason": "why it lives on",
    },
    UncrossedEdge: {
        "edge": "the policy edge",
        "ruled_by": "the session whose policy does not have the edge",
        "scope": "the scope that the abort would have got there",
    },
    NodeReceipt: {
        "id": _ID,
        "kind": _KIND,
        "outcome": "ended, abandoned (every stage was tried in vain) or requested (it is not waited for)",
        "rung": "the last termination stage that was needed",
        "took_s": "the seconds since the abort",
        "how": "details",
        "ended_at": "the Unix time of the end",
    },
    ProcessFate: {
        "owner": "the id of the agent or call",
        "pid": "the process id; 0 if the processes could not be listed",
        "status": "the exit status; negative for a signal; null if it is unknown",
        "ended_by": "exit, terminate or kill; empty for a process that may belong to the call and was not ended",
        "killed": "the number of descendants that had to be killed",
        "survivors": "the number of descendants that live on, or unknown",
        "exiting_s": "the seconds that the kernel needed to end it after the kill, if they were many",
    },
    CommandResult: {
        "verb": "the command",
        "entity_id": "the id of the task",
        "state": "the state of the task afterwards",
        "seq": "the number of the record of the command",
        "subtasks": "the ids of the parts of a split",
        "repeated": "whether this command was given before, so that nothing was done now",
    },
    Compacted: {
        "archives": "the names of the archives that were made or completed",
        "records": "the number of records that were moved",
        "entities": "the number of entities that were moved",
        "records_left": "the number of records in the journal",
        "entities_left": "the number of entities in the journal",
    },
    Explanation: {
        "entity_id": _ID,
        "sentence": "what happened, and the root cause, in one sentence",
        "root": "the root event; null if a cause is missing in the journal",
        "roots": "the number of root events of the whole tree",
        "missing": "the number of the cause that the journal lacks; null for none",
        "steps": "the chain of causes, oldest first",
    },
    SpineStep: {
        "role": "the role of the record in the explanation",
        "record": "the record",
        "branches": "records that belong to the step and did not cause it",
    },
    Annotation: {"role": "the role of the record in the explanation", "record": "the record"},
    RunSummary: _RUN,
    RunGraph: {
        **_RUN,
        "note": "a text for people: the tasks in numbers, and the last error",
        "resumes": "the id of the run whose unfinished tasks this run does again; empty for none",
        "key": "the idempotency key of the request for the run; empty for none",
        "counts": "the number of tasks by the word for their end; by their state where they have not ended",
        "used": "the amounts that its agents have used; null if none are reported",
        "graph": "the tasks, in the order of their creation; depends_on has the edges",
    },
    TaskNode: {
        "id": "the id of the task, such as r1#fix",
        "name": "the name of the task in its plan",
        "state": "the state of the task",
        "outcome": "the word for the end; empty before the end",
        "depends_on": "the ids of the tasks that must end before it begins; a name if the task ended in an earlier run",
        "part_of": "the id of the task that was split into it; empty for none",
        "session": "the session that works on it, or did so last; empty for none",
        "claims": "the number of sessions that took it",
        "note": "a text for people: what the task waits for, and why it ended",
        "used": "the amounts used for it; null if none are reported",
    },
    QualityTotals: {
        "tasks": "the number of tasks",
        "completed": "the number of completed tasks",
        "first_time": "the number of completed tasks without a retry or rejection",
        "attempts": "the number of attempts",
        "retries": "the number of decisions to try again",
        "rejections": "the number of checks that a result did not pass",
        "given_up": "the number of failed tasks that only a person can have tried again",
    },
    TaskQuality: {
        "id": "the id of the task, such as r1#fix",
        "name": "the name of the task in its plan",
        "run": "the id of the run",
        "state": "the state of the task",
        "outcome": "the word for the end; empty before the end",
        "claims": "the number of sessions that took it",
        "attempts": "the number of attempts in all claims",
        "failures": "the number of failed attempts that count",
        "retries": "the number of decisions to try again",
        "rejections": "the number of checks that a result did not pass",
        "given_up": "whether only a person can have it tried again",
        "checks": "the verdicts about its results, in their order",
    },
    Check: {
        "kind": "tests (acceptance tests and completion signals), review, verification (tests after the turn, and the "
        "merge) or approval",
        "passed": "whether the result passed",
        "seq": "the number of the record",
        "at": "the Unix time of the verdict",
        "by": "the person, agent or part of the supervisor that gave it",
        "text": "the findings, or the error; empty for none",
    },
    SilentAgent: {
        "session": "the id of the session",
        "turn": "the id of the turn",
        "profile": "the stall profile that applies now: default, large or tests",
        "snapshots": "the number of snapshots in a row without progress",
        "snapshot_s": "the seconds between two snapshots",
        "silent_s": "the seconds without progress that the snapshots cover",
        "taken": "the actions taken: wake, stop, kill",
        "next": "the next action; null if none follows",
        "next_in_s": "the largest number of seconds until the next action; null if none follows",
        "ends_in_s": "the largest number of seconds until the session is aborted; null for a one-shot agent",
    },
    AccessLevel: {
        "agent": "the name of the agent",
        "level": "untrusted, probationary, trusted or elevated",
        "successes": "the number of tasks that it has completed",
        "violations": "the number of violations that have not decayed yet",
        "may_write": "whether it may change files",
        "may_use_network": "whether it may have tasks that declare the network",
        "files_max": "the largest number of files that it may change for a task",
        "directories": "the only directories whose files it may change; empty for all",
        "transitions": "the events of tasks that it may cause",
        "last_change": "its last success or violation, with the levels before and after; empty if none is known",
    },
    LiveProcesses: {
        "processes": "the processes, by session, parents before their children",
        "unlisted": "the sessions whose processes cannot be listed now",
    },
    LiveProcess: {
        "pid": "the process id",
        "parent": "the process id of the parent",
        "agent": "the id of the agent",
        "role": "agent (the agent itself), server (kept from turn to turn), call (belongs to one of calls), maybe (may "
        "belong to one of calls) or other",
        "calls": "the ids of the open calls that it belongs to, or may belong to",
        "command": "the begin of the command line; a secret is written as its name",
        "age_s": "the seconds since its start",
        "exiting": "whether the kernel is ending it",
    },
    DeadLetter: {
        "task": "the name of the task in its plan",
        "entity_id": "the id of the task",
        "workstream": "the id of the plan run",
        "attempts": "the number of attempts in all runs",
        "runs": "the number of runs",
        "last_error": "the last error",
    },
    Outage: {
        "since": "the Unix time since when the journal cannot be written",
        "why": "the last error of the disk",
        "attempts": "the number of tries",
        "waiting": "the number of records that wait in memory",
    },
    Shortage: {
        "since": "the Unix time of its begin",
        "lacks": "the resource, such as file descriptors",
        "waiting": "the number of programs that wait to start",
    },
    UnidentifiedProcess: {
        "pid": "the process id",
        "name": "the kernel's name of the process",
        "since": "the Unix time since when its origin is unknown",
        "sessions": "the sessions of the shims that were lost",
    },
    Health: {
        "pid": "the process id of the supervisor",
        "version": "the version of the package",
        "state": "running, stopping or failed",
        "seq": "the number of the last record",
        "sessions": "the number of live sessions",
        "streams": "the number of event streams that are open",
        "outage": "why the journal cannot be written now; null while it can be",
        "shortage": "what programs that should start wait for; null for nothing",
        "unidentified": "processes that may have escaped from an agent, and may only read",
        "failure": "the error that has ended every session; null for none",
    },
}
"""Descriptions of the fields of every struct that a response contains."""


@cache
def schema_of(struct: type[msgspec.Struct]) -> type[BaseModel]:
    """Return the pydantic model with the fields of *struct*."""
    hints = get_type_hints(struct)
    fields: dict[str, Any] = {}
    for one in msgspec.structs.fields(struct):
        described: Any = {"description": FIELDS.get(struct, {}).get(one.name)}
        if one.required:
            fields[one.name] = (_type_of(hints[one.name]), Field(**described))
        elif one.default is not msgspec.NODEFAULT:
            fields[one.name] = (_type_of(hints[one.name]), Field(one.default, **described))
        else:
            fields[one.name] = (_type_of(hints[one.name]), Field(default_factory=one.default_factory, **described))
    text = " ".join((struct.__doc__ or "").split("\n\n")[0].split())
    config = ConfigDict(extra="forbid")
    model: type[BaseModel] = create_model(struct.__name__, __config__=config, __doc__=text, **fields)
    if struct is Node:
        model.model_rebuild(_types_namespace={"Node": model})
    return model


def _type_of(hint: Any) -> Any:
    """Return the type of a field for pydantic: structs become models, tuples lists, ids of records numbers."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "Node" if hint is Node else schema_of(hint)
    if supertype := getattr(hint, "__supertype__", None):
        return supertype
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        assert arguments[1:] == (...,), hint
        return list[_type_of(arguments[0])]  # type: ignore[misc]
    if origin in (Union, UnionType):
        return Union[tuple(None if one is NoneType else _type_of(one) for one in arguments)]  # noqa: UP007
    if origin in (dict, Mapping):
        return dict[str, _type_of(arguments[1])]  # type: ignore[misc]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Literal[tuple(one.value for one in hint)]
    return hint
