"""Tests of the simulated disk, and of the production journal under power cuts on that disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import apsw
import msgspec
import pytest

from supervisor.journal.database import open_database
from supervisor.ports import JournalError
from supervisor.simulation.keyed_random import KeyedRandom
from tests.verification.power_cuts.crash_points import CONTROLS
from tests.verification.power_cuts.durable_pages import SECTOR_BYTES, DurablePages, Step
from tests.verification.power_cuts.journal_run import Comparison, Plan, compare_with_plan, found
from tests.verification.power_cuts.power_loss import DiskReport, power_loss
from tests.verification.power_cuts.simulated_disk import DiskFaults, SimulatedDisk

OLD, NEW = b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES


def cuts(pages: DurablePages, count: int = 300) -> Iterator[dict[str, bytes]]:
    """Yield the files that are left after each of many power cuts at the same point."""
    for seed in range(count):
        yield {name: bytes(content) for name, content in pages.cut(Random(seed)).files.items()}


# -------------------------------------------------------------------------------------------------------- the platter
def test_what_was_synced_survives_every_cut() -> None:
    """After every power cut, synced content is there exactly as it was written."""
    pages = DurablePages({"a": OLD * 2})
    pages.write(0, SECTOR_BYTES, NEW)
    pages.sync(0)
    assert set(map(str, cuts(pages))) == {str({"a": OLD + NEW})}


def test_what_was_not_synced_may_be_lost_kept_or_come_in_another_order() -> None:
    """After a power cut, of three unsynced sectors none, all, only the first, or only the last may be written."""
    pages = DurablePages({"a": OLD * 3})
    for sector in range(3):
        pages.write(0, sector * SECTOR_BYTES, NEW)
    seen = {one["a"] for one in cuts(pages)}
    assert {OLD * 3, NEW * 3, NEW + OLD * 2, OLD * 2 + NEW} <= seen


def test_a_torn_sector_holds_what_nobody_wrote_and_nothing_beyond_it_changes() -> None:
    """A torn sector is neither old nor new and may begin with the new bytes; the sectors beside it are old."""
    pages = DurablePages({"a": OLD * 3})
    pages.write(0, SECTOR_BYTES, NEW)
    found = [one["a"] for one in cuts(pages)]
    torn = [one for one in found if one[SECTOR_BYTES : 2 * SECTOR_BYTES] not in (OLD, NEW)]
    assert torn
    assert {one[:SECTOR_BYTES] + one[2 * SECTOR_BYTES :] for one in found} == {OLD * 2}
    assert any(one[SECTOR_BYTES:].startswith(b"nn") for one in torn)


def test_a_cut_counts_what_it_took() -> None:
    """A power cut reports the numbers of lost and torn sectors; a cut with an empty cache loses nothing."""
    pages = DurablePages({"a": OLD})
    assert (pages.cut(Random(1)).lost, pages.cut(Random(1)).torn) == (0, 0)
    pages.write(0, 0, NEW * 4)
    took = [pages.cut(Random(seed)) for seed in range(100)]
    assert {one.lost for one in took} == {0, 1, 2, 3, 4}
    assert {one.torn for one in took} == {0, 1}


def test_cuts_with_the_same_key_left_the_same() -> None:
    """Power cuts with the same key leave equal files, over syncs, renames and truncations; a cut that leaves torn or
    partial sectors may have no key."""
    pages = DurablePages({"a": OLD * 2})
    known: dict[tuple[int, ...], dict[str, bytes]] = {}
    keyless = 0
    steps: list[Step] = [
        (DurablePages.write, (0, 0, NEW)),
        (DurablePages.create, ("b",)),
        (DurablePages.write, (1, 0, NEW * 3)),
        (DurablePages.truncate, (0, SECTOR_BYTES)),
        (DurablePages.sync, (1,)),
        (DurablePages.rename, ("b", "c", 1)),
        (DurablePages.write, (1, 100, OLD)),
        (DurablePages.sync_names, ()),
    ]
    for step in steps:
        pages.make([step])
        for seed in range(100):
            left = pages.cut(Random(seed))
            files = {name: bytes(content) for name, content in left.files.items()}
            keyless += left.key is None
            assert left.key is None or known.setdefault(left.key, files) == files
    assert keyless > 0
    assert len(known) > 10


def test_names_survive_in_their_order_and_surely_after_a_sync_of_the_directory() -> None:
    """After a power cut a rename may be lost, but is never half done; after a sync of the directory it is durable."""
    pages = DurablePages({"a": OLD})
    pages.rename("a", "b", 0)
    pages.remove("b")
    assert {tuple(one) for one in cuts(pages)} == {("a",), ("b",), ()}
    pages.sync_names()
    assert {tuple(one) for one in cuts(pages)} == {()}


def test_a_failed_sync_loses_for_good_what_it_did_not_write() -> None:
    """After a failed sync, a later sync does not write the lost sectors, and reading past the cache shows the lost
    content."""
    pages = DurablePages({"a": OLD * 64})
    pages.write(0, 0, NEW * 64)
    pages.fail_sync(0, seed=1)
    pages.sync(0)
    (left,) = {one["a"] for one in cuts(pages)}
    assert left == bytes(pages.content(0))
    assert 0 < left.count(NEW) < 64


# ----------------------------------------------------------------------------------------------------------- the disk
@pytest.fixture
def disk() -> Iterator[SimulatedDisk]:
    """Fixture: a simulated disk without faults."""
    disk = SimulatedDisk("of a test", KeyedRandom(1))
    yield disk
    disk.unregister()


PATH = Path("/disk/journal.db")


def plan() -> Plan:
    return Plan(KeyedRandom(3), 12)


def test_the_production_journal_lives_on_a_simulated_disk(disk: SimulatedDisk) -> None:
    """A journal that is opened again has all appended batches; its file was created as a whole, under its final name
    only."""
    database = open_database(PATH, None, disk)
    for batch in plan().batches:
        database.append(batch)
    database.close()
    assert (database.generation, disk.exists(PATH), disk.exists(PATH.with_name("journal.db.new"))) == (1, True, False)
    assert found(plan(), disk) == 12


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        pytest.param(DiskFaults(full=1.0), apsw.FullError, id="full"),
        pytest.param(DiskFaults(write_error=1.0), apsw.IOError, id="write"),
        pytest.param(DiskFaults(sync_error=1.0), apsw.IOError, id="sync"),
    ],
)
def test_a_failing_disk_says_so_and_the_batch_is_not_there(
    disk: SimulatedDisk, faults: DiskFaults, told: type[Exception]
) -> None:
    """On a failing disk the append raises and the journal stays as it was; once the disk is healed, appends succeed
    again."""
    database = open_database(PATH, None, disk)
    database.append(plan().batches[0])
    seq = database.last_seq
    disk.faults = faults
    with pytest.raises(told):
        database.append(plan().batches[1])
    assert (database.last_seq, disk.errors > 0) == (seq, True)
    disk.heal()
    database.append(plan().batches[1])
    database.close()
    assert found(plan(), disk) == 2


def test_a_read_that_fails_refuses_the_opening(disk: SimulatedDisk) -> None:
    """A read error while the journal is opened raises a JournalError with the name of the file."""
    open_database(PATH, None, disk).close()
    disk.faults = DiskFaults(read_error=1.0)
    with pytest.raises(JournalError, match=r"journal\.db could not be used"):
        open_database(PATH, None, disk)


def test_a_lying_sync_makes_nothing_durable(disk: SimulatedDisk) -> None:
    """On a disk whose syncs do nothing, a commit succeeds and the disk counts the false syncs; a power cut may lose
    everything."""
    disk.faults = DiskFaults(lie=1.0)
    open_database(PATH, None, disk).close()
    pages = DurablePages({})
    pages.make(disk.steps)
    assert disk.lies > 0
    assert {} in list(cuts(pages))


def test_commits_in_the_cache_of_a_failed_sync_are_not_read_by_the_next_process(disk: SimulatedDisk) -> None:
    """After a failed sync and a kill, the next opening reads only records that every later power cut preserves."""
    database = open_database(PATH, None, disk)
    database.append(plan().batches[0])
    disk.faults = DiskFaults(sync_error=1.0)
    with pytest.raises(apsw.IOError):
        database.append(plan().batches[1])
    disk.killed = True
    with suppress(apsw.Error):
        database.close()
    disk.killed = False
    disk.heal()
    database = open_database(PATH, None, disk)
    there = database.last_seq
    pages = DurablePages({})
    pages.make(disk.steps)
    database.close()
    machine = SimulatedDisk("after the cut")
    for seed in range(20):
        machine.mount(pages.cut(Random(seed)).files)
        after = open_database(PATH, None, machine)
        assert after.last_seq == there
        after.close()
    machine.unregister()


# ------------------------------------------------------------------------------------------------------ the judgement
@pytest.mark.parametrize(
    ("change", "there"),
    [
        pytest.param("SELECT 1", 12, id="nothing"),
        pytest.param("UPDATE events SET reason = 'no' WHERE seq = 2", Comparison.REFUSED, id="a record"),
        pytest.param("UPDATE entities SET changed_at = 0.0", Comparison.REFUSED, id="an old entity"),
        pytest.param("UPDATE entities SET data = x'00' WHERE id = 's1'", Comparison.REFUSED, id="an entity's data"),
        pytest.param("UPDATE effects SET settled = 0", Comparison.REFUSED, id="what was settled"),
        pytest.param("DELETE FROM effects", Comparison.REFUSED, id="what is owed"),
        pytest.param("UPDATE effects SET settled = -1 WHERE settled = 0", Comparison.WRONG, id="by no record"),
    ],
)
def test_what_is_found_is_compared_with_the_plan(disk: SimulatedDisk, change: str, there: int | Comparison) -> None:
    """A changed journal is detected when it is compared with the plan, also if the opening itself notices nothing."""
    database = open_database(PATH, None, disk)
    for batch in plan().batches:
        database.append(batch)
    database.db.execute(change)
    database.close()
    disk.mount({str(PATH): bytes(disk.content(str(PATH)) or b"")})  # as after a power cut: in another boot
    assert found(plan(), disk) == there


@pytest.mark.parametrize(
    ("there", "verdict"),
    [
        (4, "LOST"),
        (5, "WHOLE"),
        (6, "WHOLE"),
        (7, "WRONG"),
        (Comparison.REFUSED, "REFUSED"),
        (Comparison.WRONG, "WRONG"),
    ],
)
def test_all_that_was_acknowledged_and_at_most_one_batch_more(there: int | Comparison, verdict: str) -> None:
    """With five acknowledged batches, a journal with five or six batches is whole; with four it is LOST, with seven
    WRONG."""
    assert compare_with_plan(there, 5) is Comparison[verdict]


# ----------------------------------------------------------------------------------------------------- the experiment
@pytest.fixture(scope="module")
def report() -> DiskReport:
    """Fixture: the report of two thousand power cuts."""
    return power_loss(2_000)


def test_no_acknowledged_batch_is_lost_and_nothing_is_corrupt(report: DiskReport) -> None:
    """In 2,000 power cuts, on sound disks and on failing ones, the production journal loses no acknowledged batch and
    is never corrupt."""
    assert (report.cuts, report.lost_acknowledgements, report.corrupt, report.first_failure) == (2_000, 0, 0, None)
    assert report.passed
    assert min(report.acknowledged, report.sectors_lost, report.sectors_torn, report.errors_injected) > 0
    assert 1_000 < report.openings <= report.cuts


@pytest.mark.parametrize("control", CONTROLS)
def test_each_planted_mistake_is_caught(report: DiskReport, control: str) -> None:
    """Every run with a planted mistake ends in a lost acknowledgement or a refused journal."""
    assert report.controls[control].caught == report.controls[control].runs > 0


def test_what_a_lying_disk_does_is_always_detected(report: DiskReport) -> None:
    """Each power cut on a disk with false syncs is harmless or detected: when the journal is opened, or by comparison
    with the acknowledged batches."""
    lying = report.lying
    assert lying.cuts == lying.harmless + lying.detected_by_opening + lying.detected_by_record
    assert min(lying.harmless, lying.detected_by_opening, lying.detected_by_record) > 0
    assert lying.undetected == 0


def test_the_same_seeds_give_the_same_report_in_other_processes() -> None:
    """The report is the same, byte for byte, with two worker processes, in a fresh interpreter and with another hash
    seed."""
    program = (
        "import msgspec\nfrom tests.verification.power_cuts.power_loss import power_loss\n"
        "if __name__ == '__main__':\n    print(msgspec.json.encode(power_loss(300, first_seed=7)).decode())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True)
    assert told.stdout.strip() == msgspec.json.encode(power_loss(300, first_seed=7, jobs=2)).decode()


def test_an_interrupt_ends_the_work_with_what_was_reached() -> None:
    """Ctrl-C after the first part of the cuts returns a report of that part."""

    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    report = power_loss(1_000, progress=interrupt)
    assert 0 < report.cuts < 1_000
    assert report.passed


@pytest.mark.parametrize(("cuts", "jobs", "wrong"), [(0, 1, "cuts"), (1, 0, "jobs")])
def test_numbers_that_are_too_small_are_refused_by_name(cuts: int, jobs: int, wrong: str) -> None:
    """A number of cuts or processes below 1 is refused; the error names the argument."""
    with pytest.raises(ValueError, match=f"{wrong}: 0 is too few; give at least 1"):
        power_loss(cuts, jobs=jobs)
