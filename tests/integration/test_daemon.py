"""Daemons as real processes: plans are submitted from other directories, and go on after kills and stops."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from supervisor.control.client import answers_to
from supervisor.control.requests import Start
from supervisor.daemon.config import DaemonConfig
from supervisor.daemon.daemon import Daemon
from supervisor.daemon.submissions import StoredPlan, SubmissionStore
from supervisor.embedding.runtime import open_in
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.plans.daemon_control import PlanRequest
from supervisor.ports import JournalError
from supervisor.work.plan_handle import PlanHandle, Submissions
from tests.field.field_kit import Finished, Running, Scratch, until
from tests.support import DEADLINE_S, check_records, reap_all

PLAN = """
    agents: {w: {adapter: command, command: [sh, -c, "{prompt}"]}}
    tasks:
      - {id: one, agent: w, prompt: "pwd > where; printf %s \\"$API_KEY\\" > given"}
      - {id: two, agent: w, prompt: "cat given > last", depends_on: [one]}
"""
HELD = """
    agents: {w: {adapter: command, command: [sh, -c, "{prompt}"]}}
    tasks:
      - {id: held, agent: w, prompt: "until [ -e go ]; do sleep 0.05; done; echo held >> done"}
      - {id: after, agent: w, prompt: "echo after >> done", depends_on: [held]}
"""


class Place(Scratch):
    """Scratch directory with a daemon; the other commands find its state directory by the environment."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.state = StateDir(self.path / "sd")
        self.env["SUPERVISOR_STATE_DIR"] = str(self.state.root)

    def serve(self, *options: str) -> Running:
        """Start a daemon, and return when it serves."""
        daemon = self.start("serve", *options)
        until(lambda: "serving on" in daemon.err or daemon.ended)
        assert not daemon.ended, daemon.err
        return daemon

    def submit(self, plan: str, *options: str) -> str:
        """Submit a plan, and return the id of its run."""
        done = self.run("submit", plan, *options)
        assert done.status == 0, done.text
        return done.out.strip()

    def fails(self, *arguments: str, status: int = 2) -> str:
        """Run a command that must fail with *status*, and return its error message."""
        done = self.run(*arguments)
        assert (done.status, done.out, "Traceback" in done.err) == (status, "", False), done.text
        return done.err

    def stop(self, daemon: Running, number: int = signal.SIGTERM) -> Finished:
        daemon.process.send_signal(number)
        return daemon.wait()

    def states(self) -> dict[str, str]:
        """Return the states of all entities by id; none before there is a journal."""
        try:
            with JournalReader(self.state.journal) as journal:
                return {row.id: row.state for row in journal.entities()}
        except JournalError:
            return {}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()
    anyio.run(reap_all)


# ------------------------------------------------------------------------------------------------------- submissions
def test_a_plan_from_another_directory(place: Place) -> None:
    """A submitted plan runs in the directory of its submitter, with the variables chosen for it; a wait ends with the
    plan's status. No file of the state directory has the value of a secret after the run."""
    daemon = place.serve()
    place.write("elsewhere/plan.yaml", PLAN)
    place.env["API_KEY"] = "not-for-the-journal"
    run = place.submit("elsewhere/plan.yaml", "--workdir", "elsewhere", "--env", "API_KEY")
    assert run == "r1"
    assert place.run("wait", run).status == 0
    assert (place.path / "elsewhere" / "where").read_text().strip() == str(place.path / "elsewhere")
    assert (place.path / "elsewhere" / "last").read_text() == "not-for-the-journal"
    until(lambda: not list(place.state.submissions.iterdir()))
    files = [one for one in place.state.root.rglob("*") if one.is_file()]
    assert not [one for one in files if b"not-for-the-journal" in one.read_bytes()]
    (origin,) = [one["metadata"] for one in place.records(run) if one["event"] == "Submitted"]
    assert (origin["directory"], origin["variables"]) == (str(place.path / "elsewhere"), ["API_KEY"])
    ended = place.stop(daemon)
    assert (ended.status, "no run is open" in ended.err) == (0, True)


