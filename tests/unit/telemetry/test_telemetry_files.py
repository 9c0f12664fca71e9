"""Tests of the files of telemetry: their lines, their rotation, and a disk that fails."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor.telemetry import files, service
from supervisor.telemetry.activities import Activity, ActivityKind
from supervisor.telemetry.files import FILES_MAX, TelemetryFiles
from tests.unit.telemetry.telemetry_kit import observed, value

pytestmark = pytest.mark.anyio


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ended(number: int) -> Activity:
    """Return a session that has ended."""
    return Activity(kind=ActivityKind.SESSION, id=f"s{number}", began_at=1.0, ended_at=2.5, outcome="completed")


async def test_each_ended_session_and_abort_has_a_line(tmp_path: Path) -> None:
    """``metrics/`` has the figures of each session and abort that has ended, ``traces/`` what was done and when; all of
    it is written when the supervisor has ended."""
    async with observed(tmp_path / "sd", telemetry={"files": True}) as sup:
        await (await sup.start_session("lead", agent="helpful")).run("work")
        await sup.abort("lead", "session", reason="too slow")
        await (await sup.start_session("other", agent="helpful")).run("work")
    figures = {one["id"]: one for one in lines(tmp_path / "sd/metrics/metrics.jsonl")}
    [abort_id] = figures.keys() - {"lead", "other"}
    lead, abort = figures["lead"], figures[abort_id]
    assert (lead["v"], lead["kind"], lead["outcome"], lead["turns"]) == (1, "session", "aborted", 1)
    assert lead["used"]["input_tokens"] == 100
    assert (abort["kind"], abort["scope"], abort["survivors"]) == ("abort", "session", 0)
    done = {one["id"]: one for one in lines(tmp_path / "sd/traces/traces.jsonl")}
    assert done["lead"]["abort"] == abort_id
    [turn] = done["lead"]["turns"]
    assert (turn["id"], turn["outcome"]) == ("lead:t1", "completed")
    assert [(one["id"], one["outcome"]) for one in turn["tool_calls"]] == [("lead:t1:c1", "completed")]
    assert [one["id"] for one in done[abort_id]["ends"]] == ["lead"]
    assert done[abort_id]["reason"] == "too slow"
    assert {(tmp_path / "sd" / one).stat().st_mode & 0o777 for one in ("metrics/metrics.jsonl", "traces")} == {
        0o600,
        0o700,
    }


def test_a_large_file_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that would become too large is renamed; the oldest file is replaced, and no line is torn or doubled."""
    monkeypatch.setattr(files, "FILE_BYTES_MAX", 500)
    written = TelemetryFiles(tmp_path / "metrics", tmp_path / "traces")
    for number in range(40):
        written.add(ended(number))
        written.write()
    found = sorted((tmp_path / "metrics").iterdir())
    names = [*(f"metrics.{number}.jsonl" for number in range(1, FILES_MAX)), "metrics.jsonl"]
    assert [one.name for one in found] == names
    assert all(one.stat().st_size <= 500 for one in found)
    numbers = [int(line["id"][1:]) for one in (*reversed(found[:4]), found[4]) for line in lines(one)]
    assert numbers == list(range(numbers[0], 40))


def test_a_disk_that_fails_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be written loses its lines, and says so once; later lines are written when it can be again."""
    (tmp_path / "metrics").write_text("no folder")
    written = TelemetryFiles(tmp_path / "metrics", tmp_path / "traces")
    for number in range(3):
        written.add(ended(number))
        written.write()
    assert caplog.text.count("cannot be written") == 1
    assert f"let this user write {tmp_path / 'metrics'}, and free space" in caplog.text
    assert "lost_lines" not in caplog.text
    (tmp_path / "metrics").unlink()
    written.add(ended(4))
    written.write()
    assert [one["id"] for one in lines(tmp_path / "metrics/metrics.jsonl")] == ["s4"]
    assert caplog.text.count("lost_lines=3") == 1


def test_lost_lines_are_counted_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The number of lost lines is logged at the end, too, if the disk fails until then; each write returns its own."""
    (tmp_path / "metrics").write_text("no folder")
    written = TelemetryFiles(tmp_path / "metrics", tmp_path / "traces")
    lost = []
    for number in range(3):
        written.add(ended(number))
        lost.append(written.write(is_last=number == 2))
    assert lost == [1, 1, 1]
    assert caplog.text.count("lost_lines=3") == 1


def test_lines_that_wait_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines that find no room are left out, so that a hanging disk costs no memory; their number is logged."""
    monkeypatch.setattr(files, "WAITING_MAX", 2)
    written = TelemetryFiles(tmp_path / "metrics", tmp_path / "traces")
    for number in range(10):
        written.add(ended(number))
    assert (written.write(), written.write()) == (16, 0)
    assert len(lines(tmp_path / "metrics/metrics.jsonl")) == 2
    assert caplog.text.count("lost_lines=16") == 1


async def test_lines_are_made_in_a_thread_and_only_if_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is made where records are committed, and no thread is entered while nothing ends; lost lines are
    counted by a metric."""
    threads: list[int] = []
    usual = TelemetryFiles.write

    def noted(self: TelemetryFiles, *, is_last: bool = False) -> int:
        threads.append(threading.get_ident())
        return usual(self, is_last=is_last) + 7

    def line(activity: Activity) -> dict[str, Any]:
        assert threading.get_ident() in threads
        return {"id": activity.id}

    monkeypatch.setattr(TelemetryFiles, "write", noted)
    monkeypatch.setattr(files, "metrics_line", line)
    monkeypatch.setattr(service, "WRITE_S", 0.0)
    async with observed(tmp_path / "sd", telemetry={"files": True, "metrics": True}) as sup:
        session = await sup.start_session("lead", agent="helpful")
        await session.run("work")
        await session.close()
        while not threads:
            await anyio.lowlevel.checkpoint()
        for _ in range(1000):
            await anyio.lowlevel.checkpoint()
        assert len(threads) == 1
        assert threading.get_ident() not in threads
        assert value(sup, "supervisor_telemetry_lines_lost_total") == 7
    assert [one["id"] for one in lines(tmp_path / "sd/metrics/metrics.jsonl")] == ["lead"]


async def test_nothing_is_written_without_the_setting(tmp_path: Path) -> None:
    """A supervisor without the setting makes neither folder."""
    async with observed(tmp_path / "sd", telemetry={"metrics": True}) as sup:
        await (await sup.start_session("lead", agent="helpful")).run("work")
    assert not await anyio.Path(tmp_path / "sd/metrics").exists()
    assert not await anyio.Path(tmp_path / "sd/traces").exists()
