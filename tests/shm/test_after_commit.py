"""What others write into shared memory: nothing comes of it, under any policy. A slot can be written into after its
payload was received, a version never."""

import errno
import fcntl
import os
from collections.abc import Sequence

import numpy as np
import pytest

from psserver.service.store.shared_memory import Sharing
from pswire.exits import ExitCode
from pswire.transport import segments
from pswire.transport.segments import HEADER, Place, SegmentError
from tests.promises import promise
from tests.sentences import Recorder
from tests.service.serving import serving, wait_until
from tests.shm.sessions import begun, connect, gradient, granted, step

# What a worker writes into its slot when it should not: numbers, large ones, none.
NUMBER, LARGE, NAN = np.float32(7), np.float32(3e38), np.float32("nan")
POLICIES: dict[str, tuple[str, Sequence[str]]] = {
    "async": ("async", ()),
    "sync": ("sync", ()),
    "median": ("median", ("policy.fewest=1",)),
    "trimmed-mean": ("trimmed-mean", ("policy.trim=0",)),
    "k-batch-async": ("k-batch-async", ("policy.aggregate=2",)),
}


@promise("What is applied is what was received, even if a worker writes into shared memory afterwards.")
@pytest.mark.parametrize(
    ("policy", "spoilt", "servers"),
    [("async", NUMBER, 1), ("sync", NAN, 2), ("median", LARGE, 2), ("trimmed-mean", NAN, 1)],
)
def test_what_is_applied_is_what_was_received(policy: str, spoilt: np.float32, servers: int) -> None:
    """The slot changes between push and commit."""
    name, knobs = POLICIES[policy]
    with serving(servers, policy=name, overrides=knobs) as cluster:
        with connect(cluster.hosts) as session:
            grant = granted(session)
            before = session.pull_flat(grant)
            slots, values = session.slot_flat(grant), gradient(session, 1)
            for slot, payload in zip(slots, values, strict=True):
                slot[...] = payload
            session.push_flat(grant, slots)
            for slot in slots:
                slot[...] = spoilt
            session.commit(grant, samples=1, loss=1.0)
            again = granted(session)
            for shard, old, payload, new in zip(
                session.plan.shards, before, values, session.pull_flat(again), strict=True
            ):
                assert (new[: shard.trainable] == old[: shard.trainable] - payload[: shard.trainable]).all()
            session.abandon(again, "enough")
            assert session.done().success
        assert {served.ended() for served in cluster.servers} == {ExitCode.OK}


@pytest.mark.parametrize(("policy", "spoilt"), [("sync", NAN), ("median", LARGE), ("k-batch-async", NUMBER)])
def test_what_is_summed_later_is_what_was_received(policy: str, spoilt: np.float32) -> None:
    """The slot changes after the commit, while the update waits for another worker."""

    def trained(*, spoil: bool) -> bytes:
        name, knobs = POLICIES[policy]
        with serving(workers=2, policy=name, overrides=knobs) as cluster:
            with connect(cluster.hosts, name="a") as a, connect(cluster.hosts, name="b") as b:
                grants = begun(a, b)
                (slot,) = a.slot_flat(grants[0])
                slot[...] = gradient(a, 1)[0]
                a.push_flat(grants[0], [slot])
                a.commit(grants[0], samples=1, ready=False)
                # It is not answered: the other's might be decided first.
                wait_until(lambda: cluster.status().committed == 1, "the commit to come")
                if spoil:
                    slot[...] = spoilt
                b.push_flat(grants[1], gradient(b, 1))
                b.commit(grants[1], samples=1, ready=True)
                again = granted(b)
                assert again.version == 1
                values = b.pull_flat(again)[0].tobytes()
                b.abandon(again, "enough")
                return values

    assert trained(spoil=True) == trained(spoil=False)


def overwritten(place: Place) -> bool:
    """Another process of this user, which knows the segment's place, writes into its numbers."""
    try:
        segments.floats(segments.open_segment(place, writable=True))[:] = 777
    except SegmentError:
        with open(f"/proc/{place.pid}/fd/{place.fd}", "r+b", buffering=0) as file:
            try:
                return os.pwrite(file.fileno(), bytes(place.nbytes), HEADER) > 0
            except PermissionError:
                return False
    return True


def test_nobody_else_writes_into_a_version() -> None:
    with serving(policy="sync") as cluster, connect(cluster.hosts) as session:
        grant = granted(session)
        before = session.pull_flat(grant)[0].copy()
        host = cluster.servers[0].probe.host
        places = [segment.place for segment in host.sharing.segments(host.state.shard.arena.arrays)]
        assert places
        assert not any(overwritten(place) for place in places)
        assert (session.pull_flat(grant)[0] == before).all()
        session.abandon(grant, "enough")


def test_versions_are_not_shared_where_the_kernel_cannot_protect_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sentences: Recorder
) -> None:
    """Linux before 5.1 does not know the seal. What only one worker fills, its slots, needs none."""
    real = fcntl.fcntl

    def old(fd: int, command: int, seals: int = 0) -> object:
        if command == fcntl.F_ADD_SEALS and seals & segments.F_SEAL_FUTURE_WRITE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, command, seals)

    monkeypatch.setattr(fcntl, "fcntl", old)
    with serving() as cluster, connect(cluster.hosts, "auto") as session:
        step(session, 0)
        assert session.transport == ("socket",)
    assert [record.message for record in caplog.records if "F_SEAL_FUTURE_WRITE" in record.message]
    with pytest.raises(SegmentError) as refused:
        Sharing("shared-memory")
    sentences.check(refused)
