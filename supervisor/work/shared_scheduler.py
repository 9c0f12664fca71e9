"""Scheduler that the plans of one supervisor share: the backlog with its fencing tokens and owned files, the breakers
of the providers, and the limits on tasks at work.

Theory of operation
-------------------
A supervisor has one ``SharedScheduler``, made with its first plan; the scheduler lives as long as the supervisor. Each
plan that runs is a partition of the backlog, named by the id of its workstream, with workers of its own::

    SharedScheduler            one for a supervisor: which task of which plan is claimed next (``Backlog.claim``)
      TaskScheduler, PlanRun   one for each plan: which tasks can begin, and what follows from the end of a task

Whatever may make a task claimable calls ``wake``: a task is ready, a slot is free, files are released, a provider works
again. The loop of the scheduler, a service of the supervisor, then claims tasks until no free worker of any plan can
claim one. That a worker has a task is recorded at once. What follows is done in the plan's own task group: the failure
of a plan, its cancellation or its end reach no other plan, and never this loop.

Example: plans A and B use the agent ``coder`` with ``max_sessions: 2``, and two tasks of A are at work. When one of
them has ended, the slot of B's worker, which was free all the time, is used: B's last claim is longer ago.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Protocol

import anyio
import msgspec

from actors.one_shot_event import OneShotEvent
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.job import JobData
from supervisor.lifecycles.types import Kind
from supervisor.ports import JournalError
from supervisor.work.backlog import Backlog, Limits, Seeker
from supervisor.work.leases import Claim
from supervisor.work.providers import ProviderBreakers


class PlanPartition(Protocol):
    """Protocol of a plan that runs, as the scheduler sees it."""

    def seekers(self) -> list[Seeker]:
        """Return the workers of the plan that can take one more task."""
        ...

    def take(self, claim: Claim) -> None:
        """Record that the worker of *claim* has its task, without waiting for anything."""
        ...

    def note_limited(self) -> None:
        """Record of the tasks that were offered, and that a limit on tasks at work keeps waiting, that they wait."""
        ...


class SharedScheduler:
    """Claims the tasks of all plans that run on *sup*."""

    def __init__(self, sup: SupervisorCore) -> None:
        self._sup = sup
        self.backlog = Backlog(last_token=_last_token(sup))
        self.providers = ProviderBreakers()
        self._plans: dict[str, PlanPartition] = {}
        self._is_started = False
        self._woken = anyio.Event()

    # ------------------------------------------------------------------ plans
    async def join(self, plan_id: str, plan: PlanPartition) -> None:
        """Claim tasks of that plan from now on.

        Raises:
            ActorStopped: the supervisor has ended.
        """
        self._plans[plan_id] = plan
        self.set_limits()
        self.wake()  # its tasks were offered before
        if not self._is_started:
            self._is_started = True
            await self._sup.services.add("scheduler", self._run)

    def leave(self, plan_id: str) -> None:
        """Remove a plan that has ended, with its items. Whatever they held is free for the other plans."""
        self._plans.pop(plan_id, None)
        self.backlog.remove_plan(plan_id)
        self.wake()

    # ------------------------------------------------------------------ claims
    def wake(self) -> None:
        """Look for tasks that can be claimed: something may be claimable now."""
        self._woken.set()

    async def _run(self) -> None:
        """Claim tasks whenever something may be claimable, and when the next provider may be probed."""
        watched: OneShotEvent | None = None
        while True:
            self._woken = anyio.Event()
            if (configured := self._sup.setups.configured) is not watched:  # limits may be higher then
                configured.then(self.wake)
                watched = configured
                self.set_limits()
            self._claim()
            now_s = self._sup.journal_writer.clock.now()
            free_at_s = self.providers.free_at_s(now_s)
            with anyio.move_on_after(None if free_at_s is None else free_at_s - now_s):
                await self._woken.wait()
            # Tasks that became ready together are claimed together: the order of their plan decides, and not which of
            # them was considered first.
            with suppress(JournalError):  # each plan sees that for itself
                await self._sup.journal_writer.flush()

    def _claim(self) -> None:
        """Claim tasks for free workers until none can claim one. Without an await: no task is claimed twice."""
        if self._sup.suspended.is_set():  # what is queued is for the next daemon
            return
        now_s = self._sup.journal_writer.clock.now()
        # While the supervisor stops, no provider is asked: a task that is claimed then only learns that it ends.
        gate = (lambda provider: True) if self._sup.stopping.is_set() else self.providers.gate(now_s)
        seekers = {plan_id: plan.seekers() for plan_id, plan in self._plans.items()}
        while True:
            every = [seeker for of_plan in seekers.values() for seeker in of_plan]
            claim = self.backlog.claim(every, now_s=now_s, lease_s=inf, gate=gate)
            if claim is None:
                break
            plan_id = next(seeker.plan for seeker in every if seeker.worker_id == claim.worker_id)
            self._plans[plan_id].take(claim)
            seekers[plan_id] = self._plans[plan_id].seekers()  # no claim changes the workers of another plan
        if self.backlog.limits.are_set:
            for plan in self._plans.values():
                plan.note_limited()

    def set_limits(self) -> None:
        """Read the limits on tasks at work: those of the settings and agents as they are now. They change with the
        configuration, and with the runs that have agents of their own."""
        agents = dict(self._sup.setups.session_limits)
        for run, setup in self._sup.setups.of_runs.items():
            own = {agent_of_run(run, name): profile.max_sessions for name, profile in setup.agents.items()}
            agents |= {name: limit for name, limit in own.items() if limit is not None}
        self.backlog.limits = Limits(total=self._sup.settings.max_sessions_total, agents=agents)


def agent_of_run(run: str, agent: str) -> str:
    """Return the name of an agent that only *run* has, as limits count it."""
    return f"{agent} of {run}"


def _last_token(sup: SupervisorCore) -> int:
    """Return the largest fencing token that an earlier supervisor granted, as recorded in the journal."""
    jobs = (row for row in sup.recovered_work.rows.values() if row.kind == Kind.JOB)
    return max((msgspec.json.decode(row.data, type=JobData).token for row in jobs), default=0)
