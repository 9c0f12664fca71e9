"""The oracle of a run: a separate account of requests, durable records and processes, and the check of invariants.

Theory of operation: the oracle never queries the code under test. The host reports requests and replies to the oracle,
the disk durable records, and the machine events of processes. For each session the oracle keeps the live processes, and
the time by which these must be gone. Safety is checked at each of these events, under all faults; liveness only once
the faults have stopped (:meth:`Oracle.check_quiescence`).

Invariants over the records alone are checked by :mod:`supervisor.diagnostics.invariants`, which checks journals of real
runs too. The oracle adds the invariants that need the world: no process survives its session, an abort receipt is true,
a reply comes after the record that it relies on. More checks can be passed as checkers
(:mod:`supervisor.simulation.checkers`).

Example: session ``c0`` is stopped on record at 10 s, and the budgets of the termination stages sum up to 18 s. The
session's processes must be gone at 10 + 18 + ``SLACK_S``, and its last record must be durable ``RECORD_S`` after that.
Sleeps of the machine extend both deadlines, and so does the time in which the kernel ends a killed process: that
process runs nothing, and is waited for. Outages of the disk extend only the second one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from actors.machine import Step
from actors.timers import GRACE_S
from supervisor.diagnostics.invariants import INVARIANTS, RecordChecker, Violation
from supervisor.lifecycles.record_ids import id_after
from supervisor.lifecycles.types import (
    BEGINNING,
    AbortPolicy,
    AbortScope,
    LifecycleEvent,
    NoSuchEntity,
    RecordId,
    StageBudgets,
    TerminationStage,
)
from supervisor.policies.abort_plan import AbortPlan, NodeReceipt, Receipt, total_survivors
from supervisor.policies.model_errors import ModelLimits
from supervisor.ports import Append, EntityRow
from supervisor.runtime.entity import Refused
from supervisor.simulation.checkers import (
    Checker,
    ClockRead,
    DiskWasDown,
    Fact,
    MachineSlept,
    SupervisorEnded,
    SupervisorStarted,
)
from supervisor.simulation.coverage import Coverage
from supervisor.simulation.machine.processes import ProcessEvent
from supervisor.simulation.replies import Replies
from supervisor.simulation.trace import Trace

MakeCheckers = Callable[["Oracle"], Sequence[Checker]]
"""Function that returns the checkers of one run, given the run's oracle. If runs are spread over processes, this must
be a function at the top level of a module."""


def no_checkers(oracle: Oracle) -> Sequence[Checker]:
    """Return no checkers: the default for runs that only the oracle checks."""
    return ()


SLACK_S = 12.0
"""Seconds, on top of the budgets of the termination stages, for the end of a process: a launch under way (1 s), the
time that the process host adds to the last stage (2 s), and the exits of a tree of some depth (fractions of a second
each)."""
HOME = "/sim"
"""Directory that contains the directories of the sessions; each of these has the name of its session."""
AT_REST = {("task", "FAILED"), ("run", "CIRCUIT_OPEN")}
"""States (kind of entity, state) in which work may stay for ever although the state table allows a next step: the work
is not tried again."""
RECORD_S = 45.0
"""Seconds, from the deadline of a session's processes, to the session's last record: five commits of the slowest disk
(8 s each) for records that follow from each other, and the clean-up of a turn (5 s)."""
RECEIPT_S = 11.0
"""Seconds that an abort receipt may take on top of the deadline in the abort plan: twice the allowance for a loaded
machine (``supervisor.sessions.termination``), and the grain of the timers."""
KEPT = 50
"""Number of violations that are kept with their messages; further violations are only counted."""


class Oracle:
    """Oracle that checks one run against a separate account of the run.

    Args:
        now: the run's clock, in seconds.
        trace: trace that receives a line for each event.
        ladder: time budgets of the termination stages, for the run's sessions.
        grain_s: timers of the run are rounded up to multiples of this number of seconds.
        model: limits for consecutive failures of the agents' models.
        checkers: function that returns the checkers, which report by :meth:`violated`.
    """

    def __init__(
        self,
        now: Callable[[], float],
        trace: Trace,
        ladder: StageBudgets,
        grain_s: float = 0.0,
        model: ModelLimits | None = None,
        checkers: MakeCheckers = no_checkers,
    ) -> None:
        self.violations: list[Violation] = []
        self.ignores_violations = False
        """Whether violations are ignored, because the current events are not part of the run."""
        self.omitted = 0
        self.coverage = Coverage()
        self.records = 0
        self.now, self.ladder, self.grain_s, self.model = now, ladder, grain_s, model or ModelLimits()
        self.recorded_within_s = ladder.total_s + SLACK_S + RECORD_S
        """Seconds from the record of an end to the last record that follows from it."""
        self._trace = trace
        self._bound_s = ladder.total_s + SLACK_S
        self._invariants = RecordChecker(on_step=self._stepped)
        self._offset_s = 0.0
        self._live: dict[str, dict[int, str]] = {}
        """Live processes by session: pid to name."""
        self._call_of: dict[int, str] = {}
        """Tool call for which a process was started, by the durable records; by pid."""
        self._due: dict[str, float] = {}
        """Time by which every process of a session must be gone, by session."""
        self._record_due: dict[str, float] = {}
        """Time by which a stopped session must have its last record, by session; not for sessions of a killed
        supervisor."""
        self._lost: set[int] = set()
        """Pids of processes whose shim was lost: the fate of such a process is unknown, and is reported as unknown."""
        self._statuses: dict[int, str] = {}
        """Exit statuses of processes as text, by pid."""
        self._slept: list[tuple[float, float]] = []
        self._exiting: dict[int, float] = {}
        """Processes that the kernel is ending: pid to the time since when."""
        self._exits: list[tuple[float, float]] = []
        """Ends of processes that took the kernel time: when the last instruction was run, and for how many seconds."""
        self._reaped_at: dict[str, float] = {}
        """Time at which the last process of a session was reaped, by session; processes with a lost shim do not
        count."""
        self.unanswered: dict[str, str] = {}
        """Requests without a reply yet: name to text."""
        self.replies = Replies(self.violated)
        self._ends_promised: dict[str, str] = {}
        self._policies: dict[str, AbortPolicy] = {}
        """Abort policies that the host set, by session; descendants of a session inherit its policy."""
        self._starting: Counter[str] = Counter()
        """Number of child sessions that the host is starting now, by parent session."""
        self._owed: set[str] = set()
        """Effects on record that are not acknowledged yet; each effect must be acknowledged once."""
        self._crossed: list[LifecycleEvent] = []
        self._ended: set[str] = set()
        self._durable: set[str] = set()
        self._last_seq, self._last_s = BEGINNING, 0.0
        self._checkers = checkers(self)

    def observe(self, fact: Fact) -> None:
        """Pass a fact to the checkers."""
        for one in self._checkers:
            one.observe(fact)

    # ------------------------------------------------------------------ violations
    def violated(self, invariant: str, entity_id: str, message: str, seq: RecordId | None = None) -> None:
        """Report a violation of *invariant* by an entity."""
        assert invariant in INVARIANTS, f"no law is called {invariant}"
        self._keep(Violation(invariant=invariant, entity_id=entity_id, seq=seq, message=message))

    def _keep(self, violation: Violation) -> None:
        if self.ignores_violations:
            return
        self._trace.note(f"VIOLATION {violation.invariant} {violation.entity_id}: {violation.message}")
        if len(self.violations) < KEPT:
            self.violations.append(violation)
        else:
            self.omitted += 1

    @property
    def count(self) -> int:
        """Number of violations so far."""
        return len(self.violations) + self.omitted

    # ------------------------------------------------------------------ supervisors
    def started(self) -> None:
        """Take in the start of a supervisor."""
        self.observe(SupervisorStarted())
        for session_id in [one for one in self._due if not self.replies.is_stopped(one)]:
            self._check_due(session_id)  # nobody knows any more that it was to end: it may go on
            self._due.pop(session_id, None)

    def clock_set(self, wall_s: float) -> None:
        """Take in the first reading of the wall clock by a supervisor. From now on the supervisor's clock advances with
        the run's clock, but is never earlier than the supervisor's journal; a jump of the wall clock between the start
        and this reading does not count."""
        self._offset_s = max(wall_s, self._last_s) - self.now()
        self.observe(ClockRead(self._offset_s))

    def killed(self) -> None:
        """Take in the kill of a supervisor: the supervisor's open requests never receive a reply, and the next
        supervisor has to keep the promises of the killed one."""
        self.unanswered.clear()
        self._record_due.clear()
        self.observe(SupervisorEnded("killed"))

    def gave_up(self) -> None:
        """Take in that a supervisor gave up because the disk could not be written: the last records are missing, and
        the next supervisor continues from the records before."""
        self._record_due.clear()
        self.observe(SupervisorEnded("gave up"))

    def disk_was_down(self, seconds: float) -> None:
        """Extend the deadlines of records by an outage of the disk of *seconds* seconds. The deadlines of processes are
        not extended."""
        self._trace.note(f"disk was down {seconds:.6f}")
        self.observe(DiskWasDown(seconds))
        for session_id in self._record_due:
            self._record_due[session_id] += seconds

    def slept(self, seconds: float) -> None:
        """Extend all deadlines by the time that the machine slept, and by ``GRACE_S``, by which all timers may be late
        after a sleep."""
        self.observe(MachineSlept(seconds))
        seconds += GRACE_S + self.grain_s  # timers stand still at what was due next, which may have been rounded up
        self._slept.append((self.now(), seconds))
        for session_id in self._due:
            self._due[session_id] += seconds
        for session_id in self._record_due:
            self._record_due[session_id] += seconds

    def slept_since(self, at_s: float) -> float:
        """Return the seconds that the machine has slept since *at_s*, a sleep that includes *at_s* counted in full."""
        return sum(seconds for when, seconds in self._slept if when + seconds > at_s)

    def exiting_since(self, at_s: float) -> float:
        """Return the seconds, at most, by which an end that began at *at_s* may wait longer because the kernel was
        ending killed processes."""
        return sum(seconds for when, seconds in self._exits if when + seconds > at_s)

    # ------------------------------------------------------------------ the host
    def request_sent(self, name: str, words: str) -> None:
        """Take in a request of the host; the request must receive one reply."""
        self._trace.note(f"asked {name} {words}")
        self.unanswered[name] = words

    def reply_received(self, name: str, words: str) -> None:
        """Take in the reply to a request, or the refusal of the request."""
        self._trace.note(f"answered {name} {words}")
        self.unanswered.pop(name, None)

    def acknowledged(self, entity_id: str, outage: object = None) -> None:
        """Check the acknowledgement of a session or message: the first record must be durable, and a supervisor must
        accept nothing new while the journal cannot be written (*outage*: the outage that the supervisor knew of when
        the request came)."""
        if entity_id not in self._durable:
            self.violated("durable", entity_id, "was acknowledged before its first record was durable")
        if outage is not None:
            self.violated("degraded", entity_id, f"was taken while the journal could not be written: {outage}")

    def set_policy(self, session_id: str, policy: AbortPolicy) -> None:
        """Take in the abort policy that the host set for a session and the session's descendants."""
        self._policies[session_id] = policy

    def policy_of(self, session_id: str) -> AbortPolicy | None:
        """Return the abort policy of a session: the session's own, or that of the nearest ancestor with a policy.
        ``None`` if there is no policy, or while the session may be a session that the host is starting and whose id the
        host does not know yet."""
        ruled = self._policies
        while session_id and session_id not in ruled:
            session_id = session_id.rpartition("/")[0]
            if self._starting[session_id]:
                return None
        return ruled.get(session_id)

    @contextmanager
    def starting(self, parent_id: str) -> Iterator[None]:
        """Take in, for the duration of the block, that the host starts a child session of *parent_id* with a separate
        policy. Others may see the child session before the host does; if the supervisor is killed first, the host never
        receives the session's id."""
        self._starting[parent_id] += 1
        try:
            yield
        except (NoSuchEntity, Refused):
            self._starting[parent_id] -= 1  # there is none
            raise
        self._starting[parent_id] -= 1

    def session_stopping(self, session_id: str, at_s: float, within_s: float | None = None) -> None:
        """Set the deadline for the processes of a session that was stopped at *at_s*: the budgets of the termination
        stages, or *within_s* seconds if that is sooner. Outages of the disk do not extend this deadline."""
        bound_s = self._bound_s if within_s is None else min(self._bound_s, within_s + SLACK_S)
        due = at_s + bound_s + self.slept_since(at_s) + self.exiting_since(at_s)
        self._due[session_id] = min(due, self._due.get(session_id, due))
        self._check_due(session_id)
        if (late_s := self._reaped_at.get(session_id, due) - due) > 0:  # heard of late, from a disk that was down
            self.violated("bounded_kill", session_id, f"its last process lived {late_s:.3f} s beyond its ladder")

    def receipt_came(self, receipt: Receipt, at_s: float, within_s: float | None, plan: AbortPlan | None) -> None:
        """Check the receipt of an abort that was requested at *at_s*. The receipt must come within the deadline of the
        abort plan, whatever the disk does. If the target was ending already, the receipt may take until the deadline of
        that end and of the end's record.

        Args:
            within_s: time limit in seconds that the caller set for the abort.
            plan: the abort plan, which the abort carries out; ``None`` if the target did not exist.
        """
        if plan is not None and not receipt.already_ended:
            self._check_carried_out(plan, receipt)
        deadline_s = plan.deadline_s if plan is not None else 0.0
        bound_s = self._bound_s + RECORD_S if receipt.already_ended else deadline_s
        late_s = self.now() - at_s - bound_s - RECEIPT_S - self.slept_since(at_s) - self.exiting_since(at_s)
        if late_s > 0:
            self.violated("degraded", receipt.target, f"the receipt of its abort comes {late_s:.3f} s too late")
        for one in receipt.nodes:
            if one.kind == "session" and one.outcome != "abandoned":
                self._ends_promised[one.id] = receipt.abort_id
            if one.outcome == "ended":
                self._check_ended(one, receipt.abort_id)
        if receipt.scope is AbortScope.SESSION and not receipt.already_ended:
            self.session_stopping(receipt.target, at_s, within_s)

    def _check_carried_out(self, plan: AbortPlan, receipt: Receipt) -> None:
        """Check that the receipt names the nodes of the abort plan, and that the receipt's number of survivors is the
        sum over the receipt's processes."""
        planned, told = ({(one.id, one.kind) for one in nodes} for nodes in (plan.nodes, receipt.nodes))
        if told != planned or receipt.spared != plan.spared:
            words = f"{receipt.abort_id} tells of {sorted(told)}, of the planned {sorted(planned)}"
            self.violated("one_answer", receipt.target, words)
        if receipt.survivors != total_survivors(one.survivors for one in receipt.processes):
            self.violated("no_survivor", receipt.target, f"{receipt.abort_id} counts {receipt.survivors} survivors")

    def _check_ended(self, node: NodeReceipt, abort_id: str) -> None:
        """Check that a node that ended by the receipt has no live process; for a tool call, as far as the call's
        processes are on record."""
        calls = [str(pid) for pid, call in self._call_of.items() if call == node.id and pid not in self._lost]
        if left := self._living_processes(node.id) if node.kind == "session" else ", ".join(calls):
            self.violated("no_survivor", node.id, f"has ended by the receipt of {abort_id}, but these live: {left}")

    @property
    def has_processes(self) -> bool:
        """Whether any process is alive whose shim is not lost."""
        return any(self._living_processes(session_id) for session_id in self._live)

    def _living_processes(self, session_id: str) -> str:
        """Return the live processes of a session as text, without processes whose shim was lost."""
        live = self._live.get(session_id, {})
        return ", ".join(f"{name} ({pid})" for pid, name in live.items() if pid not in self._lost)

    # ------------------------------------------------------------------ the disk
    def wrote(self, batch: Sequence[Append], encoded: Sequence[bytes]) -> None:
        """Take in a batch of records that has become durable."""
        self._trace.records(encoded)
        for one in batch:
            at_s = one.record.monotonic_s - self._offset_s
            for checker in self._checkers:
                checker.record(one, at_s)
            self._record(one.record)
            self._settle(one)
            if one.record.entity_type == "session":
                self.replies.wrote(one)
                self._session(one.record, one.ended)
            elif one.record.event == "ProcessStarted":
                call_id, pid = str(one.record.metadata["tool"]), one.record.metadata["pid"]
                if pid in self._live.get(call_id.partition(":")[0], {}):  # else it is over already
                    self._call_of[pid] = call_id

    def _record(self, record: LifecycleEvent) -> None:
        self.records += 1
        if record.seq != id_after(self._last_seq):
            self.violated("durable", record.entity_id, f"record {record.seq} follows {self._last_seq}", record.seq)
        self._last_seq, self._last_s = record.seq, record.monotonic_s
        self._durable.add(record.entity_id)
        match record.event:
            case "UrgentMessage" | "MessageReceived":
                self._durable.add(str(record.metadata.get("message_id")))
            case "AbortRecord" if record.metadata.get("policy_edge") is not None:
                self._crossed.append(record)
        self.coverage.record(record)
        for violation in self._invariants.check(record):
            self._keep(violation)

    def _settle(self, one: Append) -> None:
        """Check that each effect is acknowledged once: with the record of the effect's receiver, or when the effect was
        performed. An effect that is acknowledged too early would be lost in a crash, and acknowledged again."""
        for name in one.settled:
            if name not in self._owed:
                self.violated("nothing_lost", one.record.entity_id, f"settles the effect {name}, which nobody owes")
            self._owed.discard(name)
        self._owed.update(name for name, _ in one.owed)

    def _stepped(self, record: LifecycleEvent, step: Step[Any, Any]) -> None:
        """Pass a transition to the checkers, with the step that the entity's table computes from the record again; also
        check a recorded exit status."""
        if record.event == "agent_exited":
            self._check_status(record, step.data.pid)
        for one in self._checkers:
            one.transition(record, step)

    def _check_status(self, record: LifecycleEvent, pid: int | None) -> None:
        """Check that the exit status on record is the process's real exit status."""
        said, was = record.metadata["status"], self._statuses.get(pid or 0)
        if pid is not None and was is not None and said is not None and str(said) != was:
            self.violated("honest_ends", record.entity_id, f"is said to have exited with {said}, and did with {was}")

    def _session(self, record: LifecycleEvent, ended: bool) -> None:
        if record.to_status == "Stopped" and record.from_status != "Stopped" and record.outcome == "transition":
            self.session_stopping(record.entity_id, record.monotonic_s - self._offset_s)
            self._record_due[record.entity_id] = self.now() + self._bound_s + RECORD_S
        if ended:
            self._check_gone(record)
            self._check_recorded(record)

    def _check_gone(self, record: LifecycleEvent) -> None:
        """Check that all processes of a session are reaped when the session's last record comes."""
        self._ended.add(record.entity_id)
        self._due.pop(record.entity_id, None)
        self._reaped_at.pop(record.entity_id, None)
        if left := self._living_processes(record.entity_id):
            self.violated("no_survivor", record.entity_id, f"has ended, but these live: {left}", record.seq)

    def _check_recorded(self, record: LifecycleEvent) -> None:
        """Check that the session's last record comes in time. The record of an abandoned termination, which names that
        stage, may come later."""
        late_s = self.now() - self._record_due.pop(record.entity_id, self.now())
        if self._exiting:
            return  # how much longer the end may take is known when the kernel has ended them
        if late_s > 0 and record.metadata.get("rung") != TerminationStage.ABANDON:
            self.violated("recorded", record.entity_id, f"its last record comes {late_s:.3f} s too late", record.seq)

    # ------------------------------------------------------------------ processes
    def process(self, event: ProcessEvent) -> None:
        """Take in an event of a simulated process."""
        self._trace.note(f"process {event.what} {event.pid} {event.owner} {event.detail}")
        for one in self._checkers:
            one.process(event)
        session_id = event.owner.partition("$ ")[0].removeprefix(f"{HOME}/")
        match event.what:
            case "spawned":
                self._spawned(session_id, event)
            case "killed" if event.detail == "with its warden":
                self._lost.update(self._live.get(session_id, ()))
            case "exiting":
                self._exiting[event.pid] = self.now()
            case "exited":
                self._statuses[event.pid] = event.detail
                self._note_exit(event.pid)
            case "reaped":
                self._check_due(session_id)
                self._call_of.pop(event.pid, None)
                live = self._live.get(session_id, {})
                if live.pop(event.pid, None) is not None and event.pid not in self._lost:
                    self._reaped_at[session_id] = self.now()
                if not live:
                    self._live.pop(session_id, None)

    def _note_exit(self, pid: int) -> None:
        """Extend all deadlines by the time that the kernel took to end a process."""
        began_s = self._exiting.pop(pid, None)
        if began_s is None:
            return
        seconds = self.now() - began_s
        self._exits.append((began_s, seconds))
        for due in (self._due, self._record_due):
            for session_id in due:
                due[session_id] += seconds

    def _spawned(self, session_id: str, event: ProcessEvent) -> None:
        self._statuses.pop(event.pid, None)
        self._live.setdefault(session_id, {})[event.pid] = event.detail
        if session_id in self._ended:
            self.violated("no_survivor", session_id, f"{event.detail} was started after its session's last record")

    def _check_due(self, session_id: str) -> None:
        due = self._due.get(session_id)
        runs = any(pid not in self._exiting for pid in self._live.get(session_id, ()))
        if due is not None and self.now() > due and runs and self._living_processes(session_id):
            late_s = self.now() - due
            del self._due[session_id]
            self.violated("bounded_kill", session_id, f"its processes live {late_s:.3f} s beyond its ladder")

    # ------------------------------------------------------------------ the end
    def check_closed(self, rows: Iterable[EntityRow]) -> None:
        """Check that a supervisor that closed in order left no entity open."""
        self.observe(SupervisorEnded("closed"))
        for row in rows:
            if not row.ended and (row.kind, row.state) not in AT_REST:
                self.violated("nothing_lost", row.id, f"was left {row.state} by a supervisor that closed in order")

    def check_quiescence(self, rows: Iterable[EntityRow], owed: Iterable[tuple[str, str, bytes]]) -> None:
        """Check, when the faults have stopped and the supervisor has closed, that everything has ended: effects,
        entities, processes and requests."""
        for effect_id, entity_id, _ in owed:
            self.violated("quiescence", entity_id, f"still owes the effect {effect_id} after its supervisor has closed")
        for row in rows:
            if not row.ended and (row.kind, row.state) not in AT_REST:
                self.violated("quiescence", row.id, f"is still {row.state} in the journal of a supervisor that closed")
        for session_id in self._live:
            if left := self._living_processes(session_id):
                self.violated("no_survivor", session_id, f"processes are left: {left}")
        for session_id, abort_id in self._ends_promised.items():
            if session_id not in self._ended and session_id in self._durable:  # else it never was, but in memory
                self.violated("recorded", session_id, f"the receipt of {abort_id} says it ended; it has no last record")
        for record in self._crossed:
            self._check_crossing(record)
        for name, words in self.unanswered.items():
            self.violated("one_answer", name, f"was never answered: {words}")
        for violation in self._invariants.finish(quiescent=True):
            self._keep(violation)
        for one in self._checkers:
            one.finish()

    def _check_crossing(self, record: LifecycleEvent) -> None:
        """Check that the abort policy that applies there allows the policy edge over which an abort spread."""
        edge, ruler = str(record.metadata["policy_edge"]), str(record.metadata.get("ruled_by"))
        policy = self.policy_of(ruler)
        if policy is not None and not getattr(policy, edge, False):
            self.violated("no_level_crossed", ruler, f"{edge} was crossed, which its policy does not let", record.seq)
