"""Set-up of worktrees by keys of the plan: submodules, copies of files that git ignores, a command, and a time limit. A
worktree is used only when its set-up is complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from field_kit import Scratch, until

PLAN = """
    workspace: worktree
    worktree: {WORKTREE}
    agents: {a: {adapter: command, command: [sh, -c, 'COMMAND']}}
    tasks: [{id: t, agent: a}]
"""


def plan(scratch: Scratch, worktree: str, command: str) -> None:
    scratch.plan(PLAN.replace("WORKTREE", worktree).replace("COMMAND", command))


def add_submodule(scratch: Scratch) -> None:
    """Make the scratch directory a repository with a submodule, whose file is ``library/lib.txt``."""
    library = scratch.path.parent / "library"
    library.mkdir()
    (library / "lib.txt").write_text("library\n")
    config = Path(scratch.env["HOME"]) / ".gitconfig"
    config.write_text(f'{config.read_text()}[protocol "file"]\n allow = always\n')
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "one")):
        scratch.git("-C", str(library), *words)
    scratch.repository()
    scratch.git("submodule", "--quiet", "add", str(library), "library")
    scratch.git("commit", "-qm", "library")


# --------------------------------------------------------------------------------------------------- submodules
def test_submodules_have_their_files(scratch: Scratch) -> None:
    """With ``submodules: true`` a task finds the files of a submodule, and its work is merged without a change of the
    submodule; the worktree is removed."""
    add_submodule(scratch)
    plan(scratch, "submodules: true", "cp library/lib.txt result")
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert "submodules are empty" not in done.text
    assert scratch.git("show", "main:result") == "library"
    assert scratch.git("diff", "--stat", "main~1", "main", "--", "library") == ""
    assert list((scratch.path / ".sdd" / "worktrees").glob("t*")) == []


def test_empty_submodules_are_said(scratch: Scratch) -> None:
    """By default submodules are empty in worktrees: the run says so, and which key changes that."""
    add_submodule(scratch)
    plan(scratch, "", "ls library > result")
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert "the submodules are empty in worktrees" in done.err
    assert "worktree.submodules: true" in done.err


# ------------------------------------------------------------------------------------------------------- copies
def test_ignored_files_are_copied(scratch: Scratch) -> None:
    """A task needs ``.env`` and installed packages, which git ignores: it finds copies, and what it changes in them
    changes neither the user's files nor main."""
    scratch.repository()
    scratch.write(".gitignore", "/.sdd/\n/plan.yaml\n.env\nnode_modules\n")
    scratch.git("commit", "-qam", "ignore")
    scratch.write("web/.env", "KEY=1\n")
    (scratch.write("node_modules/tool/run", "#!/bin/sh\necho $KEY\n")).chmod(0o755)
    (scratch.path / "node_modules" / "link").symlink_to("tool")
    plan(
        scratch,
        "copies: [web/.env, node_modules]",
        "(. web/.env; export KEY; node_modules/link/run > result); echo KEY=2 > web/.env",
    )
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert scratch.git("show", "main:result") == "1"
    assert scratch.git("ls-tree", "-r", "--name-only", "main").split() == [".gitignore", "result"]
    assert (scratch.path / "web" / ".env").read_text() == "KEY=1\n"


@pytest.mark.parametrize(
    ("copied", "why"),
    [("seen", "git does not ignore 'seen'"), (".env", "'.env' is not in"), (".gitignore", "git does not ignore")],
)
def test_what_would_be_merged_is_not_copied(scratch: Scratch, copied: str, why: str) -> None:
    """A file that git does not ignore, or that is not there, is refused before any agent is launched: each copy would
    be merged as work."""
    scratch.repository()
    scratch.write("seen", "by git\n")
    plan(scratch, f"copies: [{copied}]", "touch ../../../launched")
    for command in ("run", "plan check"):
        refused = scratch.run(*command.split(), "plan.yaml")
        assert refused.status != 0
        assert f"worktree.copies: {why}" in refused.text, refused.text
    assert not (scratch.path / "launched").exists()


# ------------------------------------------------------------------------------------------------------ command
def test_a_command_sets_up_each_worktree(scratch: Scratch) -> None:
    """The command is run once in each new worktree, before its agent, with the environment that agents have."""
    scratch.repository()
    scratch.write(".gitignore", "/.sdd/\n/plan.yaml\n/installed\n/set-up\n")
    scratch.git("commit", "-qam", "ignore")
    scratch.plan("""
        workspace: worktree
        worktree: {setup: 'basename $PWD >> ../../../set-up; echo $LANG > installed'}
        agents: {a: {adapter: command, command: [sh, -c, 'cp installed $(basename $PWD)']}}
        tasks: [{id: t, agent: a}, {id: u, agent: a}]
    """)
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert sorted((scratch.path / "set-up").read_text().split()) == ["t", "u"]
    assert [scratch.git("show", f"main:{name}") for name in "tu"] == ["C.UTF-8", "C.UTF-8"]


@pytest.mark.parametrize(
    ("worktree", "why"),
    [
        ("setup: 'echo no network >&2; exit 7'", "exit status 7; its last words: no network"),
        ("setup: 'echo asks; read answer; sleep 1000', timeout_s: 0.5", "it was still running after 0.5 s"),
    ],
)
def test_a_set_up_that_fails_fails_the_task_once(scratch: Scratch, worktree: str, why: str) -> None:
    """A command that fails, or takes too long, fails the task, with the command and its last words; no agent is
    launched, nothing is tried again, and no worktree is left."""
    scratch.repository()
    plan(scratch, worktree, "touch ../../../launched")
    done = scratch.run("run", "plan.yaml", "--json")
    assert done.status == 1
    error = done.json()["tasks"][0]["error"]
    assert error.startswith("worktree.setup: `echo ")
    assert why in error
    assert not (scratch.path / "launched").exists()
    assert {one["entity_id"] for one in scratch.records() if one["entity_type"] == "session"} == {"t"}
    assert scratch.git("worktree", "list").count("\n") == 0


def test_a_set_up_that_was_killed_is_made_anew(scratch: Scratch) -> None:
    """The supervisor is killed while a worktree is set up: the next run makes the worktree anew, and nothing that was
    half made is taken for work."""
    scratch.repository()
    scratch.write("file", "content\n")
    scratch.git("add", "file")
    scratch.git("commit", "-qm", "file")
    wait = "rm -f file; touch ../../began; while [ ! -e ../../go ]; do sleep 0.01; done; git checkout -q file"
    plan(scratch, f"setup: '{wait}'", "cp file result")
    run, began = scratch.start("run", "plan.yaml"), scratch.path / ".sdd" / "began"
    until(began.exists)
    run.kill()
    (scratch.path / ".sdd" / "go").touch()
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert scratch.git("ls-tree", "-r", "--name-only", "main").split() == [".gitignore", "file", "result"]
    assert scratch.git("branch", "--list", "supervisor/*") == ""


def test_a_set_up_needs_worktrees(scratch: Scratch) -> None:
    """A plan that sets up worktrees, and has none, is refused: the keys would have no effect."""
    scratch.plan(
        "worktree: {setup: npm ci}\nagents: {a: {adapter: command, command: [pwd]}}\ntasks: [{id: t, agent: a}]"
    )
    refused = scratch.run("plan", "check", "plan.yaml")
    assert refused.status == 2
    assert "worktree: there are no worktrees to set up; set workspace: worktree too" in refused.text
