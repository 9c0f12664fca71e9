"""Cases of the probe about turns: tools, use, permissions, messages, and the end of a turn or of one call."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

import anyio

from supervisor.agents.probe.driver import (
    SETTLE_S,
    Operator,
    ProbedAgent,
    is_running,
    start_agent,
)
from supervisor.agents.probe.trial import (
    CANCEL_S,
    TOOL_S,
    TURN_S,
    NotTried,
    ProbeResult,
    TokenCount,
    Trial,
    end_of_turn,
    make_marker,
    make_sleep,
    or_failure,
    sleeping,
    succeeded,
    until_runs,
    until_true,
    verdict_of,
)
from supervisor.ports import PermissionNeeded, TerminalOpened, ToolClosed, ToolOpened

BACKGROUND_S: Final = 3
"""Seconds that a command in the background runs on."""


# ------------------------------------------------------------------------------------------------------ at work
async def turn(trial: Trial) -> list[ProbeResult]:
    """Run a turn with a real tool call; compare the agent's reports with the file that the call makes, and with the
    tokens that the model has counted."""
    began, marker = time.monotonic(), make_marker()
    trial.begin()
    async with start_agent(trial.host, trial.sandbox, prompt := f"RUN[[echo {marker} > turn.txt]]") as agent:
        await agent.prompt(prompt)
        ended = await agent.ended(TURN_S)
        took_s = time.monotonic() - began
        calls = [one for one in agent.said if isinstance(one, ToolClosed)]
        made = trial.file("turn.txt").exists()
        reports = trial.sandbox.variant.adapter != "command"  # whose protocol is the prompt alone
        good = ended.stop == "end_turn" and made and (not reports or [one.outcome for one in calls] == ["completed"])
        done = "" if made else ", THE TOOL DID NOT RUN"
        error = f": {ended.error[:80]}" if ended.error else ""
        found = f"{ended.stop} after {took_s:.1f} s, {len(calls)} tool calls reported{done}{error}"
        count = TokenCount()
        count.add(agent.said, agent.resume_id)
    if ended.stop == "end_turn":
        trial.resume_id, trial.marker = agent.resume_id, marker
    return [ProbeResult("turn with a tool", found, good), _used(trial, count, "reports its use")]


def _used(trial: Trial, count: TokenCount, case: str) -> ProbeResult:
    """Compare the tokens that the agent has reported with those that the model has counted."""
    cost = f", {count.cost_usd:.4f} US dollars" if count.cost_usd else ""
    if not trial.has_truth():
        return ProbeResult(case, f"{count.tokens} tokens{cost}" if any(count.tokens) or cost else "no")
    real, asked = trial.tokens(), trial.requests()
    aside = sum(not one.tools for one in asked)
    beside = f", {aside} of them without tools" if aside else ""
    of = f"of {real} in {len(asked)} requests{beside}"
    if not any(count.tokens):
        return ProbeResult(case, f"no ({of}){cost}", False)
    return ProbeResult(case, f"{count.tokens} {of}{cost}", count.tokens == real)


async def use(trial: Trial) -> list[ProbeResult]:
    """Run three prompts of one conversation, each in a process of its own; compare the reported use of all."""
    count, resume_id = TokenCount(), None
    trial.begin()
    for number in range(3):
        prompt = f"SAY[[answer {number}]] USAGE[[100 10]]"
        async with start_agent(trial.host, trial.sandbox, prompt, resume_id=resume_id) as agent:
            await agent.prompt(prompt)
            await agent.ended(TURN_S)
            count.add(agent.said, agent.resume_id or resume_id)
            resume_id = agent.resume_id or resume_id
            if not agent.is_one_shot:
                await agent.close()
                await agent.until_exit(CANCEL_S)
    case = "use over three processes"
    return [_used(trial, count, case)] if any(count.tokens) else [ProbeResult(case, "reports none", None)]


async def edit(trial: Trial) -> list[ProbeResult]:
    """Run a turn in which the agent writes a file with its own tool."""
    marker, name = make_marker(), "edit.txt"
    async with start_agent(trial.host, trial.sandbox, prompt := f"EDIT[[{trial.file(name)} {marker}]]") as agent:
        await agent.prompt(prompt)
        ended = await agent.ended(TURN_S)
        calls = [one.tool_kind for one in agent.said if isinstance(one, ToolOpened)]
    if "no tool that writes files" in agent.text:
        raise NotTried("the scripted model knows none of its tools for files")
    written = trial.file(name).exists() and marker in trial.file(name).read_text()
    reported = ", ".join(calls) or "no call"
    found = f"{ended.stop}, the file is {'written' if written else 'NOT WRITTEN'}, reported as {reported}"
    return [ProbeResult("writes a file", found, written and bool(calls) and ended.stop == "end_turn")]


async def parallel(trial: Trial) -> list[ProbeResult]:
    """Run a turn in which the model makes two calls at once."""
    prompt = "PARALLEL[[sleep 2; echo a > parallel-a.txt ;; sleep 2; echo b > parallel-b.txt]]"
    async with start_agent(trial.host, trial.sandbox, prompt) as agent:
        await agent.prompt(prompt)
        ended = await agent.ended(TURN_S)
        done = [one.outcome for one in agent.said if isinstance(one, ToolClosed)]
    kinds = [type(one) for one in agent.said if isinstance(one, ToolOpened | ToolClosed)]
    ran = sum(trial.file(f"parallel-{one}.txt").exists() for one in "ab")
    order = "at once" if kinds[:2] == [ToolOpened, ToolOpened] else "one after the other"
    found = f"{ended.stop}, {ran} of 2 ran, {len(done)} reported, {order}"
    return [ProbeResult("two calls in one answer", found, ended.stop == "end_turn" and ran == len(done) == 2)]


async def background(trial: Trial) -> list[ProbeResult]:
    """Run a turn that leaves a command running, which writes a file after the turn."""
    prompt = f"BACKGROUND[[sleep {BACKGROUND_S}; echo late > late.txt]]"
    trial.begin()
    async with start_agent(trial.host, trial.sandbox, prompt) as agent:
        await agent.prompt(prompt)
        ended = await agent.ended(TURN_S)
        was_there = trial.file("late.txt").exists()
        asked, began = len(trial.requests()), time.monotonic()
        written = await until_true(trial.file("late.txt").exists, BACKGROUND_S + SETTLE_S)
        late_s = time.monotonic() - began
        await anyio.sleep(SETTLE_S)
        more = len(trial.requests()) - asked
    when = "within the turn" if was_there else f"{late_s:.1f} s after it" if written else "never: it was ended"
    again = f"; {more} requests unasked after the turn" if more else ""
    return [ProbeResult("command left running", f"{ended.stop}; the file was written {when}{again}")]


# ------------------------------------------------------------------------------------------------------ permissions
async def permission(trial: Trial) -> list[ProbeResult]:
    """Run turns with a command that an operator allows, denies, or does not answer: whether the command runs, how often
    the operator is asked, and what the model hears."""
    if trial.sandbox.variant.asks is False:
        raise NotTried("it never asks for permission")
    cases = (("allowed", Operator.ALLOWS), ("denied", Operator.DENIES), ("not answered", Operator.NOBODY))
    found = []
    for what, operator in cases:
        case = f"permission {what}"
        found.append(await or_failure(_asked(trial, case, operator), partial(_untried, case)))
    return found


def _untried(case: str, why: str) -> ProbeResult:
    return ProbeResult(case, f"could not be tried: {why[-160:]}")


async def _asked(trial: Trial, case: str, operator: Operator) -> ProbeResult:
    name = f"asked-{operator.name.lower()}.txt"
    prompt = f"RUN[[echo asked > {name}]]"
    trial.begin()
    async with start_agent(trial.host, trial.sandbox, prompt, operator=operator) as agent:
        await agent.prompt(prompt)
        ended = await end_of_turn(agent, TURN_S)
    asked = sum(isinstance(one, PermissionNeeded) for one in agent.said)
    ours = sum(isinstance(one, TerminalOpened) for one in agent.said)
    ran, told = trial.file(name).exists(), any(one.results for one in trial.requests())
    completed = ended is not None and succeeded(verdict_of(agent, ended, trial))
    if operator is not Operator.ALLOWS and trial.sandbox.variant.quirks.denial_ends_turn:
        completed = False  # the runtime knows that no turn goes on after a denial
    parts = [f"asked {asked}x", "ran" if ran else "did not run"]
    parts += [f"{ours} of its commands are ours to run"] if ours else []
    if ended is None:
        parts.append(f"the turn goes on after {TURN_S:.0f} s")
    else:
        parts.append(f"{ended.stop}{'' if completed or ended.stop != 'end_turn' else ', which is a failure'}")
    if operator is not Operator.ALLOWS:
        parts.append("the model hears of it" if told else "the model does not hear of it")
    good: bool | None = asked == 1 and ran if operator is Operator.ALLOWS else not ran and (told or not completed)
    if operator is Operator.ALLOWS and not asked and not ran:  # its own sandbox has refused: nobody can say more
        good = None
    return ProbeResult(case, ", ".join(parts), good)


# ------------------------------------------------------------------------------------------------------ messages
async def urgent(trial: Trial) -> list[ProbeResult]:
    """Send an urgent message, before and after the first words of the answer, as the supervisor does: within the turn
    if the protocol can, otherwise by an interrupt and a prompt."""
    if trial.is_one_shot:
        raise NotTried("a process serves one prompt")
    return [await _urgent(trial, False), await _urgent(trial, True)]


async def _urgent(trial: Trial, is_late: bool) -> ProbeResult:
    case = f"urgent message {'after' if is_late else 'before'} the first words"
    marker, prompt = make_marker(), "SLOW[[12 0.5]]"
    trial.begin()
    async with start_agent(trial.host, trial.sandbox, prompt) as agent:
        await agent.prompt(prompt)
        if is_late:
            await until_true(lambda: bool(agent.text), TOOL_S)
        else:
            await trial.until_asked(1, TOOL_S)
        began, seen = time.monotonic(), len(agent.said)
        message = f"SAY[[{marker}]]"
        way = "within the turn"
        if not await agent.steer(message):
            way = "by an interrupt"
            await agent.interrupt()
            await agent.ended(CANCEL_S, seen)
            seen = len(agent.said)
            await agent.prompt(message)
        heard = await until_true(lambda: _was_asked(trial, marker), TURN_S)
        took_s = time.monotonic() - began
        ended = await end_of_turn(agent, TURN_S, seen)
    kept = trial.remembered("SLOW[[")
    stop = ended.stop if ended is not None else "the turn goes on"
    memory = "" if kept else ", THE FIRST PROMPT IS FORGOTTEN"
    found = f"{way}, {f'the model has it after {took_s:.1f} s' if heard else 'NEVER reached the model'}, {stop}{memory}"
    return ProbeResult(case, found, heard and kept and stop == "end_turn")


def _was_asked(trial: Trial, marker: str) -> bool:
    return any(marker in prompt for one in trial.requests() for prompt in one.prompts)


# ------------------------------------------------------------------------------------------------------ ends
async def cancel(trial: Trial) -> list[ProbeResult]:
    """Interrupt a turn while a tool runs, then send another prompt."""
    command, found = make_sleep(), []
    async with start_agent(trial.host, trial.sandbox, prompt := sleeping(command)) as agent:
        await agent.prompt(prompt)
        await until_runs(command, agent)
        began, seen = time.monotonic(), len(agent.said)
        await agent.interrupt()
        ended = await agent.ended(CANCEL_S, seen)
        took_s = time.monotonic() - began
        found.append(ProbeResult("cancel", f"{ended.stop} in {took_s:.2f} s", ended.stop == "cancelled"))
        dead = await until_true(lambda: not is_running(command), SETTLE_S)
        found.append(ProbeResult("cancel kills the tool", "yes" if dead else f"NO: alive {SETTLE_S:.0f} s later", dead))
        resume_id = agent.resume_id
        if not agent.is_one_shot:
            found.append(await _again(agent))
    if trial.is_one_shot:
        found.append(await _in_next_process(trial, resume_id))
    return found


async def _again(agent: ProbedAgent) -> ProbeResult:
    seen = len(agent.said)
    await agent.prompt("SAY[[again]]")
    ended = await agent.ended(TURN_S, seen)
    return ProbeResult("second prompt after a cancel", ended.stop, ended.stop == "end_turn")


async def _in_next_process(trial: Trial, resume_id: str | None) -> ProbeResult:
    case = "second prompt after a cancel"
    if resume_id is None:
        return ProbeResult(case, "in a new conversation: it has named none")
    async with start_agent(trial.host, trial.sandbox, prompt := "SAY[[again]]", resume_id=resume_id) as agent:
        await agent.prompt(prompt)
        ended = await agent.ended(TURN_S)
    if agent.resume_id != resume_id:
        return ProbeResult(case, "NO: it began another conversation", False)
    return ProbeResult(case, ended.stop, ended.stop == "end_turn")


async def silent(trial: Trial) -> list[ProbeResult]:
    """Interrupt a turn while the model sends nothing."""
    async with start_agent(trial.host, trial.sandbox, "HANG") as agent:
        await agent.prompt("HANG")
        await anyio.sleep(SETTLE_S)
        began, seen = time.monotonic(), len(agent.said)
        await agent.interrupt()
        ended = await agent.ended(CANCEL_S, seen)
        took_s = time.monotonic() - began
    return [ProbeResult("cancel of a silent model", f"{ended.stop} in {took_s:.2f} s", ended.stop == "cancelled")]


async def end_call(trial: Trial) -> list[ProbeResult]:
    """End one call by the protocol's own request; the turn goes on."""
    command = make_sleep()
    async with start_agent(trial.host, trial.sandbox, prompt := f"{sleeping(command)} SAY[[went on]]") as agent:
        await agent.prompt(prompt)
        await until_runs(command, agent)
        opened = next((one.call_id for one in agent.said if isinstance(one, ToolOpened)), "")
        began, seen = time.monotonic(), len(agent.said)
        if not opened or not await agent.end_call(opened):
            raise NotTried("its protocol cannot end one call: the supervisor kills the call's processes")
        dead = await until_true(lambda: not is_running(command), SETTLE_S)
        took_s = time.monotonic() - began
        ended = await end_of_turn(agent, TURN_S, seen)
    went_on = "went on" in agent.text
    found = f"{f'gone in {took_s:.1f} s' if dead else 'NOT ended'}, the turn {'went on' if went_on else 'ended'}"
    return [ProbeResult("ends one call", found, dead and went_on and ended is not None)]
