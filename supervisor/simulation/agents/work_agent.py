"""Programs for tasks of simulated plans: an agent that tries a task as the task's script says, and the acceptance test.

``sim-work`` finds its task by the directory in which it runs, ``sim-check`` by its argument. The agent reads its
prompt, which asks for the task, or for something else that an operator wants.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Final

import anyio

from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import OsProcess, Program
from supervisor.simulation.plan_workload.task_scripts import Attempt, TaskScript, Try, asks_for
from supervisor.simulation.plan_workload.workspace_contents import WorkspaceContents

WORK_S: Final = (1.0, 40.0)
"""Bounds for the seconds of an attempt, including attempts that fail."""
CHECK_S: Final = (0.1, 5.0)

SAID: Final[Mapping[Try, str]] = {
    Try.BUSY: "error: the workspace is temporarily unavailable",
    Try.OVERLOADED: "API Error: 529 overloaded",
    Try.PERMANENT: "ModuleNotFoundError: No module named 'parser'",
}
OTHER: Final = ("it lost the thread", "it went in circles", "it would not say why", "the plan made no sense to it")
"""Error messages that no classifier of errors knows; attempts write them in turn."""


def work_agent(
    task_script: TaskScript, random: KeyedRandom, now: Callable[[], float], workspaces: WorkspaceContents
) -> Program:
    """Return the program of an agent that makes one more attempt at the task if the prompt asks for the task; else the
    agent does something short."""

    async def program(inside: OsProcess) -> int:
        if not asks_for(await _prompt(inside), task_script.name):
            return await _do_something_else(inside, random)
        number = len(task_script.attempts)
        session_id = inside.cwd.rpartition("/")[2]
        attempt = task_script.begin(session_id, now(), workspaces.found(session_id))
        try:
            await inside.write(b"working\n")
            workspaces.write(session_id, attempt, task_script)
            return await _try(inside, attempt, number, random.below("work", task_script.name, number))
        finally:
            attempt.ended_s = now()

    return program


async def _prompt(inside: OsProcess) -> str:
    parts = []
    while data := await inside.read():
        parts.append(data)
    return b"".join(parts).decode()


async def _do_something_else(inside: OsProcess, random: KeyedRandom) -> int:
    await anyio.sleep(random.between(*WORK_S, "beside", inside.name) * random.unit("short", "beside", inside.name))
    await inside.write(b"as you wish\n")
    return 0


async def _try(inside: OsProcess, attempt: Attempt, number: int, random: KeyedRandom) -> int:
    await anyio.sleep(random.between(*WORK_S, "seconds") * random.unit("short"))
    match attempt.way:
        case Try.DONE:
            await inside.write(b"done\n")
            return 0
        case Try.HANGS:
            await anyio.sleep_forever()
        case Try.CRASHES:
            inside.die(signal.SIGSEGV)
            await anyio.sleep_forever()
    said = SAID.get(attempt.way) or OTHER[number % len(OTHER)]
    await inside.write_err(f"{said}\n".encode())
    return 1


def check_program(task_script: TaskScript | None, random: KeyedRandom) -> Program:
    """Return the program of an acceptance test, which passes if the task's script says so, or if the task has no
    script."""

    async def program(inside: OsProcess) -> int:
        await anyio.sleep(random.between(*CHECK_S, "check", inside.name))
        passed = task_script is None or task_script.check()
        await inside.write(b"ok\n" if passed else b"1 of 3 tests failed\n")
        return 0 if passed else 1

    return program
