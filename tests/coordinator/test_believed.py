"""What makes work of all vanish is believed against the job's terms, and of more members than the policy tolerates."""

import random

import pytest

from pslab.verify.harness import CoordinatorHarness, notices
from psserver.coordinator.units import WorkTerms
from psserver.service.job.reports import Progress
from pswire import protocol
from pswire.decisions import entries
from tests.promises import promise
from tests.repetitions import seeds
from tests.sentences import Recorder

ROBUST = (("trimmed-mean", {"trim": 1}), ("krum", {"byzantine": 1}), ("median", {}))


def job(
    policy: str, workers: int, *, knobs: dict[str, object] | None = None, **work: int
) -> CoordinatorHarness:
    terms = {"allow_missing": False}
    found = CoordinatorHarness(policy, knobs or {}, workers, terms, now=0.0, work=WorkTerms(**work))
    return found.starts()


def parts(harness: CoordinatorHarness) -> set[tuple[int | None, int | None, int | None]]:
    """The parts that were applied."""
    grants = {grant.ticket: (grant.epoch, grant.unit, grant.part) for grant in harness.entries(entries.Grant)}
    return {grants[part.ticket] for apply in harness.entries(entries.Apply) for part in apply.parts}


def cause(harness: CoordinatorHarness) -> str:
    assert harness.coordinator.state.stopped is not None
    return harness.coordinator.state.stopped.cause


# Against the job's terms


@pytest.mark.parametrize("policy", ["async", "sync"])
def test_a_unit_of_known_length_does_not_end_earlier(policy: str, sentences: Recorder) -> None:
    harness = job(policy, 2, units=2, batches=5)
    ticket = harness.holds("w0")
    sent = notices(harness.commits("w0", unit_ends=True), protocol.Refusal)
    sentences.check(sent[0].message)
    assert harness.holds("w0") == ticket and not harness.entries(entries.Commit)
    sent = notices(harness.abandons("w0", unit_ends=True), protocol.Refusal)
    sentences.check(sent[0].message)
    while not harness.stopped:
        for worker in ("w0", "w1"):
            if harness.holds(worker) is not None:
                harness.commits(worker)
    assert len(parts(harness)) == 10 and cause(harness) == "done"


def test_the_last_unit_may_have_fewer_batches_and_no_other_one() -> None:
    harness = job("async", 2, units=2, epochs=2, batches=3, last=1)
    while not harness.stopped:
        for worker in ("w0", "w1"):
            if harness.holds(worker) is not None:
                harness.commits(worker)
    assert parts(harness) == {(e, u, p) for e in (0, 1) for u, p in ((0, 0), (0, 1), (0, 2), (1, 0))}
    assert harness.verdict().ok and cause(harness) == "done"


# Of more members than the policy tolerates


class Liars:
    """Honest workers, and as many as the policy tolerates that do what harms most with every ticket."""

    def __init__(self, policy: str, knobs: dict[str, object], seed: int) -> None:
        self.dice = random.Random(f"{policy} {seed}")
        self.known = self.dice.random() < 0.5
        self.lengths = [3 if self.known else self.dice.randint(1, 4) for _ in range(15)]
        self.harness = job(policy, 5, knobs=knobs, units=15, batches=3 if self.known else 0)
        # Under median, two of five.
        self.liars = self.dice.sample(range(5), self.dice.randint(1, 2 if policy == "median" else 1))

    def run(self) -> None:
        for _ in range(5000):
            if self.harness.stopped:
                return
            worker = f"w{self.dice.randrange(5)}"
            if self.harness.holds(worker) is None:
                self.harness.ready(worker)
            elif int(worker[1:]) in self.liars:
                self.lie(worker)
            else:
                self.work(worker)
        pytest.fail("the job does not end")

    def lie(self, worker: str) -> None:
        ticket = self.harness.coordinator.state.tickets.open_of(worker)[0]
        if self.dice.random() < 0.4:
            self.harness.abandons(worker, ticket.number)
        elif self.dice.random() < 0.5 and not self.known:
            self.harness.abandons(worker, ticket.number, unit_ends=True)
        else:
            self.harness.commits(worker, ticket.number, unit_ends=not self.known)

    def work(self, worker: str) -> None:
        ticket = self.harness.coordinator.state.tickets.open_of(worker)[0]
        assert ticket.part is not None
        length = self.lengths[ticket.part.unit]
        if ticket.part.part >= length:
            self.harness.abandons(worker, ticket.number, unit_ends=True)
        else:
            ends = not self.known and ticket.part.part + 1 == length
            self.harness.commits(worker, ticket.number, unit_ends=ends)


