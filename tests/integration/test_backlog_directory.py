"""Files of the backlog as submissions to a daemon: taken once, put away when their runs have ended, bad ones too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.field.field_kit import until
from tests.integration.test_daemon import HELD, Place
from tests.support import reap_all

CONFIG = """
    backlog: true
    agents: {w: {adapter: command, command: [sh, -c, "{prompt}"]}}
"""


class BacklogPlace(Place):
    @property
    def backlog(self) -> Path:
        return self.state.backlog

    def drop(self, name: str, text: str) -> None:
        """Put a file into the backlog, as its format wants it: by a rename."""
        self.write(f"new/{name}", text).rename(self.backlog / "open" / name)

    def files(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of the backlog, which the daemon makes when it starts."""
        return sorted(os.listdir(self.backlog / folder)) if (self.backlog / folder).is_dir() else []

    def runs(self) -> list[tuple[str, str]]:
        """Return plan and outcome of each run, the newest first."""
        return [(one["plan"], one["outcome"]) for one in json.loads(self.run("runs", "--json").out)]

    def done(self) -> list[str]:
        return (self.path / "done").read_text().split()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[BacklogPlace]:
    made = BacklogPlace(tmp_path)
    made.write("daemon.yaml", CONFIG)
    yield made
    made.close()
    anyio.run(reap_all)


def test_plans_and_tasks_of_the_backlog(place: BacklogPlace) -> None:
    """A plan and a task in open/ run, in the directory of the daemon, and their files are in closed/ at the end. A bad
    file has its error beside it, and so has a second one with name and content of an earlier one. A hidden file is not
    complete."""
    place.serve("daemon.yaml")
    until((place.backlog / "open").is_dir)
    place.write("sd/backlog/open/.hidden.yaml", HELD)
    plan = (
        "tasks: [{id: a, agent: w, prompt: echo a >> done}, {id: b, agent: w, prompt: echo b >> done, depends_on: [a]}]"
    )
    place.drop("plan.yaml", plan)
    until(lambda: place.files("closed") == ["plan.yaml"])
    place.drop("task.yaml", "{id: single, agent: w, prompt: echo single >> done}")
    until(lambda: place.files("closed") == ["plan.yaml", "task.yaml"])
    assert place.done() == ["a", "b", "single"]
    assert place.runs() == [
        ("single", "completed"), ("plan", "completed")
    ]  # fmt: skip
    place.drop("bad.yaml", "tasks:\n- {id: a, agent: nobody, prompt: hi}")
    place.drop("plan.yaml", plan)
    os.symlink("/etc/hostname", place.backlog / "open" / "link.yaml")
    until(lambda: len(place.files("closed")) == 8)
    errors = {name: (place.backlog / "closed" / name).read_text() for name in place.files("closed") if "error" in name}
    assert errors["bad.yaml.error"].startswith("bad.yaml:2: tasks[0].agent: 'nobody' is not an agent")
    assert errors["plan.yaml.2.error"] == (
        "plan.yaml: run r1 was begun with a file of this name and content; use another name\n"
    )
    assert errors["link.yaml.error"] == "link.yaml: is not a regular file; rename a file into place\n"
    assert (len(place.runs()), place.files("open"), place.files("claimed")) == (
        2, [".hidden.yaml"], []
    )  # fmt: skip
    assert [one["metadata"]["by"] for one in place.records("r1") if one["event"] == "Submitted"] == ["backlog"]


def test_a_killed_daemon_starts_no_file_twice(place: BacklogPlace) -> None:
    """A file is completed, and its run exists once, whatever step its daemon was killed at: the file was claimed and
    not submitted; submitted, and the run goes on; or the run has ended, and the file is not put away."""
    daemon = place.serve("daemon.yaml")
    until((place.backlog / "open").is_dir)
    place.drop("held.yaml", HELD)
    place.drop("over.yaml", "{id: over, agent: w, prompt: echo over >> done}")
    until(lambda: place.files("closed") == ["over.yaml"])
    daemon.process.kill()
    daemon.wait()
    assert place.files("claimed") == ["held.yaml"]
    (place.backlog / "closed" / "over.yaml").rename(place.backlog / "claimed" / "over.yaml")
    place.write("new/claimed.yaml", "{id: fresh, agent: w, prompt: echo fresh >> done}")
    (place.path / "new" / "claimed.yaml").rename(place.backlog / "claimed" / "claimed.yaml")
    place.serve("daemon.yaml")
    until(lambda: place.files("closed") == ["claimed.yaml", "over.yaml"])
    place.write("go", "")
    until(lambda: place.files("closed") == ["claimed.yaml", "held.yaml", "over.yaml"])
    assert (sorted(place.done()), place.files("claimed")) == (["after", "fresh", "held", "over"], [])
    assert len(place.runs()) == 3


def test_there_is_no_backlog_unless_it_is_configured(place: BacklogPlace) -> None:
    """Without the key a daemon takes no file; the key takes effect at the start."""
    place.write("daemon.yaml", "max_sessions_total: 3")
    place.serve("daemon.yaml")
    assert not place.backlog.exists()
    place.write("daemon.yaml", CONFIG)
    assert "backlog: takes effect at the start; restart the daemon" in place.fails("reload")
