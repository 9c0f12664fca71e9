"""Errors of the model API: an agent's own retries, failing providers and requests without progress; tests of pure
functions and of whole runs."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor import AgentTurn
from supervisor.agents.protocols.acp.messages import InfoUpdate
from supervisor.cli.query import used_by
from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import (
    AbortReason,
    Exit,
    LifecycleEvent,
    ModelFailure,
    ModelProblem,
    TransitionReason,
    Verdict,
)
from supervisor.plans import AgentConfig, ModelErrorsConfig, Plan, Settings, TaskConfig
from supervisor.policies.model_errors import PERMANENT, ModelLimits, ModelRecord
from supervisor.policies.turn_outcome import decide_verdict, model_failure_verdict
from supervisor.policies.usage import UsageTotals
from supervisor.ports import ModelErrorReported
from supervisor.work.plan_handle import run_plan
from tests.support import Run, quick_settings, states_of, stdout_of, supervising, wait_for_record

P = ModelProblem
FAILED = model_failure_verdict("it failed", ModelFailure(problem=P.SERVER, status=500))


def troubles(record: ModelRecord, times: int, problem: ModelProblem = P.OVERLOADED) -> list[Verdict | None]:
    return [record.troubled(problem, None, "", 0.0).verdict for _ in range(times)]


# ---------------------------------------------------------------------------------------------------- counting
def test_retries_of_agent_and_session_share_a_budget() -> None:
    """The number of failed turns plus the number of retries within turns is limited to one more than ``retries_max``; a
    new turn does not reset the count."""
    record = ModelRecord(ModelLimits(retries_max=3))
    assert troubles(record, 2) == [None, None]
    failed = record.failed(FAILED)
    assert failed.model is not None
    assert (failed.model.final, failed.model.attempts) == (False, 2)
    record.turn_opened()
    (verdict,) = troubles(record, 1)
    assert verdict is not None
    assert verdict.model == ModelFailure(problem=P.OVERLOADED, attempts=1, final=True)
    assert "4 times in a row (overloaded), the most is 3" in verdict.error


def test_after_the_budget_each_turn_has_one_try() -> None:
    """After its retry budget is used up, a session fails at the first model error of each later turn, until the model
    has sent some text."""
    record = ModelRecord(ModelLimits(retries_max=1))
    troubles(record, 2)
    for _ in range(3):
        record.turn_opened()
        assert troubles(record, 1)[0] is not None
    record.turn_opened()
    record.said("here is something")
    assert troubles(record, 1) == [None]


def test_a_limit_of_zero_is_no_limit() -> None:
    """A limit of 0 means no limit: on retries, on requests without progress, on requests within a period."""
    record = ModelRecord(ModelLimits(retries_max=0, fruitless_max=0, requests_max=0))
    assert set(troubles(record, 1000)) == {None}
    assert record.requested(10_000, 0.0) is None


@pytest.mark.parametrize("problem", PERMANENT)
def test_a_permanent_error_is_not_retried(problem: ModelProblem) -> None:
    """The first permanent model error ends the turn; with an empty ``at_once`` list, permanent errors are counted like
    all others."""
    (verdict,) = troubles(ModelRecord(ModelLimits()), 1, problem)
    assert verdict is not None
    assert verdict.model is not None
    assert verdict.model.final
    assert troubles(ModelRecord(ModelLimits(at_once=())), 10, problem) == [None] * 10


@pytest.mark.parametrize("text", ["", "  \n", "so I said"])
def test_repeated_text_is_no_progress(text: str) -> None:
    """Empty text, and text that the model has sent in this turn before, do not reset the count of requests without
    progress."""
    record = ModelRecord(ModelLimits(fruitless_max=2))
    record.said("so I said")
    assert record.requested(2, 0.0) is None
    record.said(text)
    assert record.requested(1, 0.0) is not None


def test_requests_without_progress_are_limited() -> None:
    """Requests without progress end the turn when there are too many; requests with progress end the turn only when
    there are too many within a period."""
    record = ModelRecord(ModelLimits(fruitless_max=20, requests_max=30, within_s=60.0))
    assert [record.requested(1, 0.0) for _ in range(20)] == [None] * 20
    verdict = record.requested(1, 0.0)
    assert verdict is not None
    assert "21 requests with nothing new in between; the most is 20" in verdict.error
    record.turn_opened()
    for second in range(600):
        record.progressed()
        assert record.requested(1, second * 3.0) is None
    outcomes = []
    for _ in range(31):
        record.progressed()
        outcomes.append(record.requested(1, 5000.0))
    assert outcomes[:-1] == [None] * 30
    assert outcomes[-1] is not None
    assert "more than 30 requests within 60 s" in outcomes[-1].error


def test_requests_without_progress_name_the_last_model_error() -> None:
    """When requests without progress end a turn, the failure names the last model error; without a model error its
    problem is ``unknown``."""
    record = ModelRecord(ModelLimits(fruitless_max=1))
    for known in (None, P.SERVER):
        record.turn_opened()
        if known is not None:
            record.troubled(known, 503, "", 0.0)
        verdict = record.requested(2, 0.0)
        assert verdict is not None
        assert verdict.model is not None
        assert (verdict.model.problem, verdict.model.status) == (known or P.UNKNOWN, 503 if known else None)


# ---------------------------------------------------------------------------------------------------- reasons
@pytest.mark.parametrize(
    ("error", "problem", "status", "found", "reason"),
    [
        ("nope", P.AUTH, None, P.AUTH, TransitionReason.PERMISSION_DENIED),
        ("nope", None, 401, P.AUTH, TransitionReason.PERMISSION_DENIED),
        ("nope", None, 429, P.RATE_LIMIT, None),
        ("insufficient_quota", None, 429, P.QUOTA, TransitionReason.PERMISSION_DENIED),
        ("nope", None, 500, P.SERVER, None),
        ("the model is overloaded", None, 503, P.OVERLOADED, TransitionReason.PROVIDER_529),
        ("nope", None, 529, P.OVERLOADED, TransitionReason.PROVIDER_529),
        ("nope", None, 413, P.CONTEXT_LENGTH, TransitionReason.PROVIDER_413),
        ("API Error: 413 {}", None, None, P.CONTEXT_LENGTH, TransitionReason.PROVIDER_413),
        ('{"type": "request_too_large"}', None, None, P.CONTEXT_LENGTH, TransitionReason.PROVIDER_413),
        ("prompt is too long", None, 400, P.CONTEXT_LENGTH, TransitionReason.PROMPT_TOO_LONG),
        ("nope", None, 404, P.NOT_FOUND, None),
        ("nope", None, 418, P.UNKNOWN, None),
        ("API Error: 401", None, None, P.AUTH, TransitionReason.PERMISSION_DENIED),
        ("connection reset", None, None, P.CONNECTION, None),
        ("prompt is too long", P.SERVER, 500, P.SERVER, None),
    ],
)
def test_structured_errors_go_before_text(
    error: str, problem: ModelProblem | None, status: int | None, found: ModelProblem, reason: TransitionReason | None
) -> None:
    """A model error is classified by its structured problem if there is one, else by its status unless the text is more
    precise, else by its text."""
    verdict = decide_verdict("error", error, problem=problem, http_status=status)
    assert verdict.model == ModelFailure(problem=found, status=status)
    assert (verdict.transition_reason, verdict.abort_reason) == (reason, AbortReason.PROVIDER_ERROR)
    assert verdict.error == error


@pytest.mark.parametrize(("text", "success"), [("[API Error: 401 no key]", False), ("The API Error is mended", True)])
def test_an_error_text_is_no_result(text: str, success: bool) -> None:
    """A turn fails if the agent reports success, but its output is nothing except the text of a model error."""
    verdict = decide_verdict("end_turn", "", text=text)
    assert (verdict.exit is Exit.SUCCESS) == success
    assert (verdict.model is None) == success


def test_a_limit_of_the_model_keeps_its_own_reason() -> None:
    """The stop reasons for too many tokens, too many requests and a refusal are no model errors, even with the text of
    one."""
    for stop in ("max_tokens", "max_turns", "refusal"):
        assert decide_verdict(stop, "API Error: 500").model is None


# ---------------------------------------------------------------------------------------------------- whole runs
def facts(run: Run, session_id: str, name: str = "ModelTrouble") -> list[dict[str, object]]:
    return [one.metadata for one in run.events(session_id) if one.event == name and one.outcome == "fact"]


def limits(**given: object) -> Settings:
    return quick_settings().model_copy(update={"model_trouble": ModelErrorsConfig(**given)})  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_an_agent_that_spends_the_retry_budget_is_interrupted(tmp_path: Path) -> None:
    """The turn of an agent that uses up the retry budget fails with problem, status and number of tries, and is not
    retried. The session lives on: its next prompt fails at the first model error, and text of the model resets the
    count."""
    async with supervising(tmp_path, settings=limits(retries_max=3)) as run:
        session = await run.sup.start_session("s", agent="scripted")
        result = await session.run("@trouble overloaded 529 1000")
        assert result.outcome == "failed"
        assert "failed 4 times in a row (overloaded)" in result.error
        (failed,) = run.transitions("task_failed", "s:t1")
        model = {"problem": "overloaded", "status": 529, "attempts": 4, "final": True}
        assert failed.metadata["verdict"]["model"] == model
        assert (failed.transition_reason, failed.abort_reason) == ("provider_529", "provider_error")
        assert [one["in_a_row"] for one in facts(run, "s")] == [1, 2, 3, 4]
        assert "failed 5 times in a row" in (await session.run("@trouble overloaded 529 9")).error
        assert (await session.run("@say hello\n@trouble overloaded 529 3")).ok
        assert {one.entity_id for one in run.transitions("task_failed")} == {"s:t1", "s:t2"}


@pytest.mark.anyio
async def test_a_401_ends_the_turn_of_an_agent(tmp_path: Path) -> None:
    """The first 401 that an agent reports ends its turn, and a prompt whose turn ended by a 401 is not sent again."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        for number, step in enumerate(("@trouble auth 401 1000", "@model-fails authentication_failed 401"), 1):
            assert (await session.run(step)).outcome == "failed"
            (failed,) = run.transitions("task_failed", f"s:t{number}")
            assert failed.metadata["verdict"]["model"]["problem"] == "auth"
            assert failed.transition_reason == "permission_denied"
        assert len(run.transitions("task_failed")) == 2


