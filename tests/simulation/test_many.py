"""Tests of mapping a function over items in processes: results come in order, few items are taken ahead, and the death
of a process is handled."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from supervisor.simulation.search.many import TaskFailed, _Worker, map_in_order


def square(number: int) -> int:
    return number * number


def odd_ones_fail(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is\nodd")
    return number


def three_is_deadly(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid() if number == 0 else number


def waits_for(path: str) -> str:
    """Task that creates the file *made*, after waiting for the file *wanted*, if given: the first item then ends after
    the second."""
    made, _, wanted = path.partition(" ")
    while wanted and not os.path.exists(wanted):
        pass
    open(made, "w").close()
    return made


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_items(jobs: int) -> None:
    """Every item is worked on once, and the results are reported in the order of the items."""
    heard: list[tuple[int, object]] = []
    assert map_in_order(square, range(20), jobs, lambda item, result: heard.append((item, result)))
    assert heard == [(number, number * number) for number in range(20)]


def test_who_is_ready_early_waits(tmp_path: object) -> None:
    """A result that is ready before that of an earlier item is reported after the earlier one."""
    first, second = f"{tmp_path}/first", f"{tmp_path}/second"
    heard: list[object] = []
    assert map_in_order(waits_for, [f"{first} {second}", second], 2, lambda item, result: heard.append(result))
    assert heard == [first, second]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_task_that_raises_is_a_result(jobs: int) -> None:
    """An exception of the task is reported as the item's result, in one line, and the other items are worked on."""
    heard: list[object] = []
    assert map_in_order(odd_ones_fail, range(4), jobs, lambda item, result: heard.append(result))
    assert heard == [0, TaskFailed("ValueError: 1 is odd"), 2, TaskFailed("ValueError: 3 is odd")]


def test_a_process_that_dies_is_the_result_of_its_item() -> None:
    """The death of a process is reported as the result of its item; another process replaces it, and every other item
    is worked on."""
    heard: list[object] = []
    assert map_in_order(three_is_deadly, range(1, 8), 2, lambda item, result: heard.append(result))
    assert heard == [1, 2, TaskFailed("its process died of SIGKILL"), 4, 5, 6, 7]


def test_one_job_works_in_this_process() -> None:
    """With one job the items are worked on in this process."""
    heard: list[object] = []
    assert map_in_order(three_is_deadly, [0], 1, lambda item, result: heard.append(result))
    assert heard == [os.getpid()]


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_keeps_what_was_heard(jobs: int) -> None:
    """Ctrl-C ends the work; the results reported so far remain valid."""
    heard: list[object] = []

    def done(item: int, result: object) -> None:
        heard.append(result)
        if item == 2:
            raise KeyboardInterrupt

    assert not map_in_order(square, range(10**9), jobs, done)
    assert heard == [0, 1, 4]


def test_ctrl_c_is_no_business_of_a_process() -> None:
    """A worker process ignores Ctrl-C from its start, before it has an item."""
    worker = _Worker(square)
    assert worker.process.pid is not None
    os.kill(worker.process.pid, signal.SIGINT)
    worker.give((0, 3))
    assert worker.result() == 9
    worker.end()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_items_are_taken_as_processes_become_free() -> None:
    """Items are taken as processes become free, and only a few ahead of the results."""
    taken = heard = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(50):
            taken += 1
            assert taken - heard <= 4
            yield number

    def done(item: int, result: object) -> None:
        nonlocal heard
        heard += 1

    assert map_in_order(square, items(), 1, done)
    assert (taken, heard) == (50, 50)
