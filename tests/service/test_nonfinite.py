"""Finite contributions whose update is not finite: elements keep their old values, and the log tells of them."""

import re
import threading

import numpy as np
import pytest

from psserver.decisions.entries import Commit, Entry, Nonfinite
from psserver.service.job.decider import Decider
from psserver.shard import VersionMade
from pswire.exits import ExitCode
from pswire.v1 import coordinator_pb2 as pb
from tests.asking import ask
from tests.promises import promise
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, VARIABLES, Cluster, serving, wait_until

HUGE = float(np.float32(3.4e38))


def commit(peer: Peer, grant: pb.Grant, where: int, value: float, rest: float = 0.0) -> None:
    """A gradient that is `value` at the first element of variable number `where`, else `rest`."""
    arrays = [np.full(spec.shape, rest, np.float32) for spec in VARIABLES]
    arrays[where].flat[0] = value
    peer.commit(grant.ticket, peer.push(grant, arrays))


def installed(cluster: Cluster) -> tuple[Peer, Peer, list[pb.Grant]]:
    """Two workers with a grant of version 0 each, which is ones everywhere."""
    one, other = Peer(cluster, "w0"), Peer(cluster, "w1")
    one.send(ready=pb.Ready())
    grant = one.receive("grant")
    one.commit(grant.ticket, one.push(grant, [np.ones(spec.shape, np.float32) for spec in VARIABLES]))
    for peer in (one, other):
        peer.send(ready=pb.Ready())
    return one, other, [one.receive("grant"), other.receive("grant")]


def log(cluster: Cluster) -> list[Entry]:
    server = cluster.servers[0].server
    assert server.job is not None
    tail = server.job.routes.tail
    return [record.entry for record in ask(server.runtime, lambda: tail.since(0))]


def kept(cluster: Cluster) -> list[Nonfinite]:
    return [entry for entry in log(cluster) if isinstance(entry, Nonfinite)]


def weights(cluster: Cluster) -> list[np.ndarray]:
    """The newest version, by variable."""
    shards = [served.probe.shard for served in cluster.servers]
    return shards[0].plan.gather([shard.arena.values(shard.version) for shard in shards])


@promise("A version that is not finite is never published; robust policies stay robust, for state too.")
@pytest.mark.parametrize(
    ("servers", "where", "optimizer"),
    [(2, 0, "sgd"), (2, 1, "adam"), (2, 2, "sgd"), (1, 2, "adam")],
    ids=["a matrix", "a vector", "state", "state on one server"],
)
def test_two_gradients_that_overflow_together(servers: int, where: int, optimizer: str) -> None:
    """One element keeps its value; all others, on any server, move."""
    with serving(servers, workers=2, policy="sync", overrides=[f"optimizer.name={optimizer}"]) as cluster:
        one, other, grants = installed(cluster)
        for peer, each in zip((one, other), grants, strict=True):
            commit(peer, each, where, HUGE, 0.25)
        for peer in (one, other):
            peer.send(ready=pb.Ready())
            assert peer.receive("grant").version == 1
        cluster.picture()
        for number, values in enumerate(weights(cluster)):
            moved = values.ravel() != 1.0
            assert np.isfinite(values).all()
            assert moved.tolist() == [(number, at) != (where, 0) for at in range(values.size)]
        (entry,) = kept(cluster)
        assert (entry.version, entry.kept, entry.variable) == (1, 1, VARIABLES[where].name)
        assert set(entry.workers) == {"w0", "w1"}
        assert f"most were of {VARIABLES[where].name}" in cluster.status().note
        one.leave()
        other.leave()


@promise("Any number of servers keeps the same elements back, and ends the job at the same version")
def test_so_many_in_a_row_end_the_job_at_the_same_version() -> None:
    found = []
    for servers in (1, 3):
        overrides = ["optimizer.name=adam", "cluster.nonfinite_limit=2"]
        with serving(servers, workers=2, policy="sync", overrides=overrides) as cluster:
            one, other, grants = installed(cluster)
            for number in range(2):
                for peer, grant in zip((one, other), grants, strict=True):
                    # Its square is infinite.
                    commit(peer, grant, 0, 1e25)
                    peer.send(ready=pb.Ready())
                if number == 0:
                    grants = [one.receive("grant"), other.receive("grant")]
            stops = [peer.receive("stop") for peer in (one, other)]
            for stop in stops:
                assert not stop.success and stop.version == 2
                assert "2 updates in a row left much of the model as it was" in stop.reason
                assert re.search("came from (w0, w1|w1, w0)", stop.reason)
            one.leave()
            other.leave()
            assert {served.ended() for served in cluster.servers} == {ExitCode.DIVERGED}
            found.append([(each.version, each.kept, each.variable) for each in kept(cluster)])
    assert found[0] == found[1] and len(found[0]) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_is_decided_behind_the_facts_of_its_version(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Server 1 has made the version, and its word is still on the way. Where the job fails meanwhile, the commit is
    answered."""
    late, executed = list[tuple[int, VersionMade]](), Decider.executed

    def held_up(decider: Decider, server: int, fact: VersionMade) -> None:
        if server == 1 and fact.version > 0:
            late.append((server, fact))
        else:
            executed(decider, server, fact)

    monkeypatch.setattr(Decider, "executed", held_up)
    with serving(2, workers=2, policy="async") as cluster:
        one, other, grants = installed(cluster)
        commit(one, grants[0], 0, 1.0)
        one.send(ready=pb.Ready())
        grant = one.receive("grant")
        assert grant.version == 1
        waiting = threading.Thread(target=commit, args=(one, grant, 0, 1.0))
        waiting.start()
        wait_until(lambda: late, "the word of server 1")
        # That of the other worker, which came later, starts from version 0.
        commit(other, grants[1], 0, 1.0)
        other.send(ready=pb.Ready())
        assert other.receive("grant").version == 2

        def committed() -> list[int]:
            return [entry.ticket for entry in log(cluster) if isinstance(entry, Commit)]

        assert grant.ticket not in committed()
        server, job = cluster.servers[0].server, cluster.servers[0].server.job
        if fails:
            ask(server.runtime, lambda: job.decider.fail("planted", ExitCode.STORAGE))
            waiting.join(PATIENCE)
            assert not waiting.is_alive() and grant.ticket not in committed()
            return
        monkeypatch.setattr(Decider, "executed", executed)
        for told in list(late):
            ask(server.runtime, lambda told=told: executed(job.decider, *told))
        waiting.join(PATIENCE)
        one.send(ready=pb.Ready())
        assert one.receive("grant").version == 3
        assert committed()[-1] == grant.ticket
        one.leave()
        other.leave()
