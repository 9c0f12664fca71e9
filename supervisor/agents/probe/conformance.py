"""Conformance probe: try one agent in the cases that matter to a supervisor, each case once, and report its behaviour.

Each case uses a process of its own. A case that cannot be tried reports the reason, and the next case is tried.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import anyio
import msgspec

from supervisor.agents.probe.driver import LOOK_S, SETTLE_S, NoResponse, ProbedAgent, is_running, start_agent
from supervisor.agents.probe.sandbox import Sandbox
from supervisor.policies.budgets import Amounts
from supervisor.policies.usage import ConversationTotals
from supervisor.ports import Out, ProcessHost, SpawnError, ToolClosed, TurnEnded, Usage

TURN_S: Final = 60.0
TOOL_S: Final = 60.0
CANCEL_S: Final = 20.0
WORKED_S: Final = 1.0
"""Seconds that a tool call runs before the probe acts: codex ends only a command that has just begun."""
IGNORES_S: Final = 12.0
"""Seconds after which an agent that still runs counts as ignoring a signal or the end of its input."""


class ProbeResult(msgspec.Struct, frozen=True):
    """Result of one case. ``case`` is the name of the case, ``found`` a text about the agent's behaviour; ``good`` is
    true if the agent behaves as a supervisor needs, ``None`` if the case allows no verdict."""

    case: str
    found: str
    good: bool | None = None


class Probe:
    """Conformance probe of one agent: a method for each case, which adds the results of the case to ``found``."""

    def __init__(self, host: ProcessHost, sandbox: Sandbox) -> None:
        self.host = host
        self.sandbox = sandbox
        self.found: list[ProbeResult] = []
        self.resume_id: str | None = None

    def _tell(self, case: str, found: str, good: bool | None = None) -> None:
        self.found.append(ProbeResult(case, found, good))

    # ------------------------------------------------------------------ a turn
    async def turn(self) -> None:
        """Case: run a turn with a real tool call, check that the agent reports the call, then close the agent's
        input."""
        began = time.monotonic()
        async with start_agent(self.host, self.sandbox, prompt := "RUN[[echo probed]]") as agent:
            await agent.prompt(prompt)
            ended = await agent.ended(TURN_S)
            took_s = time.monotonic() - began
            calls = [one for one in agent.said if isinstance(one, ToolClosed)]
            good = ended.stop == "end_turn" and [one.outcome for one in calls] == ["completed"]
            words = f"{ended.stop} after {took_s:.1f} s, {len(calls)} tool calls reported{': ' if ended.error else ''}"
            self._tell("turn with a tool", f"{words}{ended.error[:80]}", good)
            self.resume_id = agent.resume_id
            self.found.append(_used([one for one in agent.said if isinstance(one, Usage)]))

    async def cancel(self) -> None:
        """Case: interrupt a turn while a tool runs, then send another prompt."""
        marker = _marker()
        async with start_agent(self.host, self.sandbox, prompt := _sleeping(marker)) as agent:
            await agent.prompt(prompt)
            await _until_runs(marker, agent)
            began, seen = time.monotonic(), len(agent.said)
            await agent.interrupt()
            ended = await agent.ended(CANCEL_S, seen)
            took_s = time.monotonic() - began
            self._tell("cancel", f"{ended.stop} in {took_s:.2f} s", ended.stop == "cancelled")
            dead = await _dies(marker)
            self._tell("cancel kills the tool", "yes" if dead else f"NO: alive {SETTLE_S:.0f} s later", dead)
            if self.sandbox.variant.mapping is None:
                self.found.append(await self._again(agent))
            else:
                self.resume_id = agent.resume_id or self.resume_id
        if self.sandbox.variant.mapping is not None:
            self.found.append(await self._resumed("second prompt after a cancel"))

    async def _again(self, agent: ProbedAgent) -> ProbeResult:
        seen = len(agent.said)
        await agent.prompt("SAY[[again]]")
        ended = await agent.ended(TURN_S, seen)
        self.resume_id = agent.resume_id or self.resume_id
        return ProbeResult("second prompt after a cancel", ended.stop, ended.stop == "end_turn")

    async def silent(self) -> None:
        """Case: interrupt a turn while the model sends nothing."""
        async with start_agent(self.host, self.sandbox, "HANG") as agent:
            await agent.prompt("HANG")
            await anyio.sleep(SETTLE_S)
            began, seen = time.monotonic(), len(agent.said)
            await agent.interrupt()
            ended = await agent.ended(CANCEL_S, seen)
            took_s = time.monotonic() - began
            self._tell("cancel of a silent model", f"{ended.stop} in {took_s:.2f} s", ended.stop == "cancelled")

    async def resume(self) -> None:
        """Case: continue, in a new process, the conversation of a process that was killed."""
        self.found.append(await self._resumed("resumes"))

    async def _resumed(self, case: str) -> ProbeResult:
        if self.resume_id is None:
            return ProbeResult(case, "no: it has no name for its conversations", None if case == "resumes" else False)
        async with start_agent(self.host, self.sandbox, prompt := "SAY[[again]]", resume_id=self.resume_id) as agent:
            await agent.prompt(prompt)
            ended = await agent.ended(TURN_S)
            if agent.resume_id != self.resume_id:
                return ProbeResult(case, "NO: it began another conversation", False)
            return ProbeResult(case, ended.stop, ended.stop == "end_turn")

    # ------------------------------------------------------------------ what it leaves
    async def eof(self) -> None:
        """Case: close the agent's input while a tool runs."""
        if self.sandbox.variant.mapping is not None or self.sandbox.variant.adapter == "command":
            self._tell("EOF, a tool running", "- (its input ends with the prompt)")
            return
        await self._ending("EOF", ProbedAgent.close_input)

    def by(self, name: str) -> Callable[[], Awaitable[None]]:
        """Return the case in which the agent's process receives the signal *name*, for example ``TERM``, while a tool
        runs."""

        async def send(agent: ProbedAgent) -> None:
            agent.signal(signal.Signals[f"SIG{name}"])

        return lambda: self._ending(name, send)

    async def _ending(self, name: str, act: Callable[[ProbedAgent], Awaitable[None]]) -> None:
        marker, case = _marker(), f"{name}, a tool running"
        async with start_agent(self.host, self.sandbox, prompt := _sleeping(marker), watched=True) as agent:
            await agent.prompt(prompt)
            await _until_runs(marker, agent)
            await act(agent)
            left = await agent.left(IGNORES_S)
            if left is None:
                alive = ", the tool goes on" if is_running(marker) else ""
                self._tell(case, f"IGNORED for {IGNORES_S:.0f} s{alive}", False)
                return
            self._tell(case, _told(left.status, left.commands, marker), not left.commands)

    async def daemon(self) -> None:
        """Case: run a turn whose tool starts a daemon and leaves the daemon running, then close the agent in the
        regular way."""
        marker = _marker()
        prompt = f"RUN[[setsid sh -c 'setsid {marker} >/dev/null 2>&1 </dev/null &' && echo left]]"
        async with start_agent(self.host, self.sandbox, prompt, watched=True) as agent:
            await agent.prompt(prompt)
            if self.sandbox.variant.mapping is None:
                await agent.ended(TURN_S)
                await agent.close()
            left = await agent.left(TURN_S)
        if left is None:
            self._tell("daemon of a tool, after its end", "it does not end when its input does", False)
        else:
            self._tell("daemon of a tool, after its end", _told(left.status, left.commands, marker), not left.commands)


