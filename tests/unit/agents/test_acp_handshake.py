"""Handshake with an ACP agent: versions, logins, resumed sessions, and the settings of a plan."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.agents.codecs import codec_for
from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.ports import AgentOptions, Malformed, McpServer, Out, Ready, Send, Text, TurnEnded

MODES = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "yolo", "name": "All"}]}
MODELS = {"currentModelId": "small", "availableModels": [{"modelId": "small"}, {"modelId": "large"}]}
OPTIONS = [
    {"id": "m", "category": "model", "type": "select", "currentValue": "small", "options": [{"value": "small"}]},
    {
        "id": "effort",
        "category": "thought_level",
        "type": "select",
        "currentValue": "low",
        "options": [{"group": "some", "name": "Some", "options": [{"value": "low"}, {"value": "high"}]}],
    },
]
NEEDS_LOGIN = {"error": {"code": -32000, "message": "Authentication required"}}
WAYS = [{"id": "key", "name": "An API key"}, {"id": "browser"}]


class Talk:
    """Codec with the settings of a plan, and methods that play the agent's part of the handshake."""

    def __init__(
        self, *, resume: str | None = None, capabilities: Any = None, ways: Any = (), **agent_options: Any
    ) -> None:
        self.codec = AcpCodec(agent_options=AgentOptions(**agent_options))
        self.asked: list[dict[str, Any]] = []
        self.told: list[Out] = []
        self._hear(self.codec.start("/work", resume))
        hello = {"protocolVersion": 1, "agentCapabilities": capabilities or {}, "authMethods": list(ways)}
        self.answer(result={**hello, "agentInfo": {"name": "robot"}})

    def answer(self, **answer: Any) -> Talk:
        """Respond to the last request."""
        message = {"jsonrpc": "2.0", "id": self.asked[-1]["id"], **answer}
        self._hear(self.codec.feed(json.dumps(message).encode() + b"\n"))
        return self

    def opened(self, **offered: Any) -> Talk:
        return self.answer(result={"sessionId": "s", **offered})

    def _hear(self, outs: list[Out]) -> None:
        self.asked += [json.loads(out.data) for out in outs if isinstance(out, Send)]
        self.told += [out for out in outs if not isinstance(out, Send)]

    @property
    def methods(self) -> list[str]:
        return [one["method"] for one in self.asked]

    @property
    def why(self) -> str:
        (end,) = self.told
        assert isinstance(end, Malformed)
        return end.why


# ------------------------------------------------------------------------------------------------ the login
def test_who_is_not_let_in_logs_in_as_the_plan_says() -> None:
    """An agent that rejects ``session/new`` for lack of authentication gets ``authenticate`` with the plan's method,
    then ``session/new`` again."""
    talk = Talk(ways=WAYS, auth="key").answer(**NEEDS_LOGIN)
    assert talk.asked[-1]["method"] == "authenticate"
    assert talk.asked[-1]["params"] == {"methodId": "key"}
    talk.answer(result={}).opened()
    assert talk.methods == ["initialize", "session/new", "authenticate", "session/new"]
    assert talk.told == [Ready(None, "robot")]


def test_who_is_let_in_does_not_log_in() -> None:
    """The plan's login method is used only if the agent requires a login."""
    talk = Talk(ways=WAYS, auth="key").opened()
    assert talk.methods == ["initialize", "session/new"]


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ("", "(`auth:` of the plan's agent may be 'key' (An API key), 'browser' (browser))"),
        (
            "kee",
            "(it does not offer 'kee'; `auth:` of the plan's agent may be 'key' (An API key), 'browser' (browser))",
        ),
    ],
)
def test_a_login_that_the_plan_does_not_know_names_the_ways(auth: str, said: str) -> None:
    """An agent requires a login and the plan names no valid login method: the error lists the methods of the agent."""
    talk = Talk(ways=WAYS, auth=auth).answer(**NEEDS_LOGIN)
    assert talk.why == (
        "the agent needs authentication: Authentication required: log in with the agent's own program,"
        f" then start it again, or let the supervisor log in {said}"
    )


def test_a_refused_login_is_named() -> None:
    """A login that the agent refuses, and a login after which it still needs authentication, end the handshake with an
    error."""
    refused = Talk(ways=WAYS, auth="key").answer(**NEEDS_LOGIN).answer(error={"code": 1, "message": "no such key"})
    assert refused.why == "the agent refused to log in by 'key': no such key (code 1)"
    in_vain = Talk(ways=WAYS, auth="key").answer(**NEEDS_LOGIN).answer(result={}).answer(**NEEDS_LOGIN)
    assert in_vain.why == "the agent still needs authentication after a login by 'key': Authentication required"


