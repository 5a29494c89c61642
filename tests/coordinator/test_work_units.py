"""Work units by schedules: whatever workers do, each part counts once per epoch, and the job ends."""

import json
import random
import re
from collections import Counter

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import Coordinator, Declined, JobState, inputs
from psserver.coordinator import work as work_queue
from psserver.coordinator.units import MAX_LOSSES, WorkTerms
from psserver.coordinator.work import MAX_RETURNED
from psserver.decisions import entries
from psserver.policies import build
from pswire import protocol
from tests.repetitions import seeds
from tests.sentences import Recorder

POLICIES = (
    ("sync", {}),
    ("sync", {"backup": 1}),
    ("async", {}),
    ("bounded", {"max_staleness": 0}),
    ("bounded", {"max_staleness": 1, "aggregate": 2}),
    ("ssp", {"slack": 1}),
    ("k-batch-async", {"aggregate": 2}),
    ("median", {}),
    ("local-sgd", {}),
)
Place = tuple[int, int, int]


class Twin:
    """The dumb twin: a set of all parts that the data has, and what the log says came of them."""

    def __init__(self, lengths: dict[tuple[int, int], int]) -> None:
        self.all = {(e, u, p) for (e, u), length in lengths.items() for p in range(length)}
        self.places: dict[int, Place] = {}
        self.applied: Counter[Place] = Counter()
        self.skipped: set[Place] = set()
        self.entries_read = 0

    def read(self, harness: CoordinatorHarness) -> tuple[Counter[Place], set[Place]]:
        """How often each part was applied, and which were skipped. Nobody ever holds a part that counted already."""
        places, applied, skipped = self.places, self.applied, self.skipped
        begin, self.entries_read = self.entries_read, len(harness.log)
        for record in harness.log[begin:]:
            match record.entry:
                case entries.Grant(_, ticket, epoch=int(e), unit=int(u), part=int(p)):
                    assert (e, u, p) not in places.values() and (e, u, p) not in applied
                    places[ticket] = (e, u, p)
                case entries.Apply(_, _, _, parts):
                    applied.update(places.pop(part.ticket) for part in parts)
                case entries.Drop(_, ticket, skipped=gone) | entries.Abandon(_, ticket, skipped=gone):
                    place = places.pop(ticket, None)
                    if gone and place is not None:
                        skipped.add(place)
                case entries.Cancel(_, ticket):
                    places.pop(ticket, None)
        return applied, skipped


