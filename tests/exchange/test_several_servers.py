"""With several servers the commit goes to the first one with all receipts, by the stream that carried its payload."""

from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest

import psworker
from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psworker.data.shard_client import ShardClient
from tests.service.serving import VARIABLES, Cluster, granted, serving

STEPS = 6


class Broken(grpc.RpcError):
    """The stream broke."""


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


def watched(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[int], bool], after: Callable[[int], bool]
) -> list[int]:
    """The tickets of commits that such a stream carries. It breaks before or after those for which these are true."""
    real, carried = ShardClient.commit, list[int]()

    def commit(self: ShardClient, ticket: int, *more: object) -> object:
        number = len(carried)
        carried.append(ticket)
        if before(number):
            raise Broken
        answer = real(self, ticket, *more)  # type: ignore[arg-type]
        if after(number):
            raise Broken
        return answer

    monkeypatch.setattr(ShardClient, "commit", commit)
    return carried


def trained(cluster: Cluster, transport: str, *, prefetch: bool = False) -> list[int]:
    """Take steps whose gradients are the weights; return the versions that contributions are in."""
    ones = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
    with psworker.connect(cluster.hosts, ones, transport=transport, prefetch=prefetch) as session:
        for number in range(STEPS):
            grant = granted(session)
            flats = [np.full(flat.size, 0.5, np.float32) for flat in session.pull_flat(grant)]
            session.contribute(grant, flats, samples=1, ready=number + 1 < STEPS)
        session.done()
        return [each.version for each in session.dispositions() if each.fate == "applied"]


NEVER = frozenset[int]().__contains__


def test_each_commit_but_the_last_is_carried(
    cluster: Cluster, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = watched(monkeypatch, NEVER, NEVER)
    versions = trained(cluster, transport)
    assert versions[-STEPS:] == list(range(1, STEPS + 1)) and len(carried) == STEPS - 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_stream_breaks_counts_once(
    cluster: Cluster, transport: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    breaks = {1, 3}.__contains__
    watched(monkeypatch, *((breaks, NEVER) if when == "before" else (NEVER, breaks)))
    assert trained(cluster, transport)[-STEPS:] == list(range(1, STEPS + 1))


def test_a_worker_that_fetches_ahead_commits_in_its_session(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = watched(monkeypatch, NEVER, NEVER)
    assert trained(cluster, "auto", prefetch=True)[-STEPS:] == list(range(1, STEPS + 1)) and not carried
