"""The command ``stub-model`` and the pytest fixture."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support import running_program

pytest_plugins = ["pytester"]

COMMAND = [sys.executable, "-m", "supervisor", "stub-model"]
EXAMPLE = Path(__file__).parents[3] / "examples" / "test_stub_model.py"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path, backend: str, by: signal.Signals) -> None:
    """``stub-model`` prints its address, answers a request, writes its log without a key, and exits with 0."""
    log = tmp_path / "requests.jsonl"
    words = [*COMMAND, "--json", "--log", str(log), "--backend", backend]
    with running_program(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        url = f"{said['base_url']}/v1beta/models/m:generateContent?key=sk-secret"
        body = json.dumps({"contents": [{"parts": [{"text": "SAY[[hi]]"}]}]}).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
            assert json.load(answer)["candidates"][0]["content"]["parts"] == [{"text": "hi"}]
        server.send_signal(by)
        _, errors = server.communicate(timeout=120)
    line = json.loads(log.read_text())
    assert (server.returncode, errors) == (0, "1 google 200 say: SAY[[hi]]\n")
    assert (line["dialect"], line["text"], line["answer"]) == ("google", "SAY[[hi]]", "say")
    assert "sk-secret" not in log.read_text()
    assert said["env"]["ANTHROPIC_BASE_URL"] == said["base_url"]


def _refused(*words: str) -> str:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_a_port_that_is_taken_is_bad_input() -> None:
    """A port that is in use gives a bad-input error with the fix."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = _refused("--port", str(port))
    assert f"--port: cannot listen on {port}" in words
    assert "choose another" in words


def test_a_log_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    """A log file that cannot be written gives a bad-input error, and no server is started."""
    assert "--log: cannot write" in _refused("--log", str(tmp_path / "none" / "log"))


def test_without_its_extra_it_says_what_to_install(tmp_path: Path) -> None:
    """Without the package h11 the command prints the package to install."""
    (tmp_path / "h11.py").write_text("raise ModuleNotFoundError('no h11', name='h11')")
    done = subprocess.run(COMMAND, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert "pip install 'supervisor-runtime[stub-model]'" in done.stderr


def test_the_example_runs(pytester: pytest.Pytester) -> None:
    """The example of the documentation runs without a warning."""
    pytester.makepyfile(test_example=EXAMPLE.read_text(encoding="utf-8"))
    result = pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


def test_each_test_has_a_server_of_its_own(pytester: pytest.Pytester) -> None:
    """Each test that uses the fixture has a model server of its own."""
    pytester.makepyfile("""
        import json
        import urllib.request

        import pytest

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(stub_model, number):
            body = json.dumps({"model": "m", "messages": []}).encode()
            urllib.request.urlopen(f"{stub_model.base_url}/v1/chat/completions", body).close()
            assert [one.number for one in stub_model.requests] == [1]
        """)
    result = pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
