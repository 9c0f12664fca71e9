"""Conformance probe: try one agent in the cases that matter to a supervisor, and compare what it says with what is
true.

Each case uses processes of its own. A case that cannot be tried reports the reason, which is no fault of the agent, and
the next case is tried.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from supervisor.agents.probe import conversations, model_troubles, turns
from supervisor.agents.probe.driver import NoResponse, ProbedAgent, is_running, start_agent
from supervisor.agents.probe.sandbox import Sandbox
from supervisor.agents.probe.trial import (
    TURN_S,
    ModelTruth,
    NotTried,
    ProbeResult,
    Trial,
    first_of,
    make_sleep,
    sleeping,
    until_runs,
)
from supervisor.ports import ProcessHost, SpawnError

IGNORES_S: Final = 12.0
"""Seconds after which an agent that still runs counts as ignoring a signal or the end of its input."""
Case = Callable[[Trial], Awaitable[list[ProbeResult]]]
"""Type of a case: a function that tries the agent, and returns its results."""


async def eof(trial: Trial) -> list[ProbeResult]:
    """Close the agent's input while a tool runs."""
    if trial.is_one_shot:
        raise NotTried("its input ends with the prompt")
    return [await _ending(trial, "EOF", ProbedAgent.close_input)]


async def by_signal(trial: Trial, name: str) -> list[ProbeResult]:
    """Send the signal *name*, for example ``TERM``, to the agent's own process while a tool runs."""

    async def send(agent: ProbedAgent) -> None:
        agent.signal(signal.Signals[f"SIG{name}"])

    return [await _ending(trial, name, send)]


async def _ending(trial: Trial, name: str, act: Callable[[ProbedAgent], Awaitable[None]]) -> ProbeResult:
    command, case = make_sleep(), f"{name}, a tool running"
    async with start_agent(trial.host, trial.sandbox, prompt := sleeping(command), watched=True) as agent:
        await agent.prompt(prompt)
        await until_runs(command, agent)
        await act(agent)
        left = await agent.left(IGNORES_S)
        if left is None:
            alive = ", the tool goes on" if is_running(command) else ""
            return ProbeResult(case, f"IGNORED for {IGNORES_S:.0f} s{alive}", False)
        return ProbeResult(case, _describe_end(left.status, left.commands, command), not left.commands)


async def daemon(trial: Trial) -> list[ProbeResult]:
    """Run a turn whose tool starts a daemon and leaves the daemon running, then close the agent in the regular way."""
    command, case = make_sleep(), "daemon of a tool, after its end"
    prompt = f"RUN[[setsid sh -c 'setsid {command} >/dev/null 2>&1 </dev/null &' && echo left]]"
    async with start_agent(trial.host, trial.sandbox, prompt, watched=True) as agent:
        await agent.prompt(prompt)
        if not agent.is_one_shot:
            await agent.ended(TURN_S)
            await agent.close()
        left = await agent.left(TURN_S)
    if left is None:
        return [ProbeResult(case, "it does not end when its input does", False)]
    return [ProbeResult(case, _describe_end(left.status, left.commands, command), not left.commands)]


CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {
        "turn": turns.turn,
        "edit": turns.edit,
        "parallel": turns.parallel,
        "use": turns.use,
        "background": turns.background,
        "permission": turns.permission,
        "urgent": turns.urgent,
        "cancel": turns.cancel,
        "silent": turns.silent,
        "end-call": turns.end_call,
        "resume": conversations.resume,
        "crash": conversations.kill,
        "model": model_troubles.model,
        "start": model_troubles.start,
        "eof": eof,
        "term": partial(by_signal, name="TERM"),
        "int": partial(by_signal, name="INT"),
        "kill": partial(by_signal, name="KILL"),
        "daemon": daemon,
    }
)
"""Cases by name, in the order in which the probe tries them."""


async def probe(
    host: ProcessHost, sandbox: Sandbox, cases: tuple[str, ...] = tuple(CASES), truth: ModelTruth | None = None
) -> AsyncIterator[ProbeResult]:
    """Try the agent in *cases*; yield each result as soon as the result is known. *truth* is the model server that the
    agent uses, if its requests can be read."""
    trial = Trial(host, sandbox, truth)
    if "resume" in cases and "turn" not in cases:
        cases = ("turn", *cases)  # which makes the conversation
    for name in cases:
        for one in await _results(name, CASES[name], trial):
            yield ProbeResult(one.case, one.found.replace(str(sandbox.root), "PROBE"), one.good)


async def _results(name: str, case: Case, trial: Trial) -> list[ProbeResult]:
    found: list[ProbeResult] = []
    try:
        found = await case(trial)
    except* NotTried as failed:
        found = [ProbeResult(name, f"not tried: {first_of(failed)}")]
    except* (NoResponse, SpawnError) as failed:
        found = [ProbeResult(name, f"could not be tried: {first_of(failed)}")]
    return found


def _describe_end(status: int, commands: list[str], command: str) -> str:
    text = f"exits with {status}, "
    if not commands:
        return f"{text}nothing left"
    tool = "with the tool" if any(command in one for one in commands) else "without the tool"
    return f"{text}{len(commands)} LEFT, {tool}"
