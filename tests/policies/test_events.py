"""A policy's promise holds after a worker's restart, a server's loss, a takeover and a change; `ps-lab check` sees
where it does not."""

import pytest

from tests.policies.events import EVENTS, PROMISES, Promise, Recount, play, recount

KINDS = ("gap", "age", "misses", "workers")


def broken(promise: Promise, found: Recount) -> list[str]:
    """Return the kinds of promises that the recount finds broken."""
    wrong = []
    for kind in KINDS:
        limit, value = getattr(promise, kind), getattr(found, kind)
        if limit is not None and (value < limit if kind == "workers" else value > limit):
            wrong.append(f"{kind}: {value}, promised {limit}")
    return wrong


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_every_promise_holds_after_every_event(promise: Promise) -> None:
    for name, event in EVENTS.items():
        job = play(promise, event)
        assert job.coordinator.stopped is None and job.version > 5, f"{name}: {job.stopped}"
        assert not broken(promise, recount(job)), name
        assert job.verdict().ok, f"{name}: {job.verdict().violations[:2]}"
