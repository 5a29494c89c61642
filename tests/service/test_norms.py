"""The norm of a contribution is that of what the servers received, whatever its worker says."""

import json
import struct

import numpy as np

from psserver.receipts import LENGTH, examine, receipt
from pswire.v1 import coordinator_pb2 as pb
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, VARIABLES, Cluster


def norms(cluster: Cluster) -> dict[int, float]:
    """Of every commit in the decision log, by its ticket."""
    reply = cluster.coordinator.Status(pb.StatusRequest(entries_from=0), timeout=PATIENCE)
    entries = [json.loads(line) for line in reply.entries]
    return {entry["ticket"]: entry["norm"] for entry in entries if entry["kind"] == "commit"}


def test_the_log_has_the_norm_of_what_was_received(cluster: Cluster, peer: Peer) -> None:
    """On two servers, none of which sees the whole gradient."""
    grant = peer.ready()
    arrays = [np.full(spec.shape, 0.25, np.float32) for spec in VARIABLES]
    peer.commit(grant.ticket, peer.push(grant, arrays), loss=1.0)
    peer.grant = None
    peer.settled()
    gradient = [a for a, spec in zip(arrays, VARIABLES, strict=True) if spec.kind == "trainable"]
    expected = 0.25 * np.sqrt(sum(a.size for a in gradient))
    assert norms(cluster)[grant.ticket] == float(f"{expected:.6g}")


def test_a_receipt_with_another_norm_is_none() -> None:
    secret, good = b"s" * 32, receipt(b"s" * 32, "job", 7, 0, squares=2.0)
    assert examine(secret, "job", 7, 1, [good]).norm == 1.41421
    for forged in (good[:LENGTH] + struct.pack("<d", 4.0), good[:LENGTH], good + bytes(8), b""):
        assert examine(secret, "job", 7, 1, [forged]).missing == [0]
