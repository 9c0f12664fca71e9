"""``supervisor runs`` and ``supervisor report``: the runs of a state directory, and the result of one, at any time."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from supervisor.embedding.journals import open_reader
from tests.cli.test_end_to_end_cli import run
from tests.support import git
from tests.support import run_command as cli

pytestmark = pytest.mark.one_backend

FAILING = """
workstream: nightly
workspace: worktree
task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}
agents: {sh: {adapter: command, command: [sh, -eu]}}
tasks:
  - {id: good, agent: sh, prompt: echo new > new.txt}
  - {id: bad, agent: sh, prompt: "echo oops >&2; exit 3", max_retries: 0}
  - {id: after, agent: sh, prompt: "true", depends_on: [bad]}
"""
WAITING = """
agents: {sh: {adapter: command, command: [sh, -eu]}, scripted: {adapter: scripted}}
tasks:
  - {id: done, agent: scripted, prompt: "@use 300 50 0.25"}
  - {id: asked, agent: sh, prompt: "true", approval: before}
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Fixture: the state directory of two runs that have ended, and what the first one printed at its end."""
    folder = tmp_path_factory.mktemp("ended")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / ".gitignore").write_text("state\n*.yaml\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "begin")
    (folder / "plan.yaml").write_text(FAILING)
    (folder / "fine.yaml").write_text(WAITING.replace(", approval: before", ""))
    where = ("--workdir", folder, "--state-dir", folder / "state")
    first = cli("run", folder / "plan.yaml", *where)
    assert (first.status, cli("run", folder / "fine.yaml", *where).status) == (1, 0), first.err
    return folder / "state", first.out


def test_runs_are_listed_the_newest_first(ended: tuple[Path, str]) -> None:
    """``runs`` prints a line for each run, with its plan, its end, and the tasks that are done."""
    head, *lines = cli("runs", "--state-dir", ended[0]).out.splitlines()
    assert head.split() == ["RUN", "PLAN", "STATE", "DONE", "COST", "STARTED", "TOOK"]
    assert [line.split()[:5] for line in lines] == [
        ["r2", "fine", "completed", "2/2", "0.2500"],
        ["r1", "nightly", "failed", "1/3", "-"],
    ]
    listed = cli("runs", "--json", "--state-dir", ended[0]).json
    assert [(one["id"], one["outcome"], one["done"], one["tasks"]) for one in listed] == [
        ("r2", "completed", 2, 2),
        ("r1", "failed", 1, 3),
    ]
    assert all(one["took_s"] > 0 and one["started_at"] > 0 for one in listed)


def test_a_report_has_the_table_that_the_run_has_printed(ended: tuple[Path, str]) -> None:
    """``report RUN`` prints the table and the reasons of the end of that run again, and the merged commits."""
    state_dir, printed = ended
    report = cli("report", "r1", "--state-dir", state_dir)
    table = printed[printed.index("TASK  ") : printed.index("the run failed: ")].rstrip()
    assert (report.status, report.err) == (0, "")
    assert table in report.out
    assert report.out.startswith("run r1 of nightly: failed, 1 of 3 tasks done\nstarted ")
    commit = git(state_dir.parent, "rev-parse", "main").strip()[:12]
    assert f"r1#good: merged into main as {commit}" in report.out.splitlines()
    assert report.out.endswith("of 3 tasks 1 failed (bad), 1 blocked (after)\n")


def test_a_report_without_a_run_is_about_the_newest(ended: tuple[Path, str]) -> None:
    """``report`` reports the newest run; its JSON has each task."""
    assert cli("report", "--state-dir", ended[0]).out.startswith("run r2 of fine: completed, 2 of 2 tasks done\n")
    found = cli("report", "--json", "--state-dir", ended[0]).json
    assert (found["run"]["id"], found["ok"], found["error"], found["waiting"]) == ("r2", True, "", [])
    assert [(one["id"], one["outcome"], one["launches"]) for one in found["tasks"]] == [
        ("done", "completed", 1),
        ("asked", "completed", 1),
    ]


@pytest.mark.parametrize("run_id", ["r9", "good", "nightly", "../r1"])
def test_a_report_of_an_unknown_run_names_the_runs(ended: tuple[Path, str], run_id: str) -> None:
    """An id that is no run is bad input."""
    output = cli("report", run_id, "--state-dir", ended[0])
    assert (output.status, output.out) == (2, "")
    assert output.err == f"supervisor: run {run_id!r} is not in the journal; the runs are: r1, r2\n"


def test_cost_is_in_the_list_and_in_the_report(ended: tuple[Path, str]) -> None:
    """The cost that agents report is shown for the run, for each task, and in total."""
    (line,) = [line for line in cli("runs", "--state-dir", ended[0]).out.splitlines() if line.startswith("r2")]
    assert line.split()[4:6] == ["0.2500", "USD"]
    _, used, *table = cli("report", "r2", "--state-dir", ended[0]).out.splitlines()
    assert "used: 350 tokens, 0.25 USD, " in used
    assert table[2].split()[-3:] == ["0.2500", "USD", "done"]
    assert cli("report", "r2", "--json", "--state-dir", ended[0]).json["used"]["cost_usd"] == 0.25


def test_a_run_that_goes_on_is_reported_until_now(tmp_path: Path) -> None:
    """While a run goes on, ``runs`` shows its state, and ``report`` what it waits for and the command that answers;
    after its supervisor was killed, the run is interrupted."""
    (tmp_path / "plan.yaml").write_text(WAITING)
    with run(tmp_path / "plan.yaml") as one:
        one.until(entity_id="r1#done", to_status="CLOSED")
        (listed,) = cli("runs", "--json", "--state-dir", one.state_dir).json
        assert (listed["state"], listed["outcome"], listed["done"], listed["tasks"]) == ("executing", "", 1, 2)
        report = cli("report", "--state-dir", one.state_dir).out.splitlines()
        assert report[0] == "run r1 of plan: executing, 1 of 2 tasks done"
        assert [line.split()[:2] for line in report[4:6]] == [["r1#done", "completed"], ["r1#asked", "PLANNED"]]
        approve = f"supervisor approve r1#asked --state-dir {one.state_dir}"
        assert report[-2:] == ["waits for a person:", f"    r1#asked: waits to be approved: {approve}"]
        seen = {row["id"]: row for row in cli("ps", "--json", "--state-dir", one.state_dir).json}
        assert [seen[name]["used"]["cost_usd"] for name in ("r1", "r1#done", "done")] == [0.25] * 3
        assert "0.2500 USD" in cli("ps", "--state-dir", one.state_dir).out
        tree = cli("tree", "--state-dir", one.state_dir).out.splitlines()
        assert tree[0] == "r1  workstream executing  (1 of 2 tasks completed, 1 to be approved, 0.2500 USD)"
        one.signal(signal.SIGKILL)
        one.process.wait(120)
        (listed,) = cli("runs", "--json", "--state-dir", one.state_dir).json
        assert (listed["state"], listed["outcome"], listed["supervised"]) == ("executing", "", False)
        assert "interrupted (executing)" in cli("runs", "--state-dir", one.state_dir).out
        assert cli("report", "--state-dir", one.state_dir).out.startswith("run r1 of plan: interrupted (executing), 1")


def test_metrics_of_the_states_of_runs(ended: tuple[Path, str]) -> None:
    """`metrics states` counts the visits of each state; an unknown machine is refused with those that there are."""
    state, _ = ended
    found = {one["state"]: one for one in cli("metrics", "states", "--json", "--state-dir", state).json}
    assert found["PENDING"]["visits"] >= 3
    assert (found["COMPLETED"]["succeeded"], found["CIRCUIT_OPEN"]["succeeded"]) == (1.0, 0.0)
    assert cli("metrics", "states", "task", "--state-dir", state).out.startswith("MACHINE")
    refused = cli("metrics", "states", "tasks", "--state-dir", state)
    assert refused.status == 2
    assert "'workstream'" in refused.err


GRAPH = """
workstream: graph
agents: {sh: {adapter: command, command: [sh, -c, "{prompt}"]}}
tasks:
  - {id: a, agent: sh, prompt: "true"}
  - {id: b, agent: sh, prompt: "exit 3", depends_on: [a], max_retries: 0}
  - {id: c, agent: sh, prompt: "true", depends_on: [b]}
