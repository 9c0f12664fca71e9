"""Run agents under the production supervisor in virtual time: `pytest examples/test_simulated.py`.

Each test runs with ten seeds (`--simulation-seeds N`). A failure prints the line that repeats its seed.
"""

import anyio

from supervisor import AgentTurn, LimitsConfig, Settings, Supervisor
from supervisor.simulation.testing import Simulate


async def builder(turn: AgentTurn) -> str:
    """Think for half a minute, then run a build, which may hang."""
    await anyio.sleep(30)
    await turn.call("build", anyio.sleep, 3600 if "hang" in turn.prompt else 5)
    return f"{turn.prompt}: built"


def test_a_build_ends(simulated_supervisor: Simulate) -> None:
    """A turn of 35 virtual seconds completes, and takes no real time."""

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("build", agent=builder)
        assert (await session.run("the docs")).text == "the docs: built"

    simulated_supervisor(main)


def test_a_hanging_build_is_stopped_in_time(simulated_supervisor: Simulate) -> None:
    """In every order of steps the time-out of a turn holds: one minute, and at most 18 seconds to stop."""

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("build", agent=builder)
        started_s = anyio.current_time()
        result = await session.run("hang")
        assert not result.ok
        assert anyio.current_time() - started_s < 60 + 18

    limits = LimitsConfig(turn_timeout_s=60.0, max_consecutive_errors=1)
    simulated_supervisor(main, settings=Settings(limits=limits))


def test_simulated_agents_that_crash(simulated_supervisor: Simulate) -> None:
    """A session whose agent keeps crashing still answers every prompt."""

    async def main(sup: Supervisor) -> str:
        session = await sup.start_session("work", agent="acp")
        return (await session.run("do it")).outcome

    played = simulated_supervisor(main, faults=["process.*", "disk.slow"])
    assert {one.value for one in played} <= {"completed", "failed", "aborted"}
