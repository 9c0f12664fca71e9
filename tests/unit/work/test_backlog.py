"""The backlog: who gets what, who holds it, and what never happens, against a model that looks at everything."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.work.backlog import Backlog, BacklogItem, DependantChanges, Gate, Refusal, RefusalReason, UnknownItem
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
    return backlog.claim(worker_id, capabilities, **{"now_s": 0.0, "lease_s": LEASE_S, **given})


def claim_by_id(backlog: Backlog, item_id: str, worker_id: str = "w", **given: Any) -> Any:
    return backlog.claim_by_id(item_id, worker_id, EVERY, **{"now_s": 0.0, "lease_s": LEASE_S, **given})


def order_of(backlog: Backlog, capabilities: frozenset[str] | None = EVERY) -> list[str]:
    """What is claimed until nothing can be."""
    return [one.item_id for one in iter(lambda: claim(backlog, capabilities=capabilities), None)]


def closed(*providers: str) -> Gate:
    return lambda provider: provider not in providers


# ------------------------------------------------------------------------------------------------------------ order
def test_highest_priority_first_then_oldest() -> None:
    """Priority decides, then the order of adding."""
    backlog = backlog_of(
        BacklogItem(id="a"), BacklogItem(id="b", priority=5), BacklogItem(id="c"), BacklogItem(id="d", priority=5)
    )

    assert order_of(backlog) == ["b", "d", "a", "c"]


def test_another_priority_is_as_good_as_its_own() -> None:
    """Between those of one priority the order of adding decides, whichever way they came to it."""
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
    """Giving an item back does not send it to the end of the queue."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b"))
    first = claim(backlog)
    backlog.release("a", first.token)

    assert order_of(backlog) == ["a", "b"]


def test_one_winner() -> None:
    """Of two workers that ask, one has the item and the other one nothing."""
    backlog = backlog_of(BacklogItem(id="a"))

    assert [claim(backlog, one) for one in ("w1", "w2")] == [Claim("a", "w1", 1, LEASE_S), None]


def test_capabilities() -> None:
    """A worker is given only what it can do; one without limits is given everything."""
    backlog = backlog_of(
        BacklogItem(id="a", needs=frozenset({"role:backend", "gpu"}), priority=1),
        BacklogItem(id="b", needs=frozenset({"gpu"})),
    )

    assert claim(backlog, capabilities=frozenset({"role:backend"})) is None
    assert claim(backlog, capabilities=frozenset({"gpu", "tpu"})).item_id == "b"
    assert claim(backlog).item_id == "a"


def test_capabilities_of_items_added_later() -> None:
    """A worker that has asked before is given what is new to it."""
    backlog = backlog_of(BacklogItem(id="a"))
    able = frozenset({"gpu"})
    claim(backlog, capabilities=able)
    backlog.add(BacklogItem(id="b", needs=frozenset({"tpu"})))
    backlog.add(BacklogItem(id="c", needs=able))

    assert order_of(backlog, able) == ["c"]


def test_provider_gate() -> None:
    """While a provider's gate is closed its items wait, and others are claimed."""
    backlog = backlog_of(BacklogItem(id="a", provider="anthropic", priority=9), BacklogItem(id="b", provider="other"))

    assert claim(backlog, gate=closed("anthropic")).item_id == "b"
    assert claim(backlog, gate=closed("anthropic")) is None
    assert claim(backlog).item_id == "a"


def test_held_back_until_ready() -> None:
    """An item whose own conditions are not met is not claimed before they are."""
    backlog = Backlog()
    backlog.add(BacklogItem(id="a"), on_hold=True)

    assert claim(backlog) is None
    backlog.ready("a")
    assert claim(backlog).item_id == "a"


def test_hold_and_ready_any_number_of_times() -> None:
    """An item that was held back and let go many times is claimed once."""
    backlog = backlog_of(BacklogItem(id="a"))
    for _ in range(3):
        backlog.hold("a")
        backlog.ready("a")

    assert order_of(backlog) == ["a"]


# ------------------------------------------------------------------------------------------------------------ waiting
def test_waits_for_every_dependency() -> None:
    """An item is ready with the last one that it depends on, and is told of once."""
    backlog = backlog_of(
        BacklogItem(id="a"), BacklogItem(id="b"), BacklogItem(id="c", depends_on=("a", "b"), priority=9)
    )

    assert backlog.settle("a", completed=True) == DependantChanges()
    assert backlog.settle("b", completed=True) == DependantChanges(ready=("c",))
    assert order_of(backlog) == ["c"]


def test_dependency_added_later() -> None:
    """An item may depend on one that is not there yet: it waits for its name."""
    backlog = backlog_of(BacklogItem(id="b", depends_on=("a",)))

    assert backlog.refusal("b") == Refusal("b", RefusalReason.WAITING, ("a",))
    assert backlog.add(BacklogItem(id="a")) == DependantChanges(ready=("a",))
    assert backlog.settle("a", completed=True) == DependantChanges(ready=("b",))


