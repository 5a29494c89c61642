"""With several servers the commit goes to the first one with all receipts, by the stream that carried its payload."""

from collections.abc import Callable, Iterable, Iterator

import grpc
import numpy as np
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pswire.transport.failures import CallEnded
from pswire.transport.framed_socket import Parts
from pswire.v1 import shard_pb2
from psworker.data.carrier import Answer, Carrier
from tests.links import connect_link
from tests.promises import promise
from tests.service.serving import VARIABLES, Cluster, granted, serving

STEPS = 6


@pytest.fixture(params=["grpc", "socket", "shared-memory"])
def transport(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    with serving(3, out=tmp_path / "run") as running:
        yield running
        for served in running.servers:
            served.ended()
    assert check_run(Run(tmp_path / "run")).ok


def broken(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[int], bool], after: Callable[[int], bool]
) -> list[int]:
    """The tickets of commits, one for each try. The stream breaks before or after those for which these are true."""
    real, tried = Carrier.ask, list[int]()

    def ask(self: Carrier, requests: Iterable[Parts]) -> Answer:
        messages = [b"".join(parts) for parts in requests]
        commit = shard_pb2.ExchangeRequest.FromString(messages[0]).commit.commit
        if not commit.ticket:
            return real(self, [[each] for each in messages])
        number = len(tried)
        tried.append(commit.ticket)
        if before(number):
            self.close()
            raise CallEnded(grpc.StatusCode.UNAVAILABLE, "cut")
        answer = real(self, [[each] for each in messages])
        if after(number):
            self.close()
            raise CallEnded(grpc.StatusCode.UNAVAILABLE, "cut")
        return answer

    monkeypatch.setattr(Carrier, "ask", ask)
    return tried


def trained(cluster: Cluster, transport: str, *, prefetch: bool = False) -> list[int]:
    """Take steps whose gradients are the weights; return the versions that contributions are in."""
    ones = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
    with connect_link(cluster.hosts, ones, transport=transport, prefetch=prefetch) as session:
        for number in range(STEPS):
            grant = granted(session)
            flats = [np.full(flat.size, 0.5, np.float32) for flat in session.pull_flat(grant)]
            session.contribute(grant, flats, samples=1, ready=number + 1 < STEPS)
        session.done()
        return [each.version for each in session.dispositions() if each.fate == "applied"]


NEVER = frozenset[int]().__contains__


@pytest.mark.parametrize("prefetch", [False, True])
def test_commits_go_to_server_0_by_the_stream_of_payloads(
    cluster: Cluster, transport: str, monkeypatch: pytest.MonkeyPatch, prefetch: bool
) -> None:
    tried = broken(monkeypatch, NEVER, NEVER)
    versions = trained(cluster, transport, prefetch=prefetch)
    # The first is that of the initial values.
    assert versions[-STEPS:] == list(range(1, STEPS + 1)) and len(set(tried)) == len(tried) == STEPS + 1


@promise("Retries never apply a gradient twice")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_stream_breaks_counts_once(
    cluster: Cluster, transport: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    breaks = {0, 2, 3, 6}.__contains__
    tried = broken(monkeypatch, *((breaks, NEVER) if when == "before" else (NEVER, breaks)))
    assert trained(cluster, transport)[-STEPS:] == list(range(1, STEPS + 1))
    assert len(tried) == STEPS + 1 + 4
