"""Crash test of the steps in git: kill a supervisor, and its git, at a chosen git command; run the plan again, and
check the user's repository.

``python -m tests.crash.git_steps --calls all --rounds 100``. A program named ``git``, first on ``PATH``, counts the git
commands that the supervisor runs (those of agents and users are not counted). At the chosen command that program kills
the supervisor and itself: before the command, after it, or a few milliseconds into it. Then the same plan is run to its
end. The check: each task is merged once into the branch of the run, and that branch once into the target; each agent
has worked as often as without a kill, and no branch, reference, git entry of a worktree, lock or temporary directory is
left. After the kill the target has the whole merge, or nothing of the run. ``--calls`` takes ``all``, ``merge`` (those
of the one merge), ``writing`` (the commands that write), or a number N of writing commands; ``--rounds R`` kills R runs
of larger tasks up to three times each, at random commands; before some of the next runs the user removes
``index.lock``. Only commands that were killed are counted: a trial in which no command was killed is a fault, and a
round without a kill does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
WRITING = frozenset(
    {"add", "checkout", "clean", "commit", "read-tree", "reset", "update-index", "update-ref", "worktree"}
)
"""Names of git commands that change something."""
KILLS_A_ROUND = 3
LONGEST_S = 120.0
"""Seconds after which a run counts as hung."""

WRAPPER = """#!/bin/sh
case "$2" in core.hooksPath=*) ;; *) exec {git} "$@" ;; esac
here={folder}
exec 9>"$here/lock"; flock 9
number=$(($(cat "$here/count") + 1)); echo $number >"$here/count"; echo "${{11}} ${{12}}" >>"$here/calls"
exec 9>&-
case "$(cat "$here/at")" in $number|"${{11}} ${{12}}") ;; *) exec {git} "$@" ;; esac
[ ! -s "$here/killed" ] || exec {git} "$@"
echo "$*" >"$here/killed"
while [ ! -s "$here/pid" ]; do sleep 0.01; done
case "$(cat "$here/way")" in
    after) {git} "$@" ;;
    within) {git} "$@" & sleep "$(cat "$here/delay")"; kill -9 $! ;;
esac
kill -9 "$(cat "$here/pid")" $$
"""

PLAN = """
workspace: worktree
task_lifecycle:
  base_retry_delay: 0.1
  checkpoint: {{enabled: true, save_on_states: [COMPLETED, FAILED]}}
limits: {{backoff_base_ms: 100}}
agents:
  files:
    adapter: command
    command:
      - bash
      - -c
      - |
        mkdir -p new; for i in $(seq {files}); do echo $i > new/f$i; done
        echo changed > changed; rm -f gone; ln -sf changed link; chmod +x mode; rm -rf folder; echo file > folder
        echo done >> {out}/t
  twice:
    adapter: command
    command:
      - bash
      - -c
      - |
        if mkdir {out}/tried 2>/dev/null; then echo half > v; echo done >> {out}/u; exit 3; fi
        echo u > u; echo done >> {out}/u
tasks:
  - {{id: t, agent: files, prompt: ""}}
  - {{id: u, agent: twice, prompt: "", rollback: true, depends_on: [t]}}
