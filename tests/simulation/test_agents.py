"""Tests of simulated agent programs with the production codecs: their behaviour without faults, and the effect of each
fault."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import anyio
import msgspec
import pytest
from agent_kit import Talk
from trio.testing import MockClock

from supervisor.agents.codecs import codec_for
from supervisor.ports import (
    ChildRequested,
    ConversationNamed,
    Launch,
    PermissionNeeded,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    Usage,
)
from supervisor.simulation.agents import program_for
from supervisor.simulation.agents.jsonl_agent import MAPPING
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.agents.trouble import CRASHES, FATES
from supervisor.simulation.agents.turn_plan import depth_of, plan_turn
from supervisor.simulation.faults import FAULTS, FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom

virtual = pytest.mark.trio

BUSY = AgentShape(
    tools=(3, 6), delegation=0.3, delegates_to=("helper",), permission=0.3, child_processes=0.5, cancel_s=(0.0, 1.0)
)
ALONE = AgentShape(tools=(3, 6), terminals=0.0, delegation=0.0, permission=0.0)
ASKING = AgentShape(tools=(4, 6), terminals=0.0, delegation=0.0, permission=1.0, parallel=0.0)
TERMINALS = AgentShape(steps=(1, 1), tools=(2, 2), terminals=1.0, delegation=0.0, permission=0.0, parallel=0.0)


def talking(seed: int, command: tuple[str, ...], shape: AgentShape, faults: FaultPlan) -> Talk:
    codec = codec_for(command[0].removeprefix("sim-"), mapping=MAPPING)()
    return Talk(codec, lambda launch: program_for(launch, shape, KeyedRandom(seed), faults), command)


def with_agent(seed: int, *only: str, shape: AgentShape = BUSY) -> Talk:
    """Make a conversation with a simulated ACP agent that exactly these faults strike."""
    return talking(seed, ("sim-acp",), shape, FaultPlan(KeyedRandom(seed), only=only))


def with_command(seed: int, *only: str, prompt: tuple[str, ...] = ()) -> Talk:
    """Make a conversation with a simulated one-shot agent that exactly these faults strike."""
    return talking(seed, ("sim-command", *prompt), BUSY, FaultPlan(KeyedRandom(seed), only=only))


def with_jsonl(seed: int, *only: str, resumed: str = "") -> Talk:
    """Make a conversation with a simulated program that prints lines of JSON and that exactly these faults strike."""
    again = ("--resume", resumed) if resumed else ()
    return talking(seed, ("sim-jsonl", *again), BUSY, FaultPlan(KeyedRandom(seed), only=only))


# ------------------------------------------------------------------------------------------- when nothing strikes
@virtual
async def test_acp_turns_without_faults(autojump_clock: MockClock) -> None:
    """For every seed each turn of an ACP agent without faults ends well, each call is closed once, and the agent exits
    when its input ends."""
    heard: Counter[type] = Counter()
    for seed in range(25):
        async with with_agent(seed) as talk:
            assert await talk.ready()
            for _ in range(2):
                assert await talk.turn() == "end_turn"
            opened, closed = talk.heard(ToolOpened), talk.heard(ToolClosed)
            assert sorted(one.call_id for one in opened) == sorted(one.call_id for one in closed)
            assert {one.outcome for one in closed} <= {"completed"}
            talk.do(talk.codec.close())
            assert (await talk.exited(), talk.malformed) == (0, "")
            heard.update(type(out) for _, out in talk.said)
    assert heard[Usage] == 50
    assert {TerminalOpened, PermissionNeeded, ChildRequested, Text} <= set(heard)


@virtual
async def test_a_cancel_ends_an_acp_turn(autojump_clock: MockClock) -> None:
    """A cancelled turn ends within the time that the agent's shape gives, as cancelled or completed, and leaves no
    terminal running and no call open."""
    killed = 0
    for seed in range(25):
        async with with_agent(seed) as talk:
            await talk.ready()
            talk.do(talk.codec.prompt("work"))
            await anyio.sleep(KeyedRandom(seed).between(0.0, 30.0))
            talk.do(talk.codec.interrupt())
            assert await talk.ended(within_s=BUSY.cancel_s[1] + 0.1) in ("cancelled", "end_turn")
            await anyio.sleep(0.1)
            assert all(one.ended.is_set() for one in talk.terminals.values())
            assert len(talk.heard(ToolOpened)) == len(talk.heard(ToolClosed))
            killed += len(talk.killed)
            assert await talk.turn() == "end_turn"
    assert killed > 5


@virtual
@pytest.mark.parametrize("prompt", [(), ("{prompt}",)])
async def test_a_command_without_faults(autojump_clock: MockClock, prompt: tuple[str, ...]) -> None:
    """With the prompt on standard input or as an argument, a one-shot agent writes output, starts child processes, and
    exits with 0."""
    forks = 0
    for seed in range(10):
        async with with_command(seed, prompt=prompt) as talk:
            assert (await talk.turn(), talk.machine.status) == ("end_turn", 0)
            assert "tokens used" in talk.text
            forks += len(talk.machine.children)
    assert forks > 0


@virtual
@pytest.mark.parametrize("resumed", ["", "s0:a1"])
async def test_lines_of_json_without_faults(autojump_clock: MockClock, resumed: str) -> None:
    """The program that prints JSON reports the name of its conversation, either the resumed one or a new one; every
    call has an opening and a closing line, and the last line is the result of the turn."""
    calls = 0
    for seed in range(10):
        async with with_jsonl(seed, resumed=resumed) as talk:
            assert (await talk.turn(), talk.machine.status) == ("end_turn", 0)
            assert [one.resume_id for one in talk.heard(ConversationNamed)] == [resumed or talk.machine.name]
            opened, closed = talk.heard(ToolOpened), talk.heard(ToolClosed)
            assert sorted(one.call_id for one in opened) == sorted(one.call_id for one in closed)
            calls += len(opened)
    assert calls > 10


@virtual
@pytest.mark.parametrize(
    ("kind", "ended"),
    [
        ("agent.provider_error", "the model's provider answered 529: overloaded"),
        ("agent.refuses", "refused"),
        ("process.lies", "the agent exited with status 0 and did not say how its turn ended"),
    ],
)
async def test_how_lines_of_json_fail(autojump_clock: MockClock, kind: str, ended: str) -> None:
    """A turn without a result line fails, whatever the exit status; with a result line, the error is taken from that
    line."""
    async with with_jsonl(1, f"{kind}@s:a1:t1") as talk:
        assert await talk.turn() == "error"
        assert talk.heard(TurnEnded)[-1].error == ended


@virtual
async def test_agents_ask_at_odd_moments(autojump_clock: MockClock) -> None:
    """Some simulated agents request a permission before they announce the call, and some request another after the
    call."""
    first = again = 0
    for seed in range(25):
        async with with_agent(seed, shape=ASKING) as talk:
            await talk.ready()
            assert await talk.turn() == "end_turn"
            said = [out for _, out in talk.said if isinstance(out, ToolOpened | ToolClosed | PermissionNeeded)]
            first += sum(isinstance(one, ToolOpened) and one.title == "may I?" for one in said)
            again += sum(isinstance(a, ToolClosed) and isinstance(b, PermissionNeeded) for a, b in pairwise(said))
    assert first > 10
    assert again > 10


@virtual
async def test_the_same_seed_says_the_same(autojump_clock: MockClock) -> None:
    """Two runs of a seed write the same output at the same times; another seed writes other output."""

    async def said(seed: int) -> list[Any]:
        async with with_agent(seed, shape=msgspec.structs.replace(BUSY, parallel=0.0)) as talk:
            await talk.ready()
            began = anyio.current_time()
            await talk.turn()
            return [(round(at - began, 6), out) for at, out in talk.said]

    assert await said(1) == await said(1) != await said(2)


# ------------------------------------------------------------------------------------------------- faults: processes
@virtual
async def test_a_hung_agent_answers_nothing(autojump_clock: MockClock) -> None:
    """A hanging program ends no turn, ignores a cancel, and does not exit when its input ends."""
    async with with_agent(1, "process.hang@s:a1:t1") as talk:
        await talk.ready()
        assert await talk.turn(within_s=10_000) == ""
        talk.do([*talk.codec.interrupt(), *talk.codec.close()])
        assert await talk.ended(within_s=10_000) == ""
        assert not talk.machine.ended.is_set()


@virtual
@pytest.mark.parametrize("seed", range(6))
async def test_a_crash_in_a_turn(autojump_clock: MockClock, seed: int) -> None:
    """An agent that crashes in a turn exits with one of the known statuses and writes a message to standard error; its
    turn ends as failed."""
    async with with_agent(seed, "process.crash@s:a1:t1") as talk:
        await talk.ready()
        talk.do(talk.codec.prompt("work"))
        assert await talk.exited() in CRASHES
        assert b"simulated crash" in talk.machine.errors
        assert [one.stop for one in talk.turns] == ["error"]


def test_every_status_with_a_meaning_happens() -> None:
    """The simulated crashes include all exit statuses that have a meaning in spec 000, and two other statuses of a
    shell."""
    assert {124, 126, 130, 137, 143, 125, 127} <= {*CRASHES}


@virtual
async def test_signals_from_outside(autojump_clock: MockClock) -> None:
    """SIGKILL, SIGTERM and SIGSEGV all occur among the seeds, and the turn that the signal struck fails."""
    statuses = set()
    for seed in range(12):
        async with with_agent(seed, "process.signalled@s:a1:t1") as talk:
            await talk.ready()
            talk.do(talk.codec.prompt("work"))
            statuses.add(await talk.exited())
            assert "ended by SIG" in talk.turns[0].error
    assert statuses == {-9, -15, -11}


@virtual
async def test_a_torn_line(autojump_clock: MockClock) -> None:
    """The turn of a program that exits after half a message has failed, with an error that quotes the half, whatever
    the status."""
    async with with_agent(1, "process.torn_line@s:a1:t1") as talk:
        await talk.ready()
        talk.do(talk.codec.prompt("work"))
        await talk.exited()
        assert "its last line was no message" in talk.turns[0].error


@virtual
async def test_a_lie(autojump_clock: MockClock) -> None:
    """A program that exits with status 0 in the middle of a turn: the turn fails nevertheless."""
    async with with_agent(1, "process.lies@s:a1:t1") as talk:
        await talk.ready()
        talk.do(talk.codec.prompt("work"))
        assert await talk.exited() == 0
        assert [one.stop for one in talk.turns] == ["error"]


@virtual
async def test_a_closed_output(autojump_clock: MockClock) -> None:
    """An agent that closes its output in a turn exits some time later without another message; its turn fails."""
    async with with_agent(1, "process.closes_output@s:a1:t1") as talk:
        await talk.ready()
        talk.do(talk.codec.prompt("work"))
        await talk.machine.closed.wait()
        assert not talk.machine.ended.is_set()
        await talk.exited()
        assert [one.stop for one in talk.turns] == ["error"]


@virtual
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("process.bad_utf8", ""),
        ("process.huge_line", "longer than"),
        ("process.bad_json", "the agent wrote a line"),
    ],
)
async def test_output_that_is_no_message(autojump_clock: MockClock, kind: str, words: str) -> None:
    """Output that is no message of the protocol costs nothing: the turn ends well, for every seed, and the codec names
    the fault."""
    for seed in range(3 if kind == "process.huge_line" else 12):
        async with with_agent(seed, f"{kind}@s:a1:t1") as talk:
            await talk.ready()
            assert await talk.turn() == "end_turn"
            assert words in talk.strays


@virtual
async def test_a_flood(autojump_clock: MockClock) -> None:
    """An agent that floods writes more than a megabyte of text in a turn, and the turn ends well."""
    async with with_agent(1, "process.flood@s:a1:t1") as talk:
        await talk.ready()
        assert await talk.turn() == "end_turn"
        assert len(talk.text) > 1_000_000


@virtual
async def test_dribbling_output(autojump_clock: MockClock) -> None:
    """An agent that writes one byte a second needs more than 100 s for its first reply alone."""
    async with with_agent(1, "process.dribble@s:a1") as talk:
        began = anyio.current_time()
        assert await talk.ready()
        assert anyio.current_time() - began > 100


@virtual
async def test_a_slow_start(autojump_clock: MockClock) -> None:
    """An agent that starts slowly becomes ready within the bounds of its shape."""
    for seed in range(5):
        async with with_agent(seed, "process.slow_start@s:a1") as talk:
            began = anyio.current_time()
            assert await talk.ready()
            assert BUSY.slow_start_s[0] <= anyio.current_time() - began <= BUSY.slow_start_s[1]


@virtual
@pytest.mark.parametrize("make", [with_agent, with_command])
async def test_a_fast_exit(autojump_clock: MockClock, make: Any) -> None:
    """A program that exits at once has written nothing."""
    async with make(1, "process.fast_exit@s:a1") as talk:
        await talk.exited()
        assert talk.text == ""


@virtual
async def test_what_a_program_leaves_behind(autojump_clock: MockClock) -> None:
    """After an agent has exited, its daemons still run in sessions of their own, some of them ignoring SIGTERM, and the
    child process that holds the output pipe still runs."""
    deaf = []
    for seed in range(10):
        async with with_agent(seed, "process.orphans@s:a1", "process.holds_pipe@s:a1") as talk:
            await talk.ready()
            talk.do(talk.codec.close())
            assert await talk.exited() == 0
            *daemons, holder = talk.machine.children
            assert {(one.own_session, one.holds_output, one.ended.is_set()) for one in daemons} == {
                (True, False, False)
            }
            assert (holder.holds_output, holder.ended.is_set()) == (True, False)
            deaf += [one.deaf for one in daemons]
    assert {True, False} == set(deaf)


@virtual
async def test_a_deaf_agent(autojump_clock: MockClock) -> None:
    """An agent with these faults ignores SIGTERM; when its turn is cancelled twice, the turn ends as cancelled."""
    async with with_agent(1, "process.ignores_term@s:a1", "process.ignores_cancel@s:a1:t1") as talk:
        await talk.ready()
        talk.do(talk.codec.prompt("work"))
        await anyio.sleep(1.0)
        talk.do([*talk.codec.interrupt(), *talk.codec.interrupt()])
        assert await talk.ended() == "cancelled"
        assert talk.machine.deaf


# ---------------------------------------------------------------------------------------------------- faults: agents
@virtual
async def test_a_tool_that_fails(autojump_clock: MockClock) -> None:
    """A call that fails is closed as failed, whether the agent or a terminal runs it, and its turn ends well."""
    for shape in (ALONE, TERMINALS):
        async with with_agent(1, "agent.tool_fails@s:a1:t1:c1", shape=shape) as talk:
            await talk.ready()
            assert await talk.turn() == "end_turn"
            outcomes = {one.call_id: one.outcome for one in talk.heard(ToolClosed)}
            assert outcomes.pop("s:a1:t1:c1") == "failed"
            assert set(outcomes.values()) == {"completed"}


@virtual
async def test_a_tool_that_hangs(autojump_clock: MockClock) -> None:
    """A call that hangs keeps its turn open until the turn is cancelled; if a terminal runs the call, the cancel kills
    the command."""
    for shape in (ALONE, TERMINALS):
        async with with_agent(1, "agent.tool_hangs@s:a1:t1:c1", shape=shape) as talk:
            await talk.ready()
            assert await talk.turn(within_s=10_000) == ""
            talk.do(talk.codec.interrupt())
            assert await talk.ended() == "cancelled"
            assert set(talk.killed) == ({"terminal-1"} if shape is TERMINALS else set())


@virtual
async def test_a_provider_that_fails_or_hangs(autojump_clock: MockClock) -> None:
    """An error of the provider ends the turn with the provider's message; with a provider that hangs, only a cancel
    ends the turn."""
    async with with_agent(1, "agent.provider_error@s:a1:t1", "agent.provider_hangs@s:a1:t2") as talk:
        await talk.ready()
        assert await talk.turn() == "error"
        assert "overloaded" in talk.turns[0].error
        assert await talk.turn(within_s=10_000) == ""
        talk.do(talk.codec.interrupt())
        assert await talk.ended(2) == "cancelled"


@virtual
async def test_refusals(autojump_clock: MockClock) -> None:
    """A refused turn ends as a refusal, or as ended by one of the two limits."""
    stops = set()
    for seed in range(12):
        async with with_agent(seed, "agent.refuses@s:a1:t1") as talk:
            await talk.ready()
            stops.add(await talk.turn())
    assert stops == {"refusal", "max_tokens", "max_turns"}


@virtual
async def test_saying_twice_and_too_late(autojump_clock: MockClock) -> None:
    """A repeated message, or a late message about a call that is over, neither closes a call twice nor ends a second
    turn."""
    twice = ("agent.duplicate@s:a1:t1", "agent.duplicate@s:a1:t1:c1", "agent.late@s:a1:t1")
    async with with_agent(1, *twice) as talk:
        await talk.ready()
        await talk.turn()
        await anyio.sleep(100)
        assert "one more thing, later" in talk.text
        closed = [one.call_id for one in talk.heard(ToolClosed)]
        assert (len(talk.turns), len(closed), talk.malformed) == (1, len(set(closed)), "")


@virtual
async def test_an_open_call(autojump_clock: MockClock) -> None:
    """A simulated agent with this fault ends its turn while a call is still open."""
    async with with_agent(1, "agent.open_call@s:a1:t1") as talk:
        await talk.ready()
        await talk.turn()
        left = {one.call_id for one in talk.heard(ToolOpened)} - {one.call_id for one in talk.heard(ToolClosed)}
        assert left == {"s:a1:t1:open"}


# -------------------------------------------------------------------------------------------------- faults: commands
@virtual
@pytest.mark.parametrize("kind", [*FATES, "agent.provider_error", "agent.provider_hangs", "agent.refuses"])
async def test_how_a_command_ends_badly(autojump_clock: MockClock, kind: str) -> None:
    """A one-shot agent that a fault ends does not write its last line, and its turn fails or, for faults that hang,
    never ends."""
    async with with_command(1, f"{kind}@s:a1:t1") as talk:
        ended = await talk.turn(within_s=10_000)
        assert "tokens used" not in talk.text
        assert (ended == "") == (kind in ("process.hang", "agent.provider_hangs"))
        assert kind in ("process.lies", "process.closes_output") or ended in ("error", "")


@virtual
@pytest.mark.parametrize("kind", ["process.crash", "process.signalled", "process.hang", "process.torn_line"])
async def test_a_terminal_that_ends_badly(autojump_clock: MockClock, kind: str) -> None:
    """A fault that strikes a terminal's command makes that call alone fail, or never return."""
    async with with_agent(1, f"{kind}@s:a1:t1:c1", shape=TERMINALS) as talk:
        await talk.ready()
        ended = await talk.turn(within_s=10_000)
        outcomes = {one.call_id: one.outcome for one in talk.heard(ToolClosed)}
        assert (ended == "") == (kind == "process.hang")
        assert outcomes == ({} if ended == "" else {"s:a1:t1:c1": "failed", "s:a1:t1:c2": "completed"})


