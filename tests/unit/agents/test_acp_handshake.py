"""How a conversation with an ACP agent begins: versions, logins, sessions of the past, and what a plan wishes for."""

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
    """A codec that wishes for something, and the agent's half of its opening."""

    def __init__(self, *, resume: str | None = None, capabilities: Any = None, ways: Any = (), **wishes: Any) -> None:
        self.codec = AcpCodec(wishes=AgentOptions(**wishes))
        self.asked: list[dict[str, Any]] = []
        self.told: list[Out] = []
        self._hear(self.codec.start("/work", resume))
        hello = {"protocolVersion": 1, "agentCapabilities": capabilities or {}, "authMethods": list(ways)}
        self.answer(result={**hello, "agentInfo": {"name": "robot"}})

    def answer(self, **answer: Any) -> Talk:
        """Answer the last request."""
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
    """``authenticate`` with the method of the plan, and ``session/new`` once more."""
    talk = Talk(ways=WAYS, auth="key").answer(**NEEDS_LOGIN)
    assert talk.asked[-1]["method"] == "authenticate"
    assert talk.asked[-1]["params"] == {"methodId": "key"}
    talk.answer(result={}).opened()
    assert talk.methods == ["initialize", "session/new", "authenticate", "session/new"]
    assert talk.told == [Ready(None, "robot")]


def test_who_is_let_in_does_not_log_in() -> None:
    """The method of a plan is for who is asked for it."""
    talk = Talk(ways=WAYS, auth="key").opened()
    assert talk.methods == ["initialize", "session/new"]


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ("", "(`auth:` of the plan's agent may be 'key' (An API key), 'browser' (browser))"),
        ("kee", "(it knows no 'kee'; `auth:` of the plan's agent may be 'key' (An API key), 'browser' (browser))"),
    ],
)
def test_a_login_that_the_plan_does_not_know_names_the_ways(auth: str, said: str) -> None:
    """The error says how one can log in, in the agent's own words."""
    talk = Talk(ways=WAYS, auth=auth).answer(**NEEDS_LOGIN)
    assert talk.why == (
        "the agent needs authentication: Authentication required: log in with the agent's own program,"
        f" then start it again, or have it log in by itself {said}"
    )


def test_a_refused_login_is_named() -> None:
    """So is one that did not help: nobody is asked for ever."""
    refused = Talk(ways=WAYS, auth="key").answer(**NEEDS_LOGIN).answer(error={"code": 1, "message": "no such key"})
    assert refused.why == "the agent refused to log in by 'key': no such key (code 1)"
    in_vain = Talk(ways=WAYS, auth="key").answer(**NEEDS_LOGIN).answer(result={}).answer(**NEEDS_LOGIN)
    assert in_vain.why == "the agent needs authentication, also after a login by 'key': Authentication required"


# ------------------------------------------------------------------------------------------------ the past
RESUMES = {"loadSession": True, "sessionCapabilities": {"resume": {}}}


def test_a_session_is_resumed_rather_than_loaded() -> None:
    """Where an agent can do both: resuming tells nothing again."""
    talk = Talk(resume="old", capabilities=RESUMES)
    assert talk.asked[-1]["method"] == "session/resume"
    assert talk.asked[-1]["params"] == {"sessionId": "old", "cwd": "/work", "mcpServers": []}
    assert talk.answer(result={}).told == [Ready("old", "robot")]


def test_a_session_that_can_only_be_resumed_has_an_id_to_keep() -> None:
    """The id of a new session is for the next process, where there is a way to go on."""
    assert Talk(capabilities={"sessionCapabilities": {"resume": {}}}).opened().told == [Ready("s", "robot")]


def test_a_session_of_the_past_logs_in_too() -> None:
    """A conversation is not lost because nobody has logged in."""
    talk = Talk(resume="old", capabilities=RESUMES, ways=WAYS, auth="key").answer(**NEEDS_LOGIN).answer(result={})
    assert talk.answer(result=None).told == [Ready("old", "robot")]


def test_a_lost_session_is_told_of_once() -> None:
    """What is wished for holds in the new one."""
    talk = Talk(resume="old", capabilities=RESUMES, mode="yolo").answer(error={"code": 1, "message": "unknown"})
    talk.opened(modes=MODES).answer(result={})
    assert [type(out) for out in talk.told] == [Text, Ready]
    assert talk.methods[-2:] == ["session/new", "session/set_mode"]


# ------------------------------------------------------------------------------------------------ wishes
def test_a_mode_is_set_before_the_first_prompt() -> None:
    """Nobody is ready in the wrong mode."""
    talk = Talk(mode="yolo").opened(modes=MODES)
    assert talk.asked[-1]["params"] == {"sessionId": "s", "modeId": "yolo"}
    assert talk.told == []
    assert talk.answer(result={}).told == [Ready(None, "robot")]


