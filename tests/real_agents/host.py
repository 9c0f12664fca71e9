"""The host that is killed: ``python -m tests.real_agents.host``, a place on its standard input.

It says a line when its first turn is done, and then works on a second one, until somebody kills it.
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
