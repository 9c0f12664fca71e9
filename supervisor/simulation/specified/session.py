"""A session: eight states, two counters, its prompts and its messages (spec 003, and what docs/design.md adds)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from supervisor.simulation.specified.copy import Copy, Effects, Meta, verdict_in

__all__ = ["SessionCopy"]

LIVE = frozenset(
    {"Initializing", "BuildingPrompt", "Spawning", "Running", "Interrupting", "SessionComplete", "CoolingDown"}
)
ALL = LIVE | {"Stopped"}
POINTS = ("now", "tool_boundary", "turn_end")
"""Soonest first."""
KNOWN = (
    *("incarnation", "concluded", "session_seq", "turn_id", "errors", "current", "queue", "inbox", "offered"),
    *("latched", "outcome", "abort_id", "ended", "spent", "cooled", "ends_s", "never_beyond_s"),
)
"""What is compared, by name."""


class Waiting(NamedTuple):
    """A message that waits."""

    id: str
    urgent: bool
    point: str
    steer: bool = False
    told: bool = False

    @property
    def interrupts(self) -> bool:
        return self.urgent and self.point != "turn_end"


class SessionCopy(Copy):
    """One session."""

    cells: ClassVar[Mapping[str, frozenset[str]]] = {
        "TurnRequested": LIVE,
        "WorktreeReady": frozenset({"Initializing", "SessionComplete"}),
        "PromptReady": frozenset({"BuildingPrompt"}),
        "AgentLaunched": frozenset({"Spawning"}),
        "SessionStarted": frozenset({"Spawning"}),
        "SessionStable": frozenset({"Running"}),
        "SessionExited": frozenset({"Spawning", "Running", "Interrupting", "Stopped"}),
        "UrgentMessage": LIVE,
        "MessageReceived": LIVE,
        "BoundaryReached": frozenset({"Running", "Interrupting", "Stopped"}),
        "GraceExceeded": frozenset({"Interrupting"}),
        "MessageHeard": frozenset({"Running", "Interrupting", "Stopped"}),
        "SteerElapsed": frozenset({"Running", "Interrupting"}),
        "BackoffElapsed": frozenset({"CoolingDown"}),
        "OperatorStop": ALL,
        "FatalError": ALL,
        "TurnReaped": ALL - {"Initializing"},
        "Ended": frozenset({"Stopped"}),
    }

    def __init__(self, state: str, data: Meta) -> None:
        super().__init__(state, data)
        self.id: str = data["id"]
        self.limits: Meta = data["limits"]
        self.incarnation = self.concluded = self.turns = self.offered = 0
        self.turn_id = ""
        self.session_seq = 1
        self.consecutive = self.total = 0
        self.current: tuple[str, str] | None = None
        self.once: set[str] = set()
        self.spent = self.cooled = False
        self.queue: list[tuple[str, str]] = []
        self.inbox: list[Waiting] = []
        self.latched = False
        self.ends_s: float | None = None
        self.never_beyond_s: float | None = None
        """When the turn is over that asks again what a supervisor took with it."""
        self.prompt, self.outcome = "", ""
        self.abort_id: str | None = None

    def stale(self, event: str, meta: Meta) -> bool:
        if event in ("OperatorStop", "FatalError"):
            return self.over
        number = meta.get("incarnation")
        return number is not None and (number < self.incarnation or number <= self.concluded)

    # ------------------------------------------------------------------ prompts
    def on_turnrequested(self, meta: Meta) -> Effects:
        request = (meta["request_id"], meta["prompt"])
        if meta["once"]:
            self.once.add(meta["request_id"])
        if self.state == "CoolingDown" and self.current is None:
            self.current, self.spent = request, False
            return self._warm_up() if self.cooled else []
        if self.current is not None or self.state not in ("Initializing", "SessionComplete"):
            self.queue.append(request)
            return []
        self.current = request
        return [*self._open_turn(), ("PrepareWorktree",)]

    def _warm_up(self) -> Effects:
        self.cooled = False
        return [("Tell", self.id, ("BackoffElapsed",))]

    def _open_turn(self) -> Effects:
        if self.current is None:
            return []
        self.turns += 1
        self.turn_id = f"{self.id}:t{self.turns}"
        return [("OpenTurn", self.turn_id, self.current[0], self.ends_s, self.never_beyond_s)]

    def on_worktreeready(self, meta: Meta) -> Effects:
        self.session_seq += self.state == "SessionComplete"
        self.state = "BuildingPrompt"
        return [("BuildPrompt",)]

    def on_promptready(self, meta: Meta) -> Effects:
        number = meta["messages"]
        self.offered = len(self.inbox) if number is None else min(number, len(self.inbox))
        self.latched = any(one.interrupts for one in self.inbox[self.offered :])
        self.state, self.prompt = "Spawning", meta["prompt"]
        self.incarnation += 1
        late = ("SessionExited", self.incarnation, ("Verdict", "Timeout", None, "timeout", None, None), None, None)
        return [
            ("StorePrompt", self.prompt),
            ("LaunchAgent", self.incarnation, self.prompt),
            ("StartTimer", "spawn", self.limits["spawn_deadline_s"], late, False),
        ]

    # ------------------------------------------------------------------ its agent
    def on_agentlaunched(self, meta: Meta) -> Effects:
        return [("Tell", self.turn_id, ("AgentSpawned", meta["incarnation"], "launched"))]

    def on_sessionstarted(self, meta: Meta) -> Effects:
        self.state, self.ends_s, self.never_beyond_s = "Running", None, None
        effects: Effects = []
        if self.limits["stable_after_s"] > 0:
            stable = ("SessionStable", self.incarnation)
            effects.append(("StartTimer", "stable", self.limits["stable_after_s"], stable, False))
        else:
            self.consecutive = 0
        effects.append(("Tell", self.turn_id, ("AgentSpawned", meta["incarnation"], "ready")))
        if not self.latched:
            return [*effects, ("SendPrompt", self.incarnation, self.turn_id, self.prompt)]
        self.latched = False
        last = [one for one in self.inbox if one.interrupts][-1]
        return [*effects, ("Tell", self.id, ("UrgentMessage", last.id, "now", False))]

    def on_sessionstable(self, meta: Meta) -> Effects:
        self.consecutive = 0
        return []

    def on_sessionexited(self, meta: Meta) -> Effects:
        verdict, before = meta["verdict"], self.state
        self.concluded, self.latched = self.incarnation, False
        if before == "Stopped":
            return []
        success = verdict["exit"] == "Success"
        if before == "Interrupting":
            if success:
                self._deliver_offered()
                self.current = (self.current[0], "") if self.current is not None else None
            self.state = "BuildingPrompt"
            return [*self._open_turn(), ("BuildPrompt",)]
        if success and before == "Running":
            self.consecutive, self.state = 0, "SessionComplete"
            self._deliver_offered()
            return []
        uncharged = ("orphan_recovered", "shortage") if before == "Spawning" else ("orphan_recovered",)
        charged = verdict["transition_reason"] not in uncharged
        if not charged and meta["due_s"] is not None:
            self.ends_s, self.never_beyond_s = meta["due_s"], meta["most_s"]
        return self._fail(verdict, tell=before == "Spawning", charged=charged)

    def _deliver_offered(self) -> None:
        del self.inbox[: self.offered]
        self.offered = 0

    def _fail(self, verdict: Meta, *, tell: bool, charged: bool) -> Effects:
        self.consecutive += charged
        self.total += charged
        limits = self.limits
        spent = self.consecutive >= limits["max_consecutive_errors"] or self.total >= limits["max_total_errors"]
        told: Effects = []
        if tell:
            words = verdict_in({**verdict, "exit": "Error"} if verdict["exit"] == "Success" else verdict)
            told = [("Tell", self.turn_id, ("TaskFailed", words, None, ())), ("CancelStep",)]
        if spent and charged:
            self.state, self.outcome = "Stopped", "failed"
            return [("LogFatal",), *told, ("EndScope", self.abort_id, False)]
        self.state = "CoolingDown"
        last = self.current is not None and (self.current[0] in self.once or (verdict["model"] or {}).get("final"))
        self.spent = charged and not tell and bool(last)
        wait_ms = limits["backoff_base_ms"]
        for _ in range(min(max(self.consecutive - 1, 0), 32)):
            wait_ms *= 2
        wait_s = min(wait_ms, limits["backoff_cap_ms"]) / 1000
        return [("StartTimer", "backoff", wait_s, ("BackoffElapsed",), False), *told]

    def on_backoffelapsed(self, meta: Meta) -> Effects:
        if self.spent:
            self.cooled = True
            return []
        self.state = "BuildingPrompt"
        return [*self._open_turn(), ("BuildPrompt",)]

    # ------------------------------------------------------------------ messages
    def on_messagereceived(self, meta: Meta) -> Effects:
        if all(one.id != meta["message_id"] for one in self.inbox):
            self.inbox.append(Waiting(meta["message_id"], False, "now"))
        return []

    def on_urgentmessage(self, meta: Meta) -> Effects:
        new = all(one.id != meta["message_id"] for one in self.inbox)
        self._keep_urgent(meta["message_id"], meta["point"], meta["steer"])
        match self.state, meta["point"]:
            case "Running", "turn_end":
                return []
            case "Running", "tool_boundary":
                return [("Tell", self.turn_id, ("BoundaryAwaited",))]
            case "Running", _ if new and meta["steer"]:
                return self._steer([meta["message_id"]])
            case "Running", _:
                return self._interrupt()
            case "Spawning", point:
                self.latched = self.latched or point != "turn_end"
            case "SessionComplete", "turn_end" if self.current is None:
                return self._deliver()
        return []

    def _steer(self, ids: list[str]) -> Effects:
        """The agent is told within its turn, and has so long to take up the last of it."""
        self.inbox = [one._replace(told=True) if one.id in ids else one for one in self.inbox]
        late = ("SteerElapsed", self.incarnation, ids[-1])
        grace = ("StartTimer", f"steer {ids[-1]}", self.limits["steer_grace_s"], late, False)
        return [*(("SteerAgent", self.incarnation, one) for one in ids), grace]

    def on_messageheard(self, meta: Meta) -> Effects:
        """As if it had been in the prompt."""
        waiting = [one for one in self.inbox[self.offered :] if one.id == meta["message_id"]]
        if waiting and self.state != "Stopped":
            self.inbox.remove(waiting[0])
            self.inbox.insert(self.offered, waiting[0])
            self.offered += 1
        return []

    def on_steerelapsed(self, meta: Meta) -> Effects:
        unheard = any(one.id == meta["message_id"] for one in self.inbox[self.offered :])
        return self._interrupt() if self.state == "Running" and unheard else []

    def _keep_urgent(self, message_id: str, point: str, steer: bool) -> None:
        for number, one in enumerate(self.inbox):
            if one.id == message_id:
                sooner = min(one.point, point, key=POINTS.index) if one.urgent else point
                self.inbox[number] = one._replace(urgent=True, point=sooner)
                return
        self.inbox.append(Waiting(message_id, True, point, steer))

    def _interrupt(self) -> Effects:
        self.state = "Interrupting"
        late = ("GraceExceeded", self.incarnation)
        return [
            ("CancelSession", None, "user_interrupt"),
            ("StartTimer", "grace", self.limits["grace_s"], late, False),
        ]

    def on_boundaryreached(self, meta: Meta) -> Effects:
        waiting = [one for one in self.inbox[self.offered :] if one.interrupts]
        if self.state != "Running" or not waiting:
            return []
        if all(one.steer and not one.told for one in waiting):
            return self._steer([one.id for one in waiting])
        return self._interrupt()

    def on_graceexceeded(self, meta: Meta) -> Effects:
        self.concluded, self.latched, self.state = self.incarnation, False, "BuildingPrompt"
        return [("ForceStopSession",), *self._open_turn(), ("BuildPrompt",)]

    def _deliver(self) -> Effects:
        """A message that waited for the end of a turn, and for which nobody waits, gets a turn of its own."""
        owed = next((one for one in self.inbox if _owed(one)), None)
        if owed is None:
            return []
        self.current = (owed.id, "")
        return [*self._open_turn(), ("PrepareWorktree",)]

    # ------------------------------------------------------------------ answers
    def on_turnreaped(self, meta: Meta) -> Effects:
        mine = self.current is not None and meta["turn_id"] == self.turn_id
        if self.state == "CoolingDown" and self.spent and mine and self.current is not None:
            answer = ("Answer", self.current[0], "failed", _how(meta))
            self.current, self.spent = (self.queue.pop(0), False) if self.queue else (None, True)
            return [answer, *(self._warm_up() if self.cooled and not self.spent else [])]
        if not mine or self.current is None or self.state not in ("SessionComplete", "Stopped"):
            return []
        if self.state == "Stopped":
            if not meta["completed"]:
                return []
            answer, self.current = ("Answer", self.current[0], "completed", _how(meta)), None
            return [answer]
        if meta["completed"] and any(map(_owed, self.inbox)):
            self.current = (self.current[0], "")
            return [*self._open_turn(), ("PrepareWorktree",)]
        answer = ("Answer", self.current[0], "completed" if meta["completed"] else "failed", _how(meta))
        if not self.queue:
            self.current = None
            return [answer, *self._deliver()]
        self.current = self.queue.pop(0)
        return [answer, *self._open_turn(), ("PrepareWorktree",)]

    # ------------------------------------------------------------------ ends
    def on_operatorstop(self, meta: Meta) -> Effects:
        if self.state == "Stopped":
            return [("EndScope", self.abort_id, True)]
        before, self.state = self.state, "Stopped"
        self.outcome, self.abort_id = meta["outcome"], meta["abort_id"]
        end = ("EndScope", self.abort_id, meta["now"])
        if before in ("Running", "Interrupting"):
            return [("CancelSession", meta["abort_id"], meta["abort_reason"]), end]
        if self.current is None or not self.turns:
            return [("CancelStep",), end]
        words = ("Verdict", "Error", "aborted", meta["abort_reason"] or None, None, None)
        return [("CancelStep",), ("Tell", self.turn_id, ("TaskFailed", words, meta["abort_id"], ())), end]

    def on_fatalerror(self, meta: Meta) -> Effects:
        if self.state == "Stopped":
            return []
        self.state, self.outcome = "Stopped", "failed"
        effects: Effects = [("LogFatal",), ("CancelStep",)]
        if self.current is not None and self.turns:
            failed = ("TaskFailed", ("Verdict", "Error", None, None, None, None), None, ())
            effects.append(("Tell", self.turn_id, failed))
        return [*effects, ("EndScope", self.abort_id, False)]

    def on_ended(self, meta: Meta) -> Effects:
        waiting = [*([self.current] if self.current is not None else []), *self.queue]
        self.current, self.queue, self.over = None, [], True
        outcome = "failed" if self.outcome == "failed" else "aborted"
        return [*(("Answer", request_id, outcome, None) for request_id, _ in waiting), ("Bury",)]

    # ------------------------------------------------------------------ its data
    def differs(self, data: Any) -> str:
        here, there = self._known(), _told(data)
        if here == there:
            return ""
        pairs = zip(KNOWN, here, there, strict=True)
        return ", ".join(f"{name} {found!r} of {known!r}" for name, known, found in pairs if known != found)

    def _known(self) -> tuple[Any, ...]:
        return (
            self.incarnation,
            self.concluded,
            self.session_seq,
            self.turn_id,
            (self.consecutive, self.total),
            self.current,
            self.queue,
            self.inbox,
            self.offered,
            self.latched,
            self.outcome,
            self.abort_id,
            self.over,
            self.spent,
            self.cooled,
            self.ends_s,
            self.never_beyond_s,
        )


def _told(data: Any) -> tuple[Any, ...]:
    """The same of the data under test."""
    current = data.current
    return (
        data.incarnation,
        data.concluded,
        data.session_seq,
        data.turn_id,
        (data.consecutive_errors, data.total_errors),
        (current.id, current.prompt) if current is not None else None,
        [(one.id, one.prompt) for one in data.queue],
        [(one.id, one.urgent, one.point, one.steer, one.told) for one in data.inbox],
        data.offered,
        data.urgent_latched,
        data.outcome,
        data.abort_id,
        data.ended,
        data.spent,
        data.cooled,
        data.due_s,
        data.most_s,
    )


def _owed(one: Waiting) -> bool:
    """Whether it gets a turn of its own: it waited for that, or was told and not taken up."""
    return one.urgent and (one.point == "turn_end" or one.told)


def _how(meta: Meta) -> tuple[Any, ...] | None:
    """The verdict that an answer passes on."""
    return None if meta["how"] is None else verdict_in(meta["how"])
