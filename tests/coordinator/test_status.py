"""What the cluster is doing, and for what and whom each waiting worker waits, since when."""

import re

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator.members.roster import NAMED_LIMIT, named
from psserver.coordinator.status import LISTED_LIMIT, explain, holdup, report
from tests.sentences import Recorder


def waiting_for(harness: CoordinatorHarness, worker: str) -> str:
    reports = {r.name: r for r in report(harness.coordinator, harness.now).workers}
    assert reports[worker].state == "waiting"
    sentence, releasers = explain(harness.coordinator, harness.member(worker), harness.now)
    assert (reports[worker].waiting_for, reports[worker].releasers) == (sentence, releasers)
    return sentence


def phase(harness: CoordinatorHarness) -> str:
    return report(harness.coordinator, harness.now).phase


def test_the_phases_of_a_job() -> None:
    harness = CoordinatorHarness(workers=2)
    assert phase(harness) == "waiting for workers"
    harness.gathers()
    harness.ready("w0")
    assert phase(harness) == "initialising"
    harness.commits("w0")
    assert phase(harness) == "waiting for workers"
    harness.ready("w1")
    assert phase(harness) == "training"
    harness.take(harness.coordinator.stop("so", harness.now, success=True, cause="done"))
    assert phase(harness) == "stopping"
    harness.leaves("w0")
    harness.leaves("w1")
    assert phase(harness) == "stopped"


def test_notes(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=3)
    sentences.check(report(harness.coordinator, harness.now).note)
    harness.joins("w1")
    sentences.check(report(harness.coordinator, harness.now).note)
    harness.gathers("w0", "w2")
    assert report(harness.coordinator, harness.now).note == ""
    harness.take(harness.coordinator.stop("enough", harness.now, success=True, cause="done"))
    note = report(harness.coordinator, harness.now).note
    assert note.startswith(
        "enough; waiting for w0 to evaluate the last version and leave (since 0.0 s, at most 540 s); "
    )
    assert note.endswith("waiting for w2 to leave (since 0.0 s, at most 54 s)")


def test_waiting_for_the_initial_values(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=2)
    harness.gathers()
    harness.ready("w1", "w0")
    harness.passes(4)
    sentences.check(waiting_for(harness, "w0"))


def test_waiting_for_the_start(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=4)
    harness.gathers("w0", "w1", "w2")
    harness.ready("w0")
    harness.commits("w0")
    harness.passes(2)
    sentences.check(waiting_for(harness, "w0"))
    harness.ready("w1")
    harness.done("w2")
    sentences.check(waiting_for(harness, "w0"))


def test_waiting_for_the_barrier(sentences: Recorder) -> None:
    harness = CoordinatorHarness("sync", workers=3).starts()
    harness.commits("w1")
    harness.passes(1.5)
    harness.commits("w0")
    sentences.check(waiting_for(harness, "w1"))
    harness.disconnects("w2")
    harness.now += 1.0
    sentences.check(waiting_for(harness, "w0"))


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
    harness.take(harness.coordinator.stop("so", harness.now, success=True, cause="done"))
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


def test_the_departed_stay_in_the_report() -> None:
    harness = CoordinatorHarness(workers=3).starts()
    harness.commits("w0", ready=False)
    harness.done("w0")
    harness.leaves("w0")
    harness.leaves("w1")
    harness.disconnects("w2")
    harness.now += 2
    states = {r.name: (r.state, r.seconds) for r in report(harness.coordinator, harness.now).workers}
    assert states == {"w2": ("lost", 2.0), "w0": ("done", 0.0), "w1": ("left", 2.0)}


def test_when_all_have_left_the_note_says_how_long_the_job_waits(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=1).starts()
    harness.leaves("w0")
    harness.now += 90
    note = report(harness.coordinator, harness.now).note
    sentences.check(note)


def test_the_note_counts_the_seconds_down_that_one_has_to_come_back(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=2, terms={"worker_timeout": 10.0}).starts()
    harness.done("w0")
    harness.leaves("w1")
    harness.now += 4
    note = report(harness.coordinator, harness.now).note
    sentences.check(note)


def test_its_size_does_not_grow_with_whoever_joined() -> None:
    """Hundreds that wait for each other: some have a line and a name, the others are counted."""
    harness = CoordinatorHarness(workers=400)
    names = [f"w{number}" for number in range(390)]
    harness.gathers(*names)
    for name in names[300:]:
        harness.leaves(name)
    harness.ready(*names[:50])
    harness.commits("w0")
    found = report(harness.coordinator, harness.now)
    assert len(found.workers) == LISTED_LIMIT and found.unlisted == 390 - LISTED_LIMIT
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