def test_what_is_so_already_is_not_set() -> None:
    """Neither the mode, nor the model, nor another setting."""
    talk = Talk(mode="ask", model="small", options={"effort": "low"})
    assert talk.opened(modes=MODES, models=MODELS, configOptions=OPTIONS[1:]).told == [Ready(None, "robot")]


def test_a_model_is_chosen_among_models_or_among_options() -> None:
    """Older agents have a list of models, newer ones a setting of that category."""
    older = Talk(model="large").opened(models=MODELS)
    assert older.asked[-1]["method"] == "session/set_model"
    assert older.asked[-1]["params"] == {"sessionId": "s", "modelId": "large"}
    offered = [{**OPTIONS[0], "options": [{"value": "small"}, {"value": "large"}]}]
    newer = Talk(model="large").opened(models=MODELS, configOptions=offered)
    assert newer.asked[-1]["method"] == "session/set_config_option"
    assert newer.asked[-1]["params"] == {"sessionId": "s", "configId": "m", "value": "large"}


def test_a_setting_is_looked_up_in_what_the_last_one_left() -> None:
    """A model may bring settings of its own: they are known once it is chosen."""
    larger = [{**OPTIONS[0], "options": [{"value": "small"}, {"value": "large"}]}]
    talk = Talk(model="large", options={"effort": "high"}).opened(configOptions=larger)
    talk.answer(result={"configOptions": OPTIONS})
    assert talk.asked[-1]["params"] == {"sessionId": "s", "configId": "effort", "value": "high"}
    assert talk.answer(result={"configOptions": OPTIONS}).told == [Ready(None, "robot")]


def test_a_mode_may_be_a_setting_too() -> None:
    """Agents that have no ``modes`` have a setting of that category."""
    offered = [{"id": "x", "category": "mode", "currentValue": "build", "options": [{"value": "plan"}]}]
    talk = Talk(mode="plan").opened(configOptions=offered)
    assert talk.asked[-1]["params"] == {"sessionId": "s", "configId": "x", "value": "plan"}


@pytest.mark.parametrize(
    ("wishes", "offered", "why"),
    [
        ({"mode": "yoyo"}, {"modes": MODES}, "mode: the agent knows no 'yoyo'; choose of: ask, yolo"),
        ({"mode": "yolo"}, {}, "mode: the agent robot offers no choice of it; leave it out"),
        ({"model": "huge"}, {"models": MODELS}, "model: the agent knows no 'huge'; choose of: small, large"),
        ({"model": "huge"}, {}, "model: the agent robot offers no choice of it; leave it out"),
        (
            {"options": {"speed": "1"}},
            {"configOptions": OPTIONS},
            "options: the agent knows no 'speed'; choose of: m, effort",
        ),
        (
            {"options": {"effort": "max"}},
            {"configOptions": OPTIONS},
            "options: effort: the agent knows no 'max'; choose of: low, high",
        ),
    ],
)
def test_a_wish_that_cannot_be_is_answered_with_what_there_is(wishes: Any, offered: Any, why: str) -> None:
    """Agents answer an unknown name in many ways, some with a success: it is not sent."""
    talk = Talk(**wishes).opened(**offered)
    assert talk.why == why
    assert talk.methods == ["initialize", "session/new"]


def test_a_refused_wish_is_named() -> None:
    """The agent's own words say why."""
    talk = Talk(mode="yolo").opened(modes=MODES).answer(error={"code": -32603, "message": "not as root"})
    assert talk.why == "the agent refused to go into the mode 'yolo': not as root (code -32603)"


# ------------------------------------------------------------------------------------------------ servers of tools
FILES = McpServer(name="files", command=("mcp-files", "--root", "."), env={"A": "b"})
SEARCH = McpServer(name="search", url="https://tools.example/mcp", headers={"X-Team": "blue"})


def test_servers_of_tools_are_given_to_the_session() -> None:
    """A program needs no capability; an address is given to who can reach it."""
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
    """No session is opened without the tools that it was to have."""
    talk = Talk(mcp_servers=(SEARCH,))
    assert talk.why == "mcp_servers: search: the agent robot takes none over http; give a command, or another transport"


def test_the_catalogue_gives_wishes_to_the_acp_adapter_only() -> None:
    """The scripted agent and plain programs take none."""
    wishes = AgentOptions(mode="yolo")
    acp = codec_for("acp", wishes=wishes)()
    acp.start("/work")
    acp.feed(b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}\n')
    (end,) = acp.feed(b'{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}\n')
    assert isinstance(end, Malformed)
    assert codec_for("command", wishes=wishes)().one_shot


def test_a_turn_ends_once_the_agent_is_gone() -> None:
    """An agent that dies during its opening was never ready; one that dies in a turn ends it."""
    talk = Talk()
    assert talk.codec.exited(1) == [Malformed("the agent exited with status 1 before it was ready")]
    ready = Talk().opened()
    ready.codec.prompt("work")
    (ended,) = ready.codec.exited(1)
    assert isinstance(ended, TurnEnded)