"""
"""Plan whose tasks run one after the other, so that an agent hardly ever works while git runs. An agent that is killed
works again."""
WORKED = {"t": 1, "u": 2}
"""Number of completed runs of each agent in a run without a kill. The first attempt of ``u`` is rolled back to a
checkpoint."""


class Trial:
    """Repository with a plan, and a program ``git`` that kills the supervisor at a chosen command."""

    def __init__(self, folder: Path, *, files: int = 5) -> None:
        self.repository, self._out, self._files = folder / "work", folder / "out", files
        self._wrapper, self._said = folder / "git", folder / "said"
        for one in (self.repository, self._out, self._wrapper, folder / "home"):
            one.mkdir()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        real = shutil.which("git") or "git"
        (folder / "home" / ".gitconfig").write_text("[user]\n name = Crash\n email = crash@example.invalid\n")
        (self._wrapper / "git").write_text(WRAPPER.format(folder=self._wrapper, git=real))
        (self._wrapper / "git").chmod(0o755)
        self._env = {**os.environ, "HOME": str(folder / "home"), "GIT_CONFIG_NOSYSTEM": "1", "PYTHONPATH": str(ROOT)}
        self._env["PATH"] = f"{self._wrapper}:{path}"
        self._make_repository()

    def _make_repository(self) -> None:
        for name in ("changed", "gone", "mode", "folder/inside", "kept"):
            (self.repository / name).parent.mkdir(exist_ok=True)
            (self.repository / name).write_text(f"{name}\n")
        (self.repository / "link").symlink_to("kept")
        (self.repository / ".gitignore").write_text("/.sdd/\n/plan.yaml\n")
        (self.repository / "plan.yaml").write_text(PLAN.format(out=self._out, files=self._files))
        self.git("init", "--quiet", "-b", "main")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "base")

    def git(self, *words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=self.repository, env=self._env, capture_output=True, text=True, check=True
        ).stdout

    def run(self, at: int | str = 0, way: str = "before", delay_s: float = 0.0) -> int:
        """Run the plan, and kill the supervisor at git command *at*: a number, or the first two words of the command.
        Return the exit status, ``-9`` if the supervisor was killed."""
        for name, value in {
            "count": 0,
            "at": at,
            "way": way,
            "delay": delay_s,
            "pid": "",
            "killed": "",
            "calls": "",
        }.items():
            (self._wrapper / name).write_text(str(value))
        with self._said.open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", "run", "plan.yaml"],
                cwd=self.repository,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            (self._wrapper / "pid").write_text(str(process.pid))
            try:
                return process.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return 124

    @property
    def calls(self) -> list[str]:
        """Git commands of the last run: the first two words of each."""
        return (self._wrapper / "calls").read_text().splitlines()

    @property
    def killed(self) -> str:
        """Git command at which the last run was killed."""
        return (self._wrapper / "killed").read_text().partition("gc.auto=0")[2].strip()

    def wrong(self, status: int) -> list[str]:
        """Return the differences from the result of a run without a kill."""
        wrong = [f"the last run ended with {status}: {self._said.read_text()[-1500:]}"] if status else []
        if not wrong:
            wrong += self._wrong_merges()
        wrong += [
            f"the checkout is not clean: {line}" for line in self.git("status", "--porcelain", "-uall").splitlines()
        ]
        refs = self.git("for-each-ref", "--format=%(refname)").split()
        saved = [name for name in refs if name.startswith("refs/supervisor/checkpoints/u/")]
        wrong += [f"{name} is left" for name in refs if name not in ("refs/heads/main", *saved[:1])]
        listed = self.git("worktree", "list", "--porcelain")
        wrong += [f"a worktree is left: {listed}"] if listed.count("worktree ") != 1 else []
        git_dir = self.repository / ".git"
        left = [*git_dir.rglob("*.lock"), *git_dir.glob("supervisor-*"), *git_dir.glob("worktrees/*")]
        left += [*(self.repository / ".sdd" / "worktrees").glob("*"), *git_dir.glob("packed-refs.new")]
        return wrong + [f"{one.relative_to(self.repository)} is left" for one in left]

    def _wrong_merges(self) -> list[str]:
        names = self.git("ls-tree", "-r", "--name-only", "main").split()
        wanted = {*(f"new/f{number}" for number in range(1, self._files + 1)), "changed", "folder", "kept", "link", "u"}
        wanted |= {".gitignore", "mode"}
        wrong = [f"in main: {set(names) ^ wanted}"] if set(names) != wanted else []
        wrong += self.half_merged()
        merges = self.git("log", "--merges", "--format=%s", "main").splitlines()
        count = sum(_is_of_run(one) for one in merges)
        wrong += [f"the run is merged {count} times"] if count != 1 else []
        wrong += [f"{task} is merged {count} times" for task in WORKED if (count := _begins(merges, task)) != 1]
        for task, expected in WORKED.items():
            worked = len((self._out / task).read_text().splitlines())
            wrong += [f"the agent of {task} worked {worked} times"] if worked != expected else []
        return wrong

    def half_merged(self) -> list[str]:
        """Return what the target has of the run beside its one merge, also after a kill."""
        commits = self.git("log", "--first-parent", "--format=%s", "main").splitlines()
        return [f"main has {one!r}" for one in commits[:-1] if not _is_of_run(one)] + commits[2:]


def _is_of_run(message: str) -> bool:
    """Return whether a merge has the name of a run. A run that was killed while its branch was made, before its first
    task, is begun anew as the next one."""
    return re.match(r"r[12]: ", message) is not None


def _begins(merges: Iterable[str], task: str) -> int:
    return sum(one.startswith(f"{task}:") for one in merges)


def killed_at(folder: Path, at: int | str, way: str, delay_s: float = 0.0) -> tuple[str, list[str]]:
    """Kill a run at one git command, and run the plan again. Return the killed command (``""`` if none was killed), and
    all differences from a run without a kill."""
    trial = Trial(folder)
    status = trial.run(at, way, delay_s)
    if status != -signal.SIGKILL:
        return "", [f"no command was killed at {at}", *trial.wrong(status)]
    killed = trial.killed
    return killed, [*trial.half_merged(), *trial.wrong(trial.run())]


def kills(calls: Sequence[str], wanted: str) -> list[tuple[int, str]]:
    """Return the commands to kill at, each as its number and the moment: for *wanted* ``all``, before and after every
    command, and also within the writing ones; for ``merge`` those from the plan of the one merge on; for ``writing``,
    the writing commands only; for a number, that many of these, evenly spread."""
    first = max((at for at, call in enumerate(calls, 1) if call.startswith("rev-list")), default=1)
    writing = [number for number, call in enumerate(calls, 1) if is_writing(call)]
    if wanted in ("all", "merge"):
        return [
            (at, way)
            for at in range(first if wanted == "merge" else 1, len(calls) + 1)
            for way in (("before", "after", "within")[: 3 if at in writing else 2])
        ]
    count = len(writing) if wanted == "writing" else min(int(wanted), len(writing))
    some = [writing[step * (len(writing) - 1) // max(1, count - 1)] for step in range(count)]
    return [(at, way) for at in some for way in ("before", "within", "after")]


def is_writing(call: str) -> bool:
    return call.startswith("-c ") or (call.split()[0] in WRITING and not call.startswith("worktree list"))


def every_call(wanted: str, chance: random.Random) -> tuple[int, int]:
    """Kill a run at each of the wanted commands; return how many commands were killed, and how many trials had
    a fault."""
    with tempfile.TemporaryDirectory(prefix="git-steps-") as folder:
        trial = Trial(Path(folder))
        wrong, calls = trial.wrong(trial.run()), trial.calls
    chosen, count, faults = kills(calls, wanted), 0, int(bool(wrong))
    print(json.dumps({"calls": len(calls), "chosen": len(chosen), "wrong": wrong}), flush=True)
    for at, way in chosen:
        with tempfile.TemporaryDirectory(prefix="git-steps-") as folder:
            killed, wrong = killed_at(Path(folder), at, way, round(chance.uniform(0.0, 0.01), 4))
        count += bool(killed)
        faults += bool(wrong)
        if wrong:
            print(json.dumps({"at": at, "way": way, "killed": killed, "wrong": wrong}), flush=True)
    return count, faults


def a_round(folder: Path, files: int, chance: random.Random) -> tuple[list[str], list[str]]:
    """Kill up to three runs at random commands, then run the plan to its end; return the commands that were killed, and
    all differences from a run without a kill. Before some of these runs the user removes git's lock on the index."""
    trial, killed = Trial(folder, files=files), list[str]()
    for _ in range(KILLS_A_ROUND):
        way, delay_s = chance.choice(("before", "within", "after")), round(chance.uniform(0.0, 0.1), 4)
        status = trial.run(chance.randint(1, 150), way, delay_s)
        if status != -signal.SIGKILL:
            return killed, trial.wrong(status)
        killed.append(trial.killed)
        if chance.random() < 0.5:
            (trial.repository / ".git" / "index.lock").unlink(missing_ok=True)
    return killed, trial.wrong(trial.run())


def main() -> int:
    parser = argparse.ArgumentParser(prog="git_steps", description=__doc__)
    parser.add_argument("--calls", default="5", help="all, merge, writing, or how many of these; 0: none")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--files", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance, began = random.Random(arguments.seed), time.monotonic()
    count, faults = every_call(arguments.calls, chance) if arguments.calls != "0" else (0, 0)
    rounds = 0
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="git-steps-") as folder:
            killed, wrong = a_round(Path(folder), arguments.files, chance)
        rounds += bool(killed)
        count += len(killed)
        if wrong:
            faults += 1
            print(json.dumps({"round": number, "killed": killed, "wrong": wrong}), flush=True)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"rounds": rounds, "kills": count, "faults": faults, "seconds": seconds}))
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())
