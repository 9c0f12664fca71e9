"""Words of others: what agents ask for their own tasks, what plug-ins advise, what access forbids, what is said twice.

Held to docs/plans.md (``may_split``, ``access``), docs/plugins.md, docs/security.md and docs/model-trouble.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import anyio

from supervisor.agents.protocols.inprocess import AgentTurn
from supervisor.embedding.runtime import Supervisor
from supervisor.lifecycles.types import ModelProblem
from supervisor.plans import TaskConfig
from supervisor.plans.agents import AgentConfig
from supervisor.ports import Changes, ModelTrouble, Released, TurnEnded
from supervisor.runtime.entity import Refused
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.office import Hand, Office, Try, plan_of, task
from supervisor.work.plan_runner import PlanRunner

__all__ = ["WORDS"]

BROKEN: Final = "sh: x: command not found"
ONCE: Final = {"max_retries": 0}
KINDS: Final = "task run job workstream"


def _part(name: str, **more: Any) -> TaskConfig:
    return TaskConfig.model_validate({"id": name, "agent": "f", "prompt": name, **more})


async def own_words(desk: Desk) -> None:
    """An agent splits its own task where the plan lets it, and has it blocked; what cannot be it is told."""
    office, refused = (
        Office(desk, {"free": [Try(20.0)], "bound": [Try(6.0)], "stuck": [Try(5.0)], "other": [Try(9.0)]}),
        [],
    )

    async def asks(what: Any, after_s: float, turn: AgentTurn) -> None:
        await anyio.sleep(after_s)
        try:
            await what(turn)
        except Refused:
            refused.append(turn.prompt)

    office.acts = {
        "free": partial(asks, lambda turn: turn.split([_part("s")], reason="much"), 2.0),
        "bound": partial(asks, lambda turn: turn.split([_part("t")]), 2.0),
        "stuck": partial(asks, lambda turn: turn.block(["other"]), 3.0),
        "circle": partial(asks, lambda turn: turn.block(["after"]), 4.0),
        "itself": partial(asks, lambda turn: turn.block([]), 4.0),
    }
    once: list[AgentTurn] = []

    async def stuck(turn: AgentTurn) -> None:
        if not once:
            once.append(turn)
            await asks(lambda turn: turn.block(["other"]), 3.0, turn)

    office.acts["stuck"] = stuck
    plan = plan_of(
        task("free", may_split=True),
        task("bound"),
        task("stuck"),
        task("other"),
        task("circle"),
        task("after", depends_on=["circle"]),
        task("itself"),
    )
    await office.run(plan)
    desk.same("who is refused", sorted(refused), ["bound", "circle", "itself"])
    office.tells(
        """
        workstream:plan 0: Born tasks=7 > all_tasks_created count=7 > first_task_started / 2: tasks_added count=1 /
            22: all_tasks_completed completed=8 > validation_passed
        task:free 0: Born max_retries=3 > claimed by=free > started / 2: Commanded command=split > split
            subtasks=task:s / 22: subtasks_completed > closed
        run:free 0: Born max_attempts=5 > executor_started / 22: execution_completed > tests_passed
        job:free 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 22:
            execution_completed > validation_passed
        task:bound 0: Born max_retries=3 > claimed by=bound > started / 8: completed > closed
        run:bound 0: Born max_attempts=5 > executor_started / 8: execution_completed > tests_passed
        job:bound 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 8:
            execution_completed > validation_passed
        task:stuck 0: Born max_retries=3 > claimed by=stuck > started / 3: Commanded command=block > blocked
            on=task:other / 9: unblocked > claimed by=stuck-2 > started / 14: completed > closed
        run:stuck 0: Born max_attempts=5 > executor_started / 3: execution_failed error=blocked by agent of stuck
            category=unknown > retry_decided / 9: backoff_completed / 14: execution_completed > tests_passed
        job:stuck 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 3: worker_lost
            / 9: retry_delay_elapsed > worker_started worker_id=worker:local / 14: execution_completed >
            validation_passed
        task:other 0: Born max_retries=3 > claimed by=other > started / 9: completed > closed
        run:other 0: Born max_attempts=5 > executor_started / 9: execution_completed > tests_passed
        job:other 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 9:
            execution_completed > validation_passed
        task:circle 0: Born max_retries=3 > claimed by=circle > started / 4: Commanded command=block > CommandRefused
            command=block / 9: completed > closed
        run:circle 0: Born max_attempts=5 > executor_started / 9: execution_completed > tests_passed
        job:circle 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 9:
            execution_completed > validation_passed
        task:after 0: Born max_retries=3 / 9: claimed by=after > started / 14: completed > closed
        run:after 0: Born max_attempts=5 / 9: executor_started / 14: execution_completed > tests_passed
        job:after 0: Born max_retries=4 / 9: scheduler_assigned depends_on=job:circle > worker_started
            worker_id=worker:local / 14: execution_completed > validation_passed
        task:itself 0: Born max_retries=3 > claimed by=itself > started / 4: Commanded command=block > CommandRefused
            command=block / 9: completed > closed
        run:itself 0: Born max_attempts=5 > executor_started / 9: execution_completed > tests_passed
        job:itself 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 9:
            execution_completed > validation_passed
        task:s 2: Born max_retries=3 / 3: claimed by=s > started / 8: completed > closed
        run:s 2: Born max_attempts=5 / 3: executor_started / 8: execution_completed > tests_passed
        job:s 2: Born max_retries=4 > scheduler_assigned / 3: worker_started worker_id=worker:local / 8:
            execution_completed > validation_passed
        """,
        whose=KINDS,
    )


async def too_late(desk: Desk) -> None:
    """What is split in the moment in which its plan is given up is not split, and nothing is done for its subtasks."""
    office = Office(desk, {"a": [Try(50.0)]})

    async def slow(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(3.9)
        office.commit_s = 4.0
        await anyio.sleep(20.0)
        office.commit_s = 0.0

    split = Hand(4.0, "split", "a", ((_part("s"),),))
    result = await office.run(plan_of(task("a")), split, beside=slow, give_up_after_s=5.0)
    desk.same("its result", result, None)
    desk.same("who is refused", [(verb, name) for verb, name, _ in office.refused], [("split", "a")])
    office.tells(
        """
        workstream:plan 0: Born tasks=1 > all_tasks_created count=1 > first_task_started / 4: tasks_added count=1 / 5:
            user_cancelled
        task:a 0: Born max_retries=3 > claimed by=a > started / 5: cancelled
        run:a 0: Born max_attempts=5 > executor_started / 5: cancelled
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5: user_cancelled
        task:s 4: Born max_retries=3 / 5: cancelled
        run:s 4: Born max_attempts=5 / 5: cancelled
        job:s 4: Born max_retries=4 / 5: user_cancelled
        """,
        whose="task run job workstream",
        facts=False,
    )


async def advice(desk: Desk) -> None:
    """Plug-ins order what is queued, say whether a failure is worth another try, and who has the next one."""
    office = Office(desk, {"a": [Try(5.0, BROKEN), Try(5.0, "odd"), Try(5.0)], "gate": [Try(10.0)], "soon": [Try(1.0)]})
    office.advice.priorities = {"y": 5, "x": -5}
    office.advice.again = {BROKEN: True, "odd": False}
    office.advice.agents = {"a": "h"}
    after = {"capabilities": ["x"], "depends_on": ["soon"]}
    plan = plan_of(
        task("a", fallback_agents=["g"], capabilities=["o"]),
        task("gate", capabilities=["x"]),
        task("soon", capabilities=["o"]),
        task("x", **after),
        task("z", **after),
        task("y", **after),
        workers={"w": {"capabilities": ["x"]}, "v": {"capabilities": ["o"], "slots": 5}},
    )
    await office.run(plan)
    began = [prompt for _, _, prompt in office.asked if prompt in ("x", "y", "z")]
    desk.same("who came next", began, ["y", "z", "x"])
    asked = [(one.task_id, one.agent, one.attempt, one.category, one.agents) for one in office.advice.attempts]
    all_agents = ("f", "g", "h")
    wanted = [
        ("a", "f", 1, "permanent", all_agents),
        ("a", "f", 1, "unknown", all_agents),
        ("a", "f", 1, "", all_agents),
    ]
    desk.same("what they were asked", asked, wanted)
    desk.same("who tried", [agent for agent, _, prompt in office.asked if prompt == "a"], ["f", "f", "h"])
    facts = [
        (one.event, one.metadata) for one in office.records() if one.event in ("Ranked", "RetryJudged", "Escalated")
    ]
    told = sorted((name, *map(str, facts.values())) for name, facts in facts)
    desk.same(
        "what is on record",
        told,
        [
            ("Escalated", "h", "g"),
            ("Ranked", "-5", "0"),
            ("Ranked", "5", "0"),
            ("RetryJudged", "False", "permanent"),
            ("RetryJudged", "True", "unknown"),
        ],
    )
    office.tells(
        """
        task:a 0: Born max_retries=3 > claimed by=a > started / 5: RetryJudged / 12: RetryJudged > failed > retried >
            Escalated > claimed by=a-2 > started / 17: completed > closed
        run:a 0: Born max_attempts=5 > executor_started / 5: execution_failed error=RuntimeError: sh: x: command not
            found category=unknown charged=True > retry_decided / 7: backoff_completed / 12: execution_failed
            error=RuntimeError: odd category=permanent charged=True > retry_decided
        job:a 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:v / 5:
            execution_failed error=RuntimeError: sh: x: command not found / 7: retry_delay_elapsed > worker_started
            worker_id=worker:v / 12: execution_failed error=RuntimeError: odd final=True
        task:gate 0: Born max_retries=3 > claimed by=gate > started / 10: completed > closed
        run:gate 0: Born max_attempts=5 > executor_started / 10: execution_completed > tests_passed
        job:gate 0: Born max_retries=4 capabilities=x > scheduler_assigned > worker_started worker_id=worker:w / 10:
            execution_completed > validation_passed
        task:soon 0: Born max_retries=3 > claimed by=soon > started / 1: completed > closed
        run:soon 0: Born max_attempts=5 > executor_started / 1: execution_completed > tests_passed
        job:soon 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:v / 1:
            execution_completed > validation_passed
        task:x 0: Born max_retries=3 / 1: Ranked / 20: claimed by=x > started / 25: completed > closed
        run:x 0: Born max_attempts=5 / 20: executor_started / 25: execution_completed > tests_passed
        job:x 0: Born max_retries=4 capabilities=x / 1: scheduler_assigned depends_on=job:soon / 20: worker_started
            worker_id=worker:w / 25: execution_completed > validation_passed
        task:z 0: Born max_retries=3 / 15: claimed by=z > started / 20: completed > closed
        run:z 0: Born max_attempts=5 / 15: executor_started / 20: execution_completed > tests_passed
        job:z 0: Born max_retries=4 capabilities=x / 1: scheduler_assigned depends_on=job:soon / 15: worker_started
            worker_id=worker:w / 20: execution_completed > validation_passed
        task:y 0: Born max_retries=3 / 1: Ranked / 10: claimed by=y > started / 15: completed > closed
        run:y 0: Born max_attempts=5 / 10: executor_started / 15: execution_completed > tests_passed
        job:y 0: Born max_retries=4 capabilities=x / 1: scheduler_assigned depends_on=job:soon / 10: worker_started
            worker_id=worker:w / 15: execution_completed > validation_passed
        run:a-2 12: Born max_attempts=5 > executor_started / 17: execution_completed > tests_passed
        job:a-2 12: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:v / 17:
            execution_completed > validation_passed
        """,
        whose="task run job",
    )


async def reviewers(desk: Desk) -> None:
    """Who reviews is nobody's next agent: plug-ins are told of the others."""
    office = Office(desk, {"a": [Try(5.0, BROKEN)]})
    await office.run(plan_of(task("a", **ONCE), task("b", max_retries=1, review={"agent": "g"}), review={"agent": "h"}))
    desk.same("whom they may name", [one.agents for one in office.advice.attempts if one.task_id == "a"], [("f", "g")])


