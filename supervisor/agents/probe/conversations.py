"""Cases of the probe about conversations: what is left of one in another process, and after a crash.

That an agent says the same id and ends in order proves nothing: whether it remembers is read in the requests to the
model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from supervisor.agents.probe.driver import start_agent
from supervisor.agents.probe.trial import (
    TURN_S,
    NotTried,
    ProbeResult,
    Trial,
    make_marker,
    make_sleep,
    or_failure,
    sleeping,
    until_runs,
)

FILE_MAX: Final = 8 * 1024 * 1024
"""Largest file of a conversation, in bytes, whose last line is cut."""


async def resume(trial: Trial) -> list[ProbeResult]:
    """Continue a conversation in a new process, twice; then twice again after its last line has been cut in half; and
    in another directory."""
    if trial.resume_id is None:
        raise NotTried("it has named no conversation")
    found = [await _resumed(trial, "resumes a conversation", times=2)]
    store = _store_of(trial)
    if store is None:
        found.append(ProbeResult("resumes after a cut", "not tried: its conversations are in no file of lines"))
    else:
        _cut_last_line(store)
        found.append(await _resumed(trial, "resumes after a cut", times=2))
    case = "resumes in another directory"
    found.append(await or_failure(_elsewhere(trial, case), lambda why: ProbeResult(case, f"no: {why[:100]}")))
    return found


async def _resumed(trial: Trial, case: str, times: int) -> ProbeResult:
    for number in range(1, times + 1):
        trial.begin()
        async with start_agent(trial.host, trial.sandbox, prompt := "SAY[[again]]", resume_id=trial.resume_id) as agent:
            await agent.prompt(prompt)
            ended = await agent.ended(TURN_S)
        which = f"resume {number} of {times}"
        if agent.resume_id not in (None, trial.resume_id):
            return ProbeResult(case, f"{which} began another conversation", False)
        if ended.stop != "end_turn":
            return ProbeResult(case, f"{which}: {ended.stop} {ended.error[:80]}", False)
        if trial.has_truth() and not trial.remembered(trial.marker):
            return ProbeResult(case, f"{which} says the same id and HAS FORGOTTEN the first turn", False)
    memory = ", the first turn is in the model's request" if trial.has_truth() else ""
    return ProbeResult(case, f"{times}x{memory}", True)


async def _elsewhere(trial: Trial, case: str) -> ProbeResult:
    sandbox = trial.sandbox.elsewhere("elsewhere")
    trial.begin()
    async with start_agent(trial.host, sandbox, prompt := "SAY[[again]]", resume_id=trial.resume_id) as agent:
        await agent.prompt(prompt)
        ended = await agent.ended(TURN_S)
    kept = trial.remembered(trial.marker) if trial.has_truth() else agent.resume_id == trial.resume_id
    what = "yes" if kept else "no: it begins anew"
    return ProbeResult(case, what if ended.stop == "end_turn" else f"no: {ended.stop} {ended.error[:80]}")


async def kill(trial: Trial) -> list[ProbeResult]:
    """Kill the agent, with all its processes, in a tool call; continue the conversation in a new process."""
    if trial.sandbox.variant.adapter == "command":
        raise NotTried("each prompt is a conversation of its own")
    marker, command = make_marker(), make_sleep()
    prompt = sleeping(command, before=f"echo {marker} >> killed.txt")
    async with start_agent(trial.host, trial.sandbox, prompt) as agent:
        await agent.prompt(prompt)
        await until_runs(command, agent)
        resume_id = agent.resume_id
        agent.kill()
    case = "resumes after kill -9 in a tool"
    if resume_id is None:
        return [ProbeResult(case, "no: it had not named its conversation yet", False)]
    trial.begin()
    async with start_agent(trial.host, trial.sandbox, again := "SAY[[again]]", resume_id=resume_id) as agent:
        await agent.prompt(again)
        ended = await agent.ended(TURN_S)
    written = trial.file("killed.txt")
    lines = written.read_text().count(marker) if written.exists() else 0
    if ended.stop != "end_turn" or agent.resume_id not in (None, resume_id):
        why = ended.error[:80] if ended.stop != "end_turn" else "it began another conversation"
        return [ProbeResult(case, f"no: {ended.stop} {why}", False)]
    kept = trial.remembered(marker) if trial.has_truth() else True
    memory = "the prompt is in the model's request" if kept else "HAS FORGOTTEN the prompt"
    return [ProbeResult(case, f"{memory}, the command ran {lines}x", kept and lines == 1)]


def _store_of(trial: Trial) -> Path | None:
    """Return the file of lines in which the agent keeps the conversation: the newest that has a word of its first
    turn."""
    found = []
    for path in trial.sandbox.home.rglob("*.jsonl"):
        try:
            stat = path.stat()
            if stat.st_size <= FILE_MAX and trial.marker.encode() in path.read_bytes():
                found.append((stat.st_mtime, path))
        except OSError:
            continue
    return max(found)[1] if found else None


def _cut_last_line(path: Path) -> None:
    data = path.read_bytes().rstrip(b"\n")
    begin = data.rfind(b"\n") + 1
    path.write_bytes(data[: begin + (len(data) - begin) // 2])
