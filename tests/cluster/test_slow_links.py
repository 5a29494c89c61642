"""A slow link is not a dead one, and a server that stands still for a moment is not lost."""

import threading
import time
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import numpy as np
import pytest

import psworker
from pswire.model.plan import VariableSpec
from tests.cluster.cluster import Cluster
from tests.service.relay import slowly
from tests.service.serving import serving

MODEL = VariableSpec("w", (1024, 1024))  # 4 MB
RATE = 500e3  # bytes/s

pytestmark = pytest.mark.cluster


@pytest.mark.timeout(240)
@pytest.mark.parametrize("timeout", [10.0, 3.0])
def test_a_model_of_4_mb_trains_over_500_kb_per_second(timeout: float) -> None:
    """A payload takes eight seconds each way: pings of the same connection wait behind what is under way of it.

    At 3 s the server waits 0.9 s for the answer to a ping: no more than that may be on its way.
    """
    initial = [(MODEL, np.zeros(MODEL.shape, np.float32))]
    steps = 2
    overrides = [f"cluster.worker_timeout={timeout}"]
    with (
        serving(overrides=overrides, patience=30.0, lease=5.0) as cluster,
        slowly(cluster.hosts, RATE) as relay,
        psworker.connect(relay.address, initial, transport="grpc") as session,
    ):
        for step in range(steps):
            grant = session.ready()
            assert grant is not None and grant.version == step
            (weights,) = session.pull_flat(grant)
            assert weights[0] == -step
            session.push_flat(grant, [np.ones(weights.size, np.float32)])
            session.commit(grant, samples=1)
        assert session.done().version == steps
        assert session.incarnation == 0
        # Nothing travelled twice: one initial push, then a pull and a push of each step.
        assert relay.up.passed < 4.2e6 * (1 + steps) + 1e6
        assert relay.down.passed < 4.2e6 * steps + 1e6


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_server_that_stands_still_for_less_than_the_timeout_loses_nobody(
    tmp_path: Path, stopped: int
) -> None:
    """SIGSTOP for four seconds, of a worker_timeout of five."""
    with Cluster(tmp_path) as cluster:
        cluster.start_servers(2, "--workers", "2", "--policy", "sync", timeout=5.0)
        flags = ["--batches", "60", "--seconds", "0.05"]
        workers = [cluster.start_worker(*flags) for _ in range(2)]
        cluster.wait_for(lambda status: status.version >= 5, "training")
        cluster.servers[stopped].send(SIGSTOP)
        began = time.monotonic()
        threading.Event().wait(4.0)
        cluster.servers[stopped].send(SIGCONT)
        assert time.monotonic() - began < 5.0
        assert [process.wait_exit() for process in (*workers, *cluster.servers)] == [0, 0, 0, 0]
        log = (cluster.out / "decisions.jsonl").read_text(encoding="utf-8")
        assert '"kind":"leave"' not in log.split('"kind":"stop"')[0]
