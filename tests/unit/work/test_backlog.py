"""Tests of the backlog: which worker receives which item, and what never happens; also compared with a simple model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.work.backlog import (
    Backlog,
    BacklogItem,
    DependantChanges,
    Gate,
    Refusal,
    RefusalReason,
    Seeker,
    UnknownItem,
)
from supervisor.work.leases import Claim, Leases, StaleClaim
from supervisor.work.owned_paths import OwnedPaths, spelled

EVERY = None
LEASE_S = 60.0


def backlog_of(*items: BacklogItem) -> Backlog:
    backlog = Backlog()
    for item in items:
        backlog.add(item)
    return backlog


def claim(backlog: Backlog, worker_id: str = "w", capabilities: frozenset[str] | None = EVERY, **given: Any) -> Any:
    plan = given.pop("plan", "")
    return backlog.claim([Seeker(worker_id, capabilities, plan)], **{"now_s": 0.0, "lease_s": LEASE_S, **given})


def claim_by_id(backlog: Backlog, item_id: str, worker_id: str = "w", **given: Any) -> Any:
    return backlog.claim_by_id(item_id, worker_id, EVERY, **{"now_s": 0.0, "lease_s": LEASE_S, **given})


def order_of(backlog: Backlog, capabilities: frozenset[str] | None = EVERY) -> list[str]:
    """Claim all items, and return their ids in the order in which they are claimed."""
    return [one.item_id for one in iter(lambda: claim(backlog, capabilities=capabilities), None)]


def closed(*providers: str) -> Gate:
    return lambda provider: provider not in providers


# ------------------------------------------------------------------------------------------------------------ order
def test_highest_priority_first_then_oldest() -> None:
    """Items are claimed by priority, highest first; of equal priority, in the order of adding."""
    backlog = backlog_of(
        BacklogItem(id="a"), BacklogItem(id="b", priority=5), BacklogItem(id="c"), BacklogItem(id="d", priority=5)
    )

    assert order_of(backlog) == ["b", "d", "a", "c"]


def test_another_priority_is_as_good_as_its_own() -> None:
    """Among items of one priority the order of adding decides, whether the priority is original or was set by
    ``rank``."""
    backlog = backlog_of(
        *(BacklogItem(id=name, priority=number, depends_on=("x",)) for number, name in enumerate("abcd"))
    )
    for name, priority in (("a", 2), ("b", 7), ("d", -1)):
        backlog.rank(name, priority)
    backlog.add(BacklogItem(id="x"))
    assert order_of(backlog) == ["x"]
    backlog.settle("x", completed=True)
    assert order_of(backlog) == ["b", "a", "c", "d"]


def test_released_one_keeps_its_place() -> None:
    """An item that is released is claimed again before items that were added later."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b"))
    first = claim(backlog)
    backlog.release("a", first.token)

    assert order_of(backlog) == ["a", "b"]


def test_one_of_two_workers_has_the_item() -> None:
    """Of two workers that claim the same item, the first receives the item and the second nothing."""
    backlog = backlog_of(BacklogItem(id="a"))

    assert [claim(backlog, one) for one in ("w1", "w2")] == [Claim("a", "w1", 1, LEASE_S), None]


def test_capabilities() -> None:
    """A worker receives only items whose needs it can meet; a worker with all capabilities receives any item."""
    backlog = backlog_of(
        BacklogItem(id="a", needs=frozenset({"role:backend", "gpu"}), priority=1),
        BacklogItem(id="b", needs=frozenset({"gpu"})),
    )

    assert claim(backlog, capabilities=frozenset({"role:backend"})) is None
    assert claim(backlog, capabilities=frozenset({"gpu", "tpu"})).item_id == "b"
    assert claim(backlog).item_id == "a"


def test_capabilities_of_items_added_later() -> None:
    """A worker that has claimed before also receives items with a combination of needs that was added later."""
    backlog = backlog_of(BacklogItem(id="a"))
    able = frozenset({"gpu"})
    claim(backlog, capabilities=able)
    backlog.add(BacklogItem(id="b", needs=frozenset({"tpu"})))
    backlog.add(BacklogItem(id="c", needs=able))

    assert order_of(backlog, able) == ["c"]


