"""Soak test: hours of work must leave nothing behind: sessions or runs come and go, and the process keeps its size.

``python -m benchmarks.soak --minutes 30`` runs a supervisor on a state directory, starts 20 sessions a second, which
work, are aborted, crash and end, and samples every few seconds the quantities that may leak (:mod:`benchmarks.gauges`):
for a sample no session starts until none is left, so that whatever remains is a leak; what was missed is started
afterwards. It writes the samples as JSON and draws them as SVG into ``benchmarks/results``; the exit status is 1 if a
quantity grew by more than 5 % after the warm-up, or the load was not kept up. The journal grows by design: its size is
shown, without an aim. ``--short`` runs for two seconds, without aims, and writes to a temporary folder unless ``--out``
names one.

``--load runs`` submits small plans to a daemon instead, each with a key, agents and variables of its own, and has the
daemon read its configuration again after every tenth. The daemon keeps few records: the size of its journal, and the
time of ``supervisor ps``, must be flat, too. (The archive has the rest, and grows by design.)
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import anyio
import anyio.to_thread
import msgspec

from benchmarks.curves import Curve, drawn
from benchmarks.gauges import FLAT, MUST_BE_FLAT, Sample, drift, take
from benchmarks.harness import BACKENDS, options, run
from supervisor import AgentTurn, Session, Supervisor, ToolAborted, open_supervisor
from supervisor.daemon.config import DaemonConfig, load_config
from supervisor.daemon.daemon import Daemon
from supervisor.daemon.submissions import SubmissionStore
from supervisor.embedding.runtime import open_in
from supervisor.journal.statedir import StateDir
from supervisor.plans import LimitsConfig, Settings
from supervisor.plans.daemon_control import PlanRequest
from supervisor.work.plan_handle import Submissions

RESULTS = Path(__file__).parent / "results"
KEPT_UP = 0.95
"""Share of the requested sessions that must have been started, at least."""
BUSY_S = 0.2
"""Seconds of a turn or a tool call."""
SETTINGS = Settings(
    max_sessions=1_000, limits=LimitsConfig(backoff_base_ms=10, backoff_cap_ms=10, restarts_max=1, max_total_errors=3)
)


CONFIG: Final = """
agents: {{shared: {{adapter: command, command: ["true"], max_sessions: {most}}}}}
max_sessions_total: {most}
retention: {{records_max: 2000, every_s: 10}}
"""
PLAN: Final = """
agents: {{own: {{adapter: command, command: ["true"], env: {{NUMBER: "{number}"}}, max_sessions: 2}}}}
tasks: [{{id: a, agent: own, prompt: "{number}"}}, {{id: b, agent: shared, prompt: "{number}", depends_on: [a]}}]
"""
RELOAD_EVERY: Final = 10
"""Number of runs after which the daemon reads its configuration again."""
PS_ROUNDS: Final = 3


class Load(NamedTuple):
    """Rate and length of the load."""

    minutes: float
    warm_up_minutes: float
    rate: float = 20.0
    """Sessions, or runs, started per second."""
    every_s: float = 5.0
    """Seconds between two samples."""


SHORT = Load(minutes=1 / 30, warm_up_minutes=0.0, every_s=0.5)
FLAT_TOO: Final = {"sessions": (), "runs": ("journal_mb", "ps_ms")}
"""Quantities that must be flat beside those of every soak test, by the load."""


class Soak(msgspec.Struct, kw_only=True):
    """Result of a soak test. ``drifts`` is the share by which each quantity with an aim grew after the warm-up."""

    backend: str
    load: str = "sessions"
    samples: list[Sample] = []
    outcomes: dict[str, int] = {}
    drifts: dict[str, float] = {}
    kept_up: float = 0.0

    @property
    def must_be_flat(self) -> tuple[str, ...]:
        return (*MUST_BE_FLAT, *FLAT_TOO[self.load])

    @property
    def flat(self) -> bool:
        return self.kept_up >= KEPT_UP and all(one <= FLAT for one in self.drifts.values())


# ---------------------------------------------------------------------------------------------------------- the load
class Churn:
    """Load that starts something at a steady rate: *start* does so with its number, waits for its end, and returns the
    outcome."""

    def __init__(self, load: Load, start: Callable[[int], Awaitable[str]]) -> None:
        self._load, self._start = load, start
        self._open = anyio.Event()
        self._open.set()
        self._none = anyio.Event()
        self.alive = self.started = 0
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        began_s = anyio.current_time()
        async with anyio.create_task_group() as group:
            while (elapsed_s := anyio.current_time() - began_s) < self._load.minutes * 60:
                await self._open.wait()
                if self.started < elapsed_s * self._load.rate:
                    group.start_soon(self._one, self.started)
                    self.started += 1
                    self.alive += 1
                await anyio.sleep(0.5 / self._load.rate)

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """Context manager: nothing that was started lives in its block. What is due meanwhile is started later, at
        twice the rate."""
        self._open, self._none = anyio.Event(), anyio.Event()
        if self.alive:
            await self._none.wait()
        yield
        self._open.set()

    async def _one(self, number: int) -> None:
        self.outcomes[await self._start(number)] += 1
        self.alive -= 1
        if not self.alive:
            self._none.set()


class Sessions:
    """Sessions each of which works, is aborted, crashes or ends."""

    def __init__(self, sup: Supervisor) -> None:
        self._sup = sup
        self._chance = random.Random(1)
        self._hanging: dict[str, anyio.Event] = {}

    async def start(self, number: int) -> str:
        """Start a session; return what it was to do, and its outcome, when it has ended."""
        kind = self._chance.choice(("work", "work", "delegate", "crash", "abort", "abort_call", "again"))
        session = await self._sup.start_session(kind.replace("_", "-"), agent=self._agent)
        match kind:
            case "abort" | "abort_call":
                outcome = await self._aborted(session, kind)
            case "again":
                await session.run("work")
                await session.send("and one thing more")
                outcome = (await session.run("work")).outcome
            case _:
                outcome = (await session.run(kind)).outcome
        await session.close()
        return f"{kind}: {outcome}"

    async def _aborted(self, session: Session, kind: str) -> str:
        """Abort a session that works on a call; return the outcome."""
        results: list[str] = []
        hangs = self._hanging[session.id] = anyio.Event()

        async def asked() -> None:
            results.append((await session.run("hang")).outcome)

        async with anyio.create_task_group() as group:
            group.start_soon(asked)
            await hangs.wait()
            if kind == "abort":
                await session.abort(reason="the soak")
            else:
                await self._sup.abort(f"{session.id}:t1:c1", "tool", reason="the soak")
        del self._hanging[session.id]
        return results[0]

    async def _agent(self, turn: AgentTurn) -> str:
        """Run a turn of the agent in the way that the prompt names."""
        turn.say("so it begins\n")
        match turn.prompt:
            case "crash":
                raise RuntimeError("crashed as it was told to")
            case "delegate":
                return (await turn.delegate("child", "work")).text
            case "hang":
                with suppress(ToolAborted):
                    await turn.call("hangs", self._hang, turn.session_id)
            case _:
                await turn.call("works", anyio.sleep, BUSY_S)
        return "done"

    async def _hang(self, session_id: str) -> None:
        self._hanging[session_id].set()
        await anyio.sleep_forever()


class Runs:
    """Small plans that are submitted to a daemon, which reads its configuration again after every tenth."""

    def __init__(self, daemon: Daemon, sup: Supervisor, config: Path) -> None:
        self._daemon, self._sup, self._config = daemon, sup, config

    async def start(self, number: int) -> str:
        """Submit a plan; return the outcome of its run when that is on the disk."""
        if number % RELOAD_EVERY == RELOAD_EVERY - 1:
            write_config(self._config, 3 + number // RELOAD_EVERY % 2)
            await self._daemon.reload(by="benchmark")
        text, key = PLAN.format(number=number), f"key-{number}"
        environment = {"API_KEY": "a-secret-value"}
        submitted = await self._daemon.submit(
            PlanRequest(text=text, directory=str(self._config.parent), key=key, environment=environment)
        )
        running = self._sup.core.part(Submissions).running
        for handle in [one for one in running if one.run_id == submitted.run]:
            await handle.ended.wait()
        await self._sup.core.journal_writer.durable()
        return (await self._sup.core.journal.entities(ids=[submitted.run]))[0].state


def write_config(path: Path, most: int) -> None:
    path.write_text(CONFIG.format(most=most))


# ------------------------------------------------------------------------------------------------------------ the run
async def soak(backend: str, load: Load, state_dir: Path, what: str = "sessions") -> Soak:
    """Run the load, *what* names it, with a supervisor on *state_dir*; return the result."""
    found = Soak(backend=backend, load=what)
    async with OPENED[what](state_dir) as start:
        churn = Churn(load, start)
        async with anyio.create_task_group() as group:
            group.start_soon(_watch, found, load, churn, state_dir)
            await churn.run()
            group.cancel_scope.cancel()
    found.outcomes = dict(sorted(churn.outcomes.items()))
    found.kept_up = sum(churn.outcomes.values()) / (load.minutes * 60 * load.rate)
    warm = [one for one in found.samples if one.at_s >= load.warm_up_minutes * 60]
    found.drifts = {name: round(drift([getattr(one, name) for one in warm]), 4) for name in found.must_be_flat if warm}
    return found


@asynccontextmanager
async def sessions(state_dir: Path) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    async with open_supervisor(state_dir, settings=SETTINGS) as sup:
        yield Sessions(sup).start


@asynccontextmanager
async def runs(state_dir: Path) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    state = StateDir.open(state_dir)
    path = state_dir.parent / "daemon.yaml"
    write_config(path, 3)
    config: DaemonConfig = load_config(path)
    daemon = Daemon(path, config, path.parent, SubmissionStore(state.submissions))
    async with (
        open_in(lambda: state, agents=config.agents, settings=config.settings, prepare=daemon.prepare) as sup,
        anyio.create_task_group() as group,
    ):
        await daemon.begin(sup, group)
        yield Runs(daemon, sup, path).start


OPENED: Final = {"sessions": sessions, "runs": runs}


async def _watch(found: Soak, load: Load, churn: Churn, state_dir: Path) -> None:
    began_s = anyio.current_time()
    while True:
        async with churn.pause():
            sample = take(anyio.current_time() - began_s, state_dir, churn.started)
            if found.load == "runs":
                sample = msgspec.structs.replace(sample, ps_ms=await anyio.to_thread.run_sync(time_ps, state_dir))
            found.samples.append(sample)
        if sys.stderr.isatty():
            print(f"\r{found.samples[-1]}", end="", file=sys.stderr)
        await anyio.sleep(load.every_s)


def time_ps(state_dir: Path) -> float:
    """Return the milliseconds of ``supervisor ps``."""
    took, argv = [], [sys.executable, "-m", "supervisor", "ps", "--state-dir", str(state_dir)]
    for _ in range(PS_ROUNDS):
        began = perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        took.append(perf_counter() - began)
    return statistics.median(took) * 1e3


def write(found: Soak, load: Load, folder: Path) -> None:
    """Write ``soak-LOAD-BACKEND.json`` and ``soak-LOAD-BACKEND.svg`` into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"soak-{found.load}-{found.backend}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    names = dict.fromkeys([*found.must_be_flat, "journal_mb"])
    curves = [Curve(name, [(one.at_s / 60, float(getattr(one, name))) for one in found.samples]) for name in names]
    title = f"{load.rate:g} {found.load} a second for {load.minutes:g} minutes, {found.backend}"
    path.with_suffix(".svg").write_text(drawn(title, curves, warm_until=load.warm_up_minutes))


