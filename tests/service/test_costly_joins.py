"""Joins that cost much to read are refused by their size, so no member waits for them."""

from typing import Any

import grpc
import pytest

from psserver.service.net import coordinator
from tests.promises import promise
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, refused, serving

JOIN = "/pswire.v1.Coordinator/Join"
# Empty variables, two bytes each.
MANY = b"\x1a\x00" * 2**21


class Counted:
    """Counts the calls of a function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.calls = 0
        self._function = getattr(coordinator, name)
        monkeypatch.setattr(coordinator, name, self)

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self._function(*arguments)


@promise("A Join of another model is refused by its size, before it costs what members would wait for.")
def test_a_join_larger_than_the_jobs_model_needs_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as cluster, Peer(cluster, "a") as peer:
        peer.step()
        read, weighed = Counted(monkeypatch, "parsed"), Counted(monkeypatch, "check_dimensions")
        join = cluster.raw(0, JOIN)
        for _ in range(3):
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "this job's model", f"got {len(MANY)} bytes"):
                list(join(iter([MANY]), timeout=PATIENCE))
            peer.step()
        assert read.calls == weighed.calls == 0


def test_millions_of_variables_are_counted_and_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has no model yet, so any size may come."""
    with serving() as cluster:
        weighed = Counted(monkeypatch, "check_dimensions")
        join = cluster.raw(0, JOIN)
        for _ in range(3):
            with refused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"JoinRequest.variables: expected at most 16384 elements, got {2**21}",
            ):
                list(join(iter([MANY]), timeout=PATIENCE))
        assert weighed.calls == 0
        with Peer(cluster, "a") as peer:
            assert peer.step().version == 1
