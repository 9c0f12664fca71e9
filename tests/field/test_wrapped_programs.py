"""Programs below a wrapper, such as ``sh -c``, a script, or a launcher that does not wait: they end as they would
without it. An interrupt is for the process group, as Ctrl-C in a terminal, and a program that tidies up at the end has
its time, whether or not the wrapper is still there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from field_kit import Scratch, alive, until

LADDER = "policy: {ladder: {request_s: 100, cancel_s: 100, terminate_s: 100, kill_s: 10}}\n"
"""Stages that are longer than a test: whoever has to wait for the end of one of them fails."""
TIDY = """
    import os, signal, sys, time
    from pathlib import Path

    def tidy_up(number, frame):
        Path("tidying").touch()
        while not Path("go").exists():
            time.sleep(0.01)
        Path("tidied").write_text(signal.Signals(number).name)
        sys.exit()

    signal.signal(signal.SIGTERM, tidy_up)
    signal.signal(signal.SIGINT, tidy_up if sys.argv[1:] == ["INT"] else signal.SIG_IGN)
    Path("pid").write_text(str(os.getpid()))
    while True:
        time.sleep(100)
"""
"""Program that ends when it is told to (SIGTERM, with the argument INT also SIGINT), after the file ``go`` was made."""


def started(scratch: Scratch) -> int:
    """Wait for the program, and return its pid."""
    path = scratch.path / "pid"
    return int(until(lambda: path.exists() and path.read_text()))


@pytest.mark.parametrize(
    "wrapper",
    ["sleep 300; true", "env -u X sleep 300 | cat", "(sleep 300; true) && true", "sh -c 'sleep 300; :'; :"],
)
def test_an_interrupt_ends_what_a_shell_has_started(scratch: Scratch, wrapper: str) -> None:
    """A user aborts an agent that is a line for a shell: it ends by the first, gentlest request, as at Ctrl-C."""
    scratch.plan(
        LADDER + f"agents: {{a: {{adapter: command, command: [sh, -c, {json.dumps(f'echo $$ > pid; {wrapper}')}]}}}}\n"
        "tasks: [{id: t, agent: a}]\n"
    )
    scratch.start("run", "plan.yaml")
    pid = started(scratch)
    children = Path(f"/proc/{pid}/task/{pid}/children")
    until(children.read_text)
    receipt = json.loads(scratch.run("abort", "t", "--scope", "session", "--json").out)
    assert [(one["id"], one["rung"]) for one in receipt["nodes"]] == [("t", "request")]
    assert receipt["survivors"] == 0
    assert not alive(pid)


@pytest.mark.parametrize(
    ("command", "heard"),
    [
        ("python3 tidy.py & trap 'exit 1' INT; wait", "SIGTERM"),
        ("exec python3 launcher.py", "SIGINT"),
    ],
    ids=["background", "launcher"],
)
def test_who_outlives_an_interrupted_wrapper_tidies_up(scratch: Scratch, command: str, heard: str) -> None:
    """A wrapper ends at once by SIGINT, and the program below it has still to do: a program that hears SIGINT goes on
    with that; one that does not (in a shell, jobs in the background ignore SIGINT) is sent SIGTERM. Both finish."""
    scratch.write("tidy.py", TIDY)
    launcher = "import subprocess, sys\nsubprocess.Popen([sys.executable, 'tidy.py', 'INT'])\nsys.stdin.close()\n"
    scratch.write("launcher.py", f"import signal\nsignal.signal(2, signal.SIG_DFL)\n{launcher}signal.pause()\n")
    scratch.plan(
        LADDER + f"agents: {{a: {{adapter: command, command: [sh, -c, {json.dumps(command)}]}}}}\n"
        "tasks: [{id: t, agent: a}]\n"
    )
    scratch.start("run", "plan.yaml")
    pid = started(scratch)
    abort = scratch.start("abort", "t", "--scope", "session", "--json")
    until((scratch.path / "tidying").exists)
    (scratch.path / "go").touch()
    receipt = json.loads(abort.wait().out)
    assert (scratch.path / "tidied").read_text() == heard
    assert (receipt["survivors"], receipt["processes"][0]["killed"]) == (0, 0)
    assert not alive(pid)


@pytest.mark.parametrize("namespaces", [False, True], ids=["plain", "namespace"])
def test_a_tool_below_a_shell_tidies_up_at_sigterm(scratch: Scratch, namespaces: bool) -> None:
    """A user aborts a tool call that is a line for a shell. SIGTERM ends the shell at once; the program below the shell
    has the time that the plan gives (``policy.ladder.terminate_s``), and its end is not a kill."""
    scratch.write("tidy.py", TIDY)
    scratch.plan(
        f"pid_namespaces: {json.dumps(namespaces)}\n" + LADDER + "agents: {a: {adapter: scripted}}\n"
        'tasks: [{id: t, agent: a, prompt: "@run python3 tidy.py; true"}]\n'
    )
    scratch.start("run", "plan.yaml")
    started(scratch)
    abort = scratch.start("abort", "t:t1:c1", "--scope", "tool", "--json")
    until((scratch.path / "tidying").exists)
    (scratch.path / "go").touch()
    receipt = json.loads(abort.wait().out)
    assert (scratch.path / "tidied").read_text() == "SIGTERM"
    assert (receipt["nodes"][0]["rung"], receipt["survivors"]) == ("terminate", 0)


def test_the_time_of_a_tool_below_a_shell_is_bounded(scratch: Scratch) -> None:
    """A program below a shell does not come to an end after SIGTERM: it is killed when its time is over."""
    scratch.write("tidy.py", TIDY)
    scratch.plan(
        "policy: {ladder: {request_s: 0.1, cancel_s: 100, terminate_s: 0.3, kill_s: 10}}\n"
        'agents: {a: {adapter: command, command: [sh, -c, "trap : INT; python3 tidy.py; true"]}}\n'
        "tasks: [{id: t, agent: a}]\n"
    )
    scratch.start("run", "plan.yaml")
    pid = started(scratch)
    receipt = json.loads(scratch.run("abort", "t", "--scope", "session", "--json").out)
    assert (scratch.path / "tidying").exists()
    assert (receipt["survivors"], receipt["processes"][0]["killed"]) == (0, 1)
    assert not alive(pid)