def test_the_agents_of_two_plans_with_one_name(place: Place) -> None:
    """Two plans whose agents have the same name run side by side, each with its own agent."""
    place.serve()
    agent = "{{adapter: command, command: [sh, -c, 'echo {0} > {0}']}}"
    text = f"agents: {{{{w: {agent}}}}}\ntasks: [{{{{id: t, agent: w, prompt: ''}}}}]"
    for name in ("a", "b"):
        place.write(f"{name}.yaml", text.format(name))
    runs = [place.submit(f"{name}.yaml") for name in ("a", "b")]
    assert [place.run("wait", run).status for run in runs] == [0, 0]
    assert [(place.path / name).read_text() for name in ("a", "b")] == ["a\n", "b\n"]


def test_tasks_are_added_to_a_run(place: Place) -> None:
    """`task add` adds tasks to the run that --run names, which may be left out only where one goes on. After a kill the
    next daemon knows them, and the id of the command."""
    daemon = place.serve()
    place.write("held.yaml", HELD)
    run, other = place.submit("held.yaml"), place.submit("held.yaml", "--run-name", "other")
    place.write("more.yaml", "- {id: more, agent: w, prompt: 'echo more >> done', depends_on: [after]}")
    assert "run: missing, and several runs go on; name one of r1, r2" in place.fails(
        "task", "add", "--from", "more.yaml"
    )
    place.write("bad.yaml", "[{id: x, agent: nobody, prompt: hi}]")
    bad = place.fails("task", "add", "--run", run, "--from", "bad.yaml")
    assert "tasks[0].agent: 'nobody' is not an agent of this plan" in bad
    assert "run 'r9' does not go on here" in place.fails("task", "add", "--run", "r9", "--from", "more.yaml")
    assert place.run("cancel", other).status == 0
    add = ("task", "add", "--from", "more.yaml", "--command-id", "k1")
    assert place.run(*add).out == f"{run}#more\n"
    daemon.process.kill()
    daemon.wait()
    place.serve()
    again = place.run(*add)
    assert (again.out, again.err) == (
        f"{run}#more\n",
        "supervisor: this command was given before, nothing was done now\n",
    )
    place.write("go", "")
    assert place.run("wait", run).status == 0
    assert (place.path / "done").read_text().split() == ["held", "after", "more"]


def test_a_key_names_one_run(place: Place) -> None:
    """A second submission with a key returns the run of the first, also after a restart; another plan is refused."""
    daemon = place.serve()
    place.plan(PLAN)
    place.write("held.yaml", HELD)
    assert [place.submit("plan.yaml", "--key", "k") for _ in range(2)] == ["r1", "r1"]
    place.run("wait", "r1")
    daemon.kill()
    place.serve()
    assert place.submit("plan.yaml", "--key", "k") == "r1"
    assert "another request; use another key" in place.fails("submit", "held.yaml", "--key", "k")


def test_what_is_queued_has_its_reason(place: Place) -> None:
    """A task that waits for a limit of the daemon is shown with that reason, and begins when there is a slot."""
    place.write("daemon.yaml", "max_sessions_total: 1")
    place.serve("daemon.yaml")
    place.write("held.yaml", HELD)
    place.plan(PLAN)
    place.submit("held.yaml")
    until(lambda: place.states().get("r1#held") == "IN_PROGRESS")
    place.submit("plan.yaml")
    full = "all plans together have as many tasks at work as max_sessions_total allows: 1"
    until(lambda: full in place.run("tree").out)
    (place.path / "go").touch()
    assert place.run("wait", "r2").status == 0


