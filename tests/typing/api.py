"""The public API as a user calls it: type-checked by mypy and pyright, never run."""

from __future__ import annotations

import supervisor
from actors import ActorSystem, Context, Lane, Machine, open_system
from supervisor import (
    BEGINNING,
    AbortPolicy,
    AbortScope,
    AgentConfig,
    AgentTurn,
    Amounts,
    Budget,
    DeliveryPoint,
    EntityRow,
    LifecycleEvent,
    Receipt,
    RecordId,
    Session,
    Settings,
    Supervisor,
    TurnResult,
    open_reader,
    open_supervisor,
)


async def reviewer(turn: AgentTurn) -> str:
    async def count(text: str) -> int:
        return len(text)

    length: int = await turn.call("count", count, turn.prompt)
    turn.used(input_tokens=1200, output_tokens=300, cost_usd=0.01)
    turn.heartbeat()
    outcome = await turn.delegate("helper", "look again")
    outcome = await turn.delegate("other", "look again", agent=reviewer)
    return f"{length} {outcome.outcome}"


async def embed() -> None:
    agents = {"git": AgentConfig(adapter="command", command=("git", "status"))}
    async with open_supervisor(".sdd", agents=agents, settings=Settings(max_sessions=2)) as sup:
        session: Session = await sup.start_session("one", agent=reviewer, policy=AbortPolicy(tool_to_sibling=True))
        result: TurnResult = await session.run("hello")
        raised: BaseException | None = result.exception
        message: str = await session.send("look here first", urgent=True, at="tool_boundary")
        message = await session.send("and then here", urgent=True, at=DeliveryPoint.TURN_END, sender="me")
        scope = sup.scope("night", "the night's work", Budget(cost_usd=20.0))
        bounded = await sup.start_session("two", agent="git", budget=Budget(turns=3), within=scope)
        left: int | None = bounded.budget.turns
        used: Amounts = bounded.used
        sup.close_scope("night")
        print(left, used.tokens, raised)
        receipt: Receipt = await session.abort(AbortScope.SESSION, reason=message or result.error)
        await watch(sup)
        print(receipt.survivors, session.state, supervisor.__version__)


async def watch(sup: Supervisor) -> None:
    async with sup.subscribe(after_seq=BEGINNING) as events:
        async for event in events:
            seen: LifecycleEvent = event
            print(seen.entity_id, seen.from_status, seen.to_status, seen.cause_id)


def read(sup: Supervisor) -> RecordId:
    last = BEGINNING
    with sup.reader() as reader, open_reader(".sdd") as other:
        row: EntityRow | None = reader.entity("lead")
        for event in other.events("lead", row.born_seq if row else last, archived=True):
            last = max(last, event.seq)
        seventh: RecordId = 7  # type: ignore[assignment]  # an id is no number
        following: RecordId = last + 1  # type: ignore[assignment]  # and is not computed
        print(seventh, following)
    return last


class Echo:
    def receive(self, ctx: Context, message: object) -> object:
        return message


async def kernel(machine: Machine[supervisor.AbortScope, None]) -> None:
    async with open_system() as system:
        typed: ActorSystem = system
        ref = typed.spawn(Echo(), "echo")
        ref.tell("hi", lane=Lane.URGENT)
        print(await ref.ask("hi", timeout_s=1.0), machine.states)
