"""Sessions of our own library against a real server: beginnings and ends."""

import threading

import numpy as np
import pytest

from pswire.v1 import coordinator_pb2 as pb
from psworker.errors import PayloadRefused, Refused, SessionError
from tests.links import connect_link
from tests.sentences import Recorder
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, granted, serving, wait_until


def test_a_session_that_closes_at_once_sends_leave() -> None:
    """Even before its stream stands: nobody then waits for it as for one that was lost."""
    with serving(overrides=["cluster.worker_timeout=600.0"]) as cluster:
        for round in range(5):
            connect_link(cluster.hosts, {"w": np.zeros(3)}, name=f"brief{round}").close()
        wait_until(lambda: {w.state for w in cluster.status().workers} == {"left"}, "all to have left")


def test_another_model_is_refused_in_words(sentences: Recorder) -> None:
    with serving() as cluster, connect_link(cluster.hosts, {"w": np.zeros(3)}) as session:
        # A Join alone does not decide what the job trains: a session must stand for it.
        assert session.ready() is not None
        before = cluster.picture()
        with sentences.raises(Refused):
            connect_link(cluster.hosts, {"w": np.zeros(4)})
        with sentences.raises(Refused):
            connect_link(cluster.hosts, {"w": np.zeros(3), "b": np.zeros(1)})
        assert [w[0] for w in cluster.picture().workers] == [w[0] for w in before.workers]


def test_what_a_session_refuses_to_send(sentences: Recorder) -> None:
    """Before anything travels; the ticket stays good."""
    with (
        serving() as cluster,
        connect_link(cluster.hosts, {"w": np.zeros(3), "b": np.zeros(1)}) as session,
    ):
        grant = granted(session)
        before = cluster.picture()
        with sentences.raises(ValueError):
            session.push(grant, {"v": np.ones(3)})
        with sentences.raises(ValueError):
            session.push(grant, {"w": np.ones(2)})
        with sentences.raises(ValueError):
            session.push(grant, {"w": np.ones(3, complex)})
        with sentences.raises(ValueError):
            session.push_flat(grant, [np.ones(4, np.float32)] * 2)
        with sentences.raises(ValueError):
            session.push_flat(grant, [np.ones(4)])
        with sentences.raises(PayloadRefused):
            session.push(grant, {"w": np.array([0, np.nan, 0])})
        assert cluster.picture() == before
        session.push(grant, {"w": np.ones(3)})
        session.commit(grant, samples=1)
        wait_until(lambda: cluster.status().version == 1, "the good payload to count")


@pytest.mark.parametrize(("wait", "state"), [("ready", "waiting"), ("done", "done")])
def test_who_waits_in_a_session_that_is_closed_is_told(wait: str, state: str) -> None:
    """From another thread: on the way out of a program, say."""
    with serving(workers=2) as cluster:
        session = connect_link(cluster.hosts, {"w": np.zeros(3)}, name="w0")
        told: list[str] = []

        def waits() -> None:
            with pytest.raises(SessionError) as caught:
                getattr(session, wait)()
            told.append(str(caught.value))

        waiting = threading.Thread(target=waits, daemon=True)
        waiting.start()
        wait_until(lambda: cluster.status().workers[0].state == state, "the session to wait")
        session.close()
        waiting.join(PATIENCE)
        assert told == ["the session is closed"]


def test_a_fault_of_the_server_ends_the_session_in_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the traceback in the server's log: it is nobody's broken stream."""
    with serving() as cluster, Peer(cluster, "w0") as peer:
        job = cluster.servers[0].server.job
        assert job is not None

        def fails(*_: object, **__: object) -> None:
            raise KeyError("what nobody thought of")

        monkeypatch.setattr(job.decider, "handle", fails)
        peer.send(ready=pb.Ready())
        refusal = peer.receive("refusal")
        assert refusal.fatal and "the server failed" in refusal.message and "KeyError" in refusal.message
        monkeypatch.undo()
    assert [record for record in caplog.records if record.exc_info and "a session of w0" in record.message]
