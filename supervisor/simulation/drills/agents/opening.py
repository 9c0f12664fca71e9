"""Opening: how a conversation begins, request by request: logins, sessions of the past, and what a plan wishes for.

Agents of a run offer little and are wished nothing of. Here every way to begin is gone, well and badly
(docs/agents-acp.md).
"""

from __future__ import annotations

from typing import Any, Final

from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.ports import Malformed, McpServer, Ready, Text, ToolOpened, Usage, Wishes
from supervisor.simulation.drills.agents.conversing import Talk, request, told
from supervisor.simulation.drills.desk import Desk

__all__ = ["OPENING"]

NO_ENTRY: Final = {"code": -32000, "message": "log in"}
MODES: Final = {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "yolo"}]}
MODELS: Final = {"currentModelId": "small", "availableModels": [{"modelId": "small"}, {"modelId": "large"}]}
MODEL: Final = {
    "id": "m",
    "category": "model",
    "currentValue": "small",
    "options": [{"value": "small"}, {"value": "x"}],
}
EFFORT: Final = {
    "id": "effort",
    "category": "mode",
    "currentValue": "low",
    "options": [{"options": [{"value": "low"}, {"value": "high"}]}, {"value": "max"}],
}


class Opened(Talk):
    """A conversation that begins, and its agent. ``asked`` counts what it was asked for."""

    def __init__(self, desk: Desk, resume: str | None = None, **wishes: Any) -> None:
        super().__init__(desk, ready=False)
        self.codec = AcpCodec(2_000, wishes=Wishes(**wishes))
        self.first = told(self.codec.start("/w", resume))

    def hello(self, ways: Any = (), version: int = 1, **can: Any) -> list[Any]:
        said = {"protocolVersion": version, "agentCapabilities": can, "authMethods": list(ways)}
        return self.answer({**said, "agentInfo": {"name": "robot", "version": "7"}})

    def new(self, **offered: Any) -> list[Any]:
        """It says hello, and opens a session."""
        self.hello()
        return self.answer({"sessionId": "s", **offered})


def _ended(desk: Desk, what: str, outs: list[Any], *words: str) -> None:
    """The conversation is over, for a reason that names these."""
    desk.same(what, [type(one) for one in outs], [Malformed])
    why = outs[0].why if outs and isinstance(outs[0], Malformed) else ""
    desk.same(f"{what}: {why}", [one for one in words if one not in why], [])


def _new(number: int = 2, **place: Any) -> dict[str, Any]:
    return request(number, "session/new", **{"cwd": "/w", "mcpServers": [], **place})


READY: Final = Ready(None, "robot 7", False)


async def hellos(desk: Desk) -> None:
    """Who we are, which version, which session; what the agent is called, and what it can."""
    talk = Opened(desk)
    hello = talk.first[0]
    desk.same("a hello", (hello["method"], hello["params"]["protocolVersion"]), ("initialize", 1))
    can = hello["params"]["clientCapabilities"]
    desk.same("what we can", (can["terminal"], can["fs"]), (True, {"readTextFile": True, "writeTextFile": True}))
    desk.same("sessions below", can["_meta"], {"supervisor": {"sessions": True}})
    talk.same("a session", talk.hello(), _new())
    talk.same("it is open", talk.answer({"sessionId": "s"}), READY)
    for version in (0, 2):
        _ended(desk, f"version {version}", Opened(desk).hello(version=version), str(version))
    _ended(desk, "a refusal", Opened(desk).answer(error={"code": 3, "message": "busy"}), "busy", "3")
    talk = Opened(desk)
    talk.hello()
    _ended(desk, "no session", talk.answer(error={"code": 3, "message": "busy"}), "busy", "3")
    talk = Opened(desk)
    talk.hello()
    _ended(desk, "a session without a name", talk.answer({}))
    for can, wanted in (
        ({"loadSession": True}, Ready("s", "robot 7", False)),
        ({"sessionCapabilities": {"resume": {}}}, Ready("s", "robot 7", False)),
        ({"_meta": {"x": {"promptQueueing": True}}}, Ready(None, "robot 7", True)),
    ):
        talk = Opened(desk)
        talk.hello(**can)
        talk.same(f"{can}", talk.answer({"sessionId": "s"}), wanted)
    talk = Opened(desk)
    talk.same("nobody", talk.answer({"protocolVersion": 1}), _new())
    talk.same("is nameless", talk.answer({"sessionId": "s"}), Ready(None, "", False))