async def troubles(desk: Desk) -> None:
    """What an agent's model meets counts against its provider when it is met, though the agent goes on."""
    office = Office(desk)

    office.answers = lambda puppet, text: ()
    met = [ModelTrouble(ModelProblem.OVERLOADED, attempt=number) for number in range(1, 6)]

    async def says(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(3.0)
        office.puppets[0].says(*met)
        await anyio.sleep(2.0)
        office.puppets[0].says(TurnEnded("end_turn"))
        await anyio.sleep(65.0)
        office.puppets[-1].says(TurnEnded("end_turn"))

    agents = {
        "puppet": AgentConfig(adapter="command", command=("p",)),
        "f": AgentConfig(adapter="command", command=("f",)),
    }
    plan = plan_of(
        task("a", agent="puppet"),
        task("b", agent="puppet", depends_on=["a"]),
        task("c", depends_on=["a"]),
        agents=agents,
    )
    await office.run(plan, beside=says)
    told = [
        (one.entity_id, one.metadata["provider"], one.metadata["circuit"])
        for one in office.records()
        if one.event == "ProviderBreaker"
    ]
    desk.same(
        "the breaker",
        told,
        [("task:a", "command:p", "open"), ("task:b", "command:p", "half_open"), ("task:b", "command:p", "closed")],
    )
    office.tells(
        """
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5:
            execution_completed > validation_passed
        job:b 0: Born max_retries=4 / 5: scheduler_assigned depends_on=job:a / 63: worker_started
            worker_id=worker:local / 70: execution_completed > validation_passed
        job:c 0: Born max_retries=4 / 5: scheduler_assigned depends_on=job:a > worker_started worker_id=worker:local /
            10: execution_completed > validation_passed
        """,
        whose="job",
    )


async def access(desk: Desk) -> None:
    """Who may not have a task is passed over for the next one who may; what was not to be changed is not merged."""
    office = Office(desk)
    office.rooms.temporary = True
    office.rooms.released = Released(branch="supervisor/x")
    changed = {"good": ("src/a",), "bad": ("src/a", "docs/b"), "many": tuple(f"src/{number}" for number in range(6))}

    async def changes(session_id: str, message: str, commit: str = "") -> Changes | None:
        files = changed.get(session_id.partition("-")[0], ())
        return Changes(base="b", commit="c", files=files) if files else None

    office.rooms.changes = changes  # type: ignore[method-assign]
    rights = {"probationary": {"directories": ["src"]}}
    plan = plan_of(
        task("reads"),
        task("first", files=["src"], fallback_agents=["g"]),
        task("nobody", files=["docs"], agent="h"),
        task("online", network=True, agent="g"),
        task("good", agent="g", depends_on=["first"], **ONCE),
        task("bad", agent="g", depends_on=["good"], max_retries=1, fallback_agents=["f"]),
        task("splits", agent="h", may_split=True),
        workspace="worktree",
        access={"initial": {"g": "probationary"}, **rights},
    )
    refused: list[str] = []

    async def splits(turn: AgentTurn) -> None:
        try:
            await turn.split([_part("never")])
        except Refused:
            refused.append(turn.prompt)

    office.acts["splits"] = splits
    result = await office.run(plan)
    desk.same("who may not split", refused, ["splits"])
    wanted = {
        "reads": "completed",
        "first": "completed",
        "nobody": "aborted",
        "online": "aborted",
        "good": "completed",
        "bad": "failed",
        "splits": "completed",
    }
    desk.same("outcomes", office.outcomes(result), wanted)
    had = [("bad", "f"), ("bad", "g"), ("first", "g"), ("good", "g"), ("reads", "f"), ("splits", "h")]
    desk.same("who has what", sorted((prompt, agent) for agent, _, prompt in office.asked), had)
    facts = sorted(
        (one.entity_id, one.metadata["agent"], one.metadata["transition"], one.metadata["level"])
        for one in office.records()
        if one.event == "AccessRefused"
    )
    wanted_facts = [
        ("task:bad", "f", "closed", "probationary"),
        ("task:bad", "g", "closed", "probationary"),
        ("task:first", "f", "claimed", "untrusted"),
        ("task:nobody", "h", "claimed", "untrusted"),
        ("task:online", "g", "claimed", "probationary"),
        ("task:splits", "h", "split", "untrusted"),
    ]
    desk.same("who was refused", facts, wanted_facts)
    standing = [
        (one.entity_id, one.metadata["agent"], one.metadata["what"])
        for one in office.records()
        if one.event == "Standing"
    ]
    counted = [
        ("task:bad", "f", "violation"),
        ("task:bad", "g", "violation"),
        ("task:first", "g", "success"),
        ("task:good", "g", "success"),
        ("task:reads", "f", "success"),
        ("task:splits", "h", "success"),
    ]
    desk.same("what counts", sorted(standing), counted)
    office.tells(
        """
        task:reads 0: Born max_retries=3 > claimed by=reads > started / 5: completed > Standing > closed
        task:first 0: Born max_retries=3 > AccessRefused > claimed by=first > started / 5: completed > Standing >
            closed
        task:nobody 0: Born max_retries=3 > AccessRefused > cancelled
        task:online 0: Born max_retries=3 > AccessRefused > cancelled
        task:good 0: Born max_retries=0 / 5: claimed by=good > started / 10: completed > Standing > closed
        task:bad 0: Born max_retries=1 / 10: claimed by=bad > started / 15: completed > AccessRefused > Standing >
            verification_rejected > retried > claimed by=bad-2 > started / 20: completed > AccessRefused > Standing >
            verification_rejected > DeadLettered attempts=0 claims=2
        task:splits 0: Born max_retries=3 > AccessRefused > claimed by=splits > started / 5: completed > Standing >
            closed
        """,
        whose="task",
    )


async def again(desk: Desk) -> None:
    """A command that comes twice has the first answer, also after a kill; its id is nobody else's."""
    office = Office(desk, {"a": [Try(30.0)], "b": [Try(5.0)], "c": [Try(40.0)]})
    plan = plan_of(task("a"), task("b", approval="before"), task("c"))
    hands = (
        Hand(2.0, "requeue", "a", id="one"),
        Hand(4.0, "requeue", "a", id="one"),
        Hand(5.0, "requeue", "task:a", id="one"),
        Hand(6.0, "cancel", "a", id="one"),
        Hand(7.0, "approve", "c", id="two"),
        Hand(8.0, "approve", "b", id="two"),
        Hand(9.0, "cancel", "nobody"),
    )
    await office.run(plan, *hands, copy_after_s=20.0, give_up_after_s=21.0)
    answers = [
        ("requeue", "a", "OPEN", False),
        ("requeue", "a", "OPEN", True),
        ("requeue", "task:a", "OPEN", True),
        ("approve", "b", "OPEN", False),
    ]
    desk.same("answers", office.answers_to, answers)
    desk.same(
        "refused",
        [(verb, name) for verb, name, _ in office.refused],
        [("cancel", "a"), ("approve", "c"), ("cancel", "nobody")],
    )
    heir = Office(desk, store=office.copies[0])
    await heir.run(
        plan,
        Hand(1.0, "requeue", "a", id="one"),
        Hand(1.5, "approve", "b", id="two"),
        Hand(2.0, "cancel", "b", id="one"),
        Hand(2.5, "cancel", "b"),
    )
    desk.same(
        "answers of the next one", heir.answers_to, [("requeue", "a", "OPEN", True), ("approve", "b", "OPEN", True)]
    )
    desk.same(
        "refused by the next one", [(verb, name) for verb, name, _ in heir.refused], [("cancel", "b"), ("cancel", "b")]
    )


WORDS = (own_words, too_late, advice, reviewers, troubles, access, again)
