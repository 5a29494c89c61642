"""Verbs for jobs with replicas whose servers run in the process of the test."""

from pathlib import Path

import numpy as np

import psworker
from psserver.options import Options
from tests.service.serving import VARIABLES, Cluster, Served, granted, wait_until


def train(session: psworker.Session, steps: int, gradient: float = 0.125) -> None:
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
        slots = shard.slots.get("", {})
        assert values is not None
        return shard.version, values.tobytes() + b"".join(slot.tobytes() for slot in slots.values())

    return served.server.owner.ask(read)


def state_of(cluster: Cluster, server: int) -> str:
    return str(cluster.status().servers[server].state)


def begun_again(cluster: Cluster, tmp_path: Path, number: int, policy: str = "async") -> Served:
    """The next server of that number, at the same address. It ends with the others."""
    overrides = (
        "cluster.workers=1",
        f"policy.name={policy}",
        "optimizer.learning_rate=1.0",
        "cluster.replicas=2",
    )
    options = Options(
        ps_hosts=cluster.hosts,
        task_index=number,
        overrides=(*overrides, "optimizer.name=adam"),
        out=tmp_path / "run",
    )
    cluster.servers[number] = served = Served(options)
    return served


def made_anew(cluster: Cluster, tmp_path: Path, number: int, policy: str = "async") -> None:
    """Begin server `number` again until it is in sync with server 0. One that was silent for a second on a busy machine
    begins again, too."""

    def equal() -> bool:
        if cluster.servers[number].code is not None:
            begun_again(cluster, tmp_path, number, policy)
        in_sync = state_of(cluster, number) == "in sync"
        return in_sync and newest(cluster.servers[0]) == newest(cluster.servers[number])

    wait_until(equal, "a copy anew")