def test_dependency_settled_before() -> None:
    """An item that is added after the end of what it depends on is ready, or doomed, at once."""
    backlog = backlog_of(BacklogItem(id="good"), BacklogItem(id="bad"))
    backlog.settle("good", completed=True)
    backlog.settle("bad", completed=False)

    assert backlog.add(BacklogItem(id="a", depends_on=("good",))) == DependantChanges(ready=("a",))
    assert backlog.add(BacklogItem(id="b", depends_on=("good", "bad"))) == DependantChanges(dependency_failed=("b",))


def test_doomed_are_direct_dependants_told_once() -> None:
    """Who depends on a failure is told of at the first one; who depends on the doomed one, when that is settled."""
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


def test_comes_after_in_whatever_way() -> None:
    """What comes after an item, and does not depend on it, is ready when that has failed."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b", after=("a",)))

    assert backlog.settle("a", completed=False) == DependantChanges(ready=("b",))
    assert order_of(backlog) == ["b"]


def test_reopened_dependency_is_waited_for_again() -> None:
    """What is to be done again holds its dependants back, the doomed ones included, until it is settled anew."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b", depends_on=("a",)))
    backlog.settle("a", completed=False)

    assert backlog.reopen("a") == ("b",)
    assert backlog.refusal("b") == Refusal("b", RefusalReason.WAITING, ("a",))
    assert backlog.settle("a", completed=True) == DependantChanges(ready=("b",))
    assert backlog.reopen("a") == ("b",)
    assert order_of(backlog) == ["a"]


def test_reopening_what_is_open_changes_nothing() -> None:
    """An item that is not settled cannot be opened twice."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b", depends_on=("a",)))

    assert backlog.reopen("a") == ()
    assert backlog.settle("a", completed=True) == DependantChanges(ready=("b",))


def test_settling_twice() -> None:
    """The same end twice is one end; another end needs the item to be reopened."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b", depends_on=("a",)))
    backlog.settle("a", completed=True)

    assert backlog.settle("a", completed=True) == DependantChanges()
    with pytest.raises(ValueError, match="'a' was settled as completed; reopen it first"):
        backlog.settle("a", completed=False)


# ------------------------------------------------------------------------------------------------------------ claims
def test_tokens_grow_over_release_fence_revocation_and_reopening() -> None:
    """Whatever ends a claim, the next one on the same item has a larger token."""
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
    """A backlog that takes over the work of another one grants larger tokens."""
    backlog = Backlog(last_token=41)
    backlog.add(BacklogItem(id="a"))

    assert claim(backlog).token == 42


@pytest.mark.parametrize("act", ["renew", "release", "settle", "check"])
def test_stale_token_changes_nothing(act: str) -> None:
    """Who lost a claim can neither renew nor release it, nor settle the item: he is told of both tokens."""
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
    """Where the item is free, the words name its last token."""
    backlog = backlog_of(BacklogItem(id="a"))
    backlog.release("a", claim(backlog).token)

    with pytest.raises(StaleClaim, match=r"the claim with token 7 is stale, its last token was 1;"):
        backlog.renew("a", 7, 0.0)


def test_lease_runs_out_at_its_end() -> None:
    """A lease stands before its end, and is taken away at it: once, and the item can be claimed again."""
    backlog = backlog_of(BacklogItem(id="a"))
    held = claim(backlog)

    assert backlog.expired(LEASE_S - 0.001) == []
    assert backlog.expired(LEASE_S) == [held]
    assert backlog.expired(LEASE_S) == []
    assert order_of(backlog) == ["a"]


def test_renewed_lease_lasts() -> None:
    """A renewed lease ends as long after its renewal as one that is granted then, never earlier than it had."""
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
    """Several leases that have run out are told of as they did."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b"), BacklogItem(id="c"))
    for lease_s in (30.0, 10.0, 20.0):
        claim(backlog, lease_s=lease_s)

    assert [one.item_id for one in backlog.expired(100.0)] == ["b", "c", "a"]


@pytest.mark.parametrize("lease_s", [0.0, -1.0, math.nan])
def test_lease_without_length_is_refused(lease_s: float) -> None:
    """A lease that is over when it begins is a mistake; nothing is claimed by it."""
    backlog = backlog_of(BacklogItem(id="a"))

    with pytest.raises(ValueError, match=r"lease_s: .* is not above 0"):
        claim(backlog, lease_s=lease_s)
    assert claim(backlog).item_id == "a"


def test_nothing_is_granted_twice() -> None:
    """The ledger of leases itself refuses a second holder."""
    leases = Leases(0)
    leases.grant("a", "w1", 0.0, 1.0)

    with pytest.raises(ValueError, match="'a' is held by 'w1'"):
        leases.grant("a", "w2", 0.0, 1.0)


def test_fence_takes_everything_of_one_worker() -> None:
    """A lost worker loses all that it holds, in the order of its claims, and nobody else loses anything."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b"), BacklogItem(id="c"))
    held = [claim(backlog, one) for one in ("w1", "w2", "w1")]

    assert backlog.fence("w1") == [held[0], held[2]]
    assert backlog.claims() == [held[1]]
    assert backlog.claims("w1") == []
    assert backlog.fence("w1") == []


