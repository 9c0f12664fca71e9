"""Files that the supervisor reads and writes for an agent: only those of the agent's workspace, never those of the
supervisor or of git."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from field_kit import Scratch

from supervisor.ports import FileRefused
from supervisor.workspaces import files
from supervisor.workspaces.files import DiskFiles

TRIES = """
    replies = {}
    for path in json.loads(text):
        full = os.path.abspath(path)
        replies[f"read {path}"] = agent.call("fs/read_text_file", path=full)
        replies[f"write {path}"] = agent.call("fs/write_text_file", path=full, content="planted")
    Path("%s").write_text(json.dumps(replies))
    return "done"
"""


def granted(scratch: Scratch, paths: list[str], plan: str = "", *options: str) -> list[str]:
    """Return the requests, such as ``read PATH``, that are granted when an agent in a repository requests to read and
    write each of *paths*."""
    out = scratch.logs / "replies"
    scratch.acp_agent(TRIES % str(out))
    scratch.write("notes.txt", "notes")
    scratch.plan(f"""
        {plan}
        agents: {{a: {{adapter: acp, command: [python3, {scratch.path}/agent.py]}}}}
        tasks: [{{id: t, agent: a, prompt: {json.dumps(json.dumps(paths))}}}]
    """)
    scratch.repository()
    done = scratch.run("run", "plan.yaml", *options)
    assert out.exists(), done.text
    return [asked for asked, reply in json.loads(out.read_text()).items() if "result" in reply]


def test_the_state_directory_and_git_are_out_of_reach(scratch: Scratch) -> None:
    """An agent may read and write a file of its workspace, but no file of the state directory or of git, also not
    through a link."""
    (scratch.path / "link").symlink_to(".sdd/runtime")
    paths = ["notes.txt", ".sdd/transitions.jsonl", ".sdd/runtime/tag", "link/tag", ".git/config", ".GIT/hooks/x"]
    assert granted(scratch, paths) == ["read notes.txt", "write notes.txt"]
    assert "planted" not in (scratch.path / ".git/config").read_text()
    refused = [one["metadata"]["path"] for one in scratch.records("t:t1") if one["event"] == "FileRefused"]
    assert len(refused) == 2 * (len(paths) - 1)


def test_a_state_directory_with_another_name_is_out_of_reach(scratch: Scratch) -> None:
    """Files of a state directory with another name are refused too: the directory is recognized by its content."""
    paths = ["notes.txt", "state/transitions.jsonl", "state/new/file"]
    assert granted(scratch, paths, "", "--state-dir", "state") == ["read notes.txt", "write notes.txt"]
    assert not (scratch.path / "state/new").exists()


def test_a_worktree_in_the_state_directory_is_the_agents_own(scratch: Scratch) -> None:
    """An agent in a worktree below the state directory may read and write the files of the worktree, and no others."""
    paths = ["notes.txt", "new/file.txt", ".git", "../../transitions.jsonl", "../../../notes.txt"]
    found = granted(scratch, paths, "workspace: worktree")
    assert found == ["read notes.txt", "write notes.txt", "write new/file.txt"]
    assert scratch.git("show", "HEAD:new/file.txt") == "planted"


# ------------------------------------------------------------------------------------------------------ the walk alone
@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Fixture: a workspace beside a state directory."""
    for name in ("work/inner", "state/runtime"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "state/runtime/tag").write_text("secret")
    (tmp_path / "work/inner/tag").write_text("own")
    return tmp_path / "work"


def ask(workspace: Path, path: str, text: str | None = None) -> str | None:
    """Read a file of the workspace or, if *text* is given, write *text* to it."""
    disk = DiskFiles(workspace.parent / "state")
    if text is None:
        return anyio.run(disk.read, str(workspace / path), str(workspace))
    return anyio.run(disk.write, str(workspace / path), text, str(workspace))


@pytest.mark.parametrize("text", [None, "planted"])
def test_a_link_that_is_put_there_after_the_check_leads_nowhere(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    """When a directory of a path is replaced by a link to the state directory after the path was checked, the access is
    refused."""
    look = files.outside

    def swapped(field: str, path: str, within: str) -> str:
        found = look(field, path, within)
        (workspace / "inner").rename(workspace / "aside")
        (workspace / "inner").symlink_to(workspace.parent / "state/runtime")
        return found

    monkeypatch.setattr(files, "outside", swapped)
    with pytest.raises(FileRefused, match="replaced while it was looked for"):
        ask(workspace, "inner/tag", text)
    assert (workspace.parent / "state/runtime/tag").read_text() == "secret"


def test_a_file_that_becomes_a_link_after_the_check_is_not_followed(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a file is replaced by a link after its path was checked, the access is refused."""
    look = files.outside

    def swapped(field: str, path: str, within: str) -> str:
        found = look(field, path, within)
        (workspace / "inner/tag").unlink()
        (workspace / "inner/tag").symlink_to(workspace.parent / "state/runtime/tag")
        return found

    monkeypatch.setattr(files, "outside", swapped)
    with pytest.raises(FileRefused):
        ask(workspace, "inner/tag")


def _bare(workspace: Path) -> str:
    subprocess.run(["git", "init", "-q", "--bare", "inner/bare"], cwd=workspace, check=True)
    return "inner/bare/config"


def _separate(workspace: Path) -> str:
    subprocess.run(["git", "init", "-q", "--separate-git-dir", "data", "inner/nested"], cwd=workspace, check=True)
    return "data/hooks/pre-commit"


def _renamed_state(workspace: Path) -> str:
    os.rename(workspace.parent / "state/runtime", workspace / "moved")  # the inode, not the name, says what it is
    os.rename(workspace.parent / "state", workspace / "inner/sd")
    (workspace.parent / "state").symlink_to(workspace / "inner/sd")
    return "inner/sd/file"


@pytest.mark.parametrize(
    "prepare",
    [
        _bare,
        _separate,
        _renamed_state,
        lambda workspace: "inner/.git",
        lambda workspace: "inner/.Git/config",
        lambda workspace: "inner/.g\u200cit/config",
    ],
)
def test_what_is_gits_or_the_supervisors_is_refused_before_anything_is_made(
    workspace: Path, prepare: Callable[[Path], str]
) -> None:
    """Access to a bare git repository, a separate git directory, a state directory behind a link, or any spelling of
    ``.git`` is refused before any file is created."""
    path = prepare(workspace)
    before = sorted(workspace.rglob("*"))
    for text in (None, "planted"):
        with pytest.raises(FileRefused, match="not for agents"):
            ask(workspace, path, text)
    assert sorted(workspace.rglob("*")) == before


def test_a_link_within_the_workspace_is_followed(workspace: Path) -> None:
    """A link to a file inside of the workspace can be read and written through, and stays a link."""
    (workspace / "link").symlink_to("inner/tag")
    ask(workspace, "link", "new")
    assert (ask(workspace, "link"), (workspace / "link").is_symlink()) == ("new", True)


def test_a_workspace_that_became_a_link_into_git_is_refused(workspace: Path) -> None:
    """A write is refused when the agent has replaced its own directory below the repository by a link to the hooks of
    git."""
    hooks = workspace / ".git" / "hooks"
    hooks.mkdir(parents=True)
    (workspace / "sub").symlink_to(hooks)
    with pytest.raises(FileRefused):
        anyio.run(DiskFiles(workspace.parent / "state").write, "pre-commit", "planted", str(workspace / "sub"))
    assert list(hooks.iterdir()) == []
