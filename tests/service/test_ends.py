"""Results are written before anybody is waited for, and every wait of the end has a limit and a name."""

import asyncio
import json
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest

from psserver.coordinator import JobTerms, waits
from psserver.service.life import results
from psserver.service.net.pulls import Outgoing
from psserver.weights_file import load
from pswire.exits import ExitCode
from pswire.v1 import coordinator_pb2 as pb
from tests.promises import promise
from tests.service.peer import Peer
from tests.service.probe import hold_final_weights
from tests.service.serving import PATIENCE, Cluster, serving, wait_until

# That the test below waits for; seconds.
NO_ANSWER = 0.5


def finished(cluster: Cluster, *peers: Peer) -> None:
    for peer in peers:
        peer.send(done=pb.Done())
    for peer in peers:
        peer.receive("stop")


@promise("A run ends, and its weights are written first.")
@pytest.mark.parametrize("servers", [1, 2])
def test_results_are_written_while_a_member_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: int
) -> None:
    out, limit = tmp_path / "run", [10 * PATIENCE]
    monkeypatch.setattr(JobTerms, "leave_limit", property(lambda _: limit[0]))
    with serving(servers, workers=2, out=out) as cluster:
        a, b = Peer(cluster, "a"), Peer(cluster, "b")
        a.send(ready=pb.Ready())
        first = a.receive("grant")
        ones = [np.ones(spec.shape, np.float32) for spec in a.plan.variables]
        a.commit(first.ticket, a.push(first, ones))
        b.send(ready=pb.Ready())
        a.step()
        finished(cluster, a, b)
        # Both are here still: one evaluates, the other says nothing.
        wait_until((out / "summary.json").exists, "the summary")
        assert np.array_equal(load(out / "weights.safetensors").arrays["dense/bias"], np.zeros(4, np.float32))
        assert json.loads((out / "summary.json").read_text())["weights_sha256"]
        assert "waiting for a to evaluate the last version and leave" in cluster.status().note
        assert "waiting for b to leave" in cluster.status().note
        limit[0] = 0.0
        wait_until(lambda: "waiting for b" not in cluster.status().note, "b to be given up")
        a.send(report=pb.Report(version=1, metrics={"accuracy": 0.5}))
        a.send(leave=pb.Leave(reason="finished"))
        assert cluster.servers[0].ended() == ExitCode.OK
    assert json.loads((out / "summary.json").read_text())["metrics"]["accuracy"] == 0.5


def test_a_server_that_gives_no_weights_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes the call and never answers: the job ends, without final weights, and says why. That is no success."""
    out = tmp_path / "run"
    asked, looked = threading.Event(), threading.Event()
    hold_final_weights(monkeypatch, looked)

    async def silent(*_: object) -> Outgoing:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes it")

    monkeypatch.setattr(results, "transfer", lambda *_: NO_ANSWER)
    with serving(2, out=out) as cluster:
        with Peer(cluster, "a") as peer:
            peer.step()
            monkeypatch.setattr(Outgoing, "begin", silent)
            finished(cluster, peer)
            named = "waiting for the final weights of server 1 (since"
            wait_until(lambda: named in cluster.status().note, "the wait to be named")
            assert f"at most {NO_ANSWER:g} s" in cluster.status().note
            looked.set()
        assert cluster.servers[0].ended() == ExitCode.UNREACHABLE
        assert asked.is_set()
    assert json.loads((out / "summary.json").read_text())["weights_sha256"] is None
    assert "server 1 did not give its final weights: no answer in time" in caplog.text


def test_a_member_that_is_given_up_while_its_connection_stands_joins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = [PATIENCE]
    monkeypatch.setattr(waits, "_ticket_limit", lambda _: (limit[0], True))
    with serving(workers=1) as cluster:
        slow = Peer(cluster, "slow")
        slow.ready()
        limit[0] = 0.0
        assert slow.stream.ended() == grpc.StatusCode.OK
        limit[0] = PATIENCE
        again = Peer(cluster, "slow")
        assert again.reply.incarnation == 1
        left = [w for w in cluster.status().workers if w.name == "slow"]
        assert left[0].incarnation == 1
        assert again.step().version == 1
