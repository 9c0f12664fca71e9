"""Checker of abort receipts: their processes and times, compared with the events of the simulated world.

The checker records the processes of each session, the signals sent to these processes, and their ends. A process fate
in a receipt must be that of such a process, with its exit status; it says killed, terminated or lost only if that
happened; and the termination stage at which a node ended must be the last stage that the node's processes needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from supervisor.policies.abort_plan import AbortPlan, NodeReceipt, ProcessFate, Receipt
from supervisor.simulation.checkers import AbortRequested, AbortReturned
from supervisor.simulation.machine.processes import ProcessEvent

Say = Callable[[str, str, str], None]
ROUNDING_S = 1e-5
KILLED = "-9"
HOME = "/sim/"


class _Process(msgspec.Struct):
    """Process of the simulated world: its session, whether it is the main process of its shim, its exit status, and the
    signals that it received."""

    session_id: str
    main: bool
    status: str | None = None
    terminated: bool = False
    killed: bool = False
    lost: bool = False


class ExitChecker:
    """Checker that follows the processes of a simulated run, by pid. *say* reports a violation: the invariant, the
    entity, and the message."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._all: dict[int, list[_Process]] = {}

    # ------------------------------------------------------------------ what the world sees
    def process(self, event: ProcessEvent) -> None:
        """Process an event of a process: a start, a signal, an exit, or a kill."""
        if event.what == "spawned":
            session_id = event.owner.partition("$ ")[0].removeprefix(HOME)
            self._all.setdefault(event.pid, []).append(_Process(session_id, event.detail == event.owner))
        if event.pid not in self._all:
            return
        process = self._all[event.pid][-1]
        match event.what, event.detail:
            case "exited", status:
                process.status = status
            case "signalled", "SIGTERM":
                process.terminated = True
            case "signalled", "SIGKILL":
                process.killed = True
            case "killed", "with its warden":
                process.lost = True
            case "killed", _:
                process.killed = True

    # ------------------------------------------------------------------ what is said of it
    def check(self, answered: AbortReturned) -> None:
        """Check the receipt of an abort against its request, its plan, and the time of the reply."""
        asked, plan, receipt = answered.asked, answered.plan, answered.receipt
        now_s, wall_s = answered.at_s, answered.wall_s
        for fate in receipt.processes:
            self._check_fate(fate, receipt)
        if receipt.reason != asked.reason and not receipt.already_ended:
            self._say("one_answer", receipt.target, f"{receipt.abort_id} is for {receipt.reason!r}: {asked.reason!r}")
        for node in receipt.nodes:
            self._check_rung(node, receipt)
            self._check_outcome(node, plan, receipt)
            if node.kind == "tool" and not 0 <= node.took_s <= now_s - asked.at_s + ROUNDING_S:
                self._say("punctual", node.id, f"took {node.took_s:g} s, of {now_s - asked.at_s:g} s to the receipt")
        steady = abs((wall_s - asked.wall_s) - (now_s - asked.at_s)) < ROUNDING_S  # else the wall clock has jumped
        if steady and not receipt.already_ended:
            self._check_times(asked, receipt, wall_s)

    def _check_fate(self, fate: ProcessFate, receipt: Receipt) -> None:
        if not fate.pid and not fate.ended_by:  # the processes of a call, which could not be listed
            return
        whose, known = fate.owner.partition(":")[0], self._all.get(fate.pid, [])
        mine = [one for one in known if one.session_id == whose]
        if not mine:
            self._say("honest_ends", fate.owner, f"{receipt.abort_id} tells of process {fate.pid}, which it never had")
        elif not any(_fits(fate, one) for one in mine):
            self._say("honest_ends", fate.owner, f"{receipt.abort_id} says {fate}; the world saw {mine}")

    def _check_rung(self, node: NodeReceipt, receipt: Receipt) -> None:
        """Check the termination stage of a node: the last stage that ended one of its processes. For a tool call this
        is checked only if the call ended alone, with processes of its own."""
        below = f"{node.id}:"
        ends = {one.ended_by for one in receipt.processes if one.owner == node.id or one.owner.startswith(below)}
        alone = node.kind == "tool" and node.how == "scope"
        wanted = "kill" if "kill" in ends else "terminate" if "terminate" in ends else "cancel"
        if any(one.exiting_s and one.owner.startswith(node.id) for one in receipt.processes):
            wanted = "exiting"
        if alone and node.rung != wanted:
            self._say("honest_ends", node.id, f"ended on the rung {node.rung}; its processes ended by {sorted(ends)}")
        if node.kind == "session" and node.rung in ("cancel", "terminate") and wanted != node.rung:
            self._say("honest_ends", node.id, f"ended on the rung {node.rung}; its processes ended by {sorted(ends)}")

    def _check_outcome(self, node: NodeReceipt, plan: AbortPlan | None, receipt: Receipt) -> None:
        """Check the outcome of a node: ``requested`` is allowed only if the abort does not wait for the node; ``ended``
        needs a stage before the last, ``abandoned`` the last stage or a survivor."""
        planned = next((one for one in plan.nodes if one.id == node.id), None) if plan is not None else None
        if planned is not None and planned.mode.value == "wait_completed" and node.outcome == "requested":
            self._say("one_answer", node.id, "is waited for, and was only requested")
        if node.outcome == "ended" and node.rung in ("abandon", ""):
            self._say("honest_ends", node.id, f"has ended on the rung {node.rung!r}")
        if node.outcome == "abandoned" and node.rung not in ("abandon", "") and not receipt.survivors:
            self._say("honest_ends", node.id, f"was abandoned on the rung {node.rung}, and nobody of it is left")
        if node.outcome == "requested" and (node.rung or node.ended_at is not None or node.took_s):
            self._say("honest_ends", node.id, f"was only requested, and ended at {node.ended_at}")

    def _check_times(self, asked: AbortRequested, receipt: Receipt, wall_s: float) -> None:
        """Check that the times in a receipt lie between the request and the reply, that ``killed_at`` is not before the
        last end, and ``recorded_at`` not before ``killed_at``."""
        ended = [one.ended_at for one in receipt.nodes if one.ended_at is not None]
        times: Sequence[float | None] = (*ended, receipt.killed_at, receipt.recorded_at)
        for at in times:
            if at is not None and not asked.wall_s - ROUNDING_S <= at <= wall_s + ROUNDING_S:
                words = (
                    f"{receipt.abort_id} tells of {at:.6f}; it was wanted at {asked.wall_s:.6f}, and is {wall_s:.6f}"
                )
                self._say("punctual", receipt.target, words)
        if receipt.killed_at is not None and receipt.killed_at < max(ended, default=0.0) - ROUNDING_S:
            self._say("punctual", receipt.target, f"{receipt.abort_id} says all was ended before the last had")
        if (
            receipt.recorded_at is not None
            and receipt.killed_at is not None
            and receipt.recorded_at < receipt.killed_at
        ):
            self._say("punctual", receipt.target, f"{receipt.abort_id} was recorded before it was done")


def _fits(fate: ProcessFate, seen: _Process) -> bool:
    """Return whether a receipt may report this fate of a process. A process whose shim was lost during the process's
    termination may have ended by the loss or by the termination."""
    if fate.status is not None and seen.status is not None and str(fate.status) != seen.status:
        return False
    if fate.killed < 0:
        return False
    match fate.ended_by:
        case "kill":
            return (seen.killed or seen.lost) and seen.status in (KILLED, None)
        case "terminate":
            return seen.terminated or seen.lost
        case "lost":
            return seen.lost or seen.status == KILLED
        case _:
            return not (seen.main and seen.killed and seen.status == KILLED)