def test_provider_gate() -> None:
    """While a provider's gate is closed, the items of that provider wait, and other items are claimed."""
    backlog = backlog_of(BacklogItem(id="a", provider="anthropic", priority=9), BacklogItem(id="b", provider="other"))

    assert claim(backlog, gate=closed("anthropic")).item_id == "b"
    assert claim(backlog, gate=closed("anthropic")) is None
    assert claim(backlog).item_id == "a"


def test_held_back_until_ready() -> None:
    """An item that is on hold is claimed only after ``ready``."""
    backlog = Backlog()
    backlog.add(BacklogItem(id="a"), on_hold=True)

    assert claim(backlog) is None
    backlog.ready("a")
    assert claim(backlog).item_id == "a"


def test_hold_and_ready_any_number_of_times() -> None:
    """An item that was put on hold and made ready several times is claimed once."""
    backlog = backlog_of(BacklogItem(id="a"))
    for _ in range(3):
        backlog.hold("a")
        backlog.ready("a")

    assert order_of(backlog) == ["a"]


# ------------------------------------------------------------------------------------------------------------ waiting
def test_waits_for_every_dependency() -> None:
    """An item becomes ready when the last item that it depends on is completed, and is reported as ready once."""
    backlog = backlog_of(
        BacklogItem(id="a"), BacklogItem(id="b"), BacklogItem(id="c", depends_on=("a", "b"), priority=9)
    )

    assert backlog.settle("a", completed=True) == DependantChanges()
    assert backlog.settle("b", completed=True) == DependantChanges(ready=("c",))
    assert order_of(backlog) == ["c"]


def test_dependency_added_later() -> None:
    """An item may depend on an item that is not added yet: it waits for that id."""
    backlog = backlog_of(BacklogItem(id="b", depends_on=("a",)))

    assert backlog.refusal("b") == Refusal("b", RefusalReason.WAITING, ("a",))
    assert backlog.add(BacklogItem(id="a")) == DependantChanges(ready=("a",))
    assert backlog.settle("a", completed=True) == DependantChanges(ready=("b",))


def test_dependency_settled_before() -> None:
    """An item added after its dependencies are settled is reported at once: as ready, or with a failed dependency."""
    backlog = backlog_of(BacklogItem(id="good"), BacklogItem(id="bad"))
    backlog.settle("good", completed=True)
    backlog.settle("bad", completed=False)

    assert backlog.add(BacklogItem(id="a", depends_on=("good",))) == DependantChanges(ready=("a",))
    assert backlog.add(BacklogItem(id="b", depends_on=("good", "bad"))) == DependantChanges(dependency_failed=("b",))


def test_direct_dependants_of_a_failed_item_are_named_once() -> None:
    """The direct dependants of a failed item are reported once, at its end; the next level when those are settled."""
    backlog = backlog_of(
        BacklogItem(id="a"),
        BacklogItem(id="b"),
        BacklogItem(id="c", depends_on=("a", "b")),
        BacklogItem(id="d", depends_on=("c",)),
    )

    assert backlog.settle("a", completed=False) == DependantChanges(dependency_failed=("c",))
    assert backlog.settle("b", completed=False) == DependantChanges()
    assert backlog.refusal("c") == Refusal("c", RefusalReason.DEPENDENCY_FAILED, ("a", "b"))
    assert backlog.settle("c", completed=False) == DependantChanges(dependency_failed=("d",))


def test_an_item_that_comes_after_a_failed_one_is_ready() -> None:
    """An item that only comes after another item, without depending on it, is ready when the other item has failed."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b", after=("a",)))

    assert backlog.settle("a", completed=False) == DependantChanges(ready=("b",))
    assert order_of(backlog) == ["b"]


def test_reopened_dependency_is_waited_for_again() -> None:
    """The dependants of a reopened item wait until it is settled anew, also those whose dependency had failed."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b", depends_on=("a",)))
    backlog.settle("a", completed=False)

    assert backlog.reopen("a") == ("b",)
    assert backlog.refusal("b") == Refusal("b", RefusalReason.WAITING, ("a",))
    assert backlog.settle("a", completed=True) == DependantChanges(ready=("b",))
    assert backlog.reopen("a") == ("b",)
    assert order_of(backlog) == ["a"]


