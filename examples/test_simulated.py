"""Your own agents against the production supervisor, in virtual time: `pytest examples/test_simulated.py`.

Each test runs with ten seeds (`--simulation-seeds N`). A seed that fails is told with the line that runs it again.
"""

import anyio

from supervisor import AgentTurn, Settings


async def builder(turn: AgentTurn) -> str:
    """An agent of ours: half a minute of thought, and a build, which may hang."""
    await anyio.sleep(30)
    await turn.call("build", anyio.sleep, 3600 if "hang" in turn.prompt else 5)
    return f"{turn.prompt}: built"


def test_a_build_ends(simulated_supervisor) -> None:
    """A turn of 35 seconds takes none."""

    async def main(sup) -> None:
        session = await sup.start_session("build", agent=builder)
        assert (await session.run("the docs")).text == "the docs: built"

    simulated_supervisor(main)


def test_a_hanging_build_is_stopped_in_time(simulated_supervisor) -> None:
    """However the steps fall, the deadline of a turn holds: one minute, and some seconds to stop."""

    async def main(sup) -> None:
        session = await sup.start_session("build", agent=builder)
        started_s = anyio.current_time()
        result = await session.run("hang")
        assert not result.ok
        assert anyio.current_time() - started_s < 60 + 18

    limits = {"turn_timeout_s": 60.0, "max_consecutive_errors": 1}
    simulated_supervisor(main, settings=Settings.model_validate({"limits": limits}))


def test_simulated_agents_that_crash(simulated_supervisor) -> None:
    """A session whose agent keeps dying answers every prompt, one way or the other."""

    async def main(sup) -> str:
        session = await sup.start_session("work", agent="acp")
        return (await session.run("do it")).outcome

    played = simulated_supervisor(main, faults=["process.*", "disk.slow"])
    assert {one.value for one in played} <= {"completed", "failed", "aborted"}
