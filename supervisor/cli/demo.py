"""``supervisor demo``: a short real run in a scratch git repository that demonstrates supervision.

The processes are real: they change files and run commands; one hangs and ignores signals, one crashes, one leaves a
daemon behind. Only the agents follow scripts, so that the demo needs no model and no network.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import click
import msgspec

from supervisor.cli.log_output import configure_logging
from supervisor.cli.options import examples, json_option, verbose_option
from supervisor.cli.options import say as print_text
from supervisor.cli.rendering import event_line, json_line, receipt_text, tree_text
from supervisor.cli.why import why_text
from supervisor.diagnostics.causal_trace import RecordList, roots, why
from supervisor.diagnostics.tree_view import tool_calls, tree
from supervisor.diagnostics.validate import validate_lines
from supervisor.embedding.journals import open_reader
from supervisor.embedding.runtime import open_supervisor
from supervisor.host.api import Supervisor
from supervisor.host.handle import Session, TurnResult
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import AbortScope, Kind, LifecycleEvent, Survivors
from supervisor.plans import AgentConfig, LimitsConfig, PolicyConfig, Settings, StageBudgetsConfig
from supervisor.policies.abort_plan import Receipt, total_survivors
from supervisor.processes.orphan_check import adopt_orphans, children_left

DEADLINE_S = 55.0
"""Seconds that the whole demo may take."""

LEAD = """Build a small package; your helpers write its parts at the same time.
@say dividing the work
@agent code
  @write src/adder.py def add(a, b):\\n    return a + b\\n
  @run python3 -c "import sys; sys.path.insert(0, 'src'); import adder; print('2 + 3 =', adder.add(2, 3))"
@agent docs
  @write README.md # adder\\n\\nIt adds.\\n
  @run wc -l README.md
@run git add -A && git commit -qm 'adder, by two helpers' && git log --oneline | head -1
@say done
"""
SLOW = """Run the slow test-suite, then write the report.
@run echo 'a test that never ends'; sleep 600
@write report.txt the suite was cut short, the report is here\\n
@run cat report.txt
"""
STEERED = """Work through the backlog for ever.
@run echo 'working on the wrong thing'; sleep 600
"""
MESSAGE = """Stop that. The release notes come first.
@write NOTES.md Release notes, first.\\n
@run cat NOTES.md
"""
CRASHY = """Format the sources.
@crash-once .crashed 3
@say this time it went well
"""
HUNG = """Leave a daemon behind, then hang and ignore every signal.
@daemon
@deaf
@hang
"""
FOREST = """Explore two ideas that lead nowhere.
@agent left
  @hang
@agent right
  @agent deeper
    @run sleep 600
"""

Say = Callable[[str], None]
Wanted = Callable[[LifecycleEvent], bool]


@click.command("demo", epilog=examples("supervisor demo"))
@json_option
@verbose_option
def demo(as_json: bool, verbose: int) -> int:
    """Real processes work in a scratch git repository. The demo needs no network and no account."""
    configure_logging(verbose=verbose)
    return run_demo(as_json=as_json)


def run_demo(*, as_json: bool) -> int:
    """Run the demo and print the results; return 0 if the results are as expected and no process is left."""
    proven = adopt_orphans()
    say: Say = (lambda text: None) if as_json else (lambda text: print_text(text))
    with repository() as folder:
        state = StateDir(folder / ".sdd")
        receipts, results = anyio.run(play, folder, state.root, say)
        left = children_left() if proven else total_survivors(receipt.survivors for receipt in receipts)
        summed = summary(state, receipts, results, left)
        _show(state, receipts, summed, say)
    if as_json:
        print_text(json_line(summed))
    return 0 if summed["ok"] else 1


@contextmanager
def repository() -> Iterator[Path]:
    """Create a scratch git repository, and remove it afterwards."""
    root = Path(tempfile.mkdtemp(prefix="supervisor-demo-"))
    try:
        for command in (
            ["git", "init", "-q", "."],
            ["git", "config", "user.name", "Supervisor Demo"],
            ["git", "config", "user.email", "demo@example.invalid"],
            ["git", "commit", "-q", "--allow-empty", "-m", "the beginning"],
        ):
            subprocess.run(command, cwd=root, check=True)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def play(repository: Path, state_dir: Path, say: Say) -> tuple[list[Receipt], dict[str, TurnResult]]:
    """Run the sessions; return the receipts of the aborts, and the result of each session's prompt."""
    settings = Settings(
        policy=PolicyConfig(ladder=StageBudgetsConfig(request_s=1.0, cancel_s=1.0, terminate_s=1.0, kill_s=1.0)),
        limits=LimitsConfig(grace_s=2.0),
        drain_s=20.0,
    )
    agents = {"scripted": AgentConfig(adapter="scripted")}
    with anyio.fail_after(DEADLINE_S):
        async with open_supervisor(state_dir, agents=agents, settings=settings, workdir=repository) as sup:
            return await _Demo(sup, say).play()