CASES: Final = ("turn", "cancel", "silent", "resume", "eof", "term", "int", "kill", "daemon")
"""Names of the cases, in the order in which the probe tries them."""


async def probe(host: ProcessHost, sandbox: Sandbox, cases: tuple[str, ...] = CASES) -> AsyncIterator[ProbeResult]:
    """Try the agent in *cases*; yield each result as soon as the result is known."""
    trial = Probe(host, sandbox)
    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "turn": trial.turn,
        "cancel": trial.cancel,
        "silent": trial.silent,
        "resume": trial.resume,
        "eof": trial.eof,
        "term": trial.by("TERM"),
        "int": trial.by("INT"),
        "kill": trial.by("KILL"),
        "daemon": trial.daemon,
    }
    for name in cases:
        if failure := await _failure(ways[name]):
            trial.found.append(ProbeResult(name, f"could not be tried: {failure}", False))
        for one in trial.found:
            yield one
        trial.found.clear()


async def _failure(case: Callable[[], Awaitable[None]]) -> str:
    """Run a case; return the reason why the case could not be completed, or ``""``."""
    why = ""
    try:
        await case()
    except* (NoResponse, SpawnError) as failed:
        why = str(_first(failed))
    return why


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


# ------------------------------------------------------------------------------------------------------ the tool
def _marker() -> str:
    """Return a command line that no other process has: a ``sleep`` with a random number."""
    return f"sleep 300.{random.randrange(10_000, 99_999)}"


def _sleeping(marker: str) -> str:
    """Return a prompt that makes the agent run *marker* with a tool, inside of a shell: some agents refuse a plain
    sleep."""
    return f"RUN[[bash -c 'true; {marker}; true']]"


async def _until_runs(marker: str, agent: ProbedAgent) -> None:
    with anyio.move_on_after(TOOL_S):
        while not is_running(marker):
            over = next((one for one in agent.said if isinstance(one, TurnEnded)), None)
            if over is not None:
                raise NoResponse(f"its turn ended before a tool ran: {over.stop} {over.error[:200]}")
            await anyio.sleep(LOOK_S)
        await anyio.sleep(WORKED_S)
        return
    raise NoResponse(f"no tool ran within {TOOL_S:.0f} s; it reported {_kinds(agent.said)}")


async def _dies(marker: str) -> bool:
    with anyio.move_on_after(SETTLE_S):
        while is_running(marker):  # noqa: ASYNC110 - it is no child of ours: nobody says when it ends
            await anyio.sleep(LOOK_S)
        return True
    return False


def _kinds(said: list[Out]) -> str:
    return ", ".join(dict.fromkeys(type(one).__name__ for one in said)) or "nothing"


def _told(status: int, commands: list[str], marker: str) -> str:
    words = f"exits with {status}, "
    if not commands:
        return f"{words}nothing left"
    tool = "with the tool" if any(marker in one for one in commands) else "without the tool"
    return f"{words}{len(commands)} LEFT, {tool}"


def _used(reports: list[Usage]) -> ProbeResult:
    used, totals = Amounts(), ConversationTotals()
    for one in reports:
        reported = Amounts(input_tokens=one.input_tokens, output_tokens=one.output_tokens, cost_usd=one.cost_usd)
        used += reported if one.total_of is None else totals.increase(one.total_of, reported)
    words = [f"{used.tokens} tokens"] if used.tokens else []
    words += [f"{used.cost_usd:.4f} US dollars"] if used.cost_usd else []
    return ProbeResult("reports its use", ", ".join(words) or "no", bool(words))