class Play:
    """Workers that come, go, die and disagree, from a seed; then they work until the job is over."""

    def __init__(self, policy: str, knobs: dict[str, object], seed: int) -> None:
        self.dice = dice = random.Random(f"{policy} {knobs} {seed}")
        workers = 4 if policy == "median" else dice.randint(2, 4)
        units, epochs = dice.randint(1, 6), dice.randint(1, 3)
        steps = build(policy, knobs, workers).local_rule.batches
        # Known to the coordinator, or shown by the data only; then each unit has its own length, perhaps none.
        batches = dice.choice((0, steps, 3 * steps))
        self.lengths = {
            (e, u): -(-batches // steps) if batches else dice.randint(0, 3)
            for e in range(epochs)
            for u in range(units)
        }
        self.twin = Twin(self.lengths)
        self.policy, self.knobs, self.workers = policy, knobs, workers
        self.harness = CoordinatorHarness(
            policy, knobs, workers, now=0.0, work=WorkTerms(units, epochs, batches, apart=dice.random() < 0.4)
        )
        self.session = 0
        self.restores = self.restarts = 0

    @property
    def names(self) -> list[str]:
        return [f"w{index}" for index in range(self.workers + 1)]

    def run(self) -> None:
        for _ in range(self.dice.randint(5, 60)):
            if self.harness.stopped:
                break
            self.scene()
            self.agrees()
        self.finish()

    def scene(self) -> None:
        harness, worker = self.harness, self.dice.choice(self.names)
        if self.dice.random() < 0.1:
            self.restore()
        if self.dice.random() < 0.05:
            self.restart()
        if worker not in harness.coordinator.state.roster.present:
            self.session += 1
            harness.joins(worker, f"s{self.session}")
            return
        chance = self.dice.random()
        if chance < 0.06:
            harness.leaves(worker, "killed")
        elif chance < 0.1:
            harness.disconnects(worker)
            harness.passes(self.dice.choice((0.1, 10.0)))
            if worker in harness.coordinator.state.roster.present:
                harness.connects(worker, harness.member(worker).session)
        elif chance < 0.15 and harness.holds(worker) is not None:
            harness.abandons(worker, reason="nonfinite")
        elif chance < 0.2:
            harness.passes(0.1)
        else:
            self.work(worker)

    def work(self, worker: str) -> None:
        """Ask, or commit what it holds; where the data has no such part, say so."""
        harness = self.harness
        opened = harness.coordinator.state.tickets.open_of(worker)
        if not opened:
            harness.ready(worker)
            return
        ticket = opened[0]
        if ticket.part is None:
            harness.commits(worker, ready=self.dice.random() < 0.5)
            return
        length = self.lengths[ticket.part.epoch, ticket.part.unit]
        if ticket.part.part >= length:
            harness.abandons(worker, reason="the unit has ended", unit_ends=True)
            harness.ready(worker)
            return
        known = harness.work is not None and bool(harness.work.batches)
        ends = not known and ticket.part.part + 1 == length and self.dice.random() < 0.5
        harness.commits(worker, ready=self.dice.random() < 0.7, unit_ends=ends)

    def restore(self) -> None:
        """Another process takes over from the saved state."""
        harness = self.harness
        text = json.dumps(harness.coordinator.saved(), allow_nan=False)
        policy = build(self.policy, self.knobs, self.workers)
        made = Coordinator(harness.coordinator.terms, policy, given=JobState.read(json.loads(text)))
        assert json.dumps(made.saved(), allow_nan=False) == text
        harness.coordinator = made
        self.restores += 1

    def restart(self) -> None:
        """All processes are gone; new ones go on from a checkpoint."""
        harness = self.harness
        before = len(harness.log)
        harness.take(harness.coordinator.take(inputs.SaveAsked(), harness.now))
        if len(harness.log) == before:
            return  # there is nothing new to save
        self.restore()
        harness.take(harness.coordinator.take(inputs.Resumed(0), harness.now))
        self.restarts += 1

    def agrees(self) -> None:
        """The queue knows as much as the twin."""
        applied, skipped = self.twin.read(self.harness)
        queue = self.harness.coordinator.state.work
        assert queue is not None and not self.harness.stopped.startswith("policy")
        assert (queue.counted, queue.skipped) == (applied.total(), len(skipped))
        assert len(queue.lost) <= MAX_RETURNED + 3 * len(self.harness.coordinator.state.roster.tallies)

    def finish(self) -> None:
        """Nobody dies any more: all that is left is trained, and nobody is left waiting."""
        harness = self.harness
        for worker in self.names[: self.workers]:
            if worker not in harness.coordinator.state.roster.present and not harness.stopped:
                self.session += 1
                harness.joins(worker, f"s{self.session}")
        for _ in range(2000):
            if harness.stopped:
                break
            for worker in list(harness.coordinator.state.roster.present):
                if not harness.stopped:
                    if harness.member(worker).absent_since is not None:
                        harness.connects(worker, harness.member(worker).session)
                    self.work(worker)
        assert harness.stopped.startswith("done: all work units are done"), harness.stopped
        applied, skipped = self.twin.read(harness)
        assert set(applied.values()) <= {1}
        assert set(applied) | skipped == self.twin.all
        assert not set(applied) & skipped
        verdict = harness.verdict()
        assert verdict.ok, [str(violation) for violation in verdict.violations]


@pytest.mark.parametrize(("policy", "knobs"), POLICIES, ids=[f"{n}-{k}" for n, k in POLICIES])
def test_each_part_counts_once_per_epoch_whatever_workers_do(policy: str, knobs: dict[str, object]) -> None:
    restores = restarts = resumed = 0
    for seed in seeds(15, soak=2000, fast=3):
        play = Play(policy, knobs, seed)
        try:
            play.run()
        except Exception as error:
            error.add_note(f"{policy} {knobs} seed {seed}")
            raise
        restores += play.restores
        restarts += play.restarts
        resumed += len(play.harness.entries(entries.Resume))
    # Schedules that never save or restart, or in which nobody ever stood by, would prove less.
    assert restores and restarts and resumed


# Under a barrier


def dealt_by_version(
    lengths: list[int], terms: WorkTerms, seed: int, *, restart_at: int = 0
) -> list[list[Place]]:
    """What each version of a `sync` job with three workers is made of, in the order of ranks.

    The seed decides who commits first, and who asks for its next ticket with its commit or later. At version
    `restart_at` all processes die, and the job goes on from the checkpoint of that version.
    """
    dice = random.Random(seed)
    interval = {"checkpoint_versions": restart_at} if restart_at else {}
    harness = CoordinatorHarness("sync", workers=3, now=0.0, work=terms, terms=interval).starts()
    for _ in range(1000):
        if harness.stopped:
            break
        if restart_at and harness.saved is not None and not harness.generation:
            harness.servers_crash()
            for worker in dice.sample(["w0", "w1", "w2"], 3):
                harness.joins(worker, session="B")
                harness.ready(worker)
        worker = dice.choice(["w0", "w1", "w2"])
        opened = harness.coordinator.state.tickets.open_of(worker)
        if opened and opened[0].part is not None:
            part = opened[0].part
            ends = not terms.batches and part.part + 1 == lengths[part.unit]
            harness.commits(worker, ready=dice.random() < 0.5, unit_ends=ends)
        elif not opened:
            harness.ready(worker)
    assert harness.stopped == "done: all work units are done"
    grants = {grant.ticket: grant for grant in harness.entries(entries.Grant)}
    taken = [[grants[part.ticket] for part in apply.parts] for apply in harness.entries(entries.Apply)]
    return [[(g.epoch, g.unit, g.part) for g in version] for version in taken]  # type: ignore[misc]


@pytest.mark.parametrize("batches", [1, 3, 0])
@pytest.mark.parametrize("units", [7, 9])
@pytest.mark.parametrize("apart", [False, True])
def test_under_a_barrier_versions_hold_the_same_units_whoever_is_first(
    batches: int, units: int, apart: bool
) -> None:
    lengths = [batches or 1 + unit % 3 for unit in range(units)]
    terms = WorkTerms(units, 2, batches, apart=apart)
    expected = dealt_by_version(lengths, terms, 0)
    for seed in seeds(3, soak=2000, fast=2):
        assert dealt_by_version(lengths, terms, seed) == expected, seed
        assert dealt_by_version(lengths, terms, seed, restart_at=2) == expected, seed


# What comes of a ticket, and what of its part


def dealt(harness: CoordinatorHarness) -> list[tuple[str, int, int, int]]:
    grants = harness.entries(entries.Grant)
    return [(g.worker, g.epoch, g.unit, g.part) for g in grants]  # type: ignore[misc]


def started(
    policy: str = "async", workers: int = 2, *, knobs: dict[str, object] | None = None, **work: int
) -> CoordinatorHarness:
    """A job whose units have one batch each, unless said otherwise; the first grants are out."""
    terms = WorkTerms(**{"batches": 1, **work})  # type: ignore[arg-type]
    return CoordinatorHarness(policy, knobs or {}, workers, now=0.0, work=terms).starts()


def test_what_is_dropped_for_its_age_is_dealt_again_as_often_as_it_takes() -> None:
    harness = started("bounded", units=40, knobs={"max_staleness": 0})
    for _ in range(10):
        harness.commits("w0")
        harness.commits("w1")
    assert len(harness.entries(entries.Drop)) == 10 > MAX_LOSSES
    assert not any(drop.skipped for drop in harness.entries(entries.Drop))


def test_contributions_that_are_too_few_for_their_rule_end_in_the_end(sentences: Recorder) -> None:
    """Two units for a rule that needs three contributions: dealing them again would never end."""
    harness = started("krum", 4, units=2, knobs={"byzantine": 0})
    for _ in range(50):
        for worker in ("w0", "w1", "w2", "w3"):
            if harness.holds(worker) is not None:
                harness.commits(worker)
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)


