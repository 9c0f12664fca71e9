"""The catalogue of fault kinds, and the plan that decides which faults strike in the run of one seed.

Each seed first draws which kinds are on and how often these kinds strike (swarm testing: a run where everything fails
at once tests little). Then the plan is asked once at every opportunity, by the name of the place. A strike is recorded
as ``kind@place``: shrinking reduces the strikes of a failing run, and a plan can be made to strike exactly at given
places and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from supervisor.simulation.keyed_random import KeyedRandom


class FaultKind(msgspec.Struct, frozen=True):
    """Kind of fault: the name (``area.what``), the highest rate (per opportunity, 0 to 1), and the meaning."""

    name: str
    rate_max: float
    meaning: str


_KINDS: Final = (
    # Processes: an opportunity is a launch, unless it says otherwise.
    FaultKind("process.spawn_error", 0.10, "the program cannot be started: missing, no permission, out of processes"),
    FaultKind("process.fast_exit", 0.08, "it exits before it says anything"),
    FaultKind("process.hang", 0.10, "it stops doing anything at some point, and never goes on"),
    FaultKind("process.ignores_term", 0.25, "SIGTERM does nothing to it"),
    FaultKind("process.slow_exit", 0.10, "the kernel takes seconds to end it, in which it runs nothing and lives on"),
    FaultKind("process.ignores_cancel", 0.20, "it does not react to the protocol's cancel"),
    FaultKind("process.crash", 0.10, "it dies in the middle of a turn, with status 1 or 2, or one of a shell's"),
    FaultKind(
        "process.signalled", 0.08, "something outside kills it: SIGKILL as the OOM killer does, SIGTERM, SIGSEGV"
    ),
    FaultKind("process.torn_line", 0.05, "it dies in the middle of a line"),
    FaultKind("process.closes_output", 0.06, "it closes its output and lives on"),
    FaultKind("process.holds_pipe", 0.15, "a grandchild keeps its output open after its exit"),
    FaultKind("process.orphans", 0.20, "it leaves daemons of its own session behind, some deaf to SIGTERM"),
    FaultKind("process.background", 0.10, "a tool call leaves a process behind that works on for a while"),
    FaultKind("process.flood", 0.05, "it floods its output"),
    FaultKind("process.dribble", 0.05, "its output comes one byte a second"),
    FaultKind("process.bad_utf8", 0.06, "its output is not UTF-8"),
    FaultKind("process.bad_json", 0.06, "its output is not its protocol"),
    FaultKind("process.huge_line", 0.02, "a line of 10 MB"),
    FaultKind("process.lies", 0.08, "it exits with 0 although its work failed, or without having finished"),
    FaultKind("process.slow_start", 0.10, "it takes as long to become ready as the spawn deadline or longer"),
    FaultKind("process.warden_lost", 0.03, "its warden dies; the fate of its tree is not known"),
    # Agents: an opportunity is a turn or a tool call.
    FaultKind("agent.tool_hangs", 0.08, "a tool call never returns"),
    FaultKind("agent.tool_fails", 0.20, "a tool call fails"),
    FaultKind("agent.provider_error", 0.10, "the model's provider answers with an error"),
    FaultKind("agent.provider_hangs", 0.05, "the model's provider does not answer"),
    FaultKind("agent.model_retries", 0.10, "the model fails a few times, and the agent, which tells it, tries again"),
    FaultKind("agent.model_down", 0.05, "the model fails on and on, and the agent, which tells it, never gives up"),
    FaultKind("agent.model_denied", 0.05, "the model turns it away for good, and the agent tries all the same"),
    FaultKind("agent.asks_in_vain", 0.05, "the agent asks its model again and again, and nothing comes of it"),
    FaultKind("agent.refuses", 0.05, "the agent ends the turn without doing it: refusal, token or turn limit"),
    FaultKind("agent.duplicate", 0.10, "the agent says something twice"),
    FaultKind("agent.late", 0.10, "the agent goes on talking after its turn, or about a call that is over"),
    FaultKind("agent.compacts", 0.25, "the agent compacts its context in the middle of a turn, perhaps in vain"),
    FaultKind("agent.open_call", 0.05, "the agent ends its turn with a call still open"),
    # The disk: an opportunity is a commit.
    FaultKind("disk.slow", 0.10, "a commit takes seconds"),
    FaultKind("disk.error", 0.01, "a commit fails with EIO, although it may be there; the disk is down for a while"),
    FaultKind("disk.full", 0.01, "a commit fails with ENOSPC, although it may be there, until somebody makes room"),
    FaultKind("disk.readonly", 0.01, "the file system is read-only for a while"),
    FaultKind("disk.locked", 0.01, "the database stays locked, longer than a commit waits for it"),
    FaultKind("disk.busy", 0.02, "the database is locked: a commit takes the busy time-out and succeeds"),
    FaultKind("workspace.missing", 0.08, "the working directory of a session cannot be had"),
    # Work: an opportunity is a task of a plan; what strikes it, its first tries meet, or all of them.
    FaultKind("work.busy", 0.30, "tries at the task fail, for something is taken for the moment"),
    FaultKind("work.overloaded", 0.30, "tries at the task fail, for the model's provider is overloaded"),
    FaultKind("work.unknown", 0.30, "tries at the task fail, each in other words that nobody knows"),
    FaultKind("work.crashes", 0.20, "tries at the task crash"),
    FaultKind("work.hangs", 0.20, "tries at the task never end"),
    FaultKind("work.permanent", 0.20, "tries at the task fail for good: something is not installed"),
    FaultKind("work.missing", 0.10, "the agent of the task cannot be started: there is no such program"),
    FaultKind("work.rejected", 0.25, "what was done is not accepted by its tests"),
    FaultKind("work.conflict", 0.20, "what was done cannot be merged"),
    FaultKind("work.denied", 0.30, "what was done is not what the operator wants who approves it"),
    FaultKind("work.unwanted", 0.20, "the task is not approved before it is begun"),
    FaultKind("work.silent", 0.15, "the signs of life of a worker do not come through for a while (at each look)"),
    # Interference with work: an opportunity is a look of whoever attends to a plan.
    FaultKind("host.cancels_task", 0.02, "a task is cancelled"),
    FaultKind("host.requeues", 0.10, "a task that is worked on is taken away, for somebody else"),
    FaultKind("host.unclaims", 0.20, "a task that is not begun yet is taken away from whoever claimed it"),
    FaultKind("host.blocks", 0.10, "a task that is claimed, or worked on, is blocked on something"),
    FaultKind("host.splits", 0.05, "a task is split into subtasks while it waits, or is worked on"),
    FaultKind("host.retries", 0.40, "a task that has failed for good, or cools down, is to be tried afresh"),
    FaultKind("host.reloads", 0.10, "the plan is read again: it has other workers, and one more task"),
    FaultKind("host.lurks", 0.60, "an operator waits for a task to come into some state, and strikes right then"),
    FaultKind("host.gives_up", 0.30, "whoever has a plan run gives it up (once for each supervisor)"),
    FaultKind("host.comes_late", 0.50, "whoever wants something comes back late to the next supervisor"),
    # Clocks: an opportunity is a quarter of a minute.
    FaultKind("clock.jump", 0.10, "the wall clock jumps by up to an hour, forwards or backwards"),
    FaultKind("clock.suspend", 0.03, "the machine sleeps: time leaps for everybody at once"),
    FaultKind("clock.pause", 0.03, "the supervisor is stopped for longer than any deadline: all that was due is late"),
    # The machine: an opportunity is a commit.
    FaultKind("machine.crash", 0.004, "the supervisor is killed; another one starts on what is durable"),
    FaultKind("machine.crash_then", 0.30, "the same right when somebody has come into a state that is over soon"),
    FaultKind("host.cancelled", 0.004, "the host is cancelled, and with it its supervisor; then another one starts"),
    # Hosts and operators: an opportunity is a wish.
    FaultKind("host.abort_tool", 0.30, "a tool call is aborted"),
    FaultKind("host.abort_sibling", 0.20, "siblings are aborted"),
    FaultKind("host.abort_session", 0.20, "a session is aborted"),
    FaultKind("host.abort_again", 0.30, "what was aborted is aborted again, or at once"),
    FaultKind("host.urgent", 0.40, "an urgent message interrupts"),
    FaultKind("host.tells", 0.20, "who works is told something urgent, and more, or its end, before that is on record"),
    FaultKind("host.message", 0.20, "a message that does not interrupt"),
    FaultKind("host.prompt", 0.15, "one more prompt, for a session that may be at work"),
    FaultKind("host.delegates", 0.15, "the host starts a child session, of any cancel mode"),
    FaultKind("host.duplicate", 0.20, "the same wish comes twice"),
    FaultKind("host.late", 0.20, "a wish comes for what has ended"),
    FaultKind("host.answers", 0.60, "a permission that an agent waits for is answered, or is not in time"),
    FaultKind("host.flood", 0.05, "messages come faster than they can be taken"),
    FaultKind("host.closes", 0.10, "a session is closed while it works"),
    FaultKind("host.impatient", 0.10, "whoever asks for something does not wait for the answer"),
    FaultKind("host.drains", 0.05, "the supervisor is told to drain, and perhaps to stop, in the middle of the work"),
    FaultKind("host.lies_in_wait", 0.60, "an operator waits for somebody to come into a state, and strikes right then"),
    # Points in the runtime itself that take the rarer way: ``actors.failpoint.active``.
    FaultKind(
        "point", 0.20, "a point in the runtime takes its rarer way: a batch of one, a full mailbox, no fast lane"
    ),
)
FAULTS: Final[Mapping[str, FaultKind]] = {kind.name: kind for kind in _KINDS}
"""All kinds of faults, by name. A scenario may exclude some kinds; a soak must reach all of them."""

NO_RATES: Final[Mapping[str, float]] = {}
ON = 0.5
"""Probability that a kind of fault may strike at all in the run of a seed."""


class FaultPlan:
    """Plan that decides which faults strike in one run.

    Args:
        random: the random draws of the seed.
        kinds: the kinds of faults that may be on at all.
        intensity: factor for every rate; 0 is a run without faults.
        only: if given, exactly these strikes (``kind@place``) happen, whatever the rates.
        rates: kinds of faults that are certainly on, with the rate of each.
    """

    def __init__(
        self,
        random: KeyedRandom,
        *,
        kinds: Collection[str] = FAULTS,
        intensity: float = 1.0,
        only: Collection[str] | None = None,
        rates: Mapping[str, float] = NO_RATES,
    ) -> None:
        self._random = random.below("fault")
        self._only = None if only is None else frozenset(only)
        drawn = {kind: self._rate(FAULTS[kind], intensity) for kind in FAULTS if kind in kinds}
        self.rates = {**drawn, **{kind: min(1.0, intensity * rate) for kind, rate in rates.items() if kind in kinds}}
        possible = (kind for kind, rate in self.rates.items() if rate > 0.0)
        self._possible = frozenset(possible if only is None else (strike.partition("@")[0] for strike in only))
        self.struck: dict[str, None] = {}
        """Strikes so far (``kind@place``), in order."""
        self.healed = False

    def _rate(self, kind: FaultKind, intensity: float) -> float:
        on = self._random.happens(ON, "on", kind.name)
        return min(1.0, intensity * kind.rate_max * self._random.unit("rate", kind.name)) if on else 0.0

    def may_strike(self, kind: str) -> bool:
        """Whether a fault of this kind may strike from now on."""
        return kind in self._possible

    def may_strike_any(self, kinds: frozenset[str]) -> bool:
        """Whether a fault of any of these kinds may strike from now on."""
        return not kinds.isdisjoint(self._possible)

    def strikes(self, kind: str, place: object) -> bool:
        """Decide whether a fault strikes at this opportunity, and record the strike. Call this once for each *place*,
        which names the entity and the occasion."""
        if kind not in self._possible:
            return False
        if self._only is None and not self._random.happens(self.rates[kind], kind, place):
            return False
        strike = f"{kind}@{place}"
        if self._only is not None and strike not in self._only:
            return False
        self.struck[strike] = None
        return True

    def draws(self, kind: str, place: object) -> KeyedRandom:
        """Return the random draws for the details of a strike of *kind* at *place*."""
        return self._random.below("how", kind, place)

    def heal(self) -> None:
        """Stop all faults: from now on no fault strikes, and all work must end."""
        self.healed = True
        self._possible = frozenset()

    def counts(self) -> dict[str, int]:
        """Return the number of strikes of each kind of fault."""
        return dict(Counter(strike.partition("@")[0] for strike in self.struck))