@pytest.mark.parametrize(("policy", "knobs"), ROBUST)
def test_as_many_as_the_policy_tolerates_end_nothing(policy: str, knobs: dict[str, object]) -> None:
    """Parts are skipped only for want of contributions to an update: as one policy drops them, at the end."""
    for seed in seeds(10, soak=1000, fast=4):
        play = Liars(policy, knobs, seed)
        play.run()
        harness, queue = play.harness, play.harness.coordinator.state.work
        assert queue is not None
        assert not any(entry.skipped for entry in harness.entries(entries.Abandon)), seed
        dropped = {drop.ticket for drop in harness.entries(entries.Drop) if drop.skipped}
        grants = {
            grant.ticket: (grant.unit, grant.part)
            for grant in harness.entries(entries.Grant)
            if grant.ticket in dropped
        }
        applied = {(unit, part) for _, unit, part in parts(harness)}
        everything = {(u, p) for u, length in enumerate(play.lengths) for p in range(length)}
        assert everything <= applied | set(grants.values()), seed
        left_over = queue.left_over(harness.coordinator.policy.tensors.fewest)
        assert cause(harness) == ("missing" if grants and not left_over else "done")
        assert harness.verdict().ok, [str(each) for each in harness.verdict().violations]


def test_more_than_the_policy_tolerates_are_believed() -> None:
    harness = job("trimmed-mean", 5, knobs={"trim": 1}, units=1, batches=0)
    while not harness.stopped:
        for number in range(5):
            if harness.holds(f"w{number}") is not None:
                harness.abandons(f"w{number}", unit_ends=True)
                if not harness.stopped:
                    harness.ready(f"w{number}")
    assert harness.stopped.startswith("done: all work units are done")


# What the end says


@promise("Where fewer parts are left than one update needs, they are named, and the job succeeds.")
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("policy", "knobs"), ROBUST)
def test_the_rest_of_the_data_that_makes_no_update_is_named_and_the_job_succeeds(
    policy: str, knobs: dict[str, object], apart: bool, sentences: Recorder
) -> None:
    harness = job(policy, 5, knobs=knobs, units=31, batches=1, epochs=2, apart=apart)
    while not harness.stopped:
        for number in range(5):
            if not harness.stopped and harness.holds(f"w{number}") is not None:
                harness.commits(f"w{number}")
    assert cause(harness) == "done" and harness.verdict().ok
    left = Progress().missing(harness.coordinator)["parts"]
    assert len(parts(harness)) == 62 - left and left == (2 if apart else 62 % 5)
    sentences.check(harness.stopped)


@pytest.mark.parametrize("abandoned", [False, True])
def test_more_than_the_rest_of_an_update_is_no_success(abandoned: bool) -> None:
    """A worker is gone early, or one part is given up by all."""
    harness = job("krum", 5, knobs={"byzantine": 1}, units=31, batches=1)
    turns = 0
    while not harness.stopped:
        for number in range(5):
            worker = f"w{number}"
            if harness.stopped or harness.holds(worker) is None:
                continue
            (ticket,) = harness.coordinator.state.tickets.open_of(worker)
            if abandoned and ticket.part is not None and ticket.part.unit == 3:
                harness.abandons(worker)
                if not harness.stopped:
                    harness.ready(worker)
                continue
            harness.commits(worker)
            turns += 1
            if turns == 10 and not abandoned:
                harness.leaves("w4")
    assert harness.coordinator.state.version and cause(harness) == "missing"


@pytest.mark.parametrize("dealt", [True, False])
def test_a_job_in_which_nothing_was_applied_is_no_success(dealt: bool, sentences: Recorder) -> None:
    """Under krum, one of five is gone: no update has enough contributions."""
    work = WorkTerms(20, batches=1) if dealt else None
    terms = {"allow_missing": False}
    harness = CoordinatorHarness("krum", {"byzantine": 1}, 5, terms, now=0.0, work=work).starts()
    harness.leaves("w4")
    for _ in range(40):
        for number in range(4):
            if not harness.stopped and harness.holds(f"w{number}") is not None:
                harness.commits(f"w{number}")
    for number in range(4):
        if not harness.stopped:
            harness.done(f"w{number}")
    harness.passes(100.0)
    assert harness.coordinator.state.version == 0 and cause(harness) == "missing"
    sentences.check(harness.stopped)