def test_agents_of_the_configuration(place: Place) -> None:
    """A plan may use agents of the configuration without defining them, also those that came with a reload."""
    agent = "{adapter: command, command: [sh, -c, '{prompt}']}"
    place.write("daemon.yaml", f"agents: {{own: {agent}}}")
    place.serve("daemon.yaml")
    plan = "agents: {{}}\ntasks: [{{id: t, agent: {0}, prompt: 'echo {0} > {0}'}}]"
    for name in ("own", "late"):
        place.write(f"{name}.yaml", plan.format(name))
    assert place.run("wait", place.submit("own.yaml")).status == 0
    assert "'late'" in place.fails("submit", "late.yaml")
    place.write("daemon.yaml", f"agents: {{own: {agent}, late: {agent}}}")
    assert place.run("reload").out == "reloaded: agents late are new or changed\n"
    assert place.run("wait", place.submit("late.yaml")).status == 0


def test_a_plan_that_does_not_fit(place: Place) -> None:
    """A plan with another kind of workspace is refused, with the fix; settings of the daemon have no effect in a plan,
    which is said."""
    place.serve()
    place.plan("workspace: worktree\n" + PLAN.replace("\n    ", "\n"))
    assert "workspace: is 'worktree', and 'directory' in this daemon; set it in" in place.fails("submit", "plan.yaml")
    place.plan("drain_s: 3\n" + PLAN.replace("\n    ", "\n"))
    assert "drain_s: the daemon has its own" in place.run("submit", "plan.yaml").err


# ------------------------------------------------------------------------------------------------------- the ends
def test_a_stop_leaves_open_runs_to_the_next_daemon(place: Place) -> None:
    """SIGTERM lets a turn finish, begins nothing more, and leaves the run open; the next daemon completes it. Nothing
    is done twice."""
    daemon = place.serve()
    place.plan(HELD)
    run = place.submit("plan.yaml")
    until(lambda: place.states().get("r1#held") == "IN_PROGRESS")
    daemon.process.send_signal(signal.SIGTERM)
    until(lambda: "draining" in daemon.err)
    assert "ending; submit it again when" in place.fails("submit", "plan.yaml")
    (place.path / "go").touch()
    ended = daemon.wait()
    assert (ended.status, f"goes on with {run}" in ended.err) == (0, True), ended.err
    states = place.states()
    assert (states["r1#held"], states["r1#after"], states["r1"]) == ("CLOSED", "OPEN", "executing")
    place.serve()
    assert place.run("wait", run).status == 0
    assert (place.path / "done").read_text() == "held\nafter\n"


def test_a_second_signal_ends_at_once(place: Place) -> None:
    """A second signal ends the daemon while a turn is in progress; the next daemon begins the task again."""
    daemon = place.serve()
    place.plan(HELD)
    run = place.submit("plan.yaml")
    until(lambda: place.states().get("r1#held") == "IN_PROGRESS")
    daemon.process.send_signal(signal.SIGINT)
    until(lambda: "draining" in daemon.err)
    assert place.stop(daemon, signal.SIGINT).status == 0
    (place.path / "go").touch()
    place.serve()
    assert place.run("wait", run).status == 0
    assert (place.path / "done").read_text() == "held\nafter\n"


REPOSITORY_PLAN = """
    workspace: worktree
    agents: {w: {adapter: command, command: [sh, -c, "{prompt}"]}}
    tasks:
      - {id: a, agent: w, files: [src], prompt: "touch BEGUN; until [ -e GO ]; do sleep 0.1; done; echo FIRST >> src"}
      - {id: after, agent: w, files: [src], prompt: "echo SECOND >> src", depends_on: [a]}
    validation: [{command: [grep, -q, SECOND, src]}]
"""


