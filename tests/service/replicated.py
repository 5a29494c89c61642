"""Verbs for jobs with replicas whose servers run in the process of the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from psserver.options import Options
from psserver.replication import watch
from psserver.service.replicas import comparing, holding
from psworker.link import Link
from tests.asking import ask
from tests.links import connect_link
from tests.service.serving import ONES, PATIENCE, VARIABLES, Cluster, Served, granted, serving, wait_until

Job = tuple[Cluster, Link]
REPLICATED = ("cluster.replicas=2", "optimizer.name=adam")


@contextmanager
def copies(
    servers: int, out: Path, *overrides: str, compared: int = 2, job_secret: str = ""
) -> Iterator[Job]:
    """A job with two copies of each part, which are compared every so many versions, and its worker.

    One process is all servers here. It may stand still for longer than a server that is suspected: nobody is.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PS_REPLICAS", "2")
        patch.setattr(holding, "Comparing", partial(comparing.Comparing, every=compared))
        patch.setattr(watch, "SILENCE", PATIENCE)
        chosen = (*REPLICATED, *overrides)
        with serving(servers, out=out, shared=True, overrides=chosen, job_secret=job_secret) as cluster:
            with connect_link(cluster.hosts, ONES, name="w") as session:
                yield cluster, session


def train(session: Link, steps: int, gradient: float = 0.125) -> None:
    for _ in range(steps):
        grant = granted(session)
        session.pull(grant)
        gradients = {
            spec.name: np.full(spec.shape, gradient) for spec in VARIABLES if spec.kind == "trainable"
        }
        moved = {spec.name: np.zeros(spec.shape) for spec in VARIABLES if spec.kind == "state"}
        session.push(grant, gradients | moved)
        session.commit(grant, samples=1, loss=0.5)


def newest(served: Served) -> tuple[int, bytes]:
    def read() -> tuple[int, bytes]:
        shard = served.server.host.state.shard
        if shard is None or shard.version < 0:
            return -1, b""
        values = shard.arena.values(shard.version)
        slots = shard.slots
        assert values is not None
        return shard.version, values.tobytes() + b"".join(slot.tobytes() for slot in slots.values())

    return ask(served.server.runtime, read)


def state_of(cluster: Cluster, server: int) -> str:
    return str(cluster.status().servers[server].state)


def begun_again(cluster: Cluster, out: Path, number: int, *overrides: str, resume: str | None = None) -> None:
    """The next server of that number, at the same address. It ends with the others."""
    usual = ("cluster.workers=1", "policy.name=async", "optimizer.learning_rate=1.0")
    options = Options(
        ps_hosts=cluster.hosts,
        task_index=number,
        overrides=(*usual, *REPLICATED, *overrides),
        out=out,
        resume=resume,
    )
    cluster.servers[number] = Served(options)


def made_anew(cluster: Cluster, tmp_path: Path, number: int, policy: str = "async") -> None:
    """Begin server `number` again until it is in sync with server 0. One that was silent for a second on a busy machine
    begins again, too."""

    def equal() -> bool:
        if cluster.servers[number].code is not None:
            begun_again(cluster, tmp_path / "run", number, f"policy.name={policy}")
        in_sync = state_of(cluster, number) == "in sync"
        return in_sync and newest(cluster.servers[0]) == newest(cluster.servers[number])

    wait_until(equal, "a copy anew")