class _Demo:
    """Run of the demo: its sessions, and the commands sent to them."""

    def __init__(self, sup: Supervisor, say: Say) -> None:
        self._sup = sup
        self._say = say
        self._results: dict[str, TurnResult] = {}
        self._seen: list[LifecycleEvent] = []
        self._changed = anyio.Event()

    async def play(self) -> tuple[list[Receipt], dict[str, TurnResult]]:
        receipts: list[Receipt] = []
        async with anyio.create_task_group() as watching:
            await watching.start(self._watch)
            async with anyio.create_task_group() as work:
                for name, prompt in (("lead", LEAD), ("slow", SLOW), ("steered", STEERED), ("crashy", CRASHY)):
                    work.start_soon(self._work, name, prompt)
                for name, prompt in (("hung", HUNG), ("forest", FOREST)):
                    work.start_soon(self._work, name, prompt)
                work.start_soon(self._steer)
                receipts.append(await self._abort_tool())
                receipts.append(await self._abort_hung())
                receipts.append(await self._abort_subtree())
            watching.cancel_scope.cancel()
        return receipts, self._results

    async def _work(self, name: str, prompt: str) -> None:
        session: Session = await self._sup.start_session(name, agent="scripted")
        self._results[name] = await session.run(prompt)

    async def _abort_tool(self) -> Receipt:
        await self._until(_started("slow:t1"))
        self._say(">> one tool call is aborted; its session goes on")
        return await self._sup.abort("slow:t1:c1", AbortScope.TOOL, reason="this test never ends")

    async def _steer(self) -> None:
        await self._until(_started("steered:t1"))
        self._say(">> one session gets an urgent message")
        await self._sup.session("steered").send(MESSAGE, urgent=True, sender="operator")

    async def _abort_hung(self) -> Receipt:
        await self._until(lambda event: event.entity_id == "hung:t1" and event.to_status == "RUNNING")
        self._say(">> one agent hangs and ignores signals: it is forced to stop")
        return await self._sup.abort("hung", AbortScope.SESSION, reason="it hangs")

    async def _abort_subtree(self) -> Receipt:
        await self._until(_started("forest/right/deeper:t1"))
        self._say(">> a session with everything below it is aborted")
        return await self._sup.abort("forest", AbortScope.SESSION, reason="both ideas lead nowhere")

    # ------------------------------------------------------------------ watching
    async def _watch(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with self._sup.subscribe() as events:
            task_status.started()
            async for event in events:
                self._seen.append(event)
                self._changed.set()
                self._changed = anyio.Event()
                if _worth_telling(event):
                    self._say(event_line(event))

    async def _until(self, wanted: Wanted) -> None:
        seen = 0
        while True:
            changed = self._changed
            if any(wanted(event) for event in self._seen[seen:]):
                return
            seen = len(self._seen)
            await changed.wait()


def _worth_telling(event: LifecycleEvent) -> bool:
    """Return whether the demo prints a record: state changes of sessions, tool calls, and ends of agents."""
    if event.outcome != "transition":
        return False
    if event.entity_type == "session":
        return event.from_status != event.to_status
    return event.event in {"tool_started", "tool_completed", "agent_exited"}


def _started(turn_id: str) -> Wanted:
    """Return a function that returns whether a record reports the start of the tool process of the turn *turn_id*."""
    return lambda event: event.entity_id == turn_id and event.event == "ProcessStarted"


def summary(
    state: StateDir, receipts: list[Receipt], results: dict[str, TurnResult], left: Survivors
) -> dict[str, Any]:
    """Return the results as data; ``ok`` is true if the results are as expected. *left* is the number of processes that
    still run."""
    with state.transitions.open("rb") as lines:
        report = validate_lines(lines)
    unexplained = _unexplained(state)
    outcomes = {name: result.outcome for name, result in sorted(results.items())}
    expected = {
        "crashy": "completed",
        "forest": "aborted",
        "hung": "aborted",
        "lead": "completed",
        "slow": "completed",
        "steered": "completed",
    }
    survivors = total_survivors(receipt.survivors for receipt in receipts)
    return {
        "ok": outcomes == expected and not (report.problems or unexplained or left or survivors),
        "sessions": outcomes,
        "transitions": report.lines,
        "illegal": len(report.problems),
        "unexplained": unexplained,
        "receipts": [msgspec.to_builtins(receipt) for receipt in receipts],
        "processes_left": left,
    }


def _unexplained(state: StateDir) -> list[str]:
    """Return the ended entities whose end does not lead back to exactly one root record."""
    with open_reader(state.root) as reader:
        rows, records = reader.entities(), RecordList(reader.events())
    ended = [one for row in rows for one in (row.id, *(tool_calls(row) if row.kind == Kind.TURN else ()))]
    return [entity_id for entity_id in ended if len(roots(records, entity_id)) != 1]


def _show(state: StateDir, receipts: list[Receipt], summary: dict[str, Any], say: Say) -> None:
    with open_reader(state.root) as reader:
        rows = reader.entities()
        records = RecordList(reader.events())
    say("\nThe tree at the end:\n" + tree_text(tree(rows)))
    say("\nThe receipts:")
    for receipt in receipts:
        say(receipt_text(receipt))
    say("\nwhy forest/right/deeper ended:\n" + why_text(why(records, "forest/right/deeper")))
    sessions = ", ".join(f"{name} {outcome}" for name, outcome in summary["sessions"].items())
    say(f"\n{sessions}")
    say(f"{summary['transitions']} transitions in the journal, {summary['illegal']} illegal")
    say(f"{len(summary['unexplained'])} ends without exactly one root")
    say(f"{summary['processes_left']} processes left")
