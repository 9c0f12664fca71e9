"""A session outlives its parent, and is adopted by the session above: it has lost its siblings, and what is aborted
there is no matter of its new family."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from supervisor import AbortPolicy, AgentTurn, CancelMode, Supervisor, open_supervisor

pytestmark = pytest.mark.anyio
SEVERE = AbortPolicy(tool_to_sibling=True, sibling_to_session=True)


class Family:
    """Sessions: ``lead`` with the children ``parent`` and ``other``; ``parent/kept`` outlives its parent."""

    def __init__(self) -> None:
        self.here = {name: anyio.Event() for name in ("other", "kept")}

    async def lead(self, turn: AgentTurn) -> None:
        async with anyio.create_task_group() as group:
            for name, agent in (("parent", self.parent), ("other", self.other)):
                group.start_soon(lambda name=name, agent=agent: turn.delegate(name, "go", agent=agent))

    async def parent(self, turn: AgentTurn) -> None:
        await turn.delegate("kept", "go", agent=self.kept, cancel_mode=CancelMode.ABANDON)

    async def other(self, turn: AgentTurn) -> None:
        self.here["other"].set()
        await anyio.sleep_forever()

    async def kept(self, turn: AgentTurn) -> None:
        await turn.call("work", self._work)

    async def _work(self) -> None:
        self.here["kept"].set()
        await anyio.sleep_forever()


@asynccontextmanager
async def orphaned() -> AsyncIterator[Supervisor]:
    """Run a family under a policy that spreads every abort, and end ``lead/parent``."""
    family = Family()
    async with open_supervisor() as supervisor, anyio.create_task_group() as group:
        lead = await supervisor.start_session("lead", agent=family.lead, policy=SEVERE)
        group.start_soon(lead.run, "go")
        with anyio.fail_after(120):
            await family.here["other"].wait()
            await family.here["kept"].wait()
            ended = await supervisor.abort("lead/parent", "session")
            assert [(one.id, one.parent) for one in ended.spared] == [("lead/parent/kept", "lead")]
            try:
                yield supervisor
            finally:
                with anyio.CancelScope(shield=True):
                    await supervisor.stop(now=True)
                group.cancel_scope.cancel()


def lives(supervisor: Supervisor, session_id: str) -> bool:
    return not supervisor.plan_abort(session_id, "session").already_ended


async def test_a_sibling_abort_from_an_adopted_session_reaches_nobody() -> None:
    """The siblings of an adopted session ended with its parent: the abort has nothing to do, though the new parent's
    policy would let it spread to the whole family."""
    async with orphaned() as supervisor:
        receipt = await supervisor.abort("lead/parent/kept", "sibling")
        assert (receipt.already_ended, receipt.nodes) == (True, ())
        assert all(lives(supervisor, one) for one in ("lead", "lead/other", "lead/parent/kept"))


async def test_a_tool_abort_in_an_adopted_session_stays_there() -> None:
    """The policy of the adopted session makes a TOOL abort a SIBLING abort: the plan has the call, and nobody else."""
    async with orphaned() as supervisor:
        plan = supervisor.plan_abort("lead/parent/kept:t1:c1", "tool")
        assert [one.id for one in plan.nodes] == ["lead/parent/kept:t1:c1"]
        assert (plan.crossings, plan.uncrossed) == ((), ())


async def test_the_new_family_is_as_it_was() -> None:
    """A SIBLING abort from a child of the new parent would end that family, as before."""
    async with orphaned() as supervisor:
        plan = supervisor.plan_abort("lead/other", "sibling")
        assert {"lead", "lead/other"} <= {one.id for one in plan.nodes}
