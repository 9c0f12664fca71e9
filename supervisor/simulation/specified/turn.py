"""A turn: ten states from the claim to the clean-up (spec 000), and one result for each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from supervisor.simulation.specified.copy import Copy, Effects, Meta, verdict_in

__all__ = ["TurnCopy"]

RUNS = ("RUNNING", "TOOL_USE", "COMPACTING", "VERIFYING")


LATE = ("TaskFailed", ("Verdict", "Timeout", None, "timeout", None, None), None, ())


class TurnCopy(Copy):
    """One turn."""

    cells: ClassVar[Mapping[str, frozenset[str]]] = {
        "task_claimed": frozenset({"IDLE"}),
        "agent_spawned": frozenset({"CLAIMING", "SPAWNING"}),
        "task_failed": frozenset({"CLAIMING", "SPAWNING", *RUNS}),
        "tool_started": frozenset({"RUNNING", "TOOL_USE"}),
        "tool_completed": frozenset({"TOOL_USE", "FAILED"}),
        "compact_needed": frozenset({"RUNNING", "VERIFYING"}),
        "compaction_completed": frozenset({"COMPACTING"}),
        "verify_requested": frozenset({"RUNNING", "COMPACTING"}),
        "task_completed": frozenset({"VERIFYING"}),
        "agent_reaped": frozenset({"COMPLETING", "FAILED"}),
        "BoundaryAwaited": frozenset(RUNS),
        "ProgressSeen": frozenset(RUNS[:3]),
        "PermissionRequested": frozenset(RUNS[:3]),
        "PermissionAnswered": frozenset({*RUNS[:3], "FAILED"}),
    }

    def __init__(self, state: str, data: Meta) -> None:
        super().__init__(state, data)
        self.id, self.session_id, self.timeout_s = data["id"], data["session_id"], data["timeout_s"]
        self.ends_s: float | None = data.get("due_s")
        """When its time is over: what its session had left of it, or, once it runs, a whole time-out from then on."""
        self.cap_s: float | None = data.get("hard_cap_s")
        self.never_beyond_s: float | None = data.get("most_s")
        self.request_id = ""
        self.incarnation = self.calls = 0
        self.phase = ""
        self.open: dict[str, tuple[int, int]] = {}
        """Of each open call its number, and that of the call that it is made within."""
        self.asked = 0
        self.asking: dict[int, str] = {}
        """The permissions that wait for their answer: number, and the agent's name for it."""
        self.awaited = False
        self.verdict: Meta | None = None
        self.abort_id: str | None = None
        self.settled = False

    def stale(self, event: str, meta: Meta) -> bool:
        if event == "tool_completed":
            return meta["call_id"] not in self.open
        if event == "agent_spawned":
            again = self.phase == meta["phase"] or self.settled
            return bool(meta["incarnation"] == self.incarnation and (again or meta["phase"] == "launched"))
        if event == "PermissionAnswered":
            return meta["number"] not in self.asking
        if event == "ProgressSeen":
            return self.verdict is not None or self._more_s(meta) < 1.0
        return event in ("task_failed", "verify_requested", "BoundaryAwaited") and self.settled

    def knows(self, event: str, meta: Meta) -> bool:
        if event == "agent_spawned" and meta["phase"] != ("launched" if self.state == "CLAIMING" else "ready"):
            return False
        return super().knows(event, meta)

    # ------------------------------------------------------------------ its way
    def on_task_claimed(self, meta: Meta) -> Effects:
        self.state, self.request_id = "CLAIMING", meta["request_id"]
        return []

    def on_agent_spawned(self, meta: Meta) -> Effects:
        first = self.state == "CLAIMING"
        self.state = "SPAWNING" if first else "RUNNING"
        self.incarnation, self.phase = meta["incarnation"], meta["phase"]
        if first:
            return []
        left_s = self.timeout_s if self.ends_s is None else self.ends_s - self.now_s
        if self.ends_s is None:
            self.ends_s = self.now_s + self.timeout_s
            self.never_beyond_s = self.cap_s if self.cap_s is None else self.now_s + self.cap_s
        return [("StartTimer", "turn", left_s if left_s > 0 else 0.0, LATE, True)]

    def on_progressseen(self, meta: Meta) -> Effects:
        left_s = meta["left_s"] + self._more_s(meta)
        self.ends_s = self.now_s + left_s
        return [("StartTimer", "turn", left_s, LATE, True)]

    def _more_s(self, meta: Meta) -> float:
        """Ten minutes at once, but not beyond the cap that counts from its first start."""
        left_s: float = meta["left_s"]
        return min(600.0, (self.never_beyond_s or 0.0) - self.now_s - left_s)

    # ------------------------------------------------------------------ calls
    def on_tool_started(self, meta: Meta) -> Effects:
        self.state = "TOOL_USE"
        self.calls += 1
        self.open[meta["call_id"]] = meta["number"], meta["within"]
        return []

    def on_tool_completed(self, meta: Meta) -> Effects:
        call_id = meta["call_id"]
        (number, _), effects = self.open.pop(call_id), []
        if meta["outcome"] == "aborted" and not meta["over"]:
            effects.append(("CancelTool", number, call_id, meta["abort_id"]))
        if self.state == "TOOL_USE" and not self.open:
            self.state = "RUNNING"
            effects += self._reach() if self.awaited else []
        return effects

    def on_boundaryawaited(self, meta: Meta) -> Effects:
        if self.state == "TOOL_USE":
            self.awaited = True
        return self._reach() if self.state in ("RUNNING", "COMPACTING") else []

    def _reach(self) -> Effects:
        self.awaited = False
        return [("TellNow", self.session_id, ("BoundaryReached", self.incarnation))]

    # ------------------------------------------------------------------ permissions
    def on_permissionrequested(self, meta: Meta) -> Effects:
        number = meta["number"]
        self.asked += 1
        self.asking[number] = meta["request_id"]
        if meta["asked"]:
            return [("AskPermission", number, meta["within_s"])]
        answer = (number, meta["decision"], meta["option"], meta["kind"], "policy", meta["why"], False)
        return [("Tell", self.id, ("PermissionAnswered", *answer))]

    def on_permissionanswered(self, meta: Meta) -> Effects:
        return [("AnswerPermission", meta["number"], self.asking.pop(meta["number"]), meta["option"])]

    # ------------------------------------------------------------------ compaction
    def on_compact_needed(self, meta: Meta) -> Effects:
        if self.state == "VERIFYING":
            self.state = "RUNNING"
            return [("Tell", self.id, ("CompactNeeded",))]
        self.state = "COMPACTING"
        return []

    def on_compaction_completed(self, meta: Meta) -> Effects:
        self.state = "RUNNING"
        if self.verdict is None:
            return []
        return [("Tell", self.id, ("VerifyRequested", verdict_in(self.verdict)))]

    # ------------------------------------------------------------------ the end
    def on_verify_requested(self, meta: Meta) -> Effects:
        if self.state == "COMPACTING":
            return self.on_compaction_completed(meta)
        self.state, self.verdict, self.abort_id = "VERIFYING", meta["verdict"], None
        return [self._exit(), ("Verify",)]

    def on_task_completed(self, meta: Meta) -> Effects:
        self.state, self.settled = "COMPLETING", True
        return [("CleanUp",)]

    def on_task_failed(self, meta: Meta) -> Effects:
        before, self.state, self.settled = self.state, "FAILED", True
        self.verdict, self.abort_id = meta["verdict"], meta["abort_id"]
        why = f"its turn failed: {meta['verdict']['error']}"
        effects: Effects = [
            ("Tell", self.id, ("PermissionAnswered", number, "withdrawn", None, None, "supervisor", why, False))
            for number in self.asking
        ]
        for call_id, (number, _) in self.open.items() if before == "TOOL_USE" else ():
            outcome = "aborted" if call_id in meta["stopped"] else "unknown"
            effects.append(("CancelTool", number, call_id, self.abort_id))
            effects.append(("Tell", self.id, ("ToolCompleted", call_id, outcome, self.abort_id, True)))
        if before in ("RUNNING", "TOOL_USE", "COMPACTING"):
            effects.append(self._exit())
        return [*effects, ("CleanUp",)]

    def _exit(self) -> tuple[Any, ...]:
        told = verdict_in(self.verdict or {})
        left_to = (self.ends_s, self.never_beyond_s) if "orphan_recovered" in told else (None, None)
        return ("Tell", self.session_id, ("SessionExited", self.incarnation, told, *left_to))

    def on_agent_reaped(self, meta: Meta) -> Effects:
        self.state, self.over = "REAPED", True
        completed = (self.verdict or {}).get("exit") == "Success"
        how = verdict_in(self.verdict) if self.verdict is not None else ("Verdict", "Error", None, None, None, None)
        reaped = ("TurnReaped", self.id, completed, how)
        return [("Tell", self.session_id, reaped), ("Bury",)]

    # ------------------------------------------------------------------ its data
    def differs(self, data: Any) -> str:
        calls, asking = list(self.open.items()), list(self.asking.items())
        here = (
            self.request_id,
            self.ends_s,
            self.never_beyond_s,
            self.incarnation,
            self.calls,
            calls,
            self.awaited,
            self.asked,
            asking,
            self.abort_id,
        )
        there = (
            data.request_id,
            data.due_s,
            data.most_s,
            data.incarnation,
            data.calls,
            [(one.call_id, (one.number, one.within)) for one in data.open],
            data.boundary_awaited,
            data.permissions,
            [(one.number, one.request_id) for one in data.asking],
            data.abort_id,
        )
        phase = "settled" if self.settled else self.phase
        return f"{there}, {data.phase} of {here}, {phase}" if here != there or data.phase != phase else ""
