"""A client made of generated code alone trains, next to ours, and sees the same numbers."""

import base64
import re
import shlex
from collections.abc import Iterator

import numpy as np
import pytest
from google.protobuf import json_format, message_factory

from pswire.model.plan import VariableSpec
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.docs.markdown import named
from tests.links import connect_link
from tests.service.peer import Peer, messages
from tests.service.serving import PATIENCE, VARIABLES, Cluster, granted, serving, wait_until

SERVICES = {
    "Coordinator": pb.DESCRIPTOR.services_by_name["Coordinator"],
    "Shard": shard_pb2.DESCRIPTOR.services_by_name["Shard"],
}


def test_each_line_for_grpcurl_is_a_call_that_works() -> None:
    commands = re.sub(r"\\\n *", "", named("docs/guides/loop.md", "grpcurl")).replace("\n  ", " ")
    words = {"JOB": "", "TOKEN": "", "PLAN": ""}
    variables = [VariableSpec("w", (3,), "float32", "trainable")]
    with serving() as cluster, Peer(cluster, "w0", variables) as peer:
        peer.step()
        for line in commands.splitlines():
            if line.startswith("PLAN="):
                words["PLAN"] = line.removeprefix("PLAN=")
                continue
            _, *parts = shlex.split(re.sub(r"'\$(\w+)'", lambda found: words[found[1]], line))
            service, method = parts[-1].removeprefix("pswire.v1.").split("/")
            said = parts[parts.index("-d") + 1] if "-d" in parts else "{}"
            found = next(m for m in SERVICES[service].methods if m.name == method)
            request = json_format.Parse(said, message_factory.GetMessageClass(found.input_type)())
            stub = cluster.coordinator if service == "Coordinator" else cluster.shards[0]
            answer = getattr(stub, method)(request, timeout=PATIENCE)
            if method == "Status":
                words["VERSION"] = str(answer.version)
            elif method == "Join":
                words["JOB"] = answer.job
                words["TOKEN"] = base64.b64encode(answer.membership_token).decode()
            elif method == "Pull":
                [reply] = answer
                assert np.frombuffer(reply.chunk, "<f4").tolist() == [0, 0, 0]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with serving(servers=2) as cluster:
        yield cluster


@pytest.mark.parametrize("servers", [1, 3])
def test_push_pull_and_commit_by_generated_code(servers: int) -> None:
    with serving(servers) as cluster, Peer(cluster) as peer:
        fate = peer.step(0.25)
        assert (fate.fate, fate.version, fate.staleness, fate.weight) == (
            pb.Disposition.FATE_APPLIED,
            1,
            0,
            1.0,
        )
        kernel, bias, mean = peer.pull(peer.ready())
        assert (kernel == 0.75).all()
        assert (bias == 0.75).all()
        assert (mean == 1.25).all(), "state travels as deltas"


def test_generated_and_hand_framed_clients_share_a_job(cluster: Cluster) -> None:
    """What one pushes the other pulls, bit for bit."""
    values = [np.random.default_rng(7).standard_normal(s.shape).astype(np.float32) for s in VARIABLES]
    with connect_link(cluster.hosts, list(zip(VARIABLES, values, strict=True)), name="ours") as ours:
        grant = granted(ours)
        with Peer(cluster, "theirs") as theirs:
            for mine, their in zip(ours.pull(grant).values(), theirs.pull(theirs.ready()), strict=True):
                assert mine.tobytes() == their.tobytes()
            theirs.step(0.5)
            ours.push(grant, {"dense/bias": np.ones(4)})
            ours.commit(grant, samples=1)
            wait_until(lambda: cluster.status().version == 2, "both contributions")
            grant = granted(ours)
            for mine, their in zip(ours.pull(grant).values(), theirs.pull(theirs.ready()), strict=True):
                assert mine.tobytes() == their.tobytes()
            assert (ours.pull(grant)["dense/bias"] == values[1] - np.float32(0.5) - np.float32(1)).all()


def test_chunks_may_be_of_any_size(cluster: Cluster) -> None:
    """Even of none, as long as each holds whole elements."""
    with Peer(cluster) as peer:
        grant = peer.ready()
        for server, size in ((0, 4), (1, 12), (0, 64), (0, 2**20), (1, 8)):
            data = bytes(peer.plan.shards[server].nbytes)
            pieces = [*messages(peer.header(grant, server), data, size)]
            pieces.insert(1, shard_pb2.PushRequest(chunk=b""))
            assert len(peer.push_messages(server, pieces)) == 24


def test_fields_in_another_order_are_the_same_message(cluster: Cluster) -> None:
    """protobuf promises no order of fields; the hand-written parser must not either."""
    with Peer(cluster) as peer:
        grant = peer.ready()
        data = np.full(16, 3.0, "<f4").tobytes()
        header = shard_pb2.PushRequest(header=peer.header(grant, 0)).SerializeToString()
        # The chunk (field 15) before the header (field 1), and a field of a later version.
        swapped = b"\x7a\x40" + data + header + b"\x80\x01\x01"
        call = cluster.channels[0].stream_unary("/pswire.v1.Shard/Push", None, shard_pb2.PushReply.FromString)
        assert len(call(iter([swapped]), timeout=PATIENCE).receipt) == 24
