"""Roles of the processes below an agent, as the list of processes shows them."""

from __future__ import annotations

from supervisor.policies.call_processes import AgentPrograms, CallSpan, ProcessSeen, describe_processes

AGENT = 100
SPAN = CallSpan(500, 500)


def seen(pid: int, born: int, session: int, command: str = "tool", state: str = "S") -> ProcessSeen:
    return ProcessSeen(pid, AGENT if pid != AGENT else 1, session, born, state, 1, command.encode().hex())


TREE = [
    seen(AGENT, 1, AGENT, "agent"),
    seen(101, 2, 101, "gopls"),
    seen(102, 510, 102),
    seen(103, 510, AGENT),
    seen(104, 510, 104, state="Z"),
]


def test_each_process_has_a_role() -> None:
    """The agent, a server, a process of the open call, and one that may be of the call are told apart; a dead process
    is not listed."""
    agent = AgentPrograms(AGENT, servers=["gopls"])
    found = {one.pid: (one.role, one.calls) for _, one in describe_processes(TREE, SPAN, agent, "a:a1", ["a:t1:c1"])}
    assert found == {
        AGENT: ("agent", ()),
        101: ("server", ()),
        102: ("call", ("a:t1:c1",)),
        103: ("maybe", ("a:t1:c1",)),
    }


def test_without_an_open_call_no_process_is_of_a_call() -> None:
    """While no call is open, what the agent has started is shown as other."""
    found = [one.role for _, one in describe_processes(TREE, SPAN, AgentPrograms(AGENT), "a:a1", [])]
    assert found == ["agent", "other", "other", "other"]


def test_a_process_that_any_of_two_calls_has_started_names_both() -> None:
    """Nothing tells which of the open calls has started a process, so all of them are named."""
    calls = ["a:t1:c1", "a:t1:c2"]
    found = [one.calls for _, one in describe_processes(TREE[:3], SPAN, AgentPrograms(AGENT), "a:a1", calls)]
    assert found[2] == tuple(calls)