def test_two_repositories_side_by_side(place: Place) -> None:
    """With worktrees, the plans of two repositories run at once, although their tasks own files of the same name; each
    work is merged into its own repository, also after a kill of the daemon. A directory without a repository is
    refused. Nothing is left of the worktrees."""
    place.write("daemon.yaml", "workspace: worktree")
    for name in ("home", "one", "two"):
        place.write(f"{name}/README", name)
        for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "base")):
            place.git("-C", name, *words)
    daemon = place.serve("daemon.yaml", "--workdir", "home")
    runs, go = dict[str, str](), place.path / "go"
    for name in ("one", "two"):
        text = REPOSITORY_PLAN.replace("BEGUN", str(place.path / f"begun-{name}")).replace("GO", str(go))
        place.write(f"{name}.yaml", text.replace("FIRST", f"{name}1").replace("SECOND", f"{name}2"))
        runs[name] = place.submit(f"{name}.yaml", "--workdir", name)
    until(lambda: all((place.path / f"begun-{name}").exists() for name in runs))
    (place.path / "bare" / ".git").mkdir(parents=True)  # empty, as a container's mount leaves it
    assert "workspace: worktree needs a git repository, and" in place.fails("submit", "one.yaml", "--workdir", "bare")
    daemon.process.kill()
    daemon.wait()
    place.serve("daemon.yaml", "--workdir", "home")
    go.touch()
    for name, run in runs.items():
        assert place.run("wait", run).status == 0, place.run("report", run).text
        assert place.git("-C", name, "show", "main:src").split() == [f"{name}1", f"{name}2"]
        until(partial(_is_alone, place, name))
    assert place.git("-C", "home", "log", "--format=%s") == "base"


def _is_alone(place: Place, repository: str) -> bool:
    """Return whether a repository has no worktree but its own, and no branch but main."""
    branches = place.git("-C", repository, "branch", "--format=%(refname:short)").split()
    return branches == ["main"] and len(place.git("-C", repository, "worktree", "list").splitlines()) == 1


def test_a_daemon_goes_on_with_a_run_of_its_own_command(place: Place) -> None:
    """A daemon goes on with the run of a `supervisor run` that was killed, by the plan in the journal; where the value
    of a secret variable is missing, the run is left, and goes on when it is resumed with its plan."""
    text = HELD.replace('command: [sh, -c, "{prompt}"]', 'command: [sh, -c, "{prompt}"], env: {API_KEY: not-told}')
    place.plan(HELD)
    place.write("secret.yaml", text)
    for number, plan in ((1, "plan.yaml"), (2, "secret.yaml")):
        running = place.start("run", plan)
        until(partial(lambda task: place.states().get(task) == "IN_PROGRESS", f"r{number}#held"))
        running.kill()
        if number == 1:
            (place.path / "go").touch()
            daemon = place.serve()
            assert place.run("wait", "r1").status == 0
            place.stop(daemon)
            (place.path / "go").unlink()
    (place.path / "go").touch()
    daemon = place.serve()
    assert "run r2 had API_KEY, whose values are not recorded; add --env API_KEY" in daemon.err
    assert place.submit("secret.yaml", "--resume", "r2") == "r2"
    assert place.run("wait", "r2").status == 0


def test_kills_with_plans_and_sessions(place: Place) -> None:
    """A daemon is killed three times with three plans and five sessions under way: every run is completed, no task has
    two completed jobs, and every session ends its prompt."""
    place.write("daemon.yaml", "agents: {a: {adapter: scripted}}\nrecovery: {sessions: restart}")
    place.env["API_KEY"] = "not-for-the-journal"
    daemon = place.serve("daemon.yaml")
    plan = "agents: {w: {adapter: command, command: [sh, -c, '{prompt}'], max_sessions: 2}}\ntasks:\n" + "".join(
        f"  - {{id: t{number}, agent: w, prompt: 'sleep 0.3; printf %s $API_KEY >> t{number}', max_retries: 9}}\n"
        for number in range(6)
    )
    place.write("three.yaml", plan)
    runs = []
    for name in ("x", "y", "z"):
        (place.path / name).mkdir()
        how = ("--workdir", name, "--env", "API_KEY", "--key", name)
        runs.append(place.submit("three.yaml", *how))
    sessions = [start_session(place, f"s{number}") for number in range(5)]
    for kill in range(3):
        until(partial(lambda count: len(closed(place)) >= count, 2 * (kill + 1)))
        daemon.kill()
        daemon = place.serve("daemon.yaml")
        assert [place.submit("three.yaml", *("--workdir", n, "--env", "API_KEY", "--key", n)) for n in "xyz"] == runs
    assert [place.run("wait", run).status for run in runs] == [0, 0, 0]
    texts = {(one.parent.name, one.name): one.read_text() for one in place.path.glob("[xyz]/t*")}
    assert len(texts) == 18
    assert all("not-for-the-journal" in text for text in texts.values())
    (place.path / "free").touch()
    until(lambda: {place.states()[one] for one in sessions} == {"SessionComplete"})
    place.stop(daemon, signal.SIGTERM)
    with JournalReader(place.state.journal) as journal:
        rows = journal.entities()
        check_records(
            list(journal.events()), [one for one in rows if one.id.partition(":")[0] not in sessions], [], refused=True
        )
    completed = [row.parent_id for row in rows if row.kind == "job" and row.state == "completed"]
    assert len(completed) == len(set(completed)) == 18


