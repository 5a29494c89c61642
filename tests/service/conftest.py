"""One cluster for many refusals, with a worker that must not notice any of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest

from psserver.options import Options
from tests.links import connect_link
from tests.service.peer import Peer
from tests.service.serving import ONES, PATIENCE, VARIABLES, Cluster, Served, granted, serving, wait_until


class Steady:
    """A psworker session that goes on training, and knows what the weights must be."""

    def __init__(self, cluster: Cluster) -> None:
        self.session = connect_link(cluster.hosts, ONES, name="steady")
        # Of weights, and of state, which late contributions of others move otherwise.
        self.expected = self.state = 1.0

    def step(self) -> None:
        """Version v to v + 1: every weight falls by 1/8, which is exact in float32."""
        grant = granted(self.session)
        pulled = self.session.pull(grant)
        for spec in VARIABLES:
            expected = self.state if spec.kind == "state" else self.expected
            assert (pulled[spec.name] == expected).all(), spec.name
        gradients = {spec.name: np.full(spec.shape, 0.125) for spec in VARIABLES if spec.kind == "trainable"}
        moved = {spec.name: np.full(spec.shape, -0.125) for spec in VARIABLES if spec.kind == "state"}
        self.session.push(grant, gradients | moved)
        self.session.commit(grant, samples=1, loss=0.5)
        self.expected -= 0.125
        self.state -= 0.125
        wait_until(lambda: grant.ticket in self._applied(), "the commit to be applied")

    def _applied(self) -> list[int]:
        return [told.ticket for told in self.session.dispositions() if told.fate == "applied"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two servers, async. A worker that is kept from running is not lost."""
    with serving(servers=2, overrides=[f"cluster.worker_timeout={10 * PATIENCE}"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def steady(cluster: Cluster) -> Iterator[Steady]:
    worker = Steady(cluster)
    worker.step()
    yield worker
    worker.session.close()


@pytest.fixture(scope="module")
def peer(cluster: Cluster, steady: Steady) -> Iterator[Peer]:
    """A member of the job that holds a ticket, and is about to misbehave."""
    with Peer(cluster, "peer") as peer:
        peer.ready()
        yield peer


@pytest.fixture
def second() -> Iterator[Served]:
    """Server 1 of two, with nobody to follow yet."""
    served = Served(
        Options(ps_hosts="127.0.0.1:0,127.0.0.1:0", task_index=1, overrides=["cluster.worker_timeout=3"])
    )
    yield served
    if served.code is None:
        served.interrupt()
    served.ended()


Unharmed = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def unharmed(cluster: Cluster, steady: Steady) -> Unharmed:
    """Whatever happens inside, status and log stay as they were, and the other worker goes on."""

    @contextmanager
    def check() -> Iterator[None]:
        before = cluster.picture()
        yield
        assert cluster.picture() == before
        steady.step()

    return check