def test_ahead_a_worker_is_dealt_the_next_part() -> None:
    harness = started(units=3)
    harness.take(harness.coordinator.take(inputs.Requested("w0", 0, protocol.Ready(2)), harness.now))
    assert dealt(harness)[-1] == ("w0", 0, 2, 0)
    # Nothing is left; w1 works, and does not stand by.
    assert not harness.take(
        harness.coordinator.take(inputs.Requested("w1", 0, protocol.Ready(3)), harness.now)
    )


def test_a_unit_that_ends_behind_a_part_that_was_granted_ahead(sentences: Recorder) -> None:
    harness = started(units=2, batches=0)
    harness.take(harness.coordinator.take(inputs.Requested("w0", 0, protocol.Ready(2)), harness.now))
    harness.commits("w0", 2, unit_ends=True, ready=False)
    harness.abandons("w0", reason="the unit has ended", unit_ends=True)
    harness.commits("w1", unit_ends=True)
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)
    assert harness.verdict().ok


def test_memory_does_not_grow_with_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that gives up all that it is dealt, from a million million units."""
    most = 64
    monkeypatch.setattr(work_queue, "MAX_RETURNED", most)
    harness = started(workers=1, units=2**40, epochs=2**20)
    for _ in range(2 * most):
        harness.abandons("w0")
        harness.ready("w0")
    assert harness.coordinator.state.work is not None
    assert most <= len(harness.coordinator.state.work.lost) <= most + 2


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ({"units": 0}, "expected units from 1 to"),
        ({"units": 2**40 + 1}, "expected units from 1 to"),
        ({"units": 1, "epochs": 0}, "expected epochs from 1 to"),
        ({"units": 1, "batches": -1}, "expected batches from 0 to"),
        ({"units": 1, "data": "x" * 1025}, "expected a description of at most 1024 characters"),
    ],
)
def test_terms_that_make_no_sense_are_refused(work: dict[str, int], message: str) -> None:
    harness = CoordinatorHarness("async")
    before = harness.state()
    (refused,) = harness.gives(inputs.WorkDeclared(WorkTerms(**work)))  # type: ignore[arg-type]
    assert isinstance(refused, Declined) and re.search(message, refused.reason)
    assert harness.state() == before


def test_other_terms_before_the_beginning_replace_the_first() -> None:
    harness = CoordinatorHarness("async", now=0.0, work=WorkTerms(5))
    harness.take(harness.coordinator.take(inputs.WorkDeclared(WorkTerms(5)), 0.0))
    harness.take(harness.coordinator.take(inputs.WorkDeclared(None), 0.0))
    assert [entry.units for entry in harness.entries(entries.Work)] == [5, 0]
    assert harness.starts().coordinator.state.work is None
