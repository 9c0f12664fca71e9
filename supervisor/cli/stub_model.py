"""``supervisor stub-model``: run the scripted model server in the foreground until it is interrupted.

Standard output shows the address and the settings that point agents at it; standard error then shows one line per
request. The log file, if requested, receives every request in full as JSON.
"""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
import msgspec

from supervisor.cli.options import PATH, examples, say
from supervisor.control.error_messages import DONE, BadInput
from supervisor.mock_model.environment import codex_arguments, environment, environments
from supervisor.mock_model.log import LoggedRequest

if TYPE_CHECKING:
    from supervisor.mock_model.server import StubModel

SHOWN_CHARS = 100
_TITLES = {
    "anthropic": "Anthropic messages: claude, claude-agent-acp",
    "openai": "OpenAI chat completions and responses: qwen, opencode, pi",
    "google": "Google generateContent: gemini",
}


@click.command("stub-model", epilog=examples("supervisor stub-model --port 8080 --log requests.jsonl"))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on; by default a free one.")
@click.option("--log", type=PATH, metavar="FILE", help="Append every request to FILE as a line of JSON, without keys.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
def command(port: int, log: Path | None, as_json: bool, backend: str) -> int:
    """The server offers the APIs of Anthropic, OpenAI and Google. The prompt is the script: RUN[[make test]] runs a
    command with the agent's own tool, SAY[[done]] answers with text; docs/how-to/stub-model.md lists all of them. The
    server needs no account and no network. Ctrl-C ends it."""
    try:
        import h11  # noqa: F401
    except ModuleNotFoundError:
        raise BadInput("stub-model: h11 is not installed; pip install 'supervisor-runtime[stub-model]'") from None
    with _log(log) as report:
        anyio.run(_serve, port, report, as_json, backend=backend)
    return DONE


@contextmanager
def _log(path: Path | None) -> Iterator[Callable[[LoggedRequest], None]]:
    """Yield a function that reports a request on standard error and in the log file."""
    try:
        file = path.open("a", encoding="utf-8") if path else None
    except OSError as error:
        raise BadInput(
            f"--log: cannot write {str(path)!r}: {error.strerror}; name a file that can be written"
        ) from None

    def report(logged: LoggedRequest) -> None:
        words = " ".join(logged.text[-SHOWN_CHARS:].split())
        say(f"{logged.number} {logged.dialect} {logged.status} {logged.answer or logged.error}: {words}", err=True)
        if file:
            file.write(json.dumps({"at": round(time.time(), 3), **msgspec.to_builtins(logged)}) + "\n")
            file.flush()

    try:
        yield report
    finally:
        if file:
            file.close()


async def _serve(port: int, report: Callable[[LoggedRequest], None], as_json: bool) -> None:
    from supervisor.mock_model.server import open_stub_model

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        try:
            async with open_stub_model(port, report=report) as stub:
                _introduce(stub, as_json)
                await anext(signals)
        except OSError as error:
            raise BadInput(f"--port: cannot listen on {port}: {error.strerror or error}; choose another") from None


def _introduce(stub: StubModel, as_json: bool) -> None:
    url = stub.base_url
    if as_json:
        words = {"base_url": url, "env": environment(url), "codex": codex_arguments(url)}
        say(json.dumps(words))
        return
    say(f"stub model on {url}")
    for dialect, variables in environments(url).items():
        say(f"\n# {_TITLES[dialect]}")
        for name, value in variables.items():
            say(f"export {name}={shlex.quote(value)}")
    say(f"\n# codex takes its address from its command line:\n# codex {shlex.join(codex_arguments(url))}")
