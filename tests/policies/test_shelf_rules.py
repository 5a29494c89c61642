"""The further policies one by one: what a few facts must lead to, and which knobs are refused."""

import pytest

from psserver.policies import Apply, Cancel, Commit, Drop, PolicyError, build, describe, names
from psserver.policies.shelf import SHELF, knobs_of
from psserver.policies.weights import FAMILIES, Concurrency
from tests.policies.table import Table, kinds, sit


def test_k_sync_takes_the_first_k_and_cancels_the_others() -> None:
    table = sit("k-sync", workers=4, aggregate=2)
    assert kinds(table.commit("w2")) == ["Fold"]
    assert table.waits("w2")
    assert table.policy.explain("w2").event == "version 1, which needs a commit of w0, w1, w3"  # type: ignore[union-attr]
    assert kinds(table.commit("w0")) == ["Apply", "Cancel", "Cancel", "Grant"]
    assert table.authors(table.updates[0]) == ["w2", "w0"]
    assert table.updates[0].scale == 0.5
    assert [table.owner[t] for t in table.cancelled] == ["w1", "w3"]
    assert set(table.cancelled.values()) == {"version 1 was made without it"}


def test_k_sync_may_drop_the_late_instead() -> None:
    """TensorFlow's SyncReplicasOptimizer drops a gradient whose step has passed."""
    table = sit("k-sync", workers=3, aggregate=2, late="drop")
    table.commit("w0")
    assert kinds(table.commit("w1")) == ["Apply", "Grant"]
    late = table.held["w2"]
    assert table.commit("w2") == [Drop(late, "stale")]
    assert table.version == 1 and "w2" in table.held


def test_k_sync_keeps_its_number_when_workers_join_and_goes_on_when_few_are_left() -> None:
    table = sit("k-sync", workers=3, aggregate=2)
    table.join("w3")
    table.ready("w3")
    table.commit("w0")
    assert "Apply" in kinds(table.commit("w3"))
    for worker in ("w1", "w2", "w3"):
        table.leave(worker)
    assert "Apply" in kinds(table.commit("w0"))
    assert table.version == 2


def test_sync_with_backup_grows_with_its_workers_and_k_sync_does_not() -> None:
    """Where the two differ: `backup` counts who need not come, `aggregate` who must."""
    for name, knobs, versions in (("sync", {"backup": 1}, 0), ("k-sync", {"aggregate": 2}, 1)):
        table = sit(name, workers=3, **knobs)
        table.join("w3")
        table.ready("w3")
        table.commit("w0")
        table.commit("w1")
        assert table.version == versions


def test_k_batch_sync_takes_several_of_one_worker_and_cancels_all_others() -> None:
    table = sit("k-batch-sync", workers=3, aggregate=3)
    table.commit("w0")
    assert not table.waits("w0")
    table.commit("w0")
    decisions = table.commit("w0", again=False)
    assert kinds(decisions) == ["Apply", "Cancel", "Cancel"]
    assert table.authors(table.updates[0]) == ["w0"] * 3
    assert table.staleness == [0, 0, 0]


def test_k_batch_sync_cancels_what_a_contributor_has_begun_anew() -> None:
    table = sit("k-batch-sync", workers=2, aggregate=2)
    table.commit("w0")
    decisions = table.commit("w1", again=False)
    assert [table.owner[d.ticket] for d in decisions if isinstance(d, Cancel)] == ["w0"]


def test_rennala_drops_what_was_begun_before_the_update() -> None:
    table = sit("rennala", workers=3, aggregate=2)
    table.commit("w0")
    table.commit("w0")
    assert table.version == 1 and not table.cancelled
    stale = table.held["w1"]
    assert table.commit("w1") == [Drop(stale, "stale")]
    assert kinds(table.commit("w1")) == ["Fold"]


