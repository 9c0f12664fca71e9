"""Commands about tasks of the running plan; the reply on the control socket has one line for each task.

A command for several tasks is executed for each of them: a refusal for one task does not affect the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from supervisor.control.protocol import Split, Steer, explained
from supervisor.plans.task_control import CommandResult, Verb, WorkControl
from supervisor.runtime.entity import Refused
from supervisor.runtime.live_session import NoSuchEntity


async def steered(plans: Sequence[WorkControl], asked: Steer | Split) -> AsyncIterator[dict[str, Any]]:
    """Carry a command out; yield ``{"task", "answer"}`` for each task, or ``{"task", "refused"}`` with kind and reason.

    Args:
        plans: the commands of each plan that runs; a task belongs to the first plan that knows its name.

    Raises:
        Refused: no plan runs.
        ValueError: the options of the command contradict each other, or no task is named.
    """
    if not plans:
        raise Refused("no plan runs here, so there is no task to command")
    tasks = (asked.task,) if isinstance(asked, Split) else await _named(plans, asked)
    for task in tasks:
        # Each task has a command id of its own: a second command with the same id would not be executed.
        command_id = asked.command_id
        if command_id is not None and len(tasks) > 1:
            command_id = f"{command_id}/{task}"
        try:
            answer = await _carry_out(plans, asked, task, command_id)
        except Exception as error:
            yield {"task": task, "refused": explained(error)}
        else:
            yield {"task": task, "answer": msgspec.to_builtins(answer)}


async def _named(plans: Sequence[WorkControl], asked: Steer) -> tuple[str, ...]:
    if asked.verb is Verb.SPLIT:
        raise ValueError("split: give its subtasks too, with do: split")
    if asked.all_planned and (asked.tasks or asked.command_id is not None):
        raise ValueError("all_planned: these may be other tasks each time; name the tasks, or give no command id")
    if asked.all_planned and asked.verb not in (Verb.APPROVE, Verb.REJECT):
        raise ValueError(f"all_planned: a planned task can be approved or rejected, not {asked.verb}; name the tasks")
    if not asked.all_planned and not asked.tasks:
        raise ValueError("tasks: none is named; name at least one")
    if bool(asked.on) is not (asked.verb is Verb.BLOCK):
        raise ValueError("on: what a task is to be blocked on; give it with block, and with nothing else")
    if asked.all_planned:
        return tuple([task for work in plans for task in await work.planned()])
    return tuple(dict.fromkeys(asked.tasks))


async def _carry_out(
    plans: Sequence[WorkControl], asked: Steer | Split, task: str, command_id: str | None
) -> CommandResult:
    """Give the command to the first plan that has the task, and return the result of the command."""
    *others, last = plans
    for work in others:
        with suppress(NoSuchEntity):
            return await _done(work, asked, task, command_id)
    return await _done(last, asked, task, command_id)


async def _done(work: WorkControl, asked: Steer | Split, task: str, command_id: str | None) -> CommandResult:
    how: dict[str, Any] = {"by": asked.by, "reason": asked.reason, "command_id": command_id}
    if isinstance(asked, Split):
        from supervisor.plans.splitting import read_subtasks  # here, since clients of the socket need no plans

        return await work.split(task, read_subtasks(asked.subtasks, asked.source), **how)
    if asked.verb is Verb.BLOCK:
        return await work.block(task, asked.on, **how)
    do: Mapping[Verb, Callable[..., Awaitable[CommandResult]]] = {
        Verb.APPROVE: work.approve,
        Verb.REJECT: work.reject,
        Verb.RESET: work.reset,
        Verb.REQUEUE: work.requeue,
        Verb.UNCLAIM: work.unclaim,
        Verb.CANCEL: work.cancel,
        Verb.UNBLOCK: work.unblock,
    }
    return await do[asked.verb](task, **how)