def start_session(place: Place, name: str) -> str:
    """Start a session without a plan, whose agent works until there is the file ``free``; return its id."""
    asked = Start(name=name, agent="a", prompt="@run until [ -e free ]; do sleep 0.05; done")
    return str(anyio.run(answers_to, place.state.control_socket, asked)[0]["session"])


def closed(place: Place) -> list[str]:
    return [one for one, state in place.states().items() if "#" in one and state == "CLOSED"]


async def do_nothing(self: Daemon, handle: PlanHandle) -> None:
    """Take the place of what follows the end of a run, as if the process had ended before."""


def test_what_a_killed_submission_has_left_is_removed(tmp_path: Path) -> None:
    """A kill within the writing of a submitted plan leaves a part of it, with the secrets of the submitter: the next
    start removes that, as it removes plans without a run, and nothing else."""
    store = SubmissionStore(tmp_path)
    kept, other = (store.add(StoredPlan(plan={}, directory="/")) for _ in range(2))
    (tmp_path / "0123456789abcdef.json.new").write_text('{"plan": {"env": {"KEY": "a secr')
    (tmp_path / f"{kept}.json.new").write_text("{")
    (tmp_path / "notes.txt").touch()
    store.keep_only([kept])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"{kept}.json", "notes.txt"])
    assert store.read(other) is None


@pytest.mark.anyio
async def test_a_stop_keeps_nothing_of_a_run_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored plan of a run that has just ended when the daemon is stopped, with the secrets of the submitter, is
    removed when the run's last steps are made; that of a run that goes on stays."""
    monkeypatch.setattr(Daemon, "_follow", do_nothing)
    copied, exported = anyio.Event(), list[object]()

    async def export(sup: object, run: object, born_seq: object) -> None:
        await copied.wait()
        exported.append(run)

    monkeypatch.setattr("supervisor.work.plan_runner.export_workstream", export)
    state = StateDir.open(tmp_path / "sd")
    daemon = Daemon(None, DaemonConfig(), tmp_path, SubmissionStore(state.submissions))
    plan = 'agents: {a: {adapter: command, command: [sh, -c, "{prompt}"]}}\ntasks: [{id: t, agent: a, prompt: "%s"}]'
    async with open_in(lambda: state, prepare=daemon.prepare) as sup, anyio.create_task_group() as group:
        await daemon.begin(sup, group)
        runs = []
        for prompt in ("true", "sleep 600"):
            request = PlanRequest(text=plan % prompt, directory=str(tmp_path))
            runs.append((await daemon.submit(request)).run)
        running = {one.run_id: one for one in sup.core.part(Submissions).running}
        with anyio.fail_after(DEADLINE_S):
            while daemon.open_runs != [runs[1]]:  # the end is recorded, and the copy in the archive is not made
                await anyio.lowlevel.checkpoint()
        assert not running[runs[0]].ended.is_set()
        copied.set()
        await daemon.finish_ended()
        assert len(exported) == 1
        await sup.core.journal_writer.durable()
        assert len(list(state.submissions.iterdir())) == 2
        daemon.remove_ended()
        assert len(list(state.submissions.iterdir())) == 1
        assert daemon.open_runs == [runs[1]]
        running[runs[1]].cancel()
        await running[runs[1]].ended.wait()