# ------------------------------------------------------------------------------------------------ the past
RESUMES = {"loadSession": True, "sessionCapabilities": {"resume": {}}}


def test_a_session_is_resumed_rather_than_loaded() -> None:
    """A session of an agent that can resume and load sessions is resumed, not loaded."""
    talk = Talk(resume="old", capabilities=RESUMES)
    assert talk.asked[-1]["method"] == "session/resume"
    assert talk.asked[-1]["params"] == {"sessionId": "old", "cwd": "/work", "mcpServers": []}
    assert talk.answer(result={}).told == [Ready("old", "robot")]


def test_a_session_that_can_only_be_resumed_has_an_id_to_keep() -> None:
    """The Ready report has the session's id if the agent can resume sessions but cannot load them."""
    assert Talk(capabilities={"sessionCapabilities": {"resume": {}}}).opened().told == [Ready("s", "robot")]


def test_a_session_of_the_past_logs_in_too() -> None:
    """A resumed session that needs authentication is resumed after the login, not replaced by a new one."""
    talk = Talk(resume="old", capabilities=RESUMES, ways=WAYS, auth="key").answer(**NEEDS_LOGIN).answer(result={})
    assert talk.answer(result=None).told == [Ready("old", "robot")]


def test_a_lost_session_is_told_of_once() -> None:
    """A session that cannot be resumed is logged once and replaced by a new session, which gets the settings of the
    plan."""
    talk = Talk(resume="old", capabilities=RESUMES, mode="yolo").answer(error={"code": 1, "message": "unknown"})
    talk.answer(error={"code": 2, "message": "not found"}).opened(modes=MODES).answer(result={})
    assert [type(out) for out in talk.told] == [Text, Ready]
    assert talk.told[0].text.endswith("a new one was started: unknown (code 1); not found (code 2)\n")
    assert talk.methods[-4:] == ["session/resume", "session/load", "session/new", "session/set_mode"]


def test_a_session_that_cannot_be_resumed_is_loaded() -> None:
    """If ``session/resume`` fails, ``session/load`` is tried before the conversation counts as lost."""
    talk = Talk(resume="old", capabilities=RESUMES).answer(error={"code": -32601, "message": "no such method"})
    assert talk.asked[-1]["method"] == "session/load"
    assert talk.answer(result=None).told == [Ready("old", "robot")]


def test_a_session_that_somebody_uses_is_not_lost() -> None:
    """A session that another process has open is not replaced by a new one: the launch fails, and may be repeated."""
    talk = Talk(resume="old", capabilities=RESUMES).answer(error={"code": 1, "message": "the session is locked"})
    assert talk.why == "the conversation is in use by another process: the session is locked (code 1)"
    assert talk.methods[-1] == "session/resume"


# ------------------------------------------------------------------------------------------------ settings
def test_a_mode_is_set_before_the_first_prompt() -> None:
    """The codec sets the plan's mode and reports Ready after the agent's response."""
    talk = Talk(mode="yolo").opened(modes=MODES)
    assert talk.asked[-1]["params"] == {"sessionId": "s", "modeId": "yolo"}
    assert talk.told == []
    assert talk.answer(result={}).told == [Ready(None, "robot")]


def test_what_is_so_already_is_not_set() -> None:
    """A mode, model or option that the agent has already is not set again."""
    talk = Talk(mode="ask", model="small", options={"effort": "low"})
    assert talk.opened(modes=MODES, models=MODELS, configOptions=OPTIONS[1:]).told == [Ready(None, "robot")]


def test_a_model_is_chosen_among_models_or_among_options() -> None:
    """The plan's model is chosen by ``session/set_model``, or by the option of category ``model`` if the agent has
    one."""
    older = Talk(model="large").opened(models=MODELS)
    assert older.asked[-1]["method"] == "session/set_model"
    assert older.asked[-1]["params"] == {"sessionId": "s", "modelId": "large"}
    offered = [{**OPTIONS[0], "options": [{"value": "small"}, {"value": "large"}]}]
    newer = Talk(model="large").opened(models=MODELS, configOptions=offered)
    assert newer.asked[-1]["method"] == "session/set_config_option"
    assert newer.asked[-1]["params"] == {"sessionId": "s", "configId": "m", "value": "large"}


