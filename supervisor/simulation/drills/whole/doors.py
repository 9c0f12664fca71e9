"""Doors: what a host, a program and a server of tools find at the edges of a supervisor.

What cannot be opened is refused before anything has begun; a server is there for as long as its session, is started
again where it ends, and is given up where that comes too often. Held to docs/mcp.md and the docstrings of the doors.
"""

from __future__ import annotations

from typing import Any, Final

import anyio
import msgspec

from supervisor.agents.mcp_stdio import McpError
from supervisor.embedding.runtime import Supervisor, open_supervisor, reconfigure
from supervisor.lifecycles.types import AbortScope
from supervisor.plans import AgentConfig, Settings
from supervisor.plans.access import AccessConfig
from supervisor.ports import JournalUnavailable
from supervisor.runtime.entity import Degraded, Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import NoSuchEntity
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House, Prop

__all__ = ["DOORS"]

NOBODY: Final = AgentConfig(adapter="acp", command=("true",)).model_copy(update={"adapter": "nobody"})


async def refusals(desk: Desk) -> None:
    """Settings that cannot hold, and an adapter that is nobody's, are refused, and nothing is opened or changed."""
    judged = Settings(access=AccessConfig(), plugins=())
    for what, wrong in (
        ("access without worktrees", {"settings": judged}),
        ("an adapter of nobody", {"settings": Settings(plugins=()), "agents": {"a": NOBODY}}),
    ):
        await desk.raises(what, _opened(wrong), ValueError)
    house = House(desk)
    async with house.open(Settings(drain_s=7.0)) as sup:
        try:
            reconfigure(sup, agents={"a": NOBODY}, settings=Settings(drain_s=9.0))
            desk.same("an adapter of nobody", "taken", "refused")
        except ValueError:
            pass
        known = (sup.profile("a"), sup.profile("puppet") is not None, sup.settings.drain_s)
        desk.same("nothing has changed", known, (None, True, 7.0))
        fine = AgentConfig(adapter="acp", command=("true",), cwd="sub")
        reconfigure(sup, agents={"b": fine}, settings=Settings(drain_s=9.0), workdir="/work")
        profile = sup.profile("b")
        told = (profile.adapter, profile.command, profile.directory) if profile is not None else ()
        desk.same("an agent", told, ("acp", ("true",), "/work/sub"))
        desk.same("what holds now", (sup.profile("puppet"), sup.settings.drain_s), (None, 9.0))


async def _opened(wrong: dict[str, Any]) -> str:
    async with open_supervisor(**wrong):
        return "opened"


# ---------------------------------------------------------------------------------------------------------- servers
class Server:
    """What becomes of the props that are servers: each answers what it is asked, or does not."""

    def __init__(self, house: House) -> None:
        self.house = house

    @property
    def prop(self) -> Prop:
        return self.house.props[-1]

    def heard(self) -> list[dict[str, Any]]:
        """What it was sent."""
        return [msgspec.json.decode(one) for one in self.prop.orders if isinstance(one, bytes)]

    async def answers(self, **said: Any) -> None:
        number = [one["id"] for one in self.heard() if "id" in one][-1]
        self.prop.out.put(msgspec.json.encode({"jsonrpc": "2.0", "id": number, **said}) + b"\n")
        await anyio.sleep(MOMENT_S)


async def servers(desk: Desk) -> None:
    """A server is there once it has answered, in its session's directory, with a clean environment; it ends with its
    session, and none is had in one that is ending, or while the disk is down."""
    house = House(desk)
    async with house.open() as sup, anyio.create_task_group() as group:
        server, found = Server(house), dict[str, Any]()

        async def start(name: str, session_id: str = "s", **more: Any) -> None:
            env = {"SECRET_TOKEN": "hidden-from-the-log"}
            found[name] = await _start(sup, session_id, name, env, **more)

        await sup.start_session("s", agent="puppet", directory="/here")
        group.start_soon(start, "tools")
        await anyio.sleep(MOMENT_S)
        launch = server.prop.launch
        assert launch is not None
        shown = (launch.argv, launch.cwd, launch.env.get("SECRET_TOKEN"), {"PATH", "HOME", "LANG"} <= {*launch.env})
        desk.same("how it is started", shown, (("serve", "tools"), "/here", "hidden-from-the-log", True))
        desk.same("what it is asked", [one["method"] for one in server.heard()], ["initialize"])
        desk.same("it is not there yet", found, {})
        await server.answers(result={})
        desk.same("it is there", type(found.get("tools")).__name__, "McpResource")
        asked: list[Any] = []

        async def ask() -> None:
            asked.append(await found["tools"].call("tools/list"))

        group.start_soon(ask)
        await anyio.sleep(MOMENT_S)
        await server.answers(result={"tools": ["hidden-from-the-log"]})
        desk.same("what it answers", asked, [{"tools": ["hidden-from-the-log"]}])
        house.cannot_start.add("serve")
        await start("none", start_s=5.0)
        desk.same("one that cannot be started", isinstance(found.get("none"), McpError), True)
        house.cannot_start.clear()
        desk.again()
        group.start_soon(start, "slow")
        house.cannot_start.clear()
        await anyio.sleep(MOMENT_S)
        await sup.session("s").send("say hidden-from-the-log")
        on_record = [b"hidden-from-the-log" in one for one in house.store.log.records]
        desk.same("its secrets on record", any(on_record), False)
        house.disk_fails = JournalUnavailable("full")
        group.start_soon(_told, sup)
        await anyio.sleep(1.0)
        await start("down")
        desk.same("while the disk is down", isinstance(found.get("down"), Degraded), True)
        house.disk_fails = None
        await anyio.sleep(3.0)
        group.start_soon(_end, sup)
        await anyio.sleep(MOMENT_S)
        await start("late")
        late = isinstance(found.get("late"), Refused | NoSuchEntity)
        desk.same("of who is ending", late, True)
        await anyio.sleep(20.0)
        desk.same("all of them have ended", [one.alive for one in house.props], [False] * len(house.props))
        desk.same("asked to, by the end of its input", "close" in house.props[0].orders, True)
        await start("gone")
        desk.same("of who has ended", isinstance(found.get("gone"), NoSuchEntity), True)
        desk.same("those that were never there", isinstance(found.get("slow"), McpError), True)
        group.cancel_scope.cancel()


async def _told(sup: Supervisor) -> None:
    """Somebody is told something while the disk is down: so that it is known to be."""
    sup.tree.note("s", "Fact", Cause(actor="host"), {})


async def _end(sup: Supervisor) -> None:
    await sup.abort("s", AbortScope.SESSION)


async def _start(sup: Supervisor, session_id: str, name: str, env: dict[str, str], **more: Any) -> Any:
    try:
        return await sup.start_mcp_server(session_id, name, ["serve", name], env=env, **more)
    except (McpError, Refused, NoSuchEntity) as error:
        return error


DOORS = (refusals, servers)