def test_revoked_one_can_be_given_to_another() -> None:
    """An item is taken from one worker and claimed, by its id, for another one."""
    backlog = backlog_of(BacklogItem(id="a"), BacklogItem(id="b"))
    held = claim(backlog, "w1")

    assert backlog.revoke("a") == held
    assert backlog.revoke("a") is None
    assert claim_by_id(backlog, "a", "w2").worker_id == "w2"
    assert backlog.claims("w1") == []


def test_settling_ends_the_claim() -> None:
    """What is settled is held by nobody, and its files are free."""
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
    """A directory owns what is below it, whichever of the two is claimed first; names that only begin alike do not."""
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
    """An item whose files are held by two waits until both have let go."""
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
    """A refusal for files names everyone who holds one."""
    backlog = backlog_of(
        BacklogItem(id="a", files=("x",)), BacklogItem(id="b", files=("y",)), BacklogItem(id="c", files=("x/1", "y/1"))
    )
    claim(backlog), claim(backlog)

    assert claim_by_id(backlog, "c") == Refusal("c", RefusalReason.FILES, ("a", "b"))


@pytest.mark.parametrize("path", ["/etc/passwd", "../other", "src/../../other"])
def test_path_out_of_the_workspace(path: str) -> None:
    """A path that leads out of the workspace is refused with the field and the fix, and nothing is added."""
    backlog = Backlog()

    with pytest.raises(ValueError, match=r"files: .* leads out of the workspace; give a path relative to it"):
        backlog.add(BacklogItem(id="a", files=(path,)))
    assert "a" not in backlog


def test_paths_have_one_spelling() -> None:
    """Paths that mean the same are one, and what a directory owns already is not owned twice."""
    assert spelled(["./b/", "a//x", "b/c", "a/x"]) == ("a/x", "b")
    assert spelled(["b", "."]) == ("",)


def test_nothing_is_left_of_paths_that_were_given_back() -> None:
    """Who holds nothing any more blocks nobody."""
    paths = OwnedPaths()
    paths.take("a", ("x/1", "y"))
    paths.give_back(("x/1", "y"))

    assert paths.blockers(("x", "y/2", "")) == ()


# ------------------------------------------------------------------------------------------------------------ why not
def test_every_reason_has_its_words() -> None:
    """What cannot be claimed says why, and names what it is about."""
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
    """What was never added is told apart from what cannot be claimed."""
    with pytest.raises(UnknownItem, match="no item 'x' is in the backlog; add it first"):
        claim_by_id(Backlog(), "x")


def test_added_once() -> None:
    """An id stands for one item."""
    backlog = backlog_of(BacklogItem(id="a"))

    with pytest.raises(ValueError, match="'a' is in the backlog already; use another id, or reopen it"):
        backlog.add(BacklogItem(id="a"))
    assert len(backlog) == 1


def test_waiting_for_itself() -> None:
    """An item that waits for itself would wait for ever."""
    with pytest.raises(ValueError, match="'a' cannot wait for itself"):
        Backlog().add(BacklogItem(id="a", after=("a",)))


# ------------------------------------------------------------------------------------------------------------ the cost
def test_one_file_wanted_by_many_costs_one_look() -> None:
    """However many items want a file that is held, whoever asks for work looks at it once."""
    backlog = backlog_of(*(BacklogItem(id=str(number), files=("pyproject.toml",)) for number in range(500)))
    looked: list[tuple[str, ...]] = []
    blocker = backlog._paths.blocker
    backlog._paths.blocker = lambda paths: looked.append(tuple(paths)) or blocker(paths)  # type: ignore[method-assign]
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
    """Everything in lists; every question is answered by looking at all of it."""

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
    """Anything that can be asked of a backlog, in any order: it answers as the model does."""

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
            claim = self.backlog.claim(worker, WORKERS[worker], **asked)
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
        """Invariant 14: an item has at most one holder, the last one that it was granted to."""
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
        """Invariant 15: every item is settled, held, claimable, or waiting for something that is named."""
        for item in self.model.items:
            refusal = self.backlog.refusal(item.id)
            claimable = self.model.fits(item, None, "none")
            assert (refusal is None) is claimable
            assert refusal is None or refusal.named or refusal.why in (RefusalReason.SETTLED, RefusalReason.ON_HOLD)

    def teardown(self) -> None:
        """Invariant 20: what dead workers held is free within its lease, and everything that can be claimed is."""
        if not hasattr(self, "backlog"):  # it never began
            return
        self.backlog.expired(self.now_s + 20.0)
        assert self.backlog.claims() == []
        self.model.claims.clear()
        while (expected := self.model.best(None, "none")) is not None:
            claim = self.backlog.claim("any", None, now_s=self.now_s, lease_s=5.0)
            assert claim is not None
            assert claim.item_id == expected
            self.backlog.settle(claim.item_id, completed=True)
            self.model.outcomes[claim.item_id] = True
        assert self.backlog.claim("any", None, now_s=self.now_s, lease_s=5.0) is None


BacklogMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBacklog = BacklogMachine.TestCase
