"""The two mistakes that a journal must not make are planted, and the harness that watches for each notices.

A kill leaves the page cache alone, so it shows what was acknowledged too early; only a power cut shows what was never
brought to the disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.verification.power_cuts.power_loss import power_loss

ROOT = Path(__file__).parents[3]


def test_an_early_acknowledgement_is_caught_by_the_writer_that_is_killed() -> None:
    """With a planted mistake, a batch acknowledged before its commit, the crash test finds a lost batch within 200
    kills."""
    command = [sys.executable, "-m", "tests.crash.writer", "--plant", "early-acknowledgement"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert 1 <= json.loads(told.stdout)["caught_after"] <= 200


def test_the_writer_as_it_is_passes_what_catches_the_mistake() -> None:
    """The crash test finds no fault in 50 kills of the unchanged writer."""
    command = [sys.executable, "-m", "tests.crash.writer", "--cycles", "50"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert json.loads(told.stdout)["faults"] == 0


def test_a_missing_fsync_is_caught_by_the_power_cuts() -> None:
    """The power-cut test catches every run in which no sync reaches the disk or none is requested; the unchanged
    journal passes."""
    report = power_loss(300)
    for planted in ("no sync reaches the disk", "synchronous=OFF", "synchronous=NORMAL"):
        assert report.controls[planted].caught == report.controls[planted].runs > 0, planted
    assert report.blameless
