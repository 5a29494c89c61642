"""`--arena-versions 2`: the newest version and the one that is being made, and no third."""

from collections.abc import Sequence

import pytest

from tests.service.serving import Cluster, granted, serving, wait_until
from tests.shm.sessions import begun, connect, together


def trained(cluster: Cluster, transports: Sequence[str]) -> list[bytes]:
    """Two workers at once; a server never held more buffers than it may, nor took a version back."""
    finals = together(cluster.hosts, transports, steps=20)
    for served in cluster.servers:
        assert served.probe.buffers <= served.probe.host.options.arena_versions
    return finals


@pytest.mark.parametrize(
    ("policy", "transports"),
    [
        ("sync", ("socket", "shared-memory")),
        ("async", ("grpc", "grpc")),
        ("async", ("shared-memory", "shared-memory")),
    ],
)
def test_two_versions_are_enough(
    policy: str, transports: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for versions in (2, 3) if policy == "sync" else (2,):
        with serving(
            servers=2, workers=2, policy=policy, arena_versions=versions, read_limit=30.0
        ) as cluster:
            found.append(trained(cluster, transports))
    assert "taken back" not in caplog.text
    # With a third version the weights are the same.
    assert found[0] == found[-1]


def test_two_workers_copy_what_they_could_read_in_place() -> None:
    """An update needs the other buffer: a worker that read in place would hold it up."""
    with serving(workers=2, arena_versions=2) as cluster:
        with connect(cluster.hosts, name="w0") as a, connect(cluster.hosts, name="w1") as b:
            for session, grant in zip((a, b), begun(a, b), strict=True):
                with session.view_flat(grant) as (weights,):
                    assert weights.flags.writeable, "expected an array of the worker's own"
                session.abandon(grant, "seen")


def test_one_worker_reads_in_place() -> None:
    with serving(arena_versions=2) as cluster, connect(cluster.hosts) as session:
        (grant,) = begun(session)
        with session.view_flat(grant) as (weights,):
            assert not weights.flags.writeable
        session.abandon(grant, "seen")


def test_an_update_waits_for_a_version_that_is_granted_and_not_yet_read() -> None:
    """What it costs: with a third version the update would be made at once."""
    with serving(workers=2, arena_versions=2, policy="async", read_limit=30.0) as cluster:
        with connect(cluster.hosts, name="w0") as a, connect(cluster.hosts, name="w1") as b:
            one, other = begun(a, b)
            probe = cluster.servers[0].probe
            flats = a.pull_flat(one)
            a.contribute(one, flats, samples=1, ready=False)
            # Version 1 lies in the second buffer; version 0 is b's to read.
            again = granted(a)
            flats = a.pull_flat(again)
            # The worker does not wait for it.
            a.contribute(again, flats, samples=1)
            assert probe.version == 1
            assert b.pull_flat(other)[0].shape == flats[0].shape
            wait_until(lambda: probe.version == 2, "the update")
            b.abandon(other, "seen")
