"""On one recorded schedule of events the real coordinator and the simulated one write equal decision logs.

Real processes make a run, over real sockets; what their workers did, read from its decisions.jsonl, is then put
on the queue of a simulated cluster, whose coordinator, policy and message routes decide anew.
"""

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pslab.replay import schedule as s
from pslab.replay.schedule import job_of, read_records
from pslab.replay.whatif import proposal_of
from pslab.simulator import Cluster
from pslab.simulator.network import Channel, EventQueue, LinkFaults, Network
from pslab.simulator.store import Store
from pslab.simulator.worker import Worker
from psserver.coordinator import JobTerms, Record
from psserver.policies import build
from psworker.engine import Abandon, Commit, Done, Leave, Ready, Request
from tests.cluster.cluster import Cluster as RealCluster
from tests.promises import promise
from tests.simulator.lab import Kept


class Puppet(Worker):
    """Does nothing of its own accord."""

    def joined(self, *_: object) -> None:
        pass

    def receive(self, *_: object) -> None:
        pass


def never() -> float:
    raise AssertionError("a puppet computes nothing")


class Recorded(Store):
    """Without arrays. `norms`: what the record says of them, by ticket."""

    def __init__(self, servers: int) -> None:
        super().__init__(servers, 0)
        self.norms: dict[int, float] = {}

    def norm(self, ticket: int) -> float:
        return self.norms.get(ticket, math.nan)


class Stage:
    """A simulated cluster without a will: what its workers do comes from a record."""

    def __init__(self, steps: list[Record]) -> None:
        job, queue = job_of(steps), EventQueue()
        knobs = dict(job.policy)
        name = str(knobs.pop("name"))
        self.store = Recorded(job.servers)
        self.cluster = Cluster(
            JobTerms(job.job, job.servers, job.workers, job.seed, min_workers=job.min_workers or 0),
            build(name, knobs, job.workers),
            proposal_of(steps),
            self.store,
            batches=lambda worker, first: iter(()),
            network=Network(queue, job.servers, 0.0, 0.0),
            queue=queue,
            link_faults=LinkFaults(),
        )
        self.cluster.folder = self.log = Kept()
        self.puppets: dict[str, Worker] = {}
        t = 0.0
        for move in s.schedule(steps):
            t = max(t, move.t)
            queue.at(t, self.perform, move)
        self.cluster.run()

    def perform(self, move: s.Move) -> None:
        cluster = self.cluster
        if isinstance(move, s.Arrive):
            up, down = (Channel(cluster.queue, LinkFaults(), Random(0)) for _ in range(2))
            puppet = self.puppets[move.worker] = Puppet(cluster, move.rank, never, up, down, None)
            puppet.life = move.incarnation + 1
            cluster.workers[move.worker] = puppet
            cluster.join(puppet, puppet.life)
            assert (puppet.name, puppet.incarnation) == (move.worker, move.incarnation)
            return
        worker = self.puppets[move.worker]
        held = [ticket.number for ticket in cluster.coordinator.state.tickets.open_of(move.worker)]
        match move:
            case s.Ask():
                self.send(worker, Ready())
            case s.Finish(known=True):
                facts = (move.batch, move.samples, move.loss)
                self.store.norms[held[0]] = move.norm
                self.send(worker, Commit(held[0], *facts, times=move.times))
            case s.Initialised():
                self.send(worker, Commit(held[0]))
            case s.GiveUp(reason=reason):
                self.send(worker, Abandon(held[0], reason))
            case s.Done():
                self.send(worker, Done())
            case s.Depart(reason=reason):
                self.send(worker, Leave(reason))

    def send(self, worker: Worker, request: Request) -> None:
        self.cluster.receive(worker, worker.incarnation, request)


def told(entries: list[Any]) -> list[dict[str, Any]]:
    """Up to the stop, without times; a connection that breaks and stands again does not concern the policy."""
    found = [entry.to_json() for entry in entries if entry.kind not in ("lost", "back")]
    return found[: next(i for i, fields in enumerate(found) if fields["kind"] == "stop") + 1]


@promise("The simulated and the real coordinator write equal logs for one schedule.")
@pytest.mark.cluster
@pytest.mark.parametrize(
    "flags",
    [
        ("bounded", "policy.aggregate=2", "policy.max_staleness=1"),
        ("sync", "policy.backup=1"),
        ("dssp", "policy.lower=0", "policy.upper=3"),
    ],
    ids=lambda flags: flags[0],
)
def test_the_simulated_coordinator_decides_what_the_real_one_did(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    name, *knobs = flags
    given = [word for knob in knobs for word in ("--set", knob)]
    with RealCluster(tmp_path) as real:
        real.start_servers(2, "--workers", "3", "--policy", name, *given)
        for batches, seconds in ((12, "0.002"), (20, "0.004"), (7, "0.02")):
            real.start_worker("--batches", str(batches), "--seconds", seconds)
        run = real.wait_end(worker_codes=[0, 0, 0])
    steps = read_records(run)
    recorded = told([step.entry for step in steps])
    again = told([record.entry for record in Stage(steps).log.records])
    for ours, theirs in zip(again, recorded, strict=True):
        assert ours == theirs
    kinds = {fields["kind"] for fields in recorded}
    assert {"grant", "commit", "apply", "done", "stop"} <= kinds and len(recorded) > 60
