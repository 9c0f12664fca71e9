"""Paths that a plan or an agent names stay within their workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.plans import BadPlan, load_plan
from supervisor.ports.path_safety import outside


def test_a_path_at_or_below_the_workspace_is_within(tmp_path: Path) -> None:
    """A path at or below the workspace is allowed, even if it does not exist, or leads back over links."""
    (tmp_path / "a").mkdir()
    (tmp_path / "back").symlink_to(tmp_path / "a")
    for path in (tmp_path, tmp_path / "a", tmp_path / "new", tmp_path / "back", tmp_path / "a" / ".." / "a"):
        assert outside("cwd", str(path), str(tmp_path)) == ""
    assert outside("cwd", "/etc", "/") == ""


@pytest.mark.parametrize("way", ["/etc", "{}/..", "{}/a/../../x", "{}-beside", "{}/link", "{}/link/deeper"])
def test_a_path_that_leads_out_is_named_with_the_fix(tmp_path: Path, way: str) -> None:
    """A path that leads out of the directory (absolute, by ``..``, by a common prefix, over a link) is refused: the
    error names the path and the fix."""
    workspace = tmp_path / "w"
    (workspace / "a").mkdir(parents=True)
    (workspace / "link").symlink_to(tmp_path)
    path = way.format(workspace)
    words = outside("terminal/create: cwd", path, str(workspace))
    assert words.startswith(f"terminal/create: cwd: {path!r}")
    assert words.endswith(f"is not within {str(workspace)!r}; leave it out, or name a directory at or below that")


@pytest.mark.parametrize("cwd", ["..", "/etc", "link", "sub/../.."])
def test_a_plan_whose_agent_works_elsewhere_is_refused(tmp_path: Path, cwd: str) -> None:
    """A plan whose agent works elsewhere is refused with the line, the field, the resolved path and the fix."""
    (tmp_path / "p" / "sub").mkdir(parents=True)
    (tmp_path / "p" / "link").symlink_to("/etc")
    plan = tmp_path / "p" / "plan.yaml"
    plan.write_text(f"agents:\n  a: {{adapter: scripted, cwd: {cwd}}}\ntasks: [{{id: t, agent: a}}]\n")
    with pytest.raises(BadPlan) as refused:
        load_plan(plan)
    assert "plan.yaml:2: agents.a.cwd: " in str(refused.value)
    assert f"is not within {str(tmp_path / 'p')!r}" in str(refused.value)
    assert "leave it out, or name a directory at or below that" in str(refused.value)
