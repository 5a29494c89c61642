"""A job that goes on from a checkpoint begins with all of its workers, or after a while with those who are back."""

from dataclasses import replace

import pytest

from psserver.coordinator import Coordinator, JobTerms, Output, Record
from psserver.policies import build
from pswire import protocol
from pswire.decisions import entries

TERMS = JobTerms("job", {"name": "sgd"}, workers=2, worker_timeout=3.0, checkpoint_versions=1, generation=0)


def join(coordinator: Coordinator, worker: str, rank: int, now: float) -> list[Output]:
    member, outputs = coordinator.join(worker, f"session of {worker} at {now}", rank, now)
    outputs += coordinator.connect(worker, member.incarnation, member.session, now)
    return outputs + coordinator.handle(worker, member.incarnation, protocol.Ready(), now)


def going_on(regather: float, expected: tuple[str, ...] = ()) -> Coordinator:
    """From a checkpoint of version 1, at 100 s."""
    first = Coordinator(TERMS, build("async", {}, 2), 0.0)
    outputs = [*first.opening(), *join(first, "a", 0, 0.0), *join(first, "b", 1, 0.0)]
    # Initial values.
    outputs += first.handle("a", 0, protocol.Commit(1, ready=True), 1.0)
    ticket = next(g.ticket for g in granted(outputs) if g.worker == "a")
    outputs += first.handle("a", 0, protocol.Commit(ticket), 1.0)
    assert isinstance(outputs[-1], Record) and isinstance(outputs[-1].entry, entries.Checkpoint)
    again = Coordinator(replace(TERMS, generation=1, regather=regather), build("async", {}, 2), 100.0)
    again.restore(first.state())
    again.resume(0, 100.0, expected)
    return again


def granted(outputs: list[Output]) -> list[entries.Grant]:
    return [o.entry for o in outputs if isinstance(o, Record) and isinstance(o.entry, entries.Grant)]


def test_it_waits_for_all() -> None:
    again = going_on(60.0)
    assert granted([*join(again, "a", 0, 101.0), *again.tick(159.9)]) == []
    outputs = join(again, "b", 1, 159.9)
    assert {grant.worker for grant in granted(outputs)} == {"a", "b"}
    # No number of the former generation comes again.
    assert all(grant.ticket > 10**9 for grant in granted(outputs))


def test_but_not_for_the_dead() -> None:
    again = going_on(60.0)
    join(again, "a", 0, 101.0)
    outputs = again.tick(160.0)
    (start,) = [o.entry for o in outputs if isinstance(o, Record) and isinstance(o.entry, entries.Start)]
    assert start.workers == 1 and [grant.worker for grant in granted(outputs)] == ["a"]
    # Who comes later takes part.
    assert [grant.worker for grant in granted(join(again, "b", 1, 170.0))] == ["b"]


def test_nor_for_one_that_had_left_before() -> None:
    again = going_on(60.0, ("a",))
    outputs = join(again, "a", 0, 101.0)
    (start,) = [o.entry for o in outputs if isinstance(o, Record) and isinstance(o.entry, entries.Start)]
    assert start.workers == 1 and [grant.worker for grant in granted(outputs)] == ["a"]


def test_one_that_was_there_is_waited_for_whoever_else_comes() -> None:
    again = going_on(60.0, ("b",))
    assert granted([*join(again, "a", 0, 101.0), *again.tick(159.9)]) == []
    assert {grant.worker for grant in granted(join(again, "b", 1, 159.9))} == {"a", "b"}


@pytest.mark.parametrize("now", [160.0, 10_000.0])
def test_in_new_processes_it_waits_for_as_long_as_at_its_start(now: float) -> None:
    again = going_on(0.0)
    assert granted([*join(again, "a", 0, 101.0), *again.tick(now)]) == []