def test_reopening_what_is_open_changes_nothing() -> None:
    """Reopening an item that is not settled changes nothing."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b", depends_on=("a",)))

    assert backlog.reopen("a") == ()
    assert backlog.settle("a", completed=True) == DependantChanges(ready=("b",))


def test_settling_twice() -> None:
    """Settling an item twice with the same outcome changes nothing; a different outcome is an error until it is
    reopened."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b", depends_on=("a",)))
    backlog.settle("a", completed=True)

    assert backlog.settle("a", completed=True) == DependantChanges()
    with pytest.raises(ValueError, match="'a' was settled as completed; reopen it first"):
        backlog.settle("a", completed=False)


# ------------------------------------------------------------------------------------------------------------ claims
def test_tokens_grow_over_release_fence_revocation_and_reopening() -> None:
    """The next claim of an item has a larger token, whatever ended the claim before."""
    backlog = backlog_of(BacklogItem(id="a"))
    tokens = []
    for end in (
        lambda token: backlog.release("a", token),
        lambda token: backlog.fence("w"),
        lambda token: backlog.revoke("a"),
        lambda token: backlog.expired(LEASE_S),
        lambda token: (backlog.settle("a", completed=False, token=token), backlog.reopen("a")),
    ):
        tokens.append(claim(backlog).token)
        end(tokens[-1])

    assert tokens == sorted(set(tokens))


def test_tokens_go_on_after_an_earlier_backlog() -> None:
    """A backlog that continues the work of an earlier backlog grants larger tokens."""
    backlog = Backlog(last_token=41)
    backlog.add(BacklogItem(id="a"))

    assert claim(backlog).token == 42


@pytest.mark.parametrize("act", ["renew", "release", "settle", "check"])
def test_stale_token_changes_nothing(act: str) -> None:
    """A worker that lost a claim can neither renew nor release the claim, nor settle the item; the error names both
    tokens."""
    backlog = backlog_of(BacklogItem(id="a"))
    old = claim(backlog, "w1")
    backlog.fence("w1")
    new = claim(backlog, "w2")

    with pytest.raises(StaleClaim) as stale:
        {
            "renew": lambda: backlog.renew("a", old.token, 1.0),
            "release": lambda: backlog.release("a", old.token),
            "settle": lambda: backlog.settle("a", completed=True, token=old.token),
            "check": lambda: backlog.check("a", old.token),
        }[act]()
    assert str(stale.value) == "'a': the claim with token 1 is stale, 'w2' holds it with token 2; claim it anew"
    assert backlog.holder("a") == new


def test_stale_token_where_nobody_holds_it() -> None:
    """For an item that nobody holds, the error about a stale token names the last token of the item."""
    backlog = backlog_of(BacklogItem(id="a"))
    backlog.release("a", claim(backlog).token)

    with pytest.raises(StaleClaim, match=r"the claim with token 7 is stale, its last token was 1;"):
        backlog.renew("a", 7, 0.0)


def test_lease_runs_out_at_its_end() -> None:
    """A lease is valid before its end, and taken away at its end, once; then the item can be claimed again."""
    backlog = backlog_of(BacklogItem(id="a"))
    held = claim(backlog)

    assert backlog.expired(LEASE_S - 0.001) == []
    assert backlog.expired(LEASE_S) == [held]
    assert backlog.expired(LEASE_S) == []
    assert order_of(backlog) == ["a"]


def test_renewed_lease_lasts() -> None:
    """A renewed lease lasts its full duration from the renewal on, and never ends earlier than before."""
    backlog = backlog_of(BacklogItem(id="a"))
    held = claim(backlog)

    assert backlog.renew("a", held.token, 50.0) == held._replace(expires_s=110.0)
    assert backlog.renew("a", held.token, 40.0) == held._replace(expires_s=110.0)
    assert backlog.expired(109.0) == []
    assert [one.item_id for one in backlog.expired(110.0)] == ["a"]