def test_a_setting_is_looked_up_in_what_the_last_one_left() -> None:
    """Each option is looked up in the list that the response to the previous change returned."""
    larger = [{**OPTIONS[0], "options": [{"value": "small"}, {"value": "large"}]}]
    talk = Talk(model="large", options={"effort": "high"}).opened(configOptions=larger)
    talk.answer(result={"configOptions": OPTIONS})
    assert talk.asked[-1]["params"] == {"sessionId": "s", "configId": "effort", "value": "high"}
    assert talk.answer(result={"configOptions": OPTIONS}).told == [Ready(None, "robot")]


def test_a_mode_may_be_a_setting_too() -> None:
    """If the agent reports no ``modes``, the plan's mode is set by the option of category ``mode``."""
    offered = [{"id": "x", "category": "mode", "currentValue": "build", "options": [{"value": "plan"}]}]
    talk = Talk(mode="plan").opened(configOptions=offered)
    assert talk.asked[-1]["params"] == {"sessionId": "s", "configId": "x", "value": "plan"}


@pytest.mark.parametrize(
    ("agent_options", "offered", "why"),
    [
        ({"mode": "yoyo"}, {"modes": MODES}, "mode: the agent does not offer 'yoyo'; use one of: ask, yolo"),
        ({"mode": "yolo"}, {}, "mode: the agent robot does not let clients choose it; remove it"),
        ({"model": "huge"}, {"models": MODELS}, "model: the agent does not offer 'huge'; use one of: small, large"),
        ({"model": "huge"}, {}, "model: the agent robot does not let clients choose it; remove it"),
        (
            {"options": {"speed": "1"}},
            {"configOptions": OPTIONS},
            "options: the agent does not offer 'speed'; use one of: m, effort",
        ),
        (
            {"options": {"effort": "max"}},
            {"configOptions": OPTIONS},
            "options: effort: the agent does not offer 'max'; use one of: low, high",
        ),
    ],
)
def test_a_setting_that_the_agent_does_not_offer_is_an_error(agent_options: Any, offered: Any, why: str) -> None:
    """A setting of the plan that the agent does not offer is not sent; the error lists the values that are offered."""
    talk = Talk(**agent_options).opened(**offered)
    assert talk.why == why
    assert talk.methods == ["initialize", "session/new"]


def test_a_refused_wish_is_named() -> None:
    """If the agent refuses a setting of the plan, the error has the agent's text."""
    talk = Talk(mode="yolo").opened(modes=MODES).answer(error={"code": -32603, "message": "not as root"})
    assert talk.why == "the agent refused to go into the mode 'yolo': not as root (code -32603)"


# ------------------------------------------------------------------------------------------------ servers of tools
FILES = McpServer(name="files", command=("mcp-files", "--root", "."), env={"A": "b"})
SEARCH = McpServer(name="search", url="https://tools.example/mcp", headers={"X-Team": "blue"})


def test_servers_of_tools_are_given_to_the_session() -> None:
    """An MCP server with a command is always passed on to the agent, a server with an address if the agent supports its
    transport."""
    talk = Talk(capabilities={"mcpCapabilities": {"http": True}}, mcp_servers=(FILES, SEARCH))
    assert talk.asked[-1]["params"]["mcpServers"] == [
        {"name": "files", "command": "mcp-files", "args": ["--root", "."], "env": [{"name": "A", "value": "b"}]},
        {
            "type": "http",
            "name": "search",
            "url": "https://tools.example/mcp",
            "headers": [{"name": "X-Team", "value": "blue"}],
        },
    ]


def test_a_server_that_the_agent_cannot_reach_is_named() -> None:
    """An MCP server whose transport the agent does not support is an error, and no session is opened."""
    talk = Talk(mcp_servers=(SEARCH,))
    expected = "the agent robot does not support the transport http; give a command, or another transport"
    assert talk.why == f"mcp_servers: search: {expected}"


def test_the_catalogue_gives_wishes_to_the_acp_adapter_only() -> None:
    """The adapter ``acp`` passes a plan's settings to its codec; the adapter ``command`` ignores them."""
    agent_options = AgentOptions(mode="yolo")
    acp = codec_for("acp", agent_options=agent_options)()
    acp.start("/work")
    acp.feed(b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}\n')
    (end,) = acp.feed(b'{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}\n')
    assert isinstance(end, Malformed)
    assert codec_for("command", agent_options=agent_options)().one_shot


def test_a_turn_ends_once_the_agent_is_gone() -> None:
    """An exit during the handshake reports Malformed, an exit during a turn reports the end of the turn."""
    talk = Talk()
    assert talk.codec.exited(1) == [Malformed("the agent exited with status 1 before it was ready")]
    ready = Talk().opened()
    ready.codec.prompt("work")
    (ended,) = ready.codec.exited(1)
    assert isinstance(ended, TurnEnded)