def _tell(found: Soak, *, judged: bool) -> None:
    first, last = found.samples[0], found.samples[-1]
    for name, share in found.drifts.items():
        verdict = "" if not judged else "flat" if share <= FLAT else "GROWS"
        print(f"{name:<12} {getattr(last, name):>12,.1f}  {share:+8.2%} after the warm-up  {verdict}".rstrip())
    if "journal_mb" not in found.drifts:
        print(f"{'journal_mb':<12} {last.journal_mb:>12,.1f}  from {first.journal_mb:,.1f}  (not judged)")
    print(f"kept up with {found.kept_up:.1%} of the load: {found.outcomes}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument("--load", choices=OPENED, default="sessions")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--warm-up-minutes", type=float, default=None, help="by default a sixth of the time")
    parser.add_argument("--rate", type=float, default=20.0, help="sessions, or runs, per second")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[0])
    parser.add_argument("--out", type=Path, help="the folder to write to")
    args = parser.parse_args(arguments)
    warm_up = args.minutes / 6 if args.warm_up_minutes is None else args.warm_up_minutes
    load = SHORT if args.short else Load(args.minutes, warm_up, args.rate, args.every)
    for what in OPENED if args.short else [args.load]:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            found: Soak = run(soak, args.backend, load, Path(folder) / "sd", what, backend=args.backend)
            write(found, load, args.out or Path(folder if args.short else RESULTS))
        _tell(found, judged=not args.short)
    return 0 if found.flat or args.short else 1


if __name__ == "__main__":
    sys.exit(main())