def test_lease_without_end() -> None:
    """An infinite lease never runs out."""
    backlog = backlog_of(BacklogItem(id="a"))
    claim(backlog, lease_s=math.inf)

    assert backlog.expired(1e300) == []


def test_leases_run_out_in_the_order_of_their_ends() -> None:
    """Leases that have run out are returned in the order of their ends."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b"), BacklogItem(id="c"))
    for lease_s in (30.0, 10.0, 20.0):
        claim(backlog, lease_s=lease_s)

    assert [one.item_id for one in backlog.expired(100.0)] == ["b", "c", "a"]


@pytest.mark.parametrize("lease_s", [0.0, -1.0, math.nan])
def test_lease_without_length_is_refused(lease_s: float) -> None:
    """A claim with a lease of no positive length is an error, and the item stays free."""
    backlog = backlog_of(BacklogItem(id="a"))

    with pytest.raises(ValueError, match=r"lease_s: .* is not above 0"):
        claim(backlog, lease_s=lease_s)
    assert claim(backlog).item_id == "a"


def test_nothing_is_granted_twice() -> None:
    """Granting a lease on an item that is held raises an error."""
    leases = Leases(0)
    leases.grant("a", "w1", 0.0, 1.0)

    with pytest.raises(ValueError, match="'a' is held by 'w1'"):
        leases.grant("a", "w2", 0.0, 1.0)


def test_fence_takes_everything_of_one_worker() -> None:
    """Fencing a worker takes away all of its items, returned in the order of its claims, and no item of another
    worker."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b"), BacklogItem(id="c"))
    held = [claim(backlog, one) for one in ("w1", "w2", "w1")]

    assert backlog.fence("w1") == [held[0], held[2]]
    assert backlog.claims() == [held[1]]
    assert backlog.claims("w1") == []
    assert backlog.fence("w1") == []


