"""Cases of the probe about a model that fails, and about starts that cannot heal: what the supervisor hears of it, how
many requests the agent makes, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from supervisor.agents.probe.driver import start_agent
from supervisor.agents.probe.trial import (
    NotTried,
    ProbeResult,
    Trial,
    end_of_turn,
    or_failure,
    succeeded,
    verdict_of,
)
from supervisor.ports import ModelErrorReported

TROUBLE_S: Final = 45.0
"""Seconds after which an agent that still tries is left."""
START_S: Final = 30.0
BAD_OPTION: Final = "--no-such-option-of-this-agent"

TROUBLES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = MappingProxyType(
    {
        "401": ("ERR[[401]]", ("auth",)),
        "404": ("ERR[[404]]", ("not_found",)),
        "429": ("ERR[[429 9999 -]]", ("rate_limit",)),
        "429 with Retry-After": ("ERR[[429 9999 600]]", ("rate_limit", "quota")),
        "500": ("ERR[[500]]", ("server",)),
        "quota": ("ERR[[quota]]", ("quota",)),
        "context too long": ("ERR[[context]]", ("context_length",)),
        "cut stream": ("DROP", ("connection",)),
    }
)
"""Troubles of a model: the script, and the kinds of trouble of which one must be named."""


async def model(trial: Trial) -> list[ProbeResult]:
    """Run a turn for each trouble of the model."""
    found = []
    for name, (prompt, expected) in TROUBLES.items():
        case = f"model: {name}"
        found.append(await or_failure(_troubled(trial, case, prompt, expected), partial(_untried, case)))
    return found


def _untried(case: str, why: str) -> ProbeResult:
    return ProbeResult(case, f"could not be tried: {why[-160:]}")


async def _troubled(trial: Trial, case: str, prompt: str, expected: tuple[str, ...]) -> ProbeResult:
    trial.begin()
    began = time.monotonic()
    async with start_agent(trial.host, trial.sandbox, prompt) as agent:
        await agent.prompt(prompt)
        ended = await end_of_turn(agent, TROUBLE_S)
        took_s = time.monotonic() - began
    effort = f"{len(trial.requests())} requests" if trial.has_truth() else "requests unknown"
    reported = {str(one.problem) for one in agent.said if isinstance(one, ModelErrorReported)}
    if ended is None:
        said = f", says {'/'.join(sorted(reported))} meanwhile" if reported else ", says nothing"
        return ProbeResult(case, f"still tries after {TROUBLE_S:.0f} s, {effort}{said}", bool(reported & {*expected}))
    verdict = verdict_of(agent, ended, trial)
    effort = f"{effort}, {took_s:.0f} s"
    if succeeded(verdict):
        empty = "" if agent.text.strip() else " of no words"
        return ProbeResult(case, f"COMPLETED{empty} ({effort}): {' '.join(agent.text.split())[:60]}", False)
    problem = str(verdict.model.problem) if verdict.model is not None else ""
    return ProbeResult(case, f"{problem or 'failed, and not named'} ({effort})", problem in expected)


async def start(trial: Trial) -> list[ProbeResult]:
    """Start the agent with an option that it does not have, and without a key: whether it ends, and says why."""
    found = [await _start(trial, "start with a bad option", (BAD_OPTION,))]
    without = trial.sandbox.without_login() if trial.sandbox.without_login is not None else None
    if without is None:
        raise NotTried("there is no sandbox without a key")
    found.append(await _start(Trial(trial.host, without, None), "start without a login", ()))
    return found


async def _start(trial: Trial, case: str, arguments: tuple[str, ...]) -> ProbeResult:
    began = time.monotonic()

    def refused(why: str) -> ProbeResult:
        return ProbeResult(case, f"refused in {time.monotonic() - began:.0f} s: {why[-160:]}", True)

    return await or_failure(_not_started(trial, case, arguments), refused)


async def _not_started(trial: Trial, case: str, arguments: tuple[str, ...]) -> ProbeResult:
    began = time.monotonic()
    async with start_agent(trial.host, trial.sandbox, prompt := "SAY[[hello]]", arguments=arguments) as agent:
        await agent.prompt(prompt)
        ended = await end_of_turn(agent, START_S)
        took_s = time.monotonic() - began
    if ended is None:
        return ProbeResult(case, f"neither answers nor ends within {START_S:.0f} s", False)
    verdict = verdict_of(agent, ended, trial)
    if succeeded(verdict):
        what = "it ignores the option" if arguments else "it answers"
        return ProbeResult(case, f"{what} ({took_s:.0f} s)", False if arguments else None)
    words = " ".join(verdict.error.split())
    return ProbeResult(case, f"failed in {took_s:.0f} s: {words[-160:]}", True)