@pytest.mark.anyio
async def test_endless_requests_are_interrupted(tmp_path: Path) -> None:
    """An agent that sends requests without progress is interrupted at the limit ``fruitless_max``, and its turn
    fails."""
    async with supervising(tmp_path, settings=limits(fruitless_max=5)) as run:
        session = await run.sup.start_session("s", agent="scripted")
        result = await session.run("@vain 100000")
        assert "6 requests with nothing new in between; the most is 5" in result.error
        assert len(facts(run, "s", "ModelAskedInVain")) == 1
        assert len(run.transitions("task_failed")) == 1


@pytest.mark.anyio
async def test_a_transient_problem_is_retried_by_the_session(tmp_path: Path) -> None:
    """A turn that failed by a transient model error is retried by the session, and the retries count in the same retry
    budget."""
    async with supervising(tmp_path, settings=limits(retries_max=1)) as run:
        session = await run.sup.start_session("s", agent="scripted")
        assert (await session.run("@model-fails server_error 500")).outcome == "failed"
        finals = [one.metadata["verdict"]["model"].get("final", False) for one in run.transitions("task_failed")]
        assert finals == [False, True]


# ---------------------------------------------------------------------------------------------------- what was used
def test_usage_is_summed_up_the_tree() -> None:
    """The usage of a turn counts in its session, that of a session in its parent and its task, that of a task in its
    workstream."""

    def record(event: str, kind: str, entity_id: str, outcome: str, **told: object) -> LifecycleEvent:
        return LifecycleEvent(
            seq=1,
            timestamp=0.0,
            monotonic_s=0.0,
            entity_type=kind,
            entity_id=entity_id,
            entity_seq=1,
            event=event,
            outcome=outcome,
            metadata=told,
        )

    def used(session_id: str, turn: str, tokens: int) -> LifecycleEvent:
        told = {"input_tokens": tokens, "cached_tokens": tokens // 2, "requests": 1}
        return record("Usage", "session", session_id, "fact", turn=turn, used=told)

    books = UsageTotals(
        [
            record("Born", "task", "r1#a", "born", workstream="r1"),
            record("claimed", "task", "r1#a", "transition", by="s"),
            record("Born", "session", "s/kid", "born"),
            used("s", "s:t1", 10),
            used("s", "s:t2", 30),
            used("s/kid", "s/kid:t1", 5),
            record("claimed", "task", "r1#a", "transition", by="other"),
            used("other", "other:t1", 100),
        ]
    )
    tokens = {name: one.input_tokens for name, one in books.sums().items()}
    turns = {"s:t1": 10, "s:t2": 20, "s/kid:t1": 5, "other:t1": 100}
    assert tokens == {"s": 35, "s/kid": 5, "other": 100, "r1#a": 135, "r1": 135, **turns}
    assert books.sums()["r1#a"].cached_tokens == 15 + 2 + 50


@pytest.mark.anyio
async def test_usage_of_deep_sessions_is_summed_up(tmp_path: Path) -> None:
    """The usage of a session whose shortened id leaves out its parent counts in that parent; when only the id is known,
    as in ``used_by``, in the root."""
    name, state = "n" * 60, tmp_path / "state"

    async def agent(turn: AgentTurn) -> None:
        turn.used(input_tokens=100)
        if turn.prompt != "0":
            await turn.delegate(name, str(int(turn.prompt) - 1))

    async with open_supervisor(state) as sup:
        session = await sup.start_session("root", agent=agent)
        assert (await session.run("5")).ok
        await session.close()
    tree = await anyio.to_thread.run_sync(stdout_of, "tree", "--all", "--json", "--state-dir", state)
    (node,) = msgspec.json.decode(tree)
    found: list[tuple[str, int]] = []
    while node is not None:
        found.append((node["id"], node["used"]["input_tokens"]))
        node = next((one for one in node["children"] if one["kind"] == "session"), None)
    path, short = [f"root{f'/{name}' * depth}" for depth in range(4)], f"root/~/{name}"
    assert found == list(zip([*path, short, f"{short}/{name}"], range(600, 0, -100), strict=True))
    used = [used_by(state, entity_id) for entity_id in ("root", path[3], "root/~")]
    assert [one and one.input_tokens for one in used] == [600, 300, None]
    with JournalReader(StateDir.open(state).journal) as reader:
        sums = UsageTotals(reader.events()).sums()
    assert (sums["root"].input_tokens, sums[path[1]].input_tokens, "root/~" in sums) == (600, 300, False)


@pytest.mark.anyio
async def test_usage_of_a_plan_is_read_from_the_journal(tmp_path: Path) -> None:
    """The usage sums of a plan are shown in its tree, which is read from the journal, and recorded for its
    workstream."""
    tasks = tuple(
        TaskConfig.model_validate({"id": name, "agent": "a", "prompt": "@use 100 50 0.01"}) for name in ("a", "b")
    )
    plan = Plan(agents={"a": AgentConfig(adapter="scripted")}, tasks=tasks)
    async with open_supervisor(tmp_path / "state", agents=plan.agents, settings=plan.settings) as sup:
        await run_plan(sup, plan)
    tree = await anyio.to_thread.run_sync(stdout_of, "tree", "--all", "--json", "--state-dir", tmp_path / "state")
    nodes = {one["id"]: one for one in msgspec.json.decode(tree)}
    used = {"input_tokens": 200, "output_tokens": 100, "cost_usd": 0.02, "turns": 2}
    assert nodes["r1"]["used"] == used
    assert nodes["a"]["used"] == {name: amount / 2 for name, amount in used.items()}
    with JournalReader(StateDir.open(tmp_path / "state").journal) as reader:
        (record,), last = reader.events_named("Used"), reader.last_seq
    replayed = await anyio.to_thread.run_sync(stdout_of, "replay", tmp_path / "state", "--at", last, "--json")
    [stream, *_] = msgspec.json.decode(replayed)
    assert (stream["id"], stream["used"]) == ("r1", used)
    assert (record.entity_id, record.metadata["used"]) == ("r1", used)


@pytest.mark.anyio
async def test_retries_of_an_agent_open_its_providers_breaker(tmp_path: Path) -> None:
    """Retries of the model API within one agent open the provider's breaker for all sessions; the turn that the monitor
    ends for them is charged to nobody, and the task run waits."""
    told = TaskConfig.model_validate({"id": "a", "agent": "a", "prompt": "@trouble overloaded 529 50"})
    plan = Plan(
        agents={"a": AgentConfig(adapter="scripted")}, tasks=(told,), model_trouble=ModelErrorsConfig(retries_max=6)
    )
    async with supervising(tmp_path, agents=plan.agents, settings=plan.settings) as run:
        async with anyio.create_task_group() as group:
            group.start_soon(run_plan(run.sup, plan).wait)
            await wait_for_record(run.sup, "retry_decided", "r1#a:run")
            group.cancel_scope.cancel()
        (breaker,) = facts(run, "r1#a", "ProviderBreaker")
        assert (breaker["provider"], breaker["circuit"]) == ("a", "open")
        assert len(run.transitions("executor_started")) == 1
        (failed,) = run.transitions("execution_failed", "r1#a:run")
        assert (failed.metadata["charged"], failed.metadata["provider"]) == (False, True)
        assert states_of(run.events(), "r1#a:run")[:4] == ["PENDING", "IN_PROGRESS", "FAILED", "RETRYING"]


# ---------------------------------------------------------------------------------------------------- what ACP tells
@pytest.mark.parametrize(
    ("meta", "told"),
    [
        (None, None),
        ({"modelTrouble": "broken"}, None),
        ({"modelTrouble": {}}, ModelErrorReported(P.UNKNOWN)),
        ({"modelTrouble": {"errorKind": "billing_error", "status": 200, "attempt": -1}}, ModelErrorReported(P.QUOTA)),
        (
            {"modelTrouble": {"errorKind": "overloaded", "status": 529, "attempt": 2, "retryMs": 1500, "message": "w"}},
            ModelErrorReported(P.OVERLOADED, 529, 2, 1.5, "w"),
        ),
    ],
)
def test_model_error_updates_are_read_field_by_field(meta: object, told: ModelErrorReported | None) -> None:
    """The valid fields of an agent's message about a model error are used; invalid fields are ignored."""
    assert InfoUpdate(meta=meta).model_error == told