def test_revoked_one_can_be_given_to_another() -> None:
    """An item that is taken from a worker can be claimed by its id for another worker."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b"))
    held = claim(backlog, "w1")

    assert backlog.revoke("a") == held
    assert backlog.revoke("a") is None
    assert claim_by_id(backlog, "a", "w2").worker_id == "w2"
    assert backlog.claims("w1") == []


def test_settling_ends_the_claim() -> None:
    """Nobody holds a settled item, and its files are free."""
    backlog = backlog_of(BacklogItem(id="a", files=("src",)), BacklogItem(id="b", files=("src/b.py",)))
    backlog.settle("a", completed=True, token=claim(backlog).token)

    assert backlog.holder("a") is None
    assert order_of(backlog) == ["b"]


# ------------------------------------------------------------------------------------------------------------ files
@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("src", "src", True),
        ("src", "src/a.py", True),
        ("src/a.py", "src", True),
        ("src/", "./src//a.py", True),
        (".", "anything", True),
        ("anything", "", True),
        ("src", "source", False),
        ("src/a", "src/ab", False),
        ("src/a", "src/b", False),
    ],
)
def test_overlapping_files_are_never_held_at_once(one: str, other: str, overlap: bool) -> None:
    """Items with overlapping files are not held at once: a directory owns everything below it; similar names do not
    overlap."""
    backlog = backlog_of(BacklogItem(id="a", files=(one,)), BacklogItem(id="b", files=(other,)))

    assert order_of(backlog) == (["a"] if overlap else ["a", "b"])


def test_next_one_of_the_same_file_is_claimed_when_it_is_given_back() -> None:
    """Items that own the same file are claimed one after the other, by priority."""
    files = ("pyproject.toml",)
    backlog = backlog_of(
        BacklogItem(id="a", files=files), BacklogItem(id="b", files=files), BacklogItem(id="c", files=files, priority=1)
    )
    done = []
    while (held := claim(backlog)) is not None:
        assert claim(backlog) is None
        done.append(held.item_id)
        backlog.settle(held.item_id, completed=True)

    assert done == ["c", "a", "b"]


def test_waits_for_each_of_its_files() -> None:
    """An item whose files are held by two other items waits until both of these are released."""
    backlog = backlog_of(
        BacklogItem(id="a", files=("x",), priority=3),
        BacklogItem(id="b", files=("y",), priority=2),
        BacklogItem(id="both", files=("y/1", "x/1"), priority=1),
        BacklogItem(id="other"),
    )
    first, second = claim(backlog), claim(backlog)

    assert claim(backlog).item_id == "other"
    backlog.release("a", first.token)
    backlog.hold("a")
    assert claim(backlog) is None
    backlog.release("b", second.token)
    backlog.hold("b")
    assert claim(backlog).item_id == "both"


def test_files_are_named_by_whom_they_wait_for() -> None:
    """A refusal because of files names every item that holds one of the files."""
    backlog = backlog_of(
        BacklogItem(id="a", files=("x",)), BacklogItem(id="b", files=("y",)), BacklogItem(id="c", files=("x/1", "y/1"))
    )
    claim(backlog), claim(backlog)

    assert claim_by_id(backlog, "c") == Refusal("c", RefusalReason.FILES, ("a", "b"))


@pytest.mark.parametrize("path", ["/etc/passwd", "../other", "src/../../other"])
def test_path_out_of_the_workspace(path: str) -> None:
    """A path that leads out of the workspace is refused; the error names the field and the fix, and no item is
    added."""
    backlog = Backlog()

    with pytest.raises(ValueError, match=r"files: .* leads out of the workspace; give a path relative to it"):
        backlog.add(BacklogItem(id="a", files=(path,)))
    assert "a" not in backlog


def test_paths_have_one_spelling() -> None:
    """Different spellings of a path become one, and a path below another owned path is left out."""
    assert spelled(["./b/", "a//x", "b/c", "a/x"]) == ("a/x", "b")
    assert spelled(["b", "."]) == ("",)


def test_nothing_is_left_of_paths_that_were_given_back() -> None:
    """A holder that has released all of its paths blocks nobody."""
    paths = OwnedPaths()
    paths.take("a", ("x/1", "y"))
    paths.give_back(("x/1", "y"))

    assert paths.blockers(("x", "y/2", "")) == ()


# ------------------------------------------------------------------------------------------------------------ why not
def test_every_reason_has_its_words() -> None:
    """The text of a refusal gives the reason, and names the workers, items, capabilities or providers involved."""
    backlog = backlog_of(
        BacklogItem(id="done"),
        BacklogItem(id="mine", files=("src",)),
        BacklogItem(id="waits", depends_on=("mine",)),
        BacklogItem(id="late"),
        BacklogItem(id="able", needs=frozenset({"gpu", "tpu"})),
        BacklogItem(id="src", files=("src/a",)),
        BacklogItem(id="closed", provider="p"),
        BacklogItem(id="bad"),
        BacklogItem(id="doomed", depends_on=("bad",)),
    )
    backlog.settle("done", completed=True)
    backlog.settle("bad", completed=False)
    backlog.hold("late")
    claim_by_id(backlog, "mine", "w7")
    refusals = [backlog.refusal(one, frozenset({"tpu"}), gate=closed("p")) for one in _IDS]

    assert [one.words for one in refusals if one is not None] == [
        "'done': it is settled",
        "'mine': it is held by w7",
        "'waits': it waits for mine",
        "'late': its own conditions do not allow it yet",
        "'able': the worker lacks gpu",
        "'src': its files overlap those of mine",
        "'closed': no work is begun now for the provider p",
        "'doomed': it depends on what was not completed: bad",
    ]


_IDS = ("done", "mine", "waits", "late", "able", "src", "closed", "doomed")


def test_unknown_item() -> None:
    """Claiming an id that was never added raises ``UnknownItem``, not a refusal."""
    with pytest.raises(UnknownItem, match="no item 'x' is in the backlog; add it first"):
        claim_by_id(Backlog(), "x")


def test_added_once() -> None:
    """Adding a second item with the same id raises an error."""
    backlog = backlog_of(BacklogItem(id="a"))

    with pytest.raises(ValueError, match="'a' is in the backlog already; use another id, or reopen it"):
        backlog.add(BacklogItem(id="a"))
    assert len(backlog) == 1


def test_waiting_for_itself() -> None:
    """Adding an item that waits for itself raises an error."""
    with pytest.raises(ValueError, match="'a' cannot wait for itself"):
        Backlog().add(BacklogItem(id="a", after=("a",)))


# ------------------------------------------------------------------------------------------------------------ the cost
def test_one_file_wanted_by_many_costs_one_look() -> None:
    """A claim checks a held file only once, however many items need the file."""
    looked: list[tuple[str, ...]] = []

    class CountedPaths(OwnedPaths):
        def blocker(self, paths: Sequence[str]) -> str | None:
            looked.append(tuple(paths))
            return super().blocker(paths)

    backlog = Backlog(paths=CountedPaths())
    for number in range(500):
        backlog.add(BacklogItem(id=str(number), files=("pyproject.toml",)))
    for _ in range(20):
        held = claim(backlog)
        assert claim(backlog) is None
        backlog.settle(held.item_id, completed=True)

    assert len(looked) == 40


# ------------------------------------------------------------------------------------------------------------ the model
NAMES = [f"i{number:02}" for number in range(16)]
WORKERS = {"any": None, "gpu": frozenset({"gpu"}), "both": frozenset({"gpu", "role:docs"}), "none": frozenset[str]()}
PATHS = ["a", "a/b", "a/b/c", "a/d", "e", "."]


def overlap(one: str, other: str) -> bool:
    first, second = ([part for part in path.split("/") if part != "."] for path in (one, other))
    return first[: len(second)] == second or second[: len(first)] == first


class Model:
    """Model of a backlog in plain lists: each result is computed by looking at all items."""

    def __init__(self) -> None:
        self.items: list[BacklogItem] = []
        self.on_hold: set[str] = set()
        self.outcomes: dict[str, bool] = {}
        self.claims: dict[str, Claim] = {}

    def waits(self, item: BacklogItem) -> bool:
        strict = any(self.outcomes.get(one) is not True for one in item.depends_on)
        return strict or any(one not in self.outcomes for one in item.after)

    def dependency_failed(self, item: BacklogItem) -> bool:
        return any(self.outcomes.get(one) is False for one in item.depends_on)

    def blocked(self, item: BacklogItem) -> bool:
        held = [path for one in self.items if one.id in self.claims for path in one.files]
        return any(overlap(one, other) for one in item.files for other in held)

    def fits(self, item: BacklogItem, capabilities: frozenset[str] | None, shut: str) -> bool:
        able = capabilities is None or item.needs <= capabilities
        return able and item.provider != shut and self.free(item) and not self.blocked(item)

    def free(self, item: BacklogItem) -> bool:
        taken = item.id in self.claims or item.id in self.outcomes or item.id in self.on_hold
        return not taken and not self.waits(item)

    def best(self, capabilities: frozenset[str] | None, shut: str) -> str | None:
        fitting = [one for one in self.items if self.fits(one, capabilities, shut)]
        return min(fitting, key=lambda one: (-one.priority, self.items.index(one))).id if fitting else None


CAPABILITIES = st.frozensets(st.sampled_from(["gpu", "role:docs"]), max_size=2)
NEEDS = st.one_of(st.just(frozenset[str]()), CAPABILITIES)
SOME_NAMES = st.one_of(st.just([]), st.just([]), st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))


@st.composite
def items(draw: st.DrawFn, item_id: str) -> BacklogItem:
    return BacklogItem(
        id=item_id,
        priority=draw(st.integers(0, 2)),
        needs=draw(NEEDS),
        files=tuple(draw(st.lists(st.sampled_from(PATHS), max_size=2))),
        provider=draw(st.sampled_from(["", "p", "q"])),
        depends_on=tuple(name for name in draw(SOME_NAMES) if name < item_id),
        after=tuple(name for name in draw(SOME_NAMES) if name < item_id),
    )


class BacklogMachine(RuleBasedStateMachine):
    """Calls all operations of a backlog in random order, and checks that the results are those of the model."""

    worker = st.sampled_from(["any", "any", "both", "gpu", "none"])
    item_id = st.sampled_from(NAMES)
    shut = st.sampled_from(["none", "p", "q"])

    @initialize(data=st.data(), count=st.integers(6, len(NAMES)))
    def begin(self, data: st.DataObject, count: int) -> None:
        self.backlog, self.model = Backlog(), Model()
        self.now_s = 0.0
        self.granted: list[Claim] = []
        self.holders: dict[str, tuple[str, int]] = {}
        for item_id in data.draw(st.permutations(NAMES))[:count]:
            self.add(data.draw(items(item_id)), False)

    def known(self, item_id: str) -> BacklogItem | None:
        return next((one for one in self.model.items if one.id == item_id), None)

    # ---------------------------------------------------------------- what is to be done
    @rule(item=item_id.flatmap(items), on_hold=st.booleans())
    def add_another(self, item: BacklogItem, on_hold: bool) -> None:
        if self.known(item.id) is None:
            self.add(item, on_hold)

    def add(self, item: BacklogItem, on_hold: bool) -> None:
        self.model.items.append(item)
        self.model.on_hold |= {item.id} if on_hold else set()
        said = self.backlog.add(item, on_hold=on_hold)
        assert said.ready == ((item.id,) if not self.model.waits(item) else ())
        assert said.dependency_failed == ((item.id,) if self.model.dependency_failed(item) else ())

    @rule(item_id=item_id, completed=st.booleans())
    def settle(self, item_id: str, completed: bool) -> None:
        if self.known(item_id) is None or self.model.outcomes.get(item_id, completed) is not completed:
            return
        open_items = [one for one in self.model.items if one.id not in self.model.outcomes and one.id != item_id]
        waiting = {one.id for one in open_items if self.model.waits(one)}
        dependency_failed = {one.id for one in open_items if self.model.dependency_failed(one)}
        said = self.backlog.settle(item_id, completed=completed)
        self.model.outcomes[item_id] = completed
        self.end(item_id)
        assert set(said.ready) == {one.id for one in open_items if one.id in waiting and not self.model.waits(one)}
        assert set(said.dependency_failed) == {
            one.id for one in open_items if one.id not in dependency_failed and self.model.dependency_failed(one)
        }

    @rule(item_id=item_id)
    def reopen(self, item_id: str) -> None:
        if self.known(item_id) is None:
            return
        was = self.model.outcomes.pop(item_id, None)
        again = [one.id for one in self.model.items if one.id not in self.model.outcomes and self.renewed(one, item_id)]
        assert set(self.backlog.reopen(item_id)) == (set(again) if was is not None else set())

    def renewed(self, one: BacklogItem, item_id: str) -> bool:
        return item_id in one.depends_on or item_id in one.after

    @rule(item_id=item_id, on_hold=st.booleans())
    def hold_or_ready(self, item_id: str, on_hold: bool) -> None:
        if self.known(item_id) is None:
            return
        (self.backlog.hold if on_hold else self.backlog.ready)(item_id)
        (self.model.on_hold.add if on_hold else self.model.on_hold.discard)(item_id)

    # ---------------------------------------------------------------- claims
    @rule(worker=worker, shut=shut, lease_s=st.sampled_from([5.0, 20.0]), count=st.integers(2, 8))
    def claim(self, worker: str, shut: str, lease_s: float, count: int) -> None:
        asked = {"now_s": self.now_s, "lease_s": lease_s, "gate": closed(shut)}
        for _ in range(count):
            expected = self.model.best(WORKERS[worker], shut)
            claim = self.backlog.claim([Seeker(worker, WORKERS[worker])], **asked)
            assert (claim.item_id if claim is not None else None) == expected
            if claim is not None:
                self.grant(claim, worker, lease_s)

    @rule(item_id=item_id, worker=worker)
    def claim_by_id(self, item_id: str, worker: str) -> None:
        item = self.known(item_id)
        if item is None:
            return
        fits = self.model.fits(item, WORKERS[worker], "none")
        found = self.backlog.claim_by_id(item_id, worker, WORKERS[worker], now_s=self.now_s, lease_s=7.0)
        assert isinstance(found, Claim) is fits
        if isinstance(found, Claim):
            self.grant(found, worker, 7.0)

    def grant(self, claim: Claim, worker: str, lease_s: float) -> None:
        assert claim == Claim(claim.item_id, worker, claim.token, self.now_s + lease_s)
        assert not self.granted or claim.token > self.granted[-1].token
        assert claim.item_id not in self.holders
        self.granted.append(claim)
        self.model.claims[claim.item_id] = claim
        self.holders[claim.item_id] = (worker, claim.token)

    def end(self, item_id: str) -> None:
        self.model.claims.pop(item_id, None)
        self.holders.pop(item_id, None)

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), act=st.sampled_from(["renew", "release", "settle"]))
    def act_on_a_claim(self, data: st.DataObject, act: str) -> None:
        claim = data.draw(st.sampled_from(self.granted))
        if self.holders.get(claim.item_id) != (claim.worker_id, claim.token):
            with pytest.raises(StaleClaim):
                self.act(act, claim)
        elif act == "renew":
            self.model.claims[claim.item_id] = renewed = self.act(act, claim)
            assert renewed.expires_s >= max(claim.expires_s, self.now_s + 5.0)
        else:
            self.act(act, claim)
            self.end(claim.item_id)
            if act == "settle":
                self.model.outcomes[claim.item_id] = True

    def act(self, act: str, claim: Claim) -> Any:
        match act:
            case "renew":
                return self.backlog.renew(claim.item_id, claim.token, self.now_s)
            case "release":
                return self.backlog.release(claim.item_id, claim.token)
            case _:
                return self.backlog.settle(claim.item_id, completed=True, token=claim.token)

    @rule(item_id=item_id)
    def revoke(self, item_id: str) -> None:
        assert self.backlog.revoke(item_id) == self.model.claims.get(item_id)
        self.end(item_id)

    @rule(worker=worker)
    def fence(self, worker: str) -> None:
        lost = [one for one in self.model.claims.values() if one.worker_id == worker]
        assert self.backlog.fence(worker) == sorted(lost, key=lambda one: one.token)
        for one in lost:
            self.end(one.item_id)

    @rule(passed_s=st.sampled_from([1.0, 6.0, 30.0]))
    def expire(self, passed_s: float) -> None:
        self.now_s += passed_s
        over = {one for one in self.model.claims.values() if one.expires_s <= self.now_s}
        assert set(self.backlog.expired(self.now_s)) == over
        for one in over:
            self.end(one.item_id)

    # ---------------------------------------------------------------- what always holds
    @invariant()
    def one_holder(self) -> None:
        """Invariant 14: an item has at most one holder, the worker to which it was granted last."""
        assert {one.item_id: (one.worker_id, one.token) for one in self.backlog.claims()} == self.holders
        assert self.backlog.claims() == sorted(self.model.claims.values(), key=lambda one: one.token)

    @invariant()
    def no_overlap(self) -> None:
        """No two held items own overlapping paths."""
        held = [one for one in self.model.items if one.id in self.holders]
        pairs = [(one, other) for one in held for other in held if one is not other]
        assert not any(overlap(a, b) for one, other in pairs for a in one.files for b in other.files)

    @invariant()
    def nothing_lost(self) -> None:
        """Invariant 15: every item is settled, held, claimable, or waiting for something that the refusal names."""
        for item in self.model.items:
            refusal = self.backlog.refusal(item.id)
            claimable = self.model.fits(item, None, "none")
            assert (refusal is None) is claimable
            assert refusal is None or refusal.named or refusal.why in (RefusalReason.SETTLED, RefusalReason.ON_HOLD)

    def teardown(self) -> None:
        """Invariant 20: items held by dead workers are free when their leases have ended, and every claimable item is
        claimed."""
        if not hasattr(self, "backlog"):  # it never began
            return
        self.backlog.expired(self.now_s + 20.0)
        assert self.backlog.claims() == []
        self.model.claims.clear()
        while (expected := self.model.best(None, "none")) is not None:
            claim = self.backlog.claim([Seeker("any", None)], now_s=self.now_s, lease_s=5.0)
            assert claim is not None
            assert claim.item_id == expected
            self.backlog.settle(claim.item_id, completed=True)
            self.model.outcomes[claim.item_id] = True
        assert self.backlog.claim([Seeker("any", None)], now_s=self.now_s, lease_s=5.0) is None


BacklogMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBacklog = BacklogMachine.TestCase