def test_k_async_waits_for_other_workers_and_takes_them_however_old() -> None:
    table = sit("k-async", workers=3, aggregate=2)
    for _ in range(3):
        table.commit("w0")
        assert table.waits("w0")
        table.commit("w1")
    assert table.version == 3 and not table.cancelled
    table.commit("w2")
    table.commit("w0")
    assert table.staleness[-2:] == [3, 0]
    assert table.authors(table.updates[-1]) == ["w2", "w0"]


def test_k_batch_async_takes_whatever_comes() -> None:
    table = sit("k-batch-async", workers=3, aggregate=2)
    table.commit("w0")
    table.commit("w0")
    table.commit("w1")
    table.commit("w0")
    assert table.staleness == [0, 0, 1, 0]
    assert [u.scale for u in table.updates] == [0.5, 0.5]


@pytest.mark.parametrize(("workers", "n", "size"), [(4, 1, 4), (4, 2, 2), (4, 3, 1), (4, 4, 1), (7, 2, 3)])
def test_softsync_takes_a_share_of_the_workers(workers: int, n: int, size: int) -> None:
    table = sit("softsync", workers=workers, n=n)
    for _ in range(size):
        assert table.version == 0
        table.commit("w0")
    assert table.version == 1


def test_softsync_divides_by_the_staleness() -> None:
    table = sit("softsync", workers=4, n=4)
    for worker in ("w0", "w1", "w2", "w3"):
        table.commit(worker)
    assert [u.parts[0].factor for u in table.updates] == [1.0, 1.0, 1 / 2, 1 / 3]


def test_fedbuff_weighs_by_staleness_and_divides_by_k() -> None:
    table = sit("fedbuff", workers=3, aggregate=2)
    for worker in ("w0", "w0", "w1", "w2"):
        table.commit(worker)
    (first, second) = table.updates
    assert [p.factor for p in first.parts] == [1.0, 1.0]
    assert [p.factor for p in second.parts] == [pytest.approx(2**-0.5)] * 2
    assert (first.scale, second.scale) == (0.5, 0.5)
    assert second.lr_scale == 1.0


def test_fedbuff_may_sum() -> None:
    table = sit("fedbuff", workers=2, aggregate=2, norm="sum")
    table.commit("w0")
    table.commit("w0")
    assert table.updates[0].scale == 1.0


@pytest.mark.parametrize(
    ("family", "weights"),
    [
        ("const", [1, 1, 1, 1]),
        ("inverse", [1, 1, 1 / 2, 1 / 5]),
        ("polynomial", [1, 2**-10.0, 3**-10.0, 6**-10.0]),
        # Xie et al. 2019 with a = 10, b = 4: it falls from 1 to 1/11 in one step.
        ("hinge", [1, 1, 1, 1 / 11]),
        ("exponential", [1, pytest.approx(4.54e-5, rel=1e-3), pytest.approx(2.06e-9, rel=1e-2), 0]),
        ("threshold", [1, 1, 1, 10]),
    ],
)
def test_weight_families(family: str, weights: list[float]) -> None:
    weight = FAMILIES[family](10.0, 4)
    assert [weight(staleness) for staleness in (0, 1, 2, 5)] == pytest.approx(weights, abs=1e-15)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_gradient_counts_in_full_and_nothing_ever_counts_for_less_than_nothing(family: str) -> None:
    weight = FAMILIES[family](0.5, 3)
    values = [weight(staleness) for staleness in range(2000)]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert values[-1] >= 0.0


def test_delay_adaptive_scales_the_learning_rate_and_not_the_gradient() -> None:
    """Mishchenko et al. 2022: eta M / max(M, tau)."""
    table = sit("delay-adaptive", workers=2, concurrency=2)
    for _ in range(4):
        table.commit("w0")
    table.commit("w1")
    assert [u.lr_scale for u in table.updates] == [1, 1, 1, 1, 2 / 4]
    assert {p.factor for u in table.updates for p in u.parts} == {1.0}


def test_delay_adaptive_takes_the_number_of_workers_for_m() -> None:
    assert Concurrency(3)(6) == 0.5
    table = sit("delay-adaptive", workers=2)
    for _ in range(4):
        table.commit("w0")
    table.commit("w1")
    assert table.updates[-1].lr_scale == 0.5


