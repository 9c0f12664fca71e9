"""Permissions: rules, options, and the answers of a human, which come in time, late, or never."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from supervisor.agent_catalogue import Quirks
from supervisor.cli.rendering import inspected_text, tree_text
from supervisor.control.error_messages import ControlError
from supervisor.control.server import serve_control
from supervisor.diagnostics.tree_view import tree
from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.statedir import StateDir
from supervisor.plans import AgentConfig, LivenessConfig, load_plan
from supervisor.plans.source import BadPlan
from supervisor.policies.permissions import (
    Decision,
    OpenPermission,
    OptionChoice,
    PermissionPolicy,
    PermissionRequest,
    PermissionRule,
    choose_option,
    decide_permission,
)
from supervisor.runtime.entity import Refused
from tests.support import DEADLINE_S, Run, quick_settings, stdout_of, supervising, wait_for_record

ASKS = {"a": AgentConfig(adapter="scripted", permissions="ask")}
pytestmark = pytest.mark.anyio
PROMPT = "@ask edit: a.txt\n@say did it"


# ---------------------------------------------------------------------------------------------------- the policy
def wish(
    title: str = "git status", kind: str = "execute", tool: str = "shell", paths: Sequence[str] = ()
) -> PermissionRequest:
    return PermissionRequest(title=title, kind=kind, tool=tool, paths=tuple(paths))


def rule(then: str, **given: Any) -> PermissionRule:
    return PermissionRule(then=Decision(then), **given)


@pytest.mark.parametrize(
    ("one", "asked", "fits"),
    [
        (rule("allow", kinds=("read", "execute")), wish(), True),
        (rule("allow", kinds=("read",)), wish(), False),
        (rule("allow", title="git *"), wish(), True),
        (rule("allow", title="git"), wish(), False),
        (rule("allow", title="GIT *"), wish(), False),
        (rule("allow", tool="sh*"), wish(), True),
        (rule("allow", tool="sh*"), wish(tool=""), False),
        (rule("allow", kinds=("execute",), title="rm *"), wish(), False),
        (rule("allow", path="src/*"), wish(paths=["src/a/b.py"]), True),
        (rule("allow", path="src/*"), wish(paths=["/work/src/a.py", "src/b.py"]), True),
        (rule("allow", path="src/*"), wish(paths=["src/a.py", "etc/b"]), False),
        (rule("deny", path="etc/*"), wish(paths=["src/a.py", "etc/b"]), True),
        (rule("ask", path="etc/*"), wish(paths=["src/a.py", "etc/b"]), True),
        (rule("allow", path="src/*"), wish(paths=["src/../etc/b"]), False),
        (rule("deny", path="/etc/*"), wish(paths=["../etc/passwd"]), True),
        (rule("allow", path="*"), wish(), False),
        (rule("deny", path="/etc/*"), wish(paths=["//etc/passwd"]), True),
        (rule("deny", path="//etc/*"), wish(paths=["/etc/passwd"]), True),
        (rule("deny", path="etc/*"), wish(paths=["//work/etc/b"]), True),
        (rule("deny", path="./etc/*"), wish(paths=["etc/b"]), True),
        (rule("deny", path="../etc/*"), wish(paths=["/etc/passwd"]), True),
        (rule("deny", path="etc/"), wish(paths=["etc"]), True),
    ],
)
def test_a_rule_fits(one: PermissionRule, asked: PermissionRequest, fits: bool) -> None:
    """A permission rule applies if all its parts match the request; a rule that allows needs every path to match, with
    ``..`` resolved."""
    other = Decision.ASK if one.then is not Decision.ASK else Decision.DENY
    policy = PermissionPolicy(default=other, rules=(one,))
    assert decide_permission(policy, asked, "/work").decision is (one.then if fits else other)


@pytest.mark.parametrize(
    ("then", "path", "fits"), [(Decision.DENY, "/a/[b]*/etc/c", True), (Decision.ALLOW, "/a/bc/etc/c", False)]
)
def test_the_directory_is_no_pattern(then: Decision, path: str, fits: bool) -> None:
    """Wildcard characters in the name of the working directory match only themselves; those in the rule's path are
    wildcards."""
    policy = PermissionPolicy(default=Decision.ASK, rules=(rule(then, path="etc/*"),))
    assert decide_permission(policy, wish(paths=[path]), "/a/[b]*").decision is (then if fits else Decision.ASK)


def test_the_first_rule_that_fits_decides() -> None:
    """The first permission rule that matches a request decides, and the decision names the rule."""
    policy = PermissionPolicy(
        default=Decision.ASK, rules=(rule("deny", title="git push*"), rule("allow", title="git *"))
    )
    told = [decide_permission(policy, wish(title), "/work") for title in ("git push -f", "git log", "make")]
    assert told == [
        (Decision.DENY, "rule: deny title git push*"),
        (Decision.ALLOW, "rule: allow title git *"),
        (Decision.ASK, "default: ask"),
    ]


@pytest.mark.parametrize(
    ("offered", "allow", "always", "chosen"),
    [
        (("allow_once", "allow_always", "reject_once"), True, False, "allow_once"),
        (("allow_once", "allow_always", "reject_once"), True, True, "allow_always"),
        (("allow_always", "reject_once"), True, False, None),
        (("allow_once", "reject_once"), True, True, "allow_once"),
        (("allow_once", "reject_once"), False, True, "reject_once"),
        (("allow_once", "reject_always"), False, False, "reject_always"),
        (("allow_once",), False, False, None),
        ((), True, True, None),
    ],
)
def test_the_option_grants_no_more_than_was_decided(
    offered: Sequence[str], allow: bool, always: bool, chosen: str | None
) -> None:
    """Of the options that the agent offers, none is chosen that grants more than was decided; without a suitable option
    none is chosen."""
    options = [(f"id of {kind}", kind) for kind in offered]
    wanted = OptionChoice(f"id of {chosen}", chosen) if chosen else OptionChoice(None, None)
    assert choose_option(options, allow=allow, always=always) == wanted


# ---------------------------------------------------------------------------------------------------- a human
async def waiting(run: Run) -> OpenPermission:
    """Wait until an agent requests a permission, and return the open permission."""
    await wait_for_record(run.sup, "PermissionRequested", "s:t1")
    [one] = run.sup.permissions()
    return one


def answers(run: Run) -> list[tuple[str, str, str | None]]:
    """Return decision, sender and kind of option of each recorded answer."""
    return [
        (one.metadata["decision"], one.metadata["by"], one.metadata["kind"])
        for one in run.transitions("PermissionAnswered")
    ]


@pytest.mark.parametrize(("allow", "said"), [(True, "did it\n"), (False, "refused: edit: a.txt\n")])
async def test_an_operator_answers(tmp_path: Path, allow: bool, said: str) -> None:
    """The agent waits for the operator's answer and follows the answer; the record names the operator and the reason,
    and a second answer is refused."""
    async with supervising(tmp_path, agents=ASKS) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        results: list[str] = []

        async def work() -> None:
            results.append((await session.run(PROMPT)).text)

        group.start_soon(work)
        asked = await waiting(run)
        assert (asked.id, asked.session, asked.agent, asked.kind) == ("s:t1:p1", "s", "a", "edit")
        assert 0 < asked.left_s <= 300
        await run.sup.answer(asked.id, allow=allow, because="I looked", by="operator:bob")
        assert run.sup.permissions() == []
        with pytest.raises(
            Refused, match=f"s:t1:p1 is answered already: {'allow' if allow else 'deny'} by operator:bob"
        ):
            await run.sup.answer(asked.id, allow=True, by="operator:eve")
    assert results == [said]
    [answered] = run.transitions("PermissionAnswered")
    assert answered.metadata["why"] == "I looked"
    assert answers(run) == [("allow" if allow else "deny", "operator:bob", "allow_once" if allow else "reject_once")]


async def test_of_two_answers_at_once_one_counts(tmp_path: Path) -> None:
    """Of two answers that are sent at the same time the first one counts; the other is refused, and the error names the
    first."""
    async with supervising(tmp_path, agents=ASKS) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        group.start_soon(session.run, PROMPT)
        asked = await waiting(run)
        heard: list[str] = []

        async def say(allow: bool) -> None:
            try:
                heard.append((await run.sup.answer(asked.id, allow=allow, by="operator")).kind or "")
            except Refused as error:
                heard.append(str(error))

        async with anyio.create_task_group() as both:
            both.start_soon(say, True)
            both.start_soon(say, False)
    [(decision, by, kind)] = answers(run)
    assert (by, sorted(heard)) == ("operator", sorted([kind, f"s:t1:p1 is answered already: {decision} by operator"]))


@pytest.mark.parametrize("ends_turn", [True, False])
async def test_a_turn_that_a_denial_has_ended_is_not_completed(tmp_path: Path, ends_turn: bool) -> None:
    """Of an agent whose turns end with a denial, which its model never hears of, the turn has failed for good, with the
    reason; of another agent it is what the agent says."""
    agents = {"a": AgentConfig(adapter="scripted", permissions="deny", quirks=Quirks(denial_ends_turn=ends_turn))}
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="a")
        result = await session.run(PROMPT)
        assert result.ok is not ends_turn
        if ends_turn:
            assert "a permission was denied, and the agent ended its turn" in result.error


async def test_a_waiting_permission_is_shown(tmp_path: Path) -> None:
    """While a permission waits for an answer, the tree shows the request below its turn, an inspection names the
    request, and the turn stays in TOOL_USE."""
    async with supervising(tmp_path, agents=ASKS) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        group.start_soon(session.run, PROMPT)
        asked = await waiting(run)
        shown, to_type = tree_text(tree(run.sup.core.registry.rows())), "supervisor answer s:t1:p1 allow"
        assert f"s:t1:p1  permission waits for a human: {to_type}  (edit: a.txt)" in shown
        assert f"s:t1  turn TOOL_USE  (waits for a human: {to_type})" in shown
        assert "waits for a human: s:t1:p1" in inspected_text(run.sup.inspect("s:t1"))
        await run.sup.answer(asked.id, allow=True)
    assert [one.to_status for one in run.transitions("PermissionRequested")] == ["TOOL_USE"]


async def test_a_permission_is_denied_at_its_deadline(tmp_path: Path) -> None:
    """A permission that is not answered within ``answer_within_s`` is denied, and the turn goes on; a later answer is
    refused, and the error says so."""
    agents = {"a": AgentConfig(adapter="scripted", permissions={"default": "ask", "answer_within_s": 0.05})}
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="a")
        result = await session.run(PROMPT)
        assert (result.outcome, result.text) == ("completed", "refused: edit: a.txt\n")
        with pytest.raises(Refused, match="deny by deadline: nobody answered within answer_within_s"):
            await run.sup.answer("s:t1:p1", allow=True)
    assert answers(run) == [("deny", "deadline", "reject_once")]


async def test_an_abort_withdraws_a_permission(tmp_path: Path) -> None:
    """An abort of a session withdraws its open permission requests once; a later answer is refused."""
    async with supervising(tmp_path, agents=ASKS) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        group.start_soon(session.run, PROMPT)
        await waiting(run)
        receipt = await session.abort()
        assert receipt.survivors == 0
        with pytest.raises(Refused, match="no permission 's:t1:p1' waits for an answer"):
            await run.sup.answer("s:t1:p1", allow=True)
        assert run.sup.permissions() == []
    assert answers(run) == [("withdrawn", "supervisor", None)]


async def test_a_timed_out_turn_withdraws_its_permission(tmp_path: Path) -> None:
    """A turn may time out while a human is waited for; the failed turn withdraws its permission request."""
    async with supervising(
        tmp_path, agents=ASKS, settings=quick_settings(turn_timeout_s=0.2, max_consecutive_errors=1)
    ) as run:
        session = await run.sup.start_session("s", agent="a")
        result = await session.run(PROMPT)
        assert result.outcome == "failed"
        assert "turn_timeout_s" in result.error
    assert answers(run) == [("withdrawn", "supervisor", None)]


async def test_waiting_for_a_human_is_no_stall(tmp_path: Path) -> None:
    """An agent that waits for a permission does not count as stalled."""
    liveness = LivenessConfig(snapshot_s=0.01)
    settings = quick_settings().model_copy(update={"liveness": liveness})
    agents = {"a": AgentConfig(adapter="scripted", permissions={"default": "ask", "answer_within_s": 0.5})}
    async with supervising(tmp_path, agents=agents, settings=settings) as run:
        session = await run.sup.start_session("s", agent="a")
        assert (await session.run(PROMPT)).ok
    assert [one.event for one in run.events("s") if one.event == "Stalled"] == []
    assert answers(run) == [("deny", "deadline", "reject_once")]


@pytest.mark.parametrize(
    "number", ["01", "1" * 5000, "\N{ARABIC-INDIC DIGIT ONE}", "", "-1"], ids=["zero", "long", "other", "none", "minus"]
)
async def test_a_permission_id_has_one_spelling(tmp_path: Path, number: str) -> None:
    """A permission id whose number has leading zeros or digits that are not ASCII is refused as unknown."""
    async with supervising(tmp_path, agents=ASKS) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        group.start_soon(session.run, PROMPT)
        asked = await waiting(run)
        with pytest.raises(Refused, match="no permission 's:t1:p"):
            await run.sup.answer(f"s:t1:p{number}", allow=True)
        await run.sup.answer(asked.id, allow=False)
    assert [decision for decision, *_ in answers(run)] == ["deny"]


async def test_always_is_remembered_for_the_session(tmp_path: Path) -> None:
    """After an answer with ``always``, equal requests of the session are allowed without a human, even if the agent
    offers no such option."""
    async with supervising(tmp_path, agents=ASKS) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        group.start_soon(session.run, "@ask edit: a.txt\n@ask edit: a.txt\n@ask edit: b.txt\n@say did it")
        asked = await waiting(run)
        await run.sup.answer(asked.id, allow=True, always=True)
        await wait_for_record(run.sup, "PermissionAnswered", "s:t1", number=2)
        await wait_for_record(run.sup, "PermissionRequested", "s:t1", number=3)
        [third] = run.sup.permissions()
        assert (third.id, third.title) == ("s:t1:p3", "edit: b.txt")
        await run.sup.answer(third.id, allow=True, by="host")
    assert answers(run) == [
        ("allow", "host", "allow_once"),
        ("allow", "policy", "allow_once"),
        ("allow", "host", "allow_once"),
    ]


async def test_a_rule_decides_without_a_human(tmp_path: Path) -> None:
    """A permission request to which a rule applies is answered at once without a human, and the record names
    the rule."""
    rules = [{"then": "allow", "kind": "read"}, {"then": "deny", "title": "edit: *"}]
    agents = {"a": AgentConfig(adapter="scripted", permissions={"default": "ask", "rules": rules})}
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="a")
        assert (await session.run("@ask read: a.txt\n@ask edit: a.txt")).text == "refused: edit: a.txt\n"
    assert [one.metadata["why"] for one in run.transitions("PermissionAnswered")] == [
        "rule: allow kind read",
        "rule: deny title edit: *",
    ]


# ---------------------------------------------------------------------------------------------------- commands
async def test_the_permission_commands(tmp_path: Path) -> None:
    """The command ``permissions`` lists the waiting requests with their details; ``answer`` answers a request, and a
    second answer fails."""
    told: list[str] = []

    async def command(*words: str) -> None:
        told.append(await anyio.to_thread.run_sync(stdout_of, *words, "--state-dir", tmp_path / "sd"))

    async with supervising(tmp_path, agents=ASKS) as run, anyio.create_task_group() as group:
        socket, closing = StateDir.open(tmp_path / "sd").control_socket, run.sup.core.services.closing
        await run.sup.core.services.start("control", partial(serve_control, socket, run.sup, closing=closing))
        await command("permissions")
        session = await run.sup.start_session("s", agent="a")
        group.start_soon(session.run, PROMPT)
        await waiting(run)
        await command("permissions")
        await command("answer", "s:t1:p1", "deny", "--because", "no")
        with pytest.raises(ControlError, match="s:t1:p1 is answered already: deny by operator"):
            await command("answer", "s:t1:p1", "allow")
    assert told[0] == "no permission waits for an answer"
    assert told[1].splitlines()[1].split()[:4] == ["s:t1:p1", "a", "edit", "edit:"]
    assert told[2:] == ["s:t1:p1: denied"]
    assert [one.metadata["why"] for one in run.transitions("PermissionAnswered")] == ["no"]


# ---------------------------------------------------------------------------------------------------- the program
@pytest.mark.parametrize(("says", "told"), [(True, "allow"), (False, "deny")])
async def test_the_embedding_program_answers(tmp_path: Path, says: bool, told: str) -> None:
    """The function ``on_permission`` of the embedding program gets the request, and its result is the answer."""
    shown: list[OpenPermission] = []

    async def ask(asked: OpenPermission) -> bool:
        shown.append(asked)
        return says

    async with open_supervisor(agents=ASKS, settings=quick_settings(), workdir=tmp_path, on_permission=ask) as sup:
        session = await sup.start_session("s", agent="a")
        result = await session.run(PROMPT)
    assert result.text == ("did it\n" if says else "refused: edit: a.txt\n")
    assert [(one.id, one.title) for one in shown] == [("s:t1:p1", "edit: a.txt")]


async def test_a_program_that_fails_denies(tmp_path: Path) -> None:
    """When ``on_permission`` of the embedding program raises an exception, the request is denied, and the supervisor
    goes on."""

    async def ask(asked: OpenPermission) -> bool:
        raise OSError("no screen")

    async with open_supervisor(agents=ASKS, settings=quick_settings(), workdir=tmp_path, on_permission=ask) as sup:
        session = await sup.start_session("s", agent="a")
        assert (await session.run(PROMPT)).text == "refused: edit: a.txt\n"


@pytest.mark.parametrize("says", ["deny", 2, object()], ids=["text", "number", "object"])
async def test_a_program_that_says_neither_yes_nor_no_denies(tmp_path: Path, says: Any) -> None:
    """When ``on_permission`` returns a value that is true but not ``True``, the request is denied."""

    async def ask(asked: OpenPermission) -> Any:
        return says

    async with open_supervisor(agents=ASKS, settings=quick_settings(), workdir=tmp_path, on_permission=ask) as sup:
        session = await sup.start_session("s", agent="a")
        assert (await session.run(PROMPT)).text == "refused: edit: a.txt\n"


FOR_GOOD = """
from supervisor.agents import scripted_agent

