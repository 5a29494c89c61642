"""Two processes of one name: the one that has it keeps it while it answers."""

import os
from collections.abc import Iterator

import grpc
import pytest

from pswire.exits import ExitCode
from psworker import script
from psworker.control import joining
from psworker.errors import Refused
from tests.links import connect_link
from tests.promises import promise
from tests.service.peer import Peer, join_request
from tests.service.serving import ONES, PATIENCE, Cluster, granted, serving, wait_until

# Seconds that a newcomer waits.
TIMEOUT = 4.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with serving(overrides=[f"cluster.worker_timeout={TIMEOUT}"]) as cluster:
        yield cluster


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions from now on look like those of another process."""
    monkeypatch.setattr(joining, "token", lambda: "another")
    monkeypatch.setattr(joining, "place", lambda: "process 7 on host far")


@promise(
    "A worker whose name a second process asks for keeps it while it answers; the second one learns who has it."
)
def test_an_owner_that_answers_keeps_its_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ps-worker")
    with connect_link(cluster.hosts, ONES, name="w") as owner:
        granted(owner)
        in_another_process(monkeypatch)
        with pytest.raises(Refused, match="the name 'w' is in use by") as found:
            connect_link(cluster.hosts, ONES, name="w")
        assert f"process {os.getpid()} on host " in str(found.value)
        assert script._code(found.value) == ExitCode.REFUSED
        assert owner.info.incarnation == 0 and owner.stop is None
    waits = [record.getMessage() for record in caplog.records if "asks to wait" in record.getMessage()]
    assert waits and "whether it is alive is known in " in waits[0], waits


def test_a_client_that_sends_no_value_does_not_take_a_name_in_use(cluster: Cluster) -> None:
    with connect_link(cluster.hosts, ONES, name="w") as owner, Peer(cluster, "x") as peer:
        request = join_request(peer.plan, worker="w", session="mine")

        def answer() -> grpc.StatusCode:
            with pytest.raises(grpc.RpcError) as found:
                cluster.coordinator.Join(request, timeout=PATIENCE)
            return found.value.code()

        assert answer() == grpc.StatusCode.UNAVAILABLE
        wait_until(lambda: answer() == grpc.StatusCode.FAILED_PRECONDITION, "the end of the wait")
        granted(owner)


def test_a_forked_process_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, number = joining.token(), os.getpid()
    assert joining.token() == mine and str(number) in joining.place()
    monkeypatch.setattr(os, "getpid", lambda: number + 1)
    assert joining.token() != mine and str(number + 1) in joining.place()