async def logins(desk: Desk) -> None:
    """Who is not let in logs in once, by the way that the plan names, and asks again."""
    ways = [{"id": "key", "name": "A key"}, {"id": "web"}]
    talk = Opened(desk, auth="web")
    talk.hello(ways)
    talk.same("a login", talk.answer(error=NO_ENTRY), request(3, "authenticate", methodId="web"))
    talk.same("asked again", talk.answer({}), _new(4))
    talk.same("it is open", talk.answer({"sessionId": "s"}), READY)
    refused: Any = {"error": {"code": 9, "message": "no"}}
    tales: tuple[tuple[list[Any], tuple[str, ...]], ...] = (
        ([{"error": NO_ENTRY}, refused], ("web", "no", "9")),
        ([{"error": NO_ENTRY}, {"result": {}}, {"error": NO_ENTRY}], ("web", "log in", "after")),
        ([{"error": NO_ENTRY}, {"result": {}}, refused], ("refused", "no", "9")),
    )
    for answers, words in tales:
        talk = Opened(desk, auth="web")
        talk.hello(ways)
        outs: list[Any] = []
        for one in answers:
            outs = talk.answer(one.get("result"), error=one.get("error"))
        _ended(desk, "not let in", outs, *words)
    for known, auth, there, missing in (
        (ways, "", ("'key' (A key)", "'web' (web)"), "knows no"),
        (ways, "card", ("'key'", "knows no 'card'"), "(card)"),
        ((), "key", ("log in",), "knows no"),
    ):
        talk = Opened(desk, auth=auth)
        talk.hello(known)
        given = talk.answer(error=NO_ENTRY)
        _ended(desk, f"no way in by {auth!r}", given, *there)
        desk.same("what is not said", missing in given[0].why, False)
    talk = Opened(desk, auth="key")
    _ended(desk, "no hello without a login", talk.answer(error=NO_ENTRY), "log in")


async def pasts(desk: Desk) -> None:
    """A conversation of the past goes on where the agent can, silently; else a new one is begun, and that is said."""
    can: dict[str, Any] = {"loadSession": True}
    for able, method in ((can, "session/load"), ({"sessionCapabilities": {"resume": {}}}, "session/resume")):
        talk = Opened(desk, "old")
        asked = request(2, method, sessionId="old", cwd="/w", mcpServers=[])
        talk.same("the past", talk.hello(**able), asked)
        words = {"content": {"type": "text", "text": "before"}}
        talk.same("what was said before", talk.update("agent_message_chunk", "old", **words))
        talk.same("what was done before", talk.update("tool_call", "old", toolCallId="a", title="t"))
        cost = {"cost": {"amount": 2.0, "currency": "USD"}}
        talk.same("what it cost before", talk.update("usage_update", "old", used=1, size=2, **cost))
        talk.same("it is open", talk.answer(None if able is can else {}), Ready("old", "robot 7", False))
        talk.same("a prompt", [one["method"] for one in talk.prompt()], "session/prompt")
        talk.same(
            "a call of that name", talk.update("tool_call", "old", toolCallId="a", title="t"), ToolOpened("a", "t")
        )
        cost = {"cost": {"amount": 2.5, "currency": "USD"}}
        usage = Usage({"used": 1, "size": 2, **cost}, cost_usd=0.5)
        talk.same("what it costs now", talk.update("usage_update", "old", used=1, size=2, **cost), usage)
    talk = Opened(desk, "old")
    talk.hello(**can)
    talk.update("tool_call", "old", toolCallId="a", title="t")
    lost = talk.answer(error={"code": 5, "message": "gone"})
    desk.same("it is lost", [_log_of(lost, "gone (code 5)"), *lost[1:]], [True, _new(3)])
    talk.same("a new one", talk.answer({"sessionId": "s"}), Ready("s", "robot 7", False))
    talk = Opened(desk, "old")
    lost = talk.hello()
    desk.same("it cannot", [_log_of(lost, "cannot load"), *lost[1:]], [True, _new(2)])
    talk.same("a new one all the same", talk.answer({"sessionId": "s"}), READY)
    talk = Opened(desk, "old", mode="yolo")
    talk.hello(**can)
    settle = talk.answer({"modes": MODES})
    talk.same("wishes of the past", settle, request(3, "session/set_mode", sessionId="old", modeId="yolo"))
    still = talk.update("agent_message_chunk", "old", content={"type": "text", "text": "before"})
    talk.same("while it is settled", still)


def _log_of(outs: list[Any], words: str) -> bool:
    return bool(outs) and isinstance(outs[0], Text) and outs[0].kind == "log" and words in outs[0].text


