"""A counter that crashes, and a kernel supervisor that restarts it.

The ref stays valid over restarts, and the next incarnation answers queued messages. The count is lost: state that must
survive belongs outside of the actor. Run it with ``python examples/kernel/supervised_counter.py [trio]``.
"""

from __future__ import annotations

import sys

import anyio

from actors import (
    ActorRestarting,
    ActorStopped,
    Backoff,
    ChildSpec,
    Context,
    Intensity,
    Supervisor,
    open_system,
)


class Counter:
    """Sum of the reciprocals of all messages; a message of 0 crashes the actor."""

    def __init__(self) -> None:
        self.count = 0.0

    def receive(self, ctx: Context, message: float) -> float:
        self.count += 1 / message
        return self.count


async def main() -> None:
    supervisor = Supervisor(
        [ChildSpec("counter", Counter)],
        backoff=Backoff(base_s=0.01, cap_s=0.01),
        intensity=Intensity(restarts_max=2, period_s=60.0),
    )
    async with open_system(seed=1) as system:
        system.spawn(supervisor, "app")
        counter = system.ref("app/counter")
        assert counter is not None

        for message in (1, 2, 0, 4):
            try:
                print(f"1/{message}: {await counter.ask(message, timeout_s=5)}")
            except ActorRestarting as error:
                print(f"1/{message}: {error}")
        print(f"incarnation {counter.incarnation}")

        counter.tell(0)
        print(f"asked behind a crash: {await counter.ask(8, timeout_s=5)}")
        print(f"incarnation {counter.incarnation}, dead letters: {system.dead_letters}")

        system.monitor("app", lambda down: print(f"the supervisor: {down.reason}"))
        counter.tell(0)
        await system.join("app")
        try:
            counter.tell(1)
        except ActorStopped as error:
            print(error)


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
