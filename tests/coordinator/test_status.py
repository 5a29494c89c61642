"""What the cluster is doing, and for what and whom each waiting worker waits, since when."""

import re

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import inputs
from psserver.coordinator.roster import NAMED_LIMIT, named
from psserver.coordinator.status import LISTED_LIMIT, holdup, report
from tests.sentences import Recorder


def test_the_longest_wait_is_the_hold_up() -> None:
    harness = CoordinatorHarness("sync", workers=3).starts()
    assert holdup(harness.coordinator, harness.now) is None
    harness.commits("w2")
    harness.passes(2)
    harness.commits("w0")
    harness.passes(1)
    held = holdup(harness.coordinator, harness.now)
    assert held is not None
    assert held[0] == 3.0
    assert held[1].startswith("w2 has waited 3.0 s for version 1, which needs a commit of w1")
    harness.take(harness.coordinator.take(inputs.Stopping("so", True, "done"), harness.now))
    assert holdup(harness.coordinator, harness.now) is None


def test_the_numbers_of_a_report() -> None:
    harness = CoordinatorHarness("bounded", {"max_staleness": 0}, workers=2).starts()
    for _ in range(3):
        harness.commits("w0", samples=10)
    harness.commits("w1", samples=10)
    picture = report(harness.coordinator, harness.now)
    assert (picture.version, picture.committed, picture.applied, picture.dropped) == (3, 4, 3, 1)
    assert (picture.samples, picture.pending, picture.max_staleness) == (40, 0, 0)
    w0, w1 = picture.workers
    assert (w0.state, w0.committed, w0.applied, w0.dropped, w0.base_version) == ("computing", 3, 3, 0, 3)
    assert (w1.committed, w1.applied, w1.dropped) == (1, 0, 1)
    assert w0.ticket == harness.holds("w0")


def test_staleness_in_a_report() -> None:
    harness = CoordinatorHarness(workers=2).starts()
    for _ in range(4):
        harness.commits("w0")
    harness.commits("w1")
    picture = report(harness.coordinator, harness.now)
    assert (picture.mean_staleness, picture.max_staleness) == (4 / 5, 4)
    assert [(w.mean_staleness, w.max_staleness) for w in picture.workers] == [(0.0, 0), (4.0, 4)]


def test_its_size_does_not_grow_with_whoever_joined() -> None:
    """Hundreds that wait for each other: some have a line and a name, the others are counted."""
    harness = CoordinatorHarness(workers=200)
    names = [f"w{number}" for number in range(190)]
    harness.gathers(*names)
    for name in names[150:]:
        harness.leaves(name)
    harness.ready(*names[:50])
    harness.commits("w0")
    found = report(harness.coordinator, harness.now)
    assert len(found.workers) == LISTED_LIMIT and found.unlisted == 190 - LISTED_LIMIT
    waiting = [worker for worker in found.workers if worker.waiting_for]
    assert waiting and all(len(worker.releasers) <= NAMED_LIMIT for worker in waiting)
    assert all(len(worker.waiting_for) < 1000 for worker in waiting)
    assert re.search(r"; and \d+ more\)", waiting[-1].waiting_for)


def test_of_those_who_left_the_newest_have_a_line() -> None:
    harness = CoordinatorHarness(workers=1)
    names = [f"w{number}" for number in range(LISTED_LIMIT + 20)]
    for name in names:
        harness.gathers(name)
        harness.leaves(name)
    harness.gathers("w1000")
    listed = [worker.name for worker in report(harness.coordinator, harness.now).workers]
    assert listed == ["w1000", *names[21:]]


def test_a_note_names_some(sentences: Recorder) -> None:
    assert named(["a", "b"]) == "a, b"
    sentences.check(named([f"w{n}" for n in range(20)]))
