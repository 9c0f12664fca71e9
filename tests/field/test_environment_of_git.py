"""Repositories as users have them: configured by the environment, and with another hash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from field_kit import Scratch

PLAN = """
    workspace: worktree
    agents: {a: {adapter: command, command: [sh, -c, "echo new > new.txt; echo key > a.secret"]}}
    tasks: [{id: t, agent: a, prompt: ""}]
"""


def merged_files(scratch: Scratch) -> list[str]:
    """Return the names of the files that the last commit of main has changed."""
    return scratch.git("diff", "--name-only", "main^1", "main").splitlines()


def test_files_that_a_user_ignores_everywhere_are_not_committed(scratch: Scratch) -> None:
    """A list of ignored files in the user's own configuration of git, wherever the environment says that this lies,
    holds for the supervisor's commits."""
    settings = Path(scratch.path, "..", "settings").resolve()
    (settings / "git").mkdir(parents=True)
    (settings / "git" / "ignore").write_text("*.secret\n")
    named = settings / "named"
    named.write_text(f"[core]\n excludesFile = {settings / 'git' / 'ignore'}\n")
    scratch.repository()
    for number, env in enumerate(({"XDG_CONFIG_HOME": str(settings)}, {"GIT_CONFIG_GLOBAL": str(named)})):
        scratch.plan(PLAN.replace("echo new", f"echo new{number}"))
        run = scratch.run("run", "plan.yaml", env=env)
        assert run.status == 0, run.text
        assert merged_files(scratch) == ["new.txt"]


def test_settings_of_git_in_the_environment_hold(scratch: Scratch) -> None:
    """A container that declares its repository safe by GIT_CONFIG_COUNT, or sets anything else so, is honoured."""
    scratch.repository()
    scratch.plan(PLAN)
    ignore = scratch.write("../ignored", "*.secret\n")
    env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.excludesFile", "GIT_CONFIG_VALUE_0": str(ignore)}
    run = scratch.run("run", "plan.yaml", env=env)
    assert run.status == 0, run.text
    assert merged_files(scratch) == ["new.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository to another user")
def test_a_repository_of_another_user_that_is_declared_safe_is_used(scratch: Scratch) -> None:
    """Root in a container works on files of the user outside, whose directory the environment declares safe."""
    scratch.repository()
    scratch.plan(PLAN)
    for path in [scratch.path, *scratch.path.rglob("*")]:
        os.chown(path, 65534, 65534)
    env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    assert "dubious ownership" in scratch.run("run", "plan.yaml", env={}).err
    run = scratch.run("run", "plan.yaml", env=env)
    assert run.status == 0, run.text


def test_variables_that_a_hook_has_left_lead_git_nowhere(scratch: Scratch) -> None:
    """A run that is started from a hook of another repository works in the repository of its own directory."""
    scratch.repository()
    scratch.plan(PLAN)
    other = scratch.path / "other"
    scratch.git("init", "-q", str(other))
    env = {"GIT_DIR": str(other / ".git"), "GIT_INDEX_FILE": str(other / "index"), "GIT_WORK_TREE": str(other)}
    run = scratch.run("run", "plan.yaml", env=env)
    assert run.status == 0, run.text
    assert {path.name for path in other.iterdir()} == {".git"}
    assert "new.txt" in merged_files(scratch)


def test_a_repository_with_the_other_hash_is_used(scratch: Scratch) -> None:
    """In a repository with SHA-256, an agent that deletes its branch loses no work: a branch is made again."""
    scratch.git("init", "-q", "-b", "main", "--object-format=sha256")
    scratch.write(".gitignore", "/.sdd/\n/plan.yaml\n")
    scratch.git("add", ".")
    scratch.git("commit", "-qm", "base")
    leave = "git checkout -q --detach; git branch -qD supervisor/t; echo 2 > new.txt; git add -A; git commit -qm 2"
    scratch.plan(f"""
        workspace: worktree
        agents: {{a: {{adapter: command, command: [sh, -c, "{leave}"]}}}}
        tasks: [{{id: t, agent: a, prompt: ""}}]
    """)
    run = scratch.run("run", "plan.yaml")
    assert run.status == 0, run.text
    assert merged_files(scratch) == ["new.txt"]