task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}
"""


def test_a_plan_is_shown_with_its_stages_before_and_after_its_run(tmp_path: Path) -> None:
    """`plan show` prints the stages of a plan file, and those of a run with the ends of its tasks, as a table, as JSON
    and as a diagram; the stages are on record before the first task begins, and in the archive of the run; the table at
    the end, and `report`, name the use of the worker."""
    plan, state_dir = tmp_path / "plan.yaml", tmp_path / ".sdd"
    plan.write_text(GRAPH)
    where = ("--state-dir", state_dir)
    table = "plan graph: 3 tasks in 3 stages\nSTAGE  TASK  AGENT  WAITS FOR\n1      a     sh     -\n"
    assert cli("plan", "show", plan).out.startswith(table)
    ended = cli("run", plan, *where, "--workdir", tmp_path)
    assert ended.status == 1
    (used,) = [one for one in ended.out.splitlines() if one.startswith("1 of 3 tasks done; worker:local: 2 jobs, ")]
    assert used.endswith("% of 6 slots used")
    shown = cli("plan", "show", *where).out.splitlines()
    assert shown[0] == "run r1 of graph: 3 tasks in 3 stages"
    assert [one.split()[-1] for one in shown[2:]] == ["completed", "failed", "blocked"]
    told = json.loads(cli("plan", "show", "r1", *where, "--json").out)
    assert [[one["name"] for one in stage] for stage in told["stages"]] == [["a"], ["b"], ["c"]]
    assert told["edges"] == [["a", "b"], ["b", "c"]]
    assert '    t1["b (sh): failed"]' in cli("plan", "show", "r1", *where, "--mermaid").out.splitlines()
    with open_reader(state_dir) as reader:
        names = [one.event for one in reader.events("r1")]
        assert names.index("ExecutionPlan") < names.index("all_tasks_created")
    dossier = (state_dir / "archive" / "r1.jsonl").read_text()
    assert '"stages":[["a"],["b"],["c"]]' in dossier
    report = json.loads(cli("report", *where, "--json").out)
    assert [(one["id"], one["jobs"], one["slots"]) for one in report["workers"]] == [("worker:local", 2, 6)]
    both = cli("plan", "show", plan, "--json", "--mermaid")
    assert (both.status, both.err) == (2, "supervisor: --mermaid, --json: give one of them\n")
    for name in ("r9", "R1"):
        missing = cli("plan", "show", name, *where)
        assert (missing.status, f"run {name!r} is not in the journal" in missing.err) == (2, True)
    elsewhere = cli("plan", "check", plan, "--state-dir", tmp_path / "none")
    assert (elsewhere.status, "no state directory at" in elsewhere.err) == (2, True)
