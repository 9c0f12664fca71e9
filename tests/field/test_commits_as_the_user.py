"""Commits of the supervisor in repositories whose owners sign, name authors, and use hooks."""

from __future__ import annotations

import subprocess

import pytest
from field_kit import Scratch

PLAN = """
    workspace: worktree
    agents: {a: {adapter: command, command: [sh, -c, "echo new > new.txt"]}}
    tasks: [{id: t, agent: a, prompt: ""}]
"""


def authors(scratch: Scratch) -> set[str]:
    """Return the authors and committers of the commits that a run has made on main."""
    return set(scratch.git("log", "--format=%an <%ae>%n%cn <%ce>", "main", "--not", "base").splitlines())


@pytest.fixture
def repository(scratch: Scratch) -> Scratch:
    """Fixture: a repository with a tag at its first commit, and the plan of one task."""
    scratch.repository()
    scratch.git("tag", "base")
    scratch.plan(PLAN)
    return scratch


@pytest.mark.parametrize(
    ("author", "name"),
    [
        ("user", "Field <field@example.invalid>"),
        ("Build Robot <robot@example.invalid>", "Build Robot <robot@example.invalid>"),
        ("", "supervisor <supervisor@localhost>"),
    ],
    ids=["user", "named", "default"],
)
def test_commits_have_the_author_that_the_plan_names(repository: Scratch, author: str, name: str) -> None:
    """Work and merge are by the user of git, by a name of the plan, or by default by the supervisor."""
    repository.plan(f"{PLAN}    commits: {{author: {author!r}}}\n")
    run = repository.run("run", "plan.yaml")
    assert run.status == 0, run.text
    assert authors(repository) == {name}


def test_commits_are_signed_if_the_plan_says_so(repository: Scratch) -> None:
    """With `sign`, work and merge have signatures that git can verify; the key is that of the user's configuration."""
    key = repository.path.parent / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=60)
    signers = repository.write("../signers", f"* {key.with_suffix('.pub').read_text()}")
    for setting in ("gpg.format=ssh", f"user.signingKey={key}", f"gpg.ssh.allowedSignersFile={signers}"):
        name, _, value = setting.partition("=")
        repository.git("config", name, value)
    repository.plan(f"{PLAN}    commits: {{sign: true}}\n")
    run = repository.run("run", "plan.yaml")
    assert run.status == 0, run.text
    assert set(repository.git("log", "--format=%G?", "main", "--not", "base").split()) == {"G"}


def test_a_user_who_signs_is_told_of_commits_without_signature(repository: Scratch) -> None:
    """`run` and `doctor PLAN` say that commit.gpgSign has no effect, and which key changes that."""
    repository.git("config", "commit.gpgSign", "true")
    for command in ("doctor", "run"):
        said = repository.run(command, "plan.yaml")
        assert said.status == 0, said.text
        assert "the supervisor's commits are not signed; set `commits: {sign: true}`" in said.text


@pytest.mark.parametrize(("path", "is_told"), [(".husky/_", True), (".githooks", False)])
def test_hooks_that_do_not_run_in_worktrees_are_told(repository: Scratch, path: str, is_told: bool) -> None:
    """A relative directory of hooks that is not committed is not there in a worktree; `doctor`, `plan check` and `run`
    say so. Hooks that are committed run there."""
    repository.write(".githooks/pre-commit", "#!/bin/sh\nexit 0\n")
    repository.git("add", ".githooks")
    repository.git("commit", "-qm", "hooks")
    repository.git("config", "core.hooksPath", path)
    for command in (("doctor", "plan.yaml"), ("plan", "check", "plan.yaml"), ("run", "plan.yaml")):
        assert ("hooks do not run for what agents commit" in repository.run(*command).text) is is_told


def test_an_author_that_git_does_not_take_is_refused(repository: Scratch) -> None:
    """A name without an address is an error of the plan, with the form to give."""
    repository.plan(f"{PLAN}    commits: {{author: Robot}}\n")
    said = repository.run("run", "plan.yaml")
    assert said.status == 2
    assert (
        "commits.author: 'Robot' is no author; give user, or for example 'Build Robot <robot@example.org>'" in said.err
    )
