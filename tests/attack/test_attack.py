"""Honest workers train among strangers and lying members: messages of every method, changed at random, from seeds."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.attack.mutations import Mutator
from tests.promises import promise
from tests.repetitions import repetitions, seeds
from tests.service.peer import Peer, join_request, messages
from tests.service.serving import PATIENCE, Cluster, serving

MESSAGES = repetitions(400, soak=3000, fast=100)
# An honest worker makes a step after so many; a liar joins under another name.
TURN, LIFE = 15, 40
SERVICES = {
    "Coordinator": pb.DESCRIPTOR.services_by_name["Coordinator"],
    "Shard": shard_pb2.DESCRIPTOR.services_by_name["Shard"],
}
# Whoever has not joined is answered by these alone.
OPEN = {"Join", "Status", "Note", "ChangePolicy", "Promote", "FindCoordinator"}
FAILED = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)


class Hostile:
    """Calls methods with messages that `chance` changes. `lies`: it is a member, and its proofs are good."""

    def __init__(self, cluster: Cluster, victim: Peer, chance: random.Random, *, lies: bool) -> None:
        self._cluster, self._chance, self._lies = cluster, chance, lies
        self._mutate = Mutator(chance, [victim.worker, victim.job, victim.plan.fingerprint])
        self._victim = self._peer = victim
        self.said = 0

    def act(self) -> None:
        """Make one call, of any method of any server. Fails if the server does, or answers a stranger."""
        if self._lies and self.said % LIFE == 0:
            self._peer = Peer(self._cluster, f"liar-{self.said}")
            self._peer.ready()
        self.said += 1
        service = self._chance.choice(list(SERVICES))
        method = self._chance.choice(SERVICES[service].methods)
        server = self._chance.randrange(len(self._cluster.servers)) if service == "Shard" else 0
        call = self._cluster.raw(server, f"/pswire.v1.{service}/{method.name}")
        try:
            answers = list(call(self._sent(method.name, server), timeout=0.3))
        except grpc.RpcError as error:
            assert error.code() not in FAILED, (method.name, error.details())
        else:
            assert self._lies or method.name in OPEN or not answers, f"{method.name} answered a stranger"

    def _sent(self, method: str, server: int) -> Iterator[bytes]:
        said = [self._changed(message) for message in self._usual(method, server)]
        return iter(self._mutate.sequence(said) if self._chance.random() < 0.3 else said)

    def _changed(self, message: Message) -> bytes:
        if self._chance.random() < 0.4:
            self._mutate.message(message)
        if isinstance(message, pb.JoinRequest):
            # Who may take the name of a worker that is here is another matter.
            message.worker, message.task_index = f"guest-{self.said}", 1000 + self.said
        # Every member may end a job, or set the rate, and so make a model useless.
        if isinstance(message, pb.SessionRequest):
            message.ClearField("done")
        for commit in (message, getattr(message, "commit", None)):
            if isinstance(commit, pb.CommitRequest):
                commit.commit.ClearField("learning_rate")
        data: bytes = message.SerializeToString()
        return self._mutate.data(data) if self._chance.random() < 0.15 else data

    def _usual(self, method: str, server: int) -> Sequence[Message]:
        """Return what a worker would say, with proofs that are guessed by a stranger."""
        peer, proof = self._peer, self._peer.proof()
        grant = peer.grant or pb.Grant()
        hello = peer.hello()
        if not self._lies:
            proof["membership_token"], hello.session = self._chance.randbytes(16), "guessed"
        header = peer.header(grant, server, **proof)
        size = peer.plan.shards[server].elements
        data = np.full(size, self._chance.choice((0.5, -1.0, np.nan)), "<f4").tobytes()
        commit = pb.CommitRequest(hello=hello, commit=pb.Commit(ticket=grant.ticket, samples=1))
        pull = peer.request(grant, **proof)
        match method:
            case "Join":
                return [join_request(peer.plan, session="another", job=peer.job)]
            case "Session":
                words = (pb.Ready(), pb.Abandon(ticket=grant.ticket), pb.Report(version=1), pb.Leave())
                kinds = [{type(word).__name__.lower(): word} for word in words]
                said = [pb.SessionRequest(**kind) for kind in self._chance.choices(kinds, k=3)]
                return [pb.SessionRequest(hello=hello), *said]
            case "Commit":
                return [commit]
            case "GatherEpoch":
                return [
                    pb.GatherEpochRequest(job=peer.job, worker=peer.worker, layout="m", sums=[1.0], **proof)
                ]
            case "Push":
                return list(messages(header, data))
            case "Pull":
                return [pull]
            case "Exchange":
                push = shard_pb2.ExchangeRequest(push=header, chunk=data, commit=commit)
                attach = shard_pb2.Attach(
                    job=peer.job, worker=peer.worker, plan=peer.plan.fingerprint, **proof
                )
                others = (shard_pb2.ExchangeRequest(pull=pull), shard_pb2.ExchangeRequest(attach=attach))
                return [push, self._chance.choice(others)]
            case _:
                found = [m for each in SERVICES.values() for m in each.methods if m.name == method]
                return [GetMessageClass(found[0].input_type)()]


@promise("Whatever strangers and lying members send, honest workers train on, and nothing in a server fails.")
@pytest.mark.parametrize("lies", [False, True], ids=["strangers", "members"])
@pytest.mark.parametrize("seed", list(seeds(1, soak=10)))
def test_honest_workers_among_others(
    lies: bool, seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Strangers, who know all but the secrets, change no bit of the model."""
    chance, out = random.Random(f"{lies}/{seed}"), tmp_path / "run"
    patient = [f"cluster.worker_timeout={PATIENCE}", "cluster.nonfinite_limit=100000"]
    with serving(2, out=out, overrides=patient) as cluster, Peer(cluster, "honest") as honest:
        honest.ready()
        hostile, version = Hostile(cluster, honest, chance, lies=lies), 0
        while hostile.said < MESSAGES:
            hostile.act()
            if hostile.said % TURN == 0:
                told = honest.step(0.125)
                assert told.fate == pb.Disposition.FATE_APPLIED and told.version > version
                assert lies or told.version == version + 1
                version = told.version
        weights = honest.pull(honest.ready())
        assert lies or (weights[0] == 1 - 0.125 * version).all()
        assert all(np.isfinite(each).all() for each in weights)
    assert check_run(Run(out)).violations == ()
    assert not [record.getMessage() for record in caplog.records if record.exc_info]
