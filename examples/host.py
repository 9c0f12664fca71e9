"""A host that runs a plan and steers it: approve, reject, split, cancel, requeue, and ask why.

Run it in a directory of its own: ``python host.py``. While it runs, ``supervisor tree --state-dir sd`` shows it from
another terminal.
"""

from __future__ import annotations

import anyio

from supervisor import AbortPolicy, AgentConfig, Plan, StageBudgets, TaskConfig, open_supervisor, run_plan

FIRST_TRY_HANGS = "if [ -e tried ]; then echo built > built.txt; else touch tried; sleep 600; fi"

PLAN = Plan(
    agents={"sh": AgentConfig(adapter="command", command=["sh", "-c", "{prompt}"])},
    policy=AbortPolicy(ladder=StageBudgets(request_s=0.2, cancel_s=0.2)),  # `sh` ends only when it is killed
    tasks=[
        TaskConfig(id="build", agent="sh", prompt=FIRST_TRY_HANGS),
        TaskConfig(id="test", agent="sh", prompt="echo tested", depends_on=["build"]),
        TaskConfig(id="measure", agent="sh", prompt="echo measured", depends_on=["build"]),
        TaskConfig(id="deploy", agent="sh", prompt="echo deployed", depends_on=["build"], approval="before"),
        TaskConfig(id="announce", agent="sh", prompt="echo announced", approval="before"),
    ],
)


async def until_hanging() -> None:
    """Wait until the task ``build`` has made its file; the rest of its prompt takes too long."""
    while not await anyio.Path("tried").exists():  # noqa: ASYNC110 - another process makes the file
        await anyio.sleep(0.05)


async def main() -> None:
    async with open_supervisor("sd", agents=PLAN.agents, settings=PLAN.settings) as sup:
        run = run_plan(sup, PLAN)
        await run.approve("deploy", by="ops", reason="the release is due")
        await run.reject("announce", by="ops", reason="nothing to announce")
        await run.cancel_task("measure", by="ops", reason="no machine is free")
        parts = [TaskConfig(id=name, agent="sh", prompt=f"echo {name}") for name in ("unit-tests", "lint")]
        await run.split("test", parts, by="ops", reason="two can work on it")
        await until_hanging()
        await run.requeue("build", by="ops", reason="it hangs")
        result = await run
        for name in sorted(result.tasks):
            print(f"{name}: {result.tasks[name].outcome}")
        last = (await run.why("announce")).steps[-1].record
        print(f"announce ended by {last.actor}: {last.reason}")


anyio.run(main)
