"""The workspace of a simulated machine, whose operations take time, and now and then fail.

The contents are in :class:`WorkspaceContents`, which outlives the supervisor to which this workspace belongs.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from supervisor.lifecycles.run_ids import is_run_id
from supervisor.lifecycles.workstream import WorkBranch
from supervisor.ports import FileRefused, Merge, MergePlan, Released, WorkspaceSpec
from supervisor.ports.path_safety import outside
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.journal import SupervisorKilled
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.plan_workload.task_scripts import TaskScripts
from supervisor.simulation.plan_workload.workspace_contents import WorkspaceContents
from supervisor.workspaces.directory import DirectoryWorkspace


class SimulatedWorkspace(DirectoryWorkspace):
    """Workspace with directories in memory: some directories cannot be prepared, and some work cannot be merged. Once
    the supervisor was *killed*, every operation fails, so that tasks of a dead supervisor change nothing while they
    unwind."""

    def __init__(
        self,
        random: KeyedRandom,
        faults: FaultPlan,
        task_scripts: TaskScripts,
        workspaces: WorkspaceContents,
        killed: anyio.Event,
    ) -> None:
        self._random, self._faults, self._task_scripts, self._workspaces = random, faults, task_scripts, workspaces
        self._killed = killed
        self.temporary = workspaces.worktrees

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        # Mostly at once; sometimes as long as a checkout takes.
        takes_s = 0.01 if self._random.happens(0.7, session_id) else self._random.between(0.1, 5.0, session_id)
        await self._spend(takes_s)
        if self._faults.strikes("workspace.missing", session_id):
            raise NotADirectoryError(f"the working directory of session {session_id!r} does not exist")
        self._workspaces.prepare(session_id)
        return f"{directory}/{session_id}"

    async def changed_since(self, session_id: str, directory: str, since: float) -> bool:
        return True  # simulated agents report what they do, and need not do anything

    async def begin(self, session_id: str, spec: WorkspaceSpec) -> None:
        await self._takes("begin", spec.owner)
        self._workspaces.begin(session_id, spec)

    async def save(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        if not (self._workspaces.worktrees or spec.files):
            return ""
        await self._takes("save", session_id)
        return self._workspaces.save(session_id, spec)

    async def roll_back(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        await self._takes("roll back", session_id)
        return self._workspaces.roll_back(session_id, spec)

    async def accept(self, spec: WorkspaceSpec) -> None:
        self._check_alive()
        self._workspaces.accept(spec)

    async def forget(self, spec: WorkspaceSpec) -> None:
        if self._workspaces.worktrees or spec.files:
            await self._takes("forget", spec.owner)
            self._workspaces.forget(spec)

    async def outside_changes(self, session_id: str) -> list[str]:
        return []

    async def list_sessions(self) -> list[str]:
        return self._workspaces.list_sessions()

    async def clean_up(self, session_id: str, message: str) -> Released:
        if self._workspaces.worktrees:
            await self._takes("put away", session_id)
        self._check_alive()
        return self._workspaces.clean_up(session_id)

    async def _takes(self, *what: str) -> None:
        await self._spend(self._random.between(0.01, 0.5, *what))

    async def _spend(self, seconds: float) -> None:
        """Let *seconds* seconds pass, the time that an operation takes.

        Raises:
            SupervisorKilled: the supervisor was killed meanwhile.
        """
        await anyio.sleep(seconds)
        self._check_alive()

    def _check_alive(self) -> None:
        if self._killed.is_set():
            raise SupervisorKilled("whoever works there was killed")

    async def open_branch(
        self, workstream_id: str, directory: str, *, resumes: str = "", holds: Sequence[str] = ()
    ) -> WorkBranch:
        await self._takes("open branch", workstream_id)
        return self._workspaces.open_branch(workstream_id, directory, resumes)

    async def plan_merge(self, workstream_id: str, commit: str = "") -> MergePlan:
        await self._takes("plan merge", workstream_id)
        return self._workspaces.plan_merge(workstream_id)

    async def merge(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Merge:
        task_script, into = self._task_scripts.of(session_id), f"supervisor/{workstream}" if workstream else "main"
        if task_script is None and not is_run_id(session_id):
            return await super().merge(session_id, message, commit, workstream=workstream)
        await self._spend(self._random.between(0.01, 2.0, "merge", session_id))
        if self._workspaces.has(session_id, workstream):  # whoever merged it did not live to say so
            return Merge(outcome="nothing", target=into, why=f"everything is in {into} already")
        if task_script is None or task_script.merge():
            return self._workspaces.merged(session_id, workstream)
        return Merge(outcome="refused", files=("README.md",), why="conflict in README.md")


class SimulatedFiles:
    """Files of agents in memory (``supervisor.ports.AgentFiles``): a read returns text that was written before."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    async def read(self, path: str, workspace: str) -> str:
        _check(path, workspace)
        if path not in self._texts:
            raise FileNotFoundError(f"there is no file {path!r}")
        return self._texts[path]

    async def write(self, path: str, text: str, workspace: str) -> None:
        _check(path, workspace)
        self._texts[path] = text


def _check(path: str, workspace: str) -> None:
    if why := outside("path", path, workspace):
        raise FileRefused(why)