async def wishes(desk: Desk) -> None:
    """Mode, model and options, each looked up among what is offered, and set where it is not so already."""
    settings: Any = {"configOptions": [MODEL, EFFORT]}

    def option(config: str, value: str) -> list[dict[str, Any]]:
        return [request(3, "session/set_config_option", sessionId="s", configId=config, value=value)]

    for wished, offered, asked in (
        ({"mode": "yolo"}, {"modes": MODES}, [request(3, "session/set_mode", sessionId="s", modeId="yolo")]),
        ({"mode": "ask"}, {"modes": MODES}, [READY]),
        ({"model": "large"}, {"models": MODELS}, [request(3, "session/set_model", sessionId="s", modelId="large")]),
        ({"model": "small"}, {"models": MODELS}, [READY]),
        ({"model": "x"}, {"models": MODELS, **settings}, option("m", "x")),
        ({"model": "small"}, {"models": MODELS, **settings}, [READY]),
        ({"model": "x"}, settings, option("m", "x")),
        ({"mode": "high"}, settings, option("effort", "high")),
        ({"mode": "max"}, settings, option("effort", "max")),
        ({"mode": "low"}, settings, [READY]),
        ({"options": {"effort": "high"}}, settings, option("effort", "high")),
        ({"options": {"effort": "low"}}, settings, [READY]),
        ({"options": {"free": "z"}}, {"configOptions": [{"id": "free"}]}, option("free", "z")),
        ({}, settings, [READY]),
    ):
        talk = Opened(desk, **wished)
        talk.same(f"{wished} of {sorted(offered)}", talk.new(**offered), *asked)
        if asked != [READY]:
            talk.same("it is set", talk.answer({}), READY)
            refused = Opened(desk, **wished)
            refused.new(**offered)
            _ended(desk, f"{wished} is refused", refused.answer(error={"code": 5, "message": "no"}), "no", "5")
    for wished, offered, words in (
        ({"mode": "x"}, {"modes": MODES}, ("mode", "'x'", "ask, yolo")),
        ({"model": "x"}, {"models": MODELS}, ("model", "'x'", "small, large")),
        ({"model": "y"}, settings, ("model", "'y'", "small, x")),
        ({"mode": "y"}, settings, ("mode", "low, high, max")),
        ({"mode": "y"}, {}, ("mode", "robot 7", "no choice")),
        ({"model": "y"}, {"configOptions": [EFFORT]}, ("model", "robot 7", "no choice")),
        ({"options": {"z": "1"}}, {}, ("options", "'z'", "none")),
        ({"options": {"effort": "z"}}, settings, ("effort", "low, high, max")),
    ):
        _ended(desk, f"{wished} of {sorted(offered)}", Opened(desk, **wished).new(**offered), *words)
    talk = Opened(desk, mode="high", options={"deep": "1"})
    talk.new(**settings)
    more: Any = {"configOptions": [{"id": "deep", "currentValue": "0", "options": [{"value": "1"}]}]}
    set_deep = request(4, "session/set_config_option", sessionId="s", configId="deep", value="1")
    talk.same("what is there then", talk.answer(more), set_deep)
    talk.same("an answer that says nothing", talk.answer(None), READY)


async def tools(desk: Desk) -> None:
    """Servers of tools as the protocol has them, where the agent can reach them."""
    local = McpServer(name="l", command=("run", "it", "now"), env={"A": "b"})
    web = McpServer(name="w", url="http://x", headers={"H": "v"})
    sse = McpServer(name="e", url="http://y", transport="sse")
    shown = {
        "l": {"name": "l", "command": "run", "args": ["it", "now"], "env": [{"name": "A", "value": "b"}]},
        "w": {"type": "http", "name": "w", "url": "http://x", "headers": [{"name": "H", "value": "v"}]},
        "e": {"type": "sse", "name": "e", "url": "http://y", "headers": []},
    }
    for can, servers in (({}, (local,)), ({"http": True}, (local, web)), ({"http": True, "sse": True}, (sse, web))):
        talk = Opened(desk, mcp_servers=servers)
        talk.same(
            f"tools over {can}", talk.hello(mcpCapabilities=can), _new(mcpServers=[shown[one.name] for one in servers])
        )
    for server, transport in ((web, "http"), (sse, "sse")):
        given = Opened(desk, mcp_servers=(local, server)).hello()
        _ended(desk, f"no tools over {transport}", given, server.name, transport, "robot 7")


OPENING = (hellos, logins, pasts, wishes, tools)
