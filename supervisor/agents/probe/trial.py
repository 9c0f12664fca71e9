"""Trial of one agent: what all cases of the probe share, and what is true about the agent's model.

The probe compares what the agent says with what the model server was asked and has answered (:class:`ModelTruth`). A
case that needs this truth, and has none because the model server is somebody else's, is not tried.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import anyio
import msgspec

from supervisor.agents.probe.driver import LOOK_S, NoResponse, ProbedAgent, is_running
from supervisor.agents.probe.sandbox import Sandbox
from supervisor.lifecycles.types import Exit, Verdict
from supervisor.policies.budgets import Amounts
from supervisor.policies.turn_outcome import decide_verdict
from supervisor.policies.usage import ConversationTotals
from supervisor.ports import THIS_CONVERSATION, Out, ProcessHost, TurnEnded, Usage

TURN_S: Final = 60.0
TOOL_S: Final = 60.0
CANCEL_S: Final = 20.0
WORKED_S: Final = 1.0
"""Seconds that a tool call runs before the probe acts: codex ends only a command that has just begun."""


class ProbeResult(msgspec.Struct, frozen=True):
    """Result of one case. ``case`` is the name of the case, ``found`` a text about the agent's behaviour; ``good`` is
    true if the agent behaves as a supervisor needs, false if it does not, and ``None`` if the case could not be tried,
    or allows no verdict."""

    case: str
    found: str
    good: bool | None = None


class SeenRequest(Protocol):
    """Request that a model server has received, with what the server has answered."""

    @property
    def prompts(self) -> tuple[str, ...]: ...
    @property
    def results(self) -> int: ...
    @property
    def tools(self) -> tuple[str, ...]: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...


class ModelTruth(Protocol):
    """Model server whose requests can be read, the oldest first."""

    @property
    def requests(self) -> Sequence[SeenRequest]: ...


class NotTried(Exception):
    """Exception: a case cannot be tried; the message is the reason. It is no fault of the agent."""


class Tokens(NamedTuple):
    """Input and output tokens."""

    into: int
    out: int

    def __str__(self) -> str:
        return f"{self.into}/{self.out}"


class Trial:
    """Trial of one agent by one of its variants. ``truth`` is the model server that the agent uses, if its requests
    can be read; ``resume_id`` and ``marker`` are the conversation of the last complete turn, and a word of it."""

    def __init__(self, host: ProcessHost, sandbox: Sandbox, truth: ModelTruth | None) -> None:
        self.host = host
        self.sandbox = sandbox
        self.resume_id: str | None = None
        self.marker = ""
        self._truth = truth
        self._begun = 0

    @property
    def is_one_shot(self) -> bool:
        """Whether each prompt is a process of its own."""
        return self.sandbox.variant.mapping is not None or self.sandbox.variant.adapter == "command"

    def file(self, name: str) -> Path:
        """Return the path of a file of the agent's working directory."""
        return self.sandbox.directory / name

    # ------------------------------------------------------------------ the truth
    def begin(self) -> None:
        """Begin to count the requests to the model from here on."""
        self._begun = len(self._truth.requests) if self._truth is not None else 0

    def requests(self) -> list[SeenRequest]:
        """Return the requests to the model since :meth:`begin`.

        Raises:
            NotTried: the model server's requests cannot be read.
        """
        if self._truth is None:
            raise NotTried("the requests to the model server cannot be read")
        return list(self._truth.requests[self._begun :])

    def has_truth(self) -> bool:
        """Return whether the requests to the model can be read."""
        return self._truth is not None

    def tokens(self) -> Tokens:
        """Return the tokens that the model server has counted since :meth:`begin`."""
        seen = self.requests()
        return Tokens(sum(one.input_tokens for one in seen), sum(one.output_tokens for one in seen))

    def remembered(self, marker: str) -> bool:
        """Return whether the newest request with a script still has a prompt with *marker* before its last one.

        Requests without tools are about something else: a title, a summary.
        """
        asked = [one for one in self.requests() if one.prompts and one.tools]
        return bool(asked) and any(marker in prompt for prompt in asked[-1].prompts[:-1])

    async def until_asked(self, count: int, limit_s: float) -> bool:
        """Wait until the model has received *count* requests since :meth:`begin`; return whether it has."""
        with anyio.move_on_after(limit_s):
            while len(self.requests()) < count:  # noqa: ASYNC110 - the server may be in another thread
                await anyio.sleep(LOOK_S)
            return True
        return False