def test_ringmaster_ignores_what_is_r_versions_old() -> None:
    table = sit("ringmaster", workers=2, threshold=2)
    table.commit("w0")
    table.commit("w1")
    assert table.staleness == [0, 1]
    table.commit("w0")
    table.commit("w0")
    table.commit("w0")
    late = table.held["w1"]
    assert table.commit("w1") == [Drop(late, "stale")]
    assert max(table.staleness) == 1


def test_ringmaster_stops_what_has_become_r_versions_old() -> None:
    table = sit("ringmaster", workers=3, threshold=2, stops=True)
    table.commit("w0")
    assert not table.cancelled
    table.commit("w0")
    assert [table.owner[t] for t in table.cancelled] == ["w1", "w2"]
    table.ready("w1")
    table.commit("w1")
    assert not table.dropped


def test_ringmaster_of_one_is_the_fastest_worker_alone() -> None:
    table = sit("ringmaster", workers=3, threshold=1, stops=True)
    for _ in range(5):
        table.commit("w0")
        table.ready("w1", "w2")
    assert {table.authors(u)[0] for u in table.updates} == {"w0"}


def test_dc_asgd_compensates_all_that_is_stale() -> None:
    table = sit("dc-asgd", workers=2, compensation=0.5)
    assert table.policy.keep_bases
    table.commit("w0")
    table.commit("w1")
    assert [u.parts[0].compensation for u in table.updates] == [0.0, 0.5]


# DSSP: the controller, on times of which one can think


class Clocked(Table):
    """A table at which every commit has its time."""

    now = 0.0

    def commits(self, worker: str, at: float) -> None:
        ticket = self.held.pop(worker)
        self.tell(Commit(worker, ticket, 8, 0.5, 1.0, at))
        self.ready(worker)


def dssp(lower: int, upper: int, *, literal: bool = False, workers: int = 2) -> Clocked:
    table = Clocked(build("dssp", {"lower": lower, "upper": upper, "literal": literal}, workers))
    everyone = [f"w{rank}" for rank in range(workers)]
    table.join(*everyone)
    table.ready(*everyone)
    return table


def test_dssp_without_times_is_ssp() -> None:
    table = dssp(1, 5)
    table.commits("w0", 1.0)
    table.commits("w0", 2.0)
    assert table.waits("w0")
    assert table.policy.explain("w0").event == (  # type: ignore[union-attr]
        "w1 to complete clock 1 (now at 0; w0 is at 2, slack 1 for now)"
    )


def test_dssp_lets_the_fastest_do_what_makes_it_wait_least() -> None:
    """w1 takes 10 s and commits next at 30; w0 takes 1 s and is at 25: five further units end at 30."""
    table = dssp(1, 9)
    table.commits("w1", 10.0)
    table.commits("w1", 20.0)
    for at in (22.0, 23.0, 24.0):
        table.commits("w0", at)
    table.commits("w0", 25.0)
    assert not table.waits("w0")
    for unit in range(5):
        assert not table.waits("w0"), unit
        table.commits("w0", 26.0 + unit)
    # All used up, at clock 9 against 2; the next choice is made anew.
    assert table.version == 11


def test_dssp_never_exceeds_its_upper_slack_and_the_literal_one_does() -> None:
    for literal in (False, True):
        table = dssp(1, 3, literal=literal)
        table.commits("w1", 100.0)
        table.commits("w1", 200.0)
        at = 200.0
        while not table.waits("w0") and table.version < 50:
            at += 1.0
            table.commits("w0", at)
        # w0 waits once it is 4 clocks ahead: it executes none beyond 3.
        assert table.version == (50 if literal else 2 + 2 + 4)


def test_dssp_with_equal_bounds_is_ssp() -> None:
    table = dssp(2, 2)
    for at in (1.0, 2.0, 3.0):
        table.commits("w0", at)
    assert table.waits("w0")


