"""Tests of the consistency checker: differences between a supervisor's memory and its journal are reported."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from msgspec.structs import replace

from supervisor.host.api import Supervisor
from supervisor.lifecycles.types import AbortPolicy
from supervisor.ports import EntityRow
from supervisor.sessions.agent_connection import ToolCallActor
from supervisor.sessions.inprocess import AgentTurn
from supervisor.simulation.running import simulate_main
from supervisor.simulation.scenario import named
from tests.verification.checkers.consistency import check_memory

Rows = dict[str, EntityRow]


def _found(
    change: Callable[[Rows], object], timers: int = 0, ruling: Callable[[str], AbortPolicy | None] = lambda one: None
) -> set[str]:
    """Return the invariants that are reported for a supervisor with one session, after *change* to the rows of the
    journal."""
    broken: list[str] = []

    async def main(sup: Supervisor) -> None:
        await sup.start_session("s", agent="inprocess")
        durable = {row.id: row for row in await sup.core.journal.entities()}
        change(durable)
        living = {row.id: row for row in durable.values() if not row.ended}
        timers_of, begun = (lambda session_id: timers), (lambda call: True)
        check_memory(lambda law, *words: broken.append(law), sup, durable, living, timers_of, ruling, begun, 0)

    assert simulate_main(main, named("quiet").draw(1)).error is None
    return set(broken)


def test_a_supervisor_shows_what_is_on_record() -> None:
    """Nothing is reported if the supervisor's rows, nodes and inspection equal those of the journal."""
    assert _found(lambda rows: None) == set()


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.pop("s"),
        lambda rows: rows.update(s=replace(rows["s"], state="Running")),
        lambda rows: rows.update(t=replace(rows["s"], id="t")),
    ],
)
def test_what_the_journal_does_not_have_is_noticed(change: Callable[[Rows], object]) -> None:
    """A row that the journal lacks, has in another state, or has in addition is reported."""
    assert _found(change) == {"durable"}


def test_a_lost_timer_is_noticed() -> None:
    """A timer that is set according to the records, but not running in the session, is reported."""
    assert _found(lambda rows: None, timers=1) == {"punctual"}


def test_another_policy_is_noticed() -> None:
    """A session whose abort policy is not the one that it was given is reported."""
    assert _found(lambda rows: None, ruling=lambda one: AbortPolicy(tool_to_sibling=True)) == {"no_level_crossed"}


@pytest.mark.parametrize("begun", [True, False])
def test_an_actor_that_a_call_leaves_behind_is_noticed(begun: bool) -> None:
    """An actor of a tool call that has returned is reported; an actor of a tool call whose first record is not durable
    yet is not reported."""
    broken: list[str] = []

    async def main(sup: Supervisor) -> None:
        held, going = anyio.Event(), anyio.Event()

        async def agent(turn: AgentTurn) -> None:
            going.set()
            await held.wait()

        session = await sup.start_session("s", agent=agent)
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, "work")
            await going.wait()
            await sup.core.journal_writer.flush()
            sup.core.registry.system.spawn(ToolCallActor(), "s:t1:c1", parent="s:t1")
            rows = await sup.core.journal.entities()
            durable = {row.id: row for row in rows}
            args = (durable, {row.id: row for row in rows if not row.ended}, lambda session_id: 0, lambda one: None)
            check_memory(lambda law, *words: broken.append(law), sup, *args, lambda call: begun, 0)
            sup.core.registry.system.stop("s:t1:c1", "seen")
            held.set()

    assert simulate_main(main, named("quiet").draw(1)).error is None
    assert ("bounded" in broken) is begun


def test_a_stopped_session_that_is_shown_as_alive_is_noticed() -> None:
    """A session that is stopped on record, but shown as alive by the supervisor, is reported."""
    assert "final" in _found(lambda rows: rows.update(s=replace(rows["s"], state="Stopped")))
