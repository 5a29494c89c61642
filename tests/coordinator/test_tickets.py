"""One ticket, at most one contribution, at most one fate; whatever else is refused and changes nothing."""

import math

import pytest

from pslab.verify.harness import CoordinatorHarness, granted, notices, refusals
from psserver.coordinator import entries
from psserver.coordinator.outputs import CancelNotice, DispositionNotice, GrantNotice
from psserver.coordinator.tickets import REMEMBERED


@pytest.mark.parametrize("verb", ["commits", "abandons"])
def test_unknown_and_foreign_tickets(verb: str) -> None:
    house = CoordinatorHarness(workers=2).starts()
    own, foreign, before = house.holds("w0"), house.holds("w1"), house.state()
    act = house.commits if verb == "commits" else house.abandons
    word = verb[:-1]
    (message,) = refusals(act("w0", 999))
    assert message == (
        f"{word} of ticket 999 by w0: it is unknown: never granted, or settled long ago; expected ticket {own}"
    )
    (message,) = refusals(act("w0", foreign))
    assert message == f"{word} of ticket {foreign} by w0: it is w1's; expected ticket {own}"
    assert house.state() == before


def test_without_a_ticket_none_is_expected() -> None:
    house = CoordinatorHarness("sync", workers=2).starts()
    house.commits("w0")
    (message,) = refusals(house.commits("w0", 999))
    assert message.endswith("expected no ticket (none is open)")


def test_a_commit_sent_twice_is_answered_twice_and_counted_once() -> None:
    house = CoordinatorHarness(workers=2).starts()
    ticket = house.holds("w0")
    first = notices(house.commits("w0", ready=False), DispositionNotice)
    before = house.state()
    assert notices(house.commits("w0", ticket, samples=99, ready=False), DispositionNotice) == first
    assert house.state() == before


def test_a_repeated_commit_that_asked_brings_the_grant_again() -> None:
    house = CoordinatorHarness(workers=2).starts()
    ticket = house.holds("w0")
    (grant,) = notices(house.commits("w0"), GrantNotice)
    before = house.state()
    assert notices(house.commits("w0", ticket), GrantNotice) == [grant]
    assert house.state() == before


def test_a_commit_after_a_cancel_is_void() -> None:
    house = CoordinatorHarness("sync", {"backup": 1}, workers=2).starts()
    ticket = house.holds("w1")
    assert notices(house.commits("w0"), CancelNotice) == [
        CancelNotice(ticket or 0, "version 1 was made without it")
    ]
    (fate,) = notices(house.commits("w1", ticket, ready=False), DispositionNotice)
    assert (fate.fate, fate.reason) == ("dropped", "cancelled")
    assert house.coordinator.roster.tally("w1").committed == 0


def test_what_is_abandoned_can_not_be_committed() -> None:
    house = CoordinatorHarness(workers=2).starts()
    ticket = house.holds("w0")
    assert notices(house.abandons("w0", reason="nonfinite"), DispositionNotice) == [
        DispositionNotice(ticket or 0, "dropped", reason="nonfinite")
    ]
    (fate,) = notices(house.commits("w0", ticket, ready=False), DispositionNotice)
    assert fate.fate == "dropped"
    assert house.abandons("w0", ticket) == []
    assert house.kinds.count("abandon") == 1


def test_after_abandoning_one_asks_again() -> None:
    house = CoordinatorHarness(workers=2).starts()
    first = house.holds("w0")
    house.abandons("w0")
    (second,) = granted(house.ready("w0"))
    assert first is not None and second > first


def test_a_ticket_of_a_former_incarnation_is_void() -> None:
    house = CoordinatorHarness(workers=2).starts()
    ticket = house.holds("w0")
    house.joins("w0", "B")
    (fate,) = notices(house.commits("w0", ticket, ready=False), DispositionNotice)
    assert (fate.fate, fate.reason) == ("dropped", "left")
    assert "commit" not in house.kinds