@pytest.mark.parametrize("leaves", [False, True])
def test_dssp_forgets_the_times_of_one_that_left(leaves: bool) -> None:
    """Who comes back starts without a past: its first commit says nothing of its pace."""
    table = dssp(0, 9)
    for at in (1.0, 11.0):
        table.commits("w0", at)
        table.commits("w1", at + 9.0)
    if leaves:
        table.leave("w0")
        table.join("w0")
        table.ready("w0")
    table.commits("w0", 21.0)
    assert table.waits("w0") == leaves


# Knobs


@pytest.mark.parametrize(
    ("name", "knobs", "sentence"),
    [
        ("k-sync", {"aggregate": 5}, "policy.aggregate is 5, but there are 4 workers"),
        ("k-sync", {"aggregate": 0}, "policy.aggregate is 0; expected at least 1"),
        ("k-sync", {"late": "never"}, "policy.late is 'never'; expected one of cancel, drop"),
        ("k-batch-sync", {"aggregate": 5}, "policy.aggregate is 5, but there are 4 workers"),
        ("rennala", {"aggregate": 5}, "policy.aggregate is 5, but there are 4 workers"),
        ("k-async", {"aggregate": 5}, "policy.aggregate is 5, but there are 4 workers"),
        ("k-batch-async", {"aggregate": 5}, "policy.aggregate is 5, but there are 4 workers"),
        ("softsync", {"n": 5}, "policy.n is 5, but there are 4 workers: an update of floor(workers / n)"),
        ("softsync", {"n": 0}, "policy.n is 0; expected at least 1"),
        ("fedbuff", {"weight": "constant"}, "policy.weight is 'constant'; expected one of const, inverse"),
        ("fedbuff", {"a": -1.0}, "policy.a is -1.0; expected at least 0"),
        ("fedbuff", {"b": -1}, "policy.b is -1; expected at least 0"),
        ("fedbuff", {"norm": "max"}, "policy.norm is 'max'; expected one of mean, sum"),
        ("delay-adaptive", {"concurrency": -1}, "policy.concurrency is -1; expected at least 0"),
        ("ringmaster", {"threshold": 0}, "policy.threshold is 0; expected at least 1"),
        ("ringmaster", {"stops": 1}, "policy.stops is 1; expected true or false"),
        ("ringmaster", {"stops": "yes"}, "policy.stops is 'yes'; expected true or false"),
        ("ringmaster", {"threshold": True}, "policy.threshold is True; expected a whole number such as 4"),
        ("dssp", {"lower": -1}, "policy.lower is -1; expected at least 0"),
        ("dssp", {"lower": 4, "upper": 3}, "policy.upper is 3; expected at least policy.lower, which is 4"),
        ("dc-asgd", {"compensation": -0.5}, "policy.compensation is -0.5; expected at least 0"),
        ("dc-asgd", {"lambda": 1}, "policy dc-asgd has no knob 'lambda'; known: compensation"),
    ],
)
def test_knobs_out_of_range(name: str, knobs: dict[str, object], sentence: str) -> None:
    with pytest.raises(PolicyError) as caught:
        build(name, knobs, 4)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("name", names())
def test_every_entry_is_documented(name: str) -> None:
    entry = SHELF[name]
    first = (entry.__doc__ or "").splitlines()[0]
    assert first.endswith(".") and len(first) < 120
    for text in (entry.guarantee, entry.source, entry.cost.stores, entry.cost.work, entry.cost.waste):
        assert text
    for knob in knobs_of(entry):
        assert knob.meaning and knob.range
    assert entry.cost.waste in describe(name)


def test_an_update_of_one_is_unscaled_whatever_the_policy() -> None:
    for name in names():
        policy = sit(name, workers=1, **({"aggregate": 1} if "aggregate" in _knobs(name) else {}))
        assert [d.scale for d in policy.commit("w0") if isinstance(d, Apply)] == [1.0]


def _knobs(name: str) -> list[str]:
    return [knob.name for knob in knobs_of(SHELF[name])]