class TokenCount:
    """Tokens that an agent has reported, counted as the supervisor counts them, over several processes."""

    def __init__(self) -> None:
        self._totals = ConversationTotals()
        self._used = Amounts()

    def add(self, reports: Iterable[Out], conversation: str | None) -> None:
        """Add the reports of one process, in which *conversation* was served."""
        for one in reports:
            if not isinstance(one, Usage):
                continue
            amounts = Amounts(input_tokens=one.input_tokens, output_tokens=one.output_tokens, cost_usd=one.cost_usd)
            if one.total_of is not None:
                name = (conversation or "") if one.total_of == THIS_CONVERSATION else one.total_of
                amounts = self._totals.increase(name, amounts)
            self._used += amounts

    @property
    def tokens(self) -> Tokens:
        return Tokens(self._used.input_tokens, self._used.output_tokens)

    @property
    def cost_usd(self) -> float:
        return self._used.cost_usd


def verdict_of(agent: ProbedAgent, ended: TurnEnded, trial: Trial) -> Verdict:
    """Return the verdict of the supervisor on a turn: whether it counts as completed, or the reason of the failure."""
    return decide_verdict(
        ended.stop,
        ended.error,
        problem=ended.problem,
        http_status=ended.status,
        text=agent.text,
        reports=trial.sandbox.variant.quirks.reports,
        last_words=agent.last_words if ended.stop == "error" else "",
    )


def succeeded(verdict: Verdict) -> bool:
    """Return whether the supervisor believes that the turn has completed."""
    return verdict.exit is Exit.SUCCESS


def make_marker() -> str:
    """Return a word that no other case uses."""
    return f"m{random.randrange(10**9, 10**10)}"


def sleeping(command: str, before: str = "true") -> str:
    """Return a prompt that makes the agent run *command* with a tool, inside of a shell: some agents refuse a plain
    sleep."""
    return f"RUN[[bash -c '{before}; {command}; true']]"


def make_sleep() -> str:
    """Return a command line that no other process has: a ``sleep`` with a random number."""
    return f"sleep 300.{random.randrange(10_000, 99_999)}"


async def until_runs(command: str, agent: ProbedAgent) -> None:
    """Wait until a process *command* runs, and then until its call has run for a while.

    Raises:
        NotTried: the turn ended before, or no tool ran.
    """
    with anyio.move_on_after(TOOL_S):
        while not is_running(command):
            over = next((one for one in agent.said if isinstance(one, TurnEnded)), None)
            if over is not None:
                raise NotTried(f"its turn ended before a tool ran: {over.stop} {over.error[:200]}")
            await anyio.sleep(LOOK_S)
        await anyio.sleep(WORKED_S)
        return
    raise NotTried(f"no tool ran within {TOOL_S:.0f} s; it reported {_kinds(agent.said)}")


async def until_true(holds: Callable[[], bool], limit_s: float) -> bool:
    """Wait until the function *holds* returns true; return whether it did so in time."""
    with anyio.move_on_after(limit_s):
        while not holds():  # noqa: ASYNC110 - files and processes of the agent
            await anyio.sleep(LOOK_S)
        return True
    return False


async def end_of_turn(agent: ProbedAgent, limit_s: float, seen: int = 0) -> TurnEnded | None:
    """Return the end of the turn; ``None`` if the turn has not ended in time."""
    try:
        return await agent.ended(limit_s, seen)
    except NoResponse as error:
        if str(error).startswith("nothing came within"):
            return None
        raise


async def or_failure(attempt: Awaitable[ProbeResult], describe: Callable[[str], ProbeResult]) -> ProbeResult:
    """Return the result of *attempt*, or, if the agent did not respond, what *describe* makes of the reason."""
    found, why = None, ""
    try:
        found = await attempt
    except* NoResponse as failed:
        why = " ".join(str(first_of(failed)).split())
    return found if found is not None else describe(why)


def first_of(error: BaseException) -> BaseException:
    """Return the first error in a group of errors, or *error* itself."""
    return first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _kinds(said: list[Out]) -> str:
    return ", ".join(dict.fromkeys(type(one).__name__ for one in said)) or "nothing"
