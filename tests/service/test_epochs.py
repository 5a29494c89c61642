"""Sums of epochs over the wire: members only, counted once, waited for by name, and other metrics end nobody."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from pslab.runs.folder import Run
from pswire.v1 import coordinator_pb2 as pb
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, Cluster, refused, serving


def gather(cluster: Cluster, peer: Peer, **changed: Any) -> pb.GatherEpochReply:
    fields = {"job": peer.job, "worker": peer.worker, **peer.proof(), "layout": "m", "sums": [1.0, 2.0]}
    return cluster.coordinator.GatherEpoch(pb.GatherEpochRequest(**{**fields, **changed}), timeout=PATIENCE)


def test_members_add_up_and_strangers_are_told_nothing() -> None:
    with serving(1, workers=2) as cluster, Peer(cluster, "w0") as first, Peer(cluster, "w1") as second:
        assert not gather(cluster, first, values={"val_loss": 0.5}).complete
        for guess in ({"membership_token": b""}, {"worker": "w1"}, {"incarnation": 1}, {"job": "other"}):
            with refused(grpc.StatusCode.PERMISSION_DENIED, "membership token"):
                gather(cluster, first, **guess)
        assert "waiting for the end of the epoch of w1 (since" in cluster.status().note
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "GatherEpochRequest.sums: expected"):
            gather(cluster, second, sums=[0.0] * (2**16 + 1))
        for peer in (second, first):
            reply = gather(cluster, peer)
            assert (reply.complete, reply.workers, list(reply.sums)) == (True, 2, [2.0, 4.0])
            assert dict(reply.values) == {"val_loss": 0.5}


def test_what_one_worker_validates_for_all_is_recorded_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with serving(1, out=out) as cluster:
        with Peer(cluster, "w0") as first:
            for version in (1, 2):
                first.step()
                measured = {"val_loss": 0.5 / version, "val_accuracy": 0.25 * version}
                validation: dict[str, Any] = {"number": version, "layout": "validation", "sums": []}
                for _ in range(2):
                    gather(cluster, first, **validation, values=measured)
                gather(cluster, first, number=version, layout="other", sums=[], values={"val_loss": 9.0})
            first.send(done=pb.Done())
            first.receive("stop")
        cluster.servers[0].ended()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["version"], line["metrics"]) for line in lines if line["kind"] == "eval"] == [
        (1, {"loss": 0.5, "accuracy": 0.25}),
        (2, {"loss": 0.25, "accuracy": 0.5}),
    ]
    assert Run(out).summary.metrics == {"loss": 0.25, "accuracy": 0.5}


def test_who_asks_as_a_member_of_another_generation_is_to_ask_again() -> None:
    """A worker that waited at an epoch's end when server 0 was lost: its session is about to join the later one."""
    with serving(1) as cluster, Peer(cluster, "w0") as peer:
        with refused(grpc.StatusCode.UNAVAILABLE, f"is another generation of {peer.job}.1: wait"):
            gather(cluster, peer, job=f"{peer.job}.1", membership_token=b"of another process")


def test_other_metrics_end_nobody_and_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with serving(1, workers=2) as cluster, Peer(cluster, "w0") as first, Peer(cluster, "w1") as second:
        for number in (0, 1):
            assert not gather(cluster, first, number=number, layout="other").complete
            for peer, fields in ((second, {}), (first, {"layout": "other"})):
                reply = gather(cluster, peer, number=number, **fields)
                assert (reply.complete, reply.workers, list(reply.sums)) == (True, 1, [1.0, 2.0])
    said = [record.getMessage() for record in caplog.records if "compile all workers" in record.getMessage()]
    assert len(said) == 1 and "the metrics of w1 are not those of w0" in said[0]
