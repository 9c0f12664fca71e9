"""Tests of the benchmarks: each runs once, with a tiny load; the measured times are not checked, since they vary."""

from __future__ import annotations

import cProfile
import gc
import importlib
import math
import pstats
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from benchmarks import gauges, growth, recovery, report, scheduler, soak, table, work
from benchmarks.harness import BACKENDS, SHORT, Case, Found, Missing, at_most, at_most_times, faster_by, measure, run
from benchmarks.peers import DOES, PEERS, USUAL, ask_peer, missing
from benchmarks.peers.__main__ import OURS
from benchmarks.plots import draw
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir

CASES = {f"{case.lines[0].what} / {case.against}": case for case in table.CASES}


ROOT = Path(__file__).parents[1]


def commands() -> list[str]:
    """Return the names of all benchmark modules that are programs, without the programs that are run for a peer (a
    comparable library)."""
    found = []
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        is_peer = path.parent.name == "peers" and path.name != "__main__.py"
        if 'if __name__ == "__main__":' in path.read_text() and not is_peer:
            found.append(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__"))
    return found


@pytest.fixture(autouse=True, scope="module")
def _little_garbage() -> Iterator[None]:
    """Fixture: freeze the garbage collector, so that a stopwatch collects the garbage of the measurement only, and not
    that of the whole test suite."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_the_short_forms_in_the_makefile_are_those_of_every_command() -> None:
    """The make target `bench-short`, which CI runs, runs every benchmark command exactly once with ``--short``."""
    recipe = re.search(r"^bench-short:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert sorted(re.findall(r"-m (\S+) --short$", recipe[1], re.MULTILINE)) == commands()


@pytest.mark.parametrize("name", commands())
def test_a_command_has_a_short_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every benchmark command has the option ``--short``."""
    module = importlib.import_module(f"{name}.__main__" if (ROOT / name.replace(".", "/")).is_dir() else name)
    with pytest.raises(SystemExit, match="0"):
        module.main(["--help"])
    assert "--short" in capsys.readouterr().out


def without_peers(case: Case) -> Case:
    """Return the case without its other side, if the other side is another program; each such program is tested once,
    in another test."""
    is_peer = case.theirs is not None and case.theirs.__module__ == "benchmarks.peers"
    return case._replace(theirs=None) if is_peer else case


def test_the_cases_have_names_of_their_own() -> None:
    """No two cases of the benchmark table have the same name."""
    assert len(CASES) == len(table.CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_case_runs(name: str) -> None:
    """Both sides of a case can be measured on each of the case's backends, and the results can be printed as rows."""
    case = CASES[name]
    found, lacks = measure(without_peers(case), SHORT)
    assert set(found) == set(case.backends)
    assert all(len(lines) == len(case.lines) for lines in found.values())
    assert all(math.isfinite(one.value) and one.value >= 0 for lines in found.values() for one in lines)
    assert lacks == "" or "make bench-peers" in lacks
    assert len(list(report.rows(case, found, lacks))) == len(case.lines)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_runs_or_says_how_to_get_it(name: str) -> None:
    """An installed peer (a comparable library) measures everything that is requested; a peer that is not installed
    raises ``Missing`` with a hint how to install it."""
    if why := missing(name):
        with pytest.raises(Missing, match=re.escape(why)):
            ask_peer(name, "all", 4)
    else:
        assert len(ask_peer(name, "all", 4)) == len(DOES.get(name, USUAL))


@pytest.mark.parametrize("who", OURS)
def test_a_row_of_the_peers_table_runs(who: str) -> None:
    """Each row of our own in the table of peers can be measured on each backend."""
    for one in OURS[who].values():
        assert all(one(backend, SHORT)[0] >= 0 for backend in BACKENDS)


def test_growth_is_written(tmp_path: Path) -> None:
    """The growth benchmark yields a point for each quantity, size, side and backend, and writes them as a table, and as
    a picture if matplotlib is installed."""
    points = list(growth.measure_growth(SHORT))
    assert len(points) == len(growth.QUANTITIES) * len(SHORT.growth) * 2 * len(BACKENDS)
    growth.write_csv(points, tmp_path / "growth.csv")
    assert len((tmp_path / "growth.csv").read_text().splitlines()) == 1 + len(points)
    if missing("matplotlib"):
        with pytest.raises(Missing, match="make bench-peers"):
            draw(points, tmp_path / "growth.png")
    else:
        draw(points, tmp_path / "growth.png")
        assert (tmp_path / "growth.png").stat().st_size > 0


@pytest.mark.parametrize("load", soak.OPENED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_soak_runs_and_is_written(tmp_path: Path, backend: str, load: str) -> None:
    """In a short soak sessions, or runs of a daemon, end, every sample has all figures, and the result is written as
    JSON and as a picture."""
    short = soak.Load(minutes=0.03, warm_up_minutes=0.0, rate=20.0 if load == "sessions" else 2.0, every_s=0.5)
    found: soak.Soak = run(soak.soak, backend, short, tmp_path / "sd", load, backend=backend)
    assert sum(found.outcomes.values()) > 0
    assert set(found.drifts) == set(found.must_be_flat) >= set(gauges.MUST_BE_FLAT)
    assert all(one.rss_mb > 0 and one.tasks > 0 and one.descriptors > 0 and one.objects > 0 for one in found.samples)
    soak.write(found, short, tmp_path)
    path = tmp_path / f"soak-{load}-{backend}.json"
    assert len(msgspec.json.decode(path.read_bytes())["samples"]) == len(found.samples)
    assert path.with_suffix(".svg").read_text().count("<polyline") == len({*found.must_be_flat, "journal_mb"})


def test_a_drift_is_that_of_the_last_fifth_over_the_first() -> None:
    """The drift of a series compares its last fifth with its first: positive for growth, negative for shrinkage, about
    zero for oscillation."""
    assert gauges.drift([100.0] * 10) == 0
    assert gauges.drift([float(100 + n) for n in range(10)]) == pytest.approx(8 / 100.5)
    assert gauges.drift([float(110 - n) for n in range(10)]) < 0
    assert abs(gauges.drift([100.0, 104.0] * 20)) < gauges.FLAT
    assert not soak.Soak(backend="asyncio", kept_up=1.0, drifts={"rss_mb": 0.06}).flat
    assert not soak.Soak(backend="asyncio", kept_up=0.9, drifts={"rss_mb": 0.0}).flat
    assert soak.Soak(backend="asyncio", kept_up=1.0, drifts={"rss_mb": 0.05}).flat


VERDICTS = {
    "within a limit": (at_most(600), Found(600, None, None), "met"),
    "over a limit": (at_most(600), Found(660, None, None), "missed by 10 %"),
    "cheap enough": (at_most_times(1.5), Found(3, 2, 1.5), "met"),
    "too dear": (at_most_times(1.0), Found(3, 2, 1.5), "missed by 50 %"),
    "fast enough": (faster_by(8), Found(1, 8, 0.125), "met"),
    "too slow": (faster_by(8), Found(1, 4, 0.25), "missed by 100 %"),
    "nothing to compare with": (faster_by(8), Found(1, None, None), "not measured"),
    "no aim": (None, Found(1, 2, 0.5), ""),
}


@pytest.mark.parametrize("how", VERDICTS)
def test_a_verdict(how: str) -> None:
    """The verdict about a measurement is "met", by how much the aim was missed, "not measured", or empty without an
    aim."""
    aim, found, said = VERDICTS[how]
    assert report.verdict(aim, found) == said


@pytest.mark.parametrize("what", recovery.MEASURED)
def test_a_recovery_is_measured(tmp_path: Path, what: str) -> None:
    """Each measured way to open a journal works on a small journal, and leaves the journal undamaged."""
    state = StateDir.open(tmp_path / "state")
    recovery.fill(state.journal, 300, 3)
    recovery.MEASURED[what](state.journal)
    with JournalReader(state.journal) as reader:
        assert reader.check().seq >= 300


def test_the_scheduler_is_measured() -> None:
    """The scheduler benchmark measures every size in every round; its ratio is the cost of the largest size divided by
    that of the smallest."""
    rounds = scheduler.measure_costs((100, 200), tasks=32, rounds=2)
    assert [[one.backlog for one in sizes] for sizes in rounds] == [[100, 200]] * 2
    assert all(one.task_us > one.claim_us >= 0 for sizes in rounds for one in sizes)
    made_up = [[scheduler.Cost(100, 1.0, 4.0), scheduler.Cost(200, 1.0, 6.0)]] * 3
    assert scheduler.ratio(made_up) == 1.5


def test_the_scheduler_does_as_much_for_a_task_in_a_larger_backlog() -> None:
    """The number of function calls that the scheduler needs for a task, which does not depend on the machine's load,
    differs by at most a fifth between a small and a large backlog."""
    calls = {}
    for size in (200, 20_000):
        with cProfile.Profile() as profile:
            scheduler.cost(size, 16)
        alone = pstats.Stats(profile).total_calls
        with cProfile.Profile() as profile:
            scheduler.cost(size, 1_616)
        calls[size] = (pstats.Stats(profile).total_calls - alone) / 1_600
    assert calls[20_000] == pytest.approx(calls[200], rel=0.2)


WORK = {case.lines[0].what: case for case in work.cases(work.SHORT)}


@pytest.mark.parametrize("what", WORK)
def test_work_is_measured(what: str) -> None:
    """Each measurement of the work of a plan gives a figure for each line, and its counterpart one to divide by;
    commits are counted."""
    case = WORK[what]
    assert case.theirs is not None
    ours, theirs = case.ours("asyncio", SHORT), case.theirs("asyncio", SHORT)
    assert len(ours) == len(case.lines)
    assert min(theirs) > 0
    if case.lines[-1].what.endswith("commits"):
        assert min(ours) > 0
        assert ours[-1] >= theirs[-1] == work.BARE_COMMITS
    else:
        resident, allocated = ours
        assert resident >= 0 < allocated


def test_two_checkouts_are_measured_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``--against`` a round measures this checkout and the other one, each with its own supervisor; the aims are
    ratios of the two."""
    measured = []

    def figures_of(checkout: Path, disk: Path | None, name: str, *numbers: int) -> dict[str, float]:
        measured.append(checkout)
        ms = 1.0 if checkout == work.ROOT else 2.0
        return {"wall_ms": ms, "cpu_ms": ms, "commits": 3.0}

    monkeypatch.setattr(work, "figures_of", figures_of)
    case = work.cases(work.SHORT, against=tmp_path)[1]
    found, _ = measure(case, SHORT._replace(rounds=2))
    assert measured == [tmp_path, work.ROOT, work.ROOT, tmp_path]
    assert [one.ratio for one in found["asyncio"]] == [0.5, 0.5, 1.0]
    verdicts = [report.verdict(line.aim, one) for line, one in zip(case.lines, found["asyncio"], strict=True)]
    assert verdicts == ["met", "met", "met"]


def test_a_measurement_uses_the_supervisor_of_the_other_checkout(tmp_path: Path) -> None:
    """A measurement imports the package of the checkout it is about, and fails with the output of its process."""
    (tmp_path / "supervisor").mkdir()
    (tmp_path / "supervisor" / "__init__.py").write_text("raise ImportError('this is the other one')")
    with pytest.raises(RuntimeError, match="this is the other one"):
        work.figures_of(tmp_path, None, "claims", 1, 1)


def test_a_directory_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--against`` with a directory that has no supervisor is bad input: exit status 2, and the fix."""
    with pytest.raises(SystemExit, match="2"):
        work.main(["--against", str(tmp_path)])
    assert f"{tmp_path} is no checkout; give the directory that contains supervisor/" in capsys.readouterr().err
