"""Host program that a test kills: ``python -m tests.real_agents.host``, with a place as JSON on its standard input.

The program prints a line when its first turn has ended, and then works on a second turn until it is killed.
"""

from __future__ import annotations

import sys

import anyio
import msgspec

from supervisor import open_supervisor
from tests.real_agents.place import Place


async def main() -> None:
    place = msgspec.json.decode(sys.stdin.buffer.read(), type=Place)
    async with open_supervisor(place.state, agents={"it": place.config()}, workdir=place.work) as sup:
        session = await sup.start_session("killed", agent="it")
        first = await session.run("SAY[[the first words]]")
        print(f"{first.outcome} {first.error}", flush=True)
        await session.run(f"RUN[[{place.once}]] SAY[[gone on]]")


if __name__ == "__main__":
    anyio.run(main)
