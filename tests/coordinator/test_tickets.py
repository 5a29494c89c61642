"""One ticket, at most one contribution, at most one fate; whatever else is refused and changes nothing."""

import math

import pytest

from pslab.verify.harness import CoordinatorHarness, notices, refusals
from psserver.coordinator.roster import REMEMBERED_TICKETS
from psserver.decisions import entries
from pswire import protocol
from tests.lab.logs import verify


def test_settled_tickets_are_remembered_for_a_while() -> None:
    harness = CoordinatorHarness(workers=1).starts()
    first = harness.holds("w0")
    for _ in range(REMEMBERED_TICKETS):
        harness.commits("w0")
    assert notices(harness.commits("w0", first, ready=False), protocol.Disposition)[0].version == 1
    harness.commits("w0")
    assert "settled long ago" in refusals(harness.commits("w0", first, ready=False))[0]


def test_a_loss_that_is_not_finite_is_null_in_the_log() -> None:
    harness = CoordinatorHarness(workers=1).starts()
    harness.commits("w0", loss=math.nan, norm=math.inf)
    said = harness.entries(entries.Commit)[-1].to_json()
    assert (said["loss"], said["norm"]) == (None, None)
    assert harness.coordinator.state.loss is None
    harness.commits("w0", loss=2.0)
    harness.commits("w0", loss=1.0)
    assert harness.coordinator.state.loss == pytest.approx(1.9)


def test_numbers_and_indices() -> None:
    harness = CoordinatorHarness("sync", workers=3).starts()
    for _ in range(4):
        for worker in ("w1", "w2", "w0"):
            harness.commits(worker)
    assert [record.index for record in harness.log] == list(range(len(harness.log)))
    assert [apply.version for apply in harness.entries(entries.Apply)] == [1, 2, 3, 4]
    grants = {g.ticket: r.index for r in harness.log if isinstance(g := r.entry, entries.Grant)}
    for tell in harness.told:
        if isinstance(tell.notice, protocol.Grant) and not tell.notice.initialise:
            assert tell.notice.index == grants[tell.notice.ticket]


# Residuals of codecs with error feedback


def with_codec(policy: str, **knobs: object) -> CoordinatorHarness:
    harness = CoordinatorHarness(policy, knobs, workers=2).starts()
    for name in ("w0", "w1"):
        # As if it had joined with such a codec.
        harness.coordinator.state.roster.present[name].remembers = True
    return harness


@pytest.mark.parametrize("wrong", [0, 999, "own"])
def test_a_residual_that_is_not_of_the_last_commit_is_refused(wrong: object) -> None:
    harness = with_codec("async")
    first = harness.holds("w0")
    harness.commits("w0")
    second = harness.holds("w0")
    written = len(harness.log)
    for residual in (None, second if wrong == "own" else wrong):
        assert refusals(harness.commits("w0", residual=residual))
    assert len(harness.log) == written and harness.holds("w0") == second
    assert not refusals(harness.commits("w0", residual=first))
    assert not refusals(harness.commits("w0", residual=second))
    assert verify([{"i": r.index, "t": round(r.t, 6), **r.entry.to_json()} for r in harness.log]).ok


def test_the_residual_of_a_dropped_commit_may_be_known_or_not() -> None:
    for knows in (False, True):
        harness = with_codec("bounded", max_staleness=0)
        harness.commits("w1")
        before = None
        # Stale: dropped at once.
        stale = harness.holds("w0")
        harness.commits("w0")
        assert harness.entries(entries.Drop)[-1].ticket == stale
        assert refusals(harness.commits("w0", residual=7))
        assert not refusals(harness.commits("w0", residual=before if knows else stale))


def test_a_worker_whose_codec_remembers_nothing_names_no_residual() -> None:
    harness = CoordinatorHarness("async", {}, workers=2).starts()
    assert refusals(harness.commits("w0", residual=1))
    assert not refusals(harness.commits("w0"))
    assert refusals(harness.commits("w0", residual=harness.entries(entries.Commit)[-1].ticket))