def test_settled_tickets_are_remembered_for_a_while() -> None:
    house = CoordinatorHarness(workers=1).starts()
    first = house.holds("w0")
    for _ in range(REMEMBERED):
        house.commits("w0")
    assert notices(house.commits("w0", first, ready=False), DispositionNotice)[0].version == 1
    house.commits("w0")
    assert "settled long ago" in refusals(house.commits("w0", first, ready=False))[0]


def test_one_ask_one_ticket() -> None:
    house = CoordinatorHarness(workers=1).starts()
    for _ in range(20):
        outputs = house.commits("w0")
        assert len(granted(outputs)) == 1
        house.ready("w0")
    numbers = [grant.ticket for grant in house.entries(entries.Grant)]
    assert numbers == sorted(set(numbers))


def test_what_a_commit_says_is_written_down() -> None:
    house = CoordinatorHarness(workers=1).starts()
    house.commits("w0", batch=7, samples=32, loss=0.25, norm=3.5)
    assert house.entries(entries.Commit)[-1].to_json() == {
        "kind": "commit", "worker": "w0", "ticket": 2, "batch": 7, "samples": 32, "loss": 0.25, "norm": 3.5
    }  # fmt: skip
    assert house.coordinator.roster.tally("w0").samples == 32


def test_a_loss_that_is_not_finite_is_null_in_the_log() -> None:
    house = CoordinatorHarness(workers=1).starts()
    house.commits("w0", loss=math.nan, norm=math.inf)
    said = house.entries(entries.Commit)[-1].to_json()
    assert (said["loss"], said["norm"]) == (None, None)
    assert house.coordinator.loss is None
    house.commits("w0", loss=2.0)
    house.commits("w0", loss=1.0)
    assert house.coordinator.loss == pytest.approx(1.9)


def test_fates_are_told_to_whom_they_concern() -> None:
    house = CoordinatorHarness("bounded", {"aggregate": 2}, workers=2).starts()
    first, second = house.holds("w0"), house.holds("w1")
    assert notices(house.commits("w0", ready=False), DispositionNotice) == [
        DispositionNotice(first or 0, "pending")
    ]
    house.commits("w1", ready=False)
    told = [(t.worker, t.notice) for t in house.told if isinstance(t.notice, DispositionNotice)][-2:]
    assert told == [
        ("w0", DispositionNotice(first or 0, "applied", 1, 0, 0.5)),
        ("w1", DispositionNotice(second or 0, "applied", 1, 0, 0.5)),
    ]


def test_a_contribution_outlives_its_worker() -> None:
    house = CoordinatorHarness("bounded", {"aggregate": 2}, workers=2).starts()
    house.commits("w0", ready=False)
    house.leaves("w0")
    house.commits("w1")
    assert [part.worker for part in house.entries(entries.Apply)[0].parts] == ["w0", "w1"]
    # Nobody is told of a fate in the name of another process.
    assert house.told[-1].worker == "w1"


def test_a_newcomer_is_not_told_what_its_predecessor_did() -> None:
    house = CoordinatorHarness(workers=2).starts()
    house.commits("w0", ready=False)
    house.leaves("w0")
    before = len(house.told)
    house.joins("w0", "B")
    assert house.told[before:] == []


def test_numbers_and_indices() -> None:
    house = CoordinatorHarness("sync", workers=3).starts()
    for _ in range(4):
        for worker in ("w1", "w2", "w0"):
            house.commits(worker)
    assert [record.index for record in house.log] == list(range(len(house.log)))
    assert [apply.version for apply in house.entries(entries.Apply)] == [1, 2, 3, 4]
    grants = {g.ticket: r.index for r in house.log if isinstance(g := r.entry, entries.Grant)}
    for tell in house.told:
        if isinstance(tell.notice, GrantNotice) and not tell.notice.initialise:
            assert tell.notice.index == grants[tell.notice.ticket]