ask = scripted_agent.Turn.ask


def for_good(turn, method, options, **params):
    offered = [{"optionId": "x", "name": "for good", "kind": "allow_always"}, *options[1:]]
    return ask(turn, method, options=offered, **params)


scripted_agent.Turn.ask = for_good
scripted_agent.main()
"""


async def test_a_program_that_allows_what_is_not_offered_denies(tmp_path: Path) -> None:
    """When ``on_permission`` returns ``True`` for a request that offers only an option to allow for good, the request
    is denied at once."""
    (tmp_path / "agent.py").write_text(FOR_GOOD)
    root = str(Path(__file__).parents[2])
    command = (sys.executable, str(tmp_path / "agent.py"))
    agents = {"a": AgentConfig(adapter="acp", command=command, env={"PYTHONPATH": root}, permissions="ask")}

    async def ask(asked: OpenPermission) -> bool:
        return True

    async with open_supervisor(agents=agents, settings=quick_settings(), workdir=tmp_path, on_permission=ask) as sup:
        session = await sup.start_session("s", agent="a")
        with anyio.fail_after(DEADLINE_S):
            assert (await session.run(PROMPT)).text == "refused: edit: a.txt\n"


async def test_an_operators_answer_cancels_the_programs(tmp_path: Path) -> None:
    """When an operator answers a request first, the running ``on_permission`` of the embedding program is cancelled."""
    asking, cancelled = anyio.Event(), anyio.Event()

    async def ask(asked: OpenPermission) -> bool:
        asking.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.set()
            raise
        return True

    async with open_supervisor(agents=ASKS, settings=quick_settings(), workdir=tmp_path, on_permission=ask) as sup:
        async with anyio.create_task_group() as group:
            session = await sup.start_session("s", agent="a")
            group.start_soon(session.run, PROMPT)
            await asking.wait()
            await sup.answer("s:t1:p1", allow=False, by="operator")
            await cancelled.wait()


# ---------------------------------------------------------------------------------------------------- a plan
@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("maybe", "'maybe' is not one of allow, deny, ask"),
        (
            "{rules: [{then: allow}]}",
            "the rule matches every request; give kind, title, tool or path, or use default",
        ),
        ("{rules: [{then: perhaps, kind: read}]}", "'perhaps' is not one of allow, deny, ask"),
        ("{answer_within_s: 0}", "answer_within_s: 0 is"),
        ("7", "7 is a number; give allow, deny, ask, or a mapping"),
    ],
)
def test_an_invalid_policy_is_named_with_its_field(tmp_path: Path, written: str, complaint: str) -> None:
    """The error about an invalid permission policy in a plan names the value and the fix."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"agents: {{a: {{adapter: scripted, permissions: {written}}}}}\ntasks: [{{id: t, agent: a}}]\n")
    with pytest.raises(BadPlan) as caught:
        load_plan(plan)
    assert complaint in str(caught.value)
