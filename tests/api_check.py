"""Every route of the HTTP API against its own document, with requests that Schemathesis makes up.

A supervisor with a session and a run serves the API over TCP; Schemathesis sends valid and malformed requests to each
route. It is a failure if a status is above 499, if the document lacks a status, or if a body is not what the document
says. ``make api-check`` installs Schemathesis in ``build/schemathesis``, apart from the virtual environment: its
plug-in for pytest is not for the other tests.

Run: ``python -m tests.api_check [--examples N]``.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import anyio

from supervisor import AgentTurn, HttpOptions, Plan, TaskConfig, open_supervisor, submit

INSTALLED: Final = Path(__file__).parents[1] / "build" / "schemathesis"
CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
LEFT_OUT: Final = ("/api/v1/stop", "/api/v1/events")
"""Paths that end the supervisor, or never end."""
RATE: Final = "150/s"
"""Below the limit of a sender, so that not every reply is 429."""


async def echo(turn: AgentTurn) -> str:
    return turn.prompt


def argv(url: str, token: str, examples: int) -> list[str]:
    """Return the command line of Schemathesis."""
    left_out = [word for path in LEFT_OUT for word in ("--exclude-path", path)]
    return [
        *(
            sys.executable,
            "-c",
            "from schemathesis.cli import schemathesis; schemathesis()",
            "run",
            f"{url}/openapi.json",
        ),
        *("--header", f"Authorization: Bearer {token}", "--checks", ",".join(CHECKS), *left_out),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", str(examples), "--rate-limit", RATE),
        *("--request-timeout", "60", "--continue-on-failure"),
    ]


async def check(examples: int) -> int:
    """Return the exit status of Schemathesis."""
    with tempfile.TemporaryDirectory() as folder:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        tokens = Path(folder) / "tokens"
        http = HttpOptions(listen=address, token_file=str(tokens))
        async with open_supervisor(Path(folder) / "sd", agents={"echo": echo}, http=http) as sup:
            await (await sup.start_session("lead", agent="echo")).run("work")
            tasks = (
                TaskConfig(id="a", agent="echo", prompt="x"),
                TaskConfig(id="b", agent="echo", prompt="x", depends_on=("a",)),
            )
            agents: dict[str, Any] = {"echo": echo}
            await (await submit(sup, Plan(workstream="ship", agents=agents, tasks=tasks)))
            token = dict(line.split() for line in tokens.read_text().splitlines())["admin"]
            environment = {**os.environ, "PYTHONPATH": str(INSTALLED)}
            command = argv(f"http://{address}", token, examples)
            async with await anyio.open_process(
                command, env=environment, cwd=folder, stdout=None, stderr=None
            ) as process:
                status = await process.wait()
            await sup.stop(now=True)
            return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100, help="made-up requests for each route (default 100)")
    return anyio.run(check, parser.parse_args().examples)


if __name__ == "__main__":
    sys.exit(main())