# --------------------------------------------------------------------------------------------------- swarms of faults
async def _some_turns(talk: Talk) -> None:
    """Run up to three turns, and cancel each that takes more than two minutes."""
    ended = bool(await talk.ready(within_s=300))
    for number in range(1 if talk.codec.one_shot else 3):
        if ended and not talk.over and not await talk.turn(within_s=120):
            talk.do(talk.codec.interrupt())
            ended = bool(await talk.ended(number + 1, within_s=120))


@virtual
async def test_any_mixture_of_faults(autojump_clock: MockClock) -> None:
    """With all faults on, no simulated program fails by itself, and every fault that may strike a program does so."""
    struck: Counter[str] = Counter()
    for seed in range(120):
        faults = FaultPlan(KeyedRandom(seed), intensity=2.0)
        async with talking(seed, ("sim-acp",) if seed % 3 else ("sim-command",), BUSY, faults) as talk:
            await _some_turns(talk)
        struck.update(faults.counts())
    elsewhere = {"process.spawn_error", "process.warden_lost"}
    kinds = {kind for kind in FAULTS if kind.startswith(("process.", "agent."))} - elsewhere
    assert kinds - set(struck) <= {"process.huge_line"}, "the rarest may not strike in so few runs"


# ------------------------------------------------------------------------------------------------- shapes and plans
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("steps", (0, 3), r"steps: \(0, 3\) is not a range; give \(low, high\) with 1 <= low <= high"),
        ("text_chars", (0, 10**6 + 1), r"text_chars: \(0, 1000001\) is not a range; .* 0 <= low <= high <= 1000000$"),
        ("tokens", (0, 10**9 + 1), r"tokens: \(0, 1000000001\) is not a range; .* 0 <= low <= high <= 1000000000$"),
        ("tool_s", (3.0, 1.0), r"tool_s: \(3.0, 1.0\) is not a range"),
        ("think_s", (0.0, float("inf")), "think_s: .* not finite"),
        ("parallel", 1.5, "parallel: 1.5 is not a probability; give a number from 0 to 1"),
        ("delegation", float("nan"), "delegation: nan is not a probability"),
        ("depth_max", -1, "depth_max: -1 is negative"),
        ("adapter", "telnet", "adapter: 'telnet' is not simulated; use acp, command, inprocess or jsonl"),
        ("cancel_modes", (), "cancel_modes: is empty; name at least one of wait_completed"),
    ],
)
def test_a_shape_that_makes_no_sense(field: str, value: object, words: str) -> None:
    """A shape with an impossible bound or probability is refused; the error names the field, the value, and a valid
    value."""
    with pytest.raises(ValueError, match=words):
        AgentShape(**{field: value})  # type: ignore[arg-type]


