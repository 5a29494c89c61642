"""The thread of a session ends: nobody waits for what it would have received, whatever ended it."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from pswire.protocol import Event, Grant, received
from pswire.v1 import coordinator_pb2 as pb
from psworker.control import stream
from psworker.control.joining import JoinedMember
from psworker.engine import ClientEngine
from psworker.errors import SessionError
from tests.links import connect_link
from tests.patience import PATIENCE
from tests.service.serving import serving


def ends(call: Callable[[], object]) -> BaseException | None:
    """What `call` raised, in a thread of its own: it must not wait for ever."""
    found: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for a session that has ended"
    return found[0] if found else None


def test_a_fault_in_it_ends_the_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The training loop, which waits for a grant, is told; so is whoever waits for the end."""

    def faulty(event: Event, at: float) -> Event:
        if isinstance(event, Grant):
            raise RuntimeError("a fault")
        return received(event, at)

    with serving() as cluster:
        # The installing worker has its grants before the fault is there.
        with connect_link(cluster.hosts, {"w": np.zeros(2)}, transport="grpc") as session:
            assert session.ready() is not None
            monkeypatch.setattr(stream, "received", faulty)
            with connect_link(cluster.hosts, {"w": np.zeros(2)}, transport="grpc") as other:
                for call in (other.ready, other.done):
                    error = ends(call)
                    assert isinstance(error, SessionError), error
                    assert "the session failed: RuntimeError: a fault" in str(error)
    [said] = [record for record in caplog.records if getattr(record, "event", "") == "session_failed"]
    assert said.exc_info is not None


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ("job", "the coordinator had given this worker up"),
        ("job.1", "the servers began again from a checkpoint"),
    ],
)
def test_why_a_worker_goes_back_in_its_data(job: str, reason: str) -> None:
    """Where there is no checkpoint nobody is told of one."""
    joined = JoinedMember(pb.JoinReply(job="job", worker="w0"), "session", numbered=True)
    joined.goes_back = True
    joined.renew(ClientEngine(), pb.JoinReply(job=job, worker="w0", incarnation=1))
    assert joined.reason == reason
