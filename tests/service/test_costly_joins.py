"""Joins that cost much to read are refused by their size, so no member waits for them."""

from typing import Any

import grpc
import pytest

from psserver.service.net import coordinator
from pswire.bounds import BOUNDS, TABLE, Many, Text
from pswire.messages import specs_to_wire
from pswire.model.plan import VariableSpec
from tests.promises import promise
from tests.service.peer import Peer, join_request
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


def test_the_longest_texts_fit_beside_the_variables() -> None:
    """Characters take four bytes at most, and other fields less than a KiB together."""
    texts = sum(
        4 * row.bound.most for row in TABLE if row.message == "JoinRequest" and isinstance(row.bound, Text)
    )
    work = BOUNDS["WorkUnits", "data"].bound
    assert isinstance(work, Text) and isinstance(BOUNDS["JoinRequest", "variables"].bound, Many)
    assert texts + 4 * work.most + 1024 <= coordinator.BESIDE_VARIABLES


def test_a_large_model_joins_with_all_its_variables() -> None:
    variables = tuple(VariableSpec(f"{number:04d}" + "v" * 1000, (1,)) for number in range(2000))
    with serving() as cluster, Peer(cluster, "a", variables) as first:
        first.step()
        request = join_request(first.plan, worker="b", optimizer="")
        assert request.ByteSize() > coordinator.BESIDE_VARIABLES
        assert list(request.variables) == specs_to_wire(variables)
        with Peer(cluster, "b", variables) as second:
            second.step()