def test_what_is_not_installed() -> None:
    """A launch of an unknown program, or with unknown arguments, raises FileNotFoundError."""
    launch = Launch(argv=("vim", "notes"), cwd="/", env={})
    with pytest.raises(FileNotFoundError, match="'vim'"):
        program_for(launch, BUSY, KeyedRandom(1), FaultPlan(KeyedRandom(1)))


def test_an_average_turn() -> None:
    """A turn of the default shape has about three tool calls on average, and 20 to 60 seconds of thinking."""
    turns = [plan_turn(AgentShape(), KeyedRandom(seed), "t", 0) for seed in range(1000)]
    tools = [tool for turn in turns for step in turn.steps for batch in step.batches for tool in batch]
    thought_s = sum(step.think_s for turn in turns for step in turn.steps)
    assert 2.7 < len(tools) / 1000 < 3.3
    assert 20 < thought_s / 1000 < 60


def test_the_depth_of_delegations() -> None:
    """A session at the greatest depth delegates no more; the depth is read from the prompt, wherever it stands in the
    prompt."""
    shape = AgentShape(delegation=1.0, depth_max=2)
    asked = [step.delegation for step in plan_turn(shape, KeyedRandom(1), "t", 1).steps]
    assert {depth_of(f"before\n{one.prompt}\nafter") for one in asked if one is not None} == {2}
    assert [step.delegation for step in plan_turn(shape, KeyedRandom(1), "t", 2).steps if step.delegation] == []


def test_a_delegation_beside_the_last_calls() -> None:
    """A delegation runs after all calls of its step or, with the option ``beside``, at the same time as the last
    calls."""
    shapes = [
        AgentShape(delegation=1.0, steps=(1, 1), tools=(2, 2), parallel=0.0, beside=share) for share in (0.0, 1.0)
    ]
    after, beside = (plan_turn(shape, KeyedRandom(1), "t", 0).steps[0] for shape in shapes)
    assert (after.batches, after.delegation) == (beside.batches, beside.delegation)
    assert [len(part) for part in after.parts()] == [1, 1, 1]
    assert [len(part) for part in beside.parts()] == [1, 2]
    assert beside.parts()[-1][-1] == beside.delegation
