"""Program that a crash test kills: a host with real agents, tools and daemons, which prints what the supervisor has
acknowledged.

``python -m tests.crash.victim STATE_DIR WORKDIR CYCLE SEED``. A line of JSON on standard output is an acknowledgement:
the call had returned when the line was written.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path

import anyio

from supervisor import AbortScope, NoSuchEntity, Refused, Session, Supervisor, open_supervisor
from supervisor.agents.codecs import scripted_command
from supervisor.plans import AgentConfig, PolicyConfig, Settings, StageBudgetsConfig

SESSIONS = 3
ROLL = "exec 8>roll; "
"""Shell code at the start of every program, which opens the pipe by which survivors are detected."""
DAEMON = "(setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000' &); "


def acknowledged(what: str, **fields: object) -> None:
    """Print an acknowledgement as one line in one system call, so that a kill leaves the whole line or nothing."""
    os.write(1, (json.dumps({"ack": what, **fields}) + "\n").encode())


def prompt(key: str, chance: random.Random) -> str:
    """Return a prompt with one tool call, which writes the key to the effects file; some calls start a daemon, some
    hang."""
    daemon = DAEMON if chance.random() < 0.3 else ""
    hang = "; sleep 1000" if chance.random() < 0.15 else ""
    return f"@run exec 9>roll; {daemon}echo {key} >> effects{hang}"


class Host:
    def __init__(self, sup: Supervisor, cycle: int, chance: random.Random) -> None:
        self._sup, self._cycle, self._chance = sup, cycle, chance
        self._keys = 0

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            for session in self._sup.sessions():
                group.start_soon(self._go_on, session)
            for number in range(SESSIONS):
                group.start_soon(self._customer, number)

    async def _go_on(self, session: Session) -> None:
        """Wait for the result of the prompt of a session that a killed host has left, and close the session."""
        acknowledged("resumed", id=session.id)
        result = await session.result()
        if result is not None:
            acknowledged("result", session=session.id, outcome=result.outcome, seq=result.seq)
        with suppress(Refused, NoSuchEntity):
            await session.close()

    async def _customer(self, number: int) -> None:
        """Start sessions one after the other, without end, and send each some prompts."""
        while True:
            session = await self._sup.start_session(f"c{self._cycle}-{number}", agent="agent")
            acknowledged("session", id=session.id)
            async with anyio.create_task_group() as group:
                group.start_soon(self._meddle, session)
                await self._prompts(session)
                group.cancel_scope.cancel()

    async def _prompts(self, session: Session) -> None:
        for _ in range(self._chance.randint(1, 4)):
            self._keys += 1
            key = f"{self._cycle}.{self._keys}"
            try:
                result = await session.run(prompt(key, self._chance))
            except (Refused, NoSuchEntity):
                return
            acknowledged("prompt", session=session.id, key=key, outcome=result.outcome, seq=result.seq)

    async def _meddle(self, session: Session) -> None:
        """Send a session messages, urgent messages and aborts at random moments, as an operator would, until one is
        refused."""
        while True:
            await anyio.sleep(self._chance.uniform(0.02, 0.4))
            wish = self._chance.choice(("message", "urgent", "abort", "tool"))
            if not await self._told(self._wish(wish, session)):
                return

    async def _told(self, wish: Awaitable[None]) -> bool:
        try:
            await wish
        except (Refused, NoSuchEntity):
            return False
        return True

    async def _wish(self, wish: str, session: Session) -> None:
        match wish:
            case "message" | "urgent":
                message_id = await session.send("go on", urgent=wish == "urgent")
                acknowledged("message", id=message_id, session=session.id)
            case "abort":
                receipt = await session.abort(reason="enough")
                if not receipt.already_ended:
                    acknowledged("abort", id=receipt.abort_id, recorded=receipt.recorded_at is not None)
            case "tool":
                receipt = await session.abort(AbortScope.TOOL, reason="these calls")
                if not receipt.already_ended:
                    acknowledged("abort", id=receipt.abort_id, recorded=receipt.recorded_at is not None)


async def main(state_dir: Path, workdir: Path, cycle: int, seed: int) -> None:
    memory = workdir / "memory"
    memory.mkdir(exist_ok=True)
    agent = AgentConfig(
        adapter="acp",
        command=("sh", "-c", f'{ROLL}exec "$@"', "sh", *scripted_command()),
        env={"SCRIPTED_MEMORY": str(memory)},
    )
    ladder = StageBudgetsConfig(request_s=0.2, cancel_s=0.2, terminate_s=0.2)
    settings = Settings(policy=PolicyConfig(ladder=ladder), pid_namespaces=cycle % 2 == 1)
    async with open_supervisor(state_dir, agents={"agent": agent}, settings=settings, workdir=workdir) as sup:
        acknowledged("open", fork_server=str(Path(state_dir, "runtime", "keeper")))
        await Host(sup, cycle, random.Random(seed)).run()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
