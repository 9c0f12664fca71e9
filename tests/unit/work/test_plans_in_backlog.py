"""Tests of a backlog with the items of several plans: turns, limits, items that are at work, removal."""

from __future__ import annotations

from typing import Any

from supervisor.work.backlog import Backlog, BacklogItem, Limits, Refusal, RefusalReason, Seeker

LEASE_S = 60.0


def backlog_of(*items: BacklogItem, **limits: Any) -> Backlog:
    backlog = Backlog()
    backlog.limits = Limits(**limits)
    for item in items:
        backlog.add(item)
    return backlog


def claims_of(backlog: Backlog, *plans: str, **given: Any) -> list[str]:
    """Claim for one worker of each plan, until none can claim an item; return the ids in the order of the claims."""
    seekers = [Seeker(f"w:{plan}", None, plan) for plan in plans]
    times = {"now_s": 0.0, "lease_s": LEASE_S, **given}
    return [one.item_id for one in iter(lambda: backlog.claim(seekers, **times), None)]


def test_plans_take_turns_within_a_priority() -> None:
    """The highest priority of all plans is first; within a priority, the plan whose last claim is longest ago."""
    backlog = backlog_of(
        *(BacklogItem(id=f"x{number}", plan="x") for number in range(3)),
        *(BacklogItem(id=f"y{number}", plan="y", priority=5 * (number > 1)) for number in range(3)),
    )

    assert claims_of(backlog, "x", "y") == ["y2", "x0", "y0", "x1", "y1", "x2"]


def test_a_worker_claims_only_for_its_plan() -> None:
    """A worker receives no item of another plan, nor of a plan that is not in the backlog."""
    backlog = backlog_of(BacklogItem(id="x0", plan="x"), BacklogItem(id="y0", plan="y", priority=5))

    assert claims_of(backlog, "x", "nobody") == ["x0"]


def test_limits_hold_for_all_plans() -> None:
    """No more items are at work in all, and with each agent, than the limits allow; a refusal names the limit. An item
    that is settled makes room."""
    items = [BacklogItem(id=f"{plan}{agent}", plan=plan, agent=agent) for plan in "xy" for agent in "ab"]
    backlog = backlog_of(*items, total=3, agents={"a": 1})

    assert claims_of(backlog, "x", "y") == ["xa", "yb", "xb"]
    assert backlog.refusal("ya") == Refusal("ya", RefusalReason.AGENT, ("a",))
    backlog.settle("xb", completed=True)
    assert claims_of(backlog, "x", "y") == []
    backlog.settle("xa", completed=True)
    assert claims_of(backlog, "x", "y") == ["ya"]
    backlog.limits = Limits(total=2)
    backlog.add(BacklogItem(id="more", plan="x"))
    assert backlog.refusal("more") == Refusal("more", RefusalReason.TOTAL, ("2",))


def test_an_item_that_another_agent_does_counts_for_that_agent() -> None:
    """``assign`` moves the item, held or not, to the limit and the provider of the other agent; it keeps its place."""
    items = [BacklogItem(id=f"x{number}", agent="aab"[number]) for number in range(3)]
    backlog = backlog_of(*items, agents={"a": 1})

    assert claims_of(backlog, "") == ["x0", "x2"]
    backlog.assign("x0", "b", "")
    assert claims_of(backlog, "") == ["x1"]
    backlog.assign("x0", "a", "p")
    for claim in backlog.claims():
        backlog.release(claim.item_id, claim.token)
    backlog.limits = Limits()
    assert claims_of(backlog, "", gate=lambda provider: provider != "p") == ["x1", "x2"]
    assert claims_of(backlog, "") == ["x0"]


def test_what_is_at_work_comes_first_and_counts() -> None:
    """An item that is at work without a holder is claimed first, whatever the limits are, and counts for them. While
    the free slots of a plan are needed for such items, its workers can claim nothing else."""
    items = [BacklogItem(id="x0", plan="x", priority=9), BacklogItem(id="x1", plan="x"), BacklogItem(id="y0", plan="y")]
    backlog = backlog_of(*items, total=1)
    backlog.hold("x1")
    backlog.note_at_work("x1")

    assert (backlog.unheld("x"), claims_of(backlog, "x", "y")) == (1, [])
    backlog.ready("x1")
    assert claims_of(backlog, "x", "y") == ["x1"]
    backlog.limits = Limits()
    assert backlog.claim([Seeker("w", None, "x", spare=False)], now_s=0.0, lease_s=LEASE_S) is None
    assert claims_of(backlog, "x", "y") == ["x0", "y0"]


def test_an_item_on_hold_is_at_work_until_its_work_has_ended() -> None:
    """An item that is put on hold without having been claimed is at work until that is ended; a settled item is not."""
    backlog = backlog_of(*(BacklogItem(id=name, plan="x") for name in "abc"), total=2)
    for name in "ab":
        backlog.note_at_work(name)

    backlog.hold("a")
    assert (backlog.unheld("x"), claims_of(backlog, "x")) == (2, ["b"])
    assert backlog.refusal("c") is not None
    backlog.end_at_work("a")
    backlog.end_at_work("b")  # a worker holds it: without effect
    assert (backlog.unheld("x"), claims_of(backlog, "x")) == (0, ["c"])
    backlog.note_at_work("a")
    backlog.settle("a", completed=True)
    assert backlog.unheld("x") == 0


def test_nothing_of_a_removed_plan_is_left() -> None:
    """The items of a removed plan are unknown, and what they held is free for the other plans."""
    backlog = backlog_of(
        BacklogItem(id="x0", plan="x", files=("src",)),
        BacklogItem(id="x1", plan="x", depends_on=("x0",)),
        BacklogItem(id="y0", plan="y", files=("src/a",)),
        total=1,
    )

    assert claims_of(backlog, "x", "y") == ["x0"]
    backlog.remove_plan("x")
    assert (len(backlog), "x0" in backlog, backlog.held("x")) == (1, False, 0)
    assert claims_of(backlog, "x", "y") == ["y0"]
    for plan in ("x", "y"):
        backlog.remove_plan(plan)
    assert (len(backlog), backlog.claims()) == (0, [])
