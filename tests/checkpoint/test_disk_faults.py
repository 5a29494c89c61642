"""A disk that fails at any step of writing a checkpoint: what is usable afterwards is whole, and the old one is there.

Every step times every fault, from many seeds; `scripts/soak` takes more seeds.
"""

import pytest

from psserver.checkpoint import CheckpointError, Store, manifest, name_of
from tests.checkpoint.fake_disk import FAULTS, FakeDisk, PowerLoss
from tests.checkpoint.written import JOB, ROOT, usable, write
from tests.repetitions import FIRST_SEED, repetitions
from tests.sentences import Recorder

SEEDS = range(FIRST_SEED, FIRST_SEED + repetitions(1, soak=600))
OLD, NEW, NEXT = 10, 20, 30


def prepared(seed: int) -> FakeDisk:
    disk = FakeDisk(seed)
    write(Store(ROOT, disk), OLD)
    return disk


def steps_of_writing() -> int:
    disk = prepared(0)
    before = disk.steps
    store = Store(ROOT, disk)
    write(store, NEW)
    store.prune(1)
    return disk.steps - before


STEPS = steps_of_writing()


@pytest.mark.parametrize("fault", FAULTS)
def test_at_every_step(fault: str) -> None:
    """Then the power is lost. Whatever is usable is whole; a checkpoint that was completed is there."""
    outcomes = set()
    assert STEPS > 30
    for seed in SEEDS:
        for step in range(STEPS):
            disk = prepared(seed * 1000 + step)
            disk.fault, disk.at = fault, disk.steps + step
            store, written = Store(ROOT, disk), False
            try:
                write(store, NEW)
                written = True
                store.prune(1)
                outcome = "done"
            except CheckpointError:
                outcome = "refused"
            except PowerLoss:
                outcome = "crashed"
            disk.at = -1
            if outcome != "crashed":
                # The last sync may fail with all bytes in place.
                assert usable(disk)[-1] in ([NEW] if written else [OLD, NEW])
            after = disk.lose_power(ROOT)
            found = usable(after)
            assert set(found) <= {OLD, NEW}
            # A disk that lies about a sync may lose what it said that it has; it can never make other bytes of it.
            if fault != "lost sync":
                assert found, (seed, step)
                assert not written or found[-1] == NEW, (seed, step)
                # What has a manifest has its files, too.
                names = Store(ROOT, after).names()
                ended = [name for name in names if manifest.NAME in after.names(ROOT / name)]
                assert [name_of(entry, JOB) for entry in found] == ended, (seed, step)
            outcomes.add((outcome, tuple(found)))
            # What is left is in nobody's way.
            store = Store(ROOT, after)
            write(store, NEXT)
            store.prune(2)
            assert usable(after)[-1] == NEXT
            # One that lost its bytes to such a disk still has its name.
            assert len(usable(after)) <= len(store.names()) <= 2
            assert len(usable(after)) == len(store.names()) or fault == "lost sync"
    refused = {"crash": "crashed", "full": "refused", "broken": "refused"}.get(fault, "done")
    assert refused in {outcome for outcome, _ in outcomes}


def test_a_flipped_bit_is_never_used() -> None:
    refused = 0
    for seed in range(SEEDS.start, SEEDS.start + 20 * len(SEEDS)):
        disk = prepared(seed)
        write(Store(ROOT, disk), NEW)
        flipped = disk.flip()
        found = usable(disk)
        assert set(found) <= {OLD, NEW} and len(found) >= 1
        refused += len(found) == 1
        # `read` has compared every byte of what it took.
        assert len(found) == 2 or f"{(OLD + NEW) - found[0]:010d}" in str(flipped)
    assert refused > 15 * len(SEEDS)


def test_a_full_disk_is_told_and_leaves_room(sentences: Recorder) -> None:
    disk = prepared(1)
    disk.fault, disk.at = "full", disk.steps + 4
    store = Store(ROOT, disk)
    with sentences.raises(CheckpointError):
        write(store, NEW)
    assert not [name for name in disk.live if name.suffix == ".part"]
    disk.at = -1
    write(store, NEXT)
    assert usable(disk) == [OLD, NEXT]


def test_what_a_job_goes_on_from_outlasts_a_loss_of_power() -> None:
    """A server is killed while it completes a checkpoint, whose names are not on the disk yet. The next one finds it
    whole, and cuts the log behind it; then the machine loses its power."""
    unsettled = 0
    for seed in SEEDS:
        for step in range(STEPS):
            disk = prepared(seed * 1000 + step)
            disk.fault, disk.at = "crash", disk.steps + step
            with pytest.raises(PowerLoss):
                store = Store(ROOT, disk)
                write(store, NEW)
                store.prune(1)
            disk.at = -1
            newest = usable(disk)[-1]
            unsettled += NEW == newest not in usable(disk.lose_power(ROOT))
            Store(ROOT, disk).settle(name_of(newest, JOB))
            assert newest in usable(disk.lose_power(ROOT)), (seed, step)
    # Without it some were lost.
    assert unsettled
