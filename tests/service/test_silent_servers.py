"""A server that hangs while its connection stands: it has a name in status, and a limit."""

import pytest

from psserver.service.job import follower, job, silence
from psserver.service.job.silence import Silence
from psserver.service.store.checkpoints import PATIENCE as LEAST
from psserver.service.store.checkpoints import limit
from pswire.exits import ExitCode
from pswire.model.plan import VariableSpec, make_plan
from pswire.patience import SLOWEST_LINK
from pswire.v1 import coordinator_pb2 as pb
from tests.service.peer import Peer
from tests.service.serving import serving, wait_until


def test_a_large_model_has_longer() -> None:
    elements = SLOWEST_LINK
    plan = make_plan([VariableSpec("w", (elements,))], 1)
    assert limit(plan, 10.0) == LEAST + 4 * (10.0 + 4 * elements / SLOWEST_LINK)


def test_what_a_server_is_waited_for() -> None:
    told = Silence()
    assert told.waited() is None and not told.ask(5.0)
    told.began(10.0)
    assert told.waited() == ("answer", 10.0)
    assert [told.ask(now) for now in (10.5, 11.0, 11.5, 12.0)] == [False, True, False, True]
    told.hear(0, 12.0)
    told.order(3, 20.0)
    told.hear(0, 21.0)
    told.order(9, 22.0)
    assert told.waited() == ("execute entry 0 of the log", 20.0), "it lives, and gets no further"
    told.hear(2, 25.0)
    assert told.waited() == ("execute entry 2 of the log", 25.0), "much is left, and it gets on"
    told.hear(9, 26.0)
    assert told.waited() == ("answer", 26.0)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_server_that_takes_no_orders_is_named_and_lost_in_the_end(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """Also where nothing was ordered: then workers wait for it, and the coordinator for them."""
    monkeypatch.setattr(follower, "NAMED_AFTER", 0.3)
    monkeypatch.setattr(silence, "ASK_EVERY", 0.1)
    with serving(2, overrides=["cluster.worker_timeout=3"]) as cluster, Peer(cluster, "w0") as peer:
        peer.step()
        wait_until(lambda: "waiting for server" not in cluster.status().note, "server 1 to answer")
        goes_on = cluster.servers[1].probe.hang()
        if ordered:
            peer.send(ready=pb.Ready())
            peer.receive("grant")
        waiting = "waiting for server 1 to " + ("execute entry" if ordered else "answer (since ")
        note = wait_until(lambda: waiting in (said := cluster.status().note) and said, "the name in status")
        assert note.endswith(f"at most {LEAST + 4 * 3 + 1:g} s)"), note
        assert cluster.status().servers[1].state == "ready"
        # It is over now.
        monkeypatch.setattr(job, "limit", lambda *_: 0.5)
        stop = peer.receive("stop")
        assert not stop.success and "was lost: waited 0.5 s for server 1 to " in stop.reason
        peer.leave()
        assert cluster.servers[0].ended() == ExitCode.UNREACHABLE
        # It goes on, and finds out.
        goes_on.set()
        assert cluster.servers[1].ended() == ExitCode.UNREACHABLE
