"""A server that is asked whether an update is finite and never answers: it has a name in status, and a limit."""

import numpy as np
import pytest

from psserver.service.deciding import decider
from psserver.service.followers import Follower
from psserver.service.saving.whole import PATIENCE as LEAST
from psserver.service.saving.whole import limit
from psserver.service.trials import TrialAnswers
from psserver.shard import Apply
from pswire.exits import ExitCode
from pswire.model.plan import VariableSpec, make_plan
from pswire.patience import SLOWEST_LINK
from tests.service.peer import Peer
from tests.service.serving import VARIABLES, serving, wait_until


def test_who_has_not_answered_is_known() -> None:
    answers = TrialAnswers(3)
    answers.expect(1, 5.0)
    assert (answers.missing, answers.since) == ("servers 0, 1, 2", 5.0)
    assert answers.take(1, 1, True, 2.0) is None
    assert answers.missing == "servers 0, 2"
    assert answers.take(0, 1, True, 4.0) is None
    assert answers.missing == "server 2"
    assert answers.take(2, 1, False, 3.0) == (False, 4.0)
    answers.expect(2, 8.0)
    assert (answers.missing, answers.since) == ("servers 0, 1, 2", 8.0)


def test_a_large_model_has_longer() -> None:
    elements = SLOWEST_LINK
    plan = make_plan([VariableSpec("w", (elements,))], 1)
    assert limit(plan, 10.0) == LEAST + 4 * (10.0 + 4 * elements / SLOWEST_LINK)


def test_a_server_that_hangs_while_its_connection_stands_ends_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It is never asked, so that it lives, executes, and says nothing.
    monkeypatch.setattr(Follower, "try_update", lambda *_: None)
    with serving(2) as cluster, Peer(cluster, "w0") as peer:
        grant = peer.ready()
        # An update of it may not be finite: the shards are asked.
        huge = [np.full(spec.shape, 3e38, np.float32) for spec in VARIABLES]
        peer.commit(grant.ticket, peer.push(grant, huge))
        waiting = "waiting for server 1 to say whether version 1 would be finite (since "
        note = wait_until(lambda: waiting in (said := cluster.status().note) and said, "the name in status")
        assert note.endswith(f"at most {LEAST + 4 * 10 + 1:g} s)"), note
        # It is over now.
        monkeypatch.setattr(decider, "limit", lambda *_: 0.0)
        stop = peer.receive("stop")
        assert not stop.success
        assert stop.reason == (
            "waited 0 s for server 1 to say whether version 1 would be finite: not lost, but silent "
            "(see its process and its log)"
        )
        peer.leave()
        assert {served.ended() for served in cluster.servers} == {ExitCode.UNREACHABLE}


def test_once_they_have_answered_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = Follower.try_update

    def try_update(self: Follower, trial: int, update: Apply) -> None:
        asked.append(trial)
        ask(self, trial, update)

    monkeypatch.setattr(Follower, "try_update", try_update)
    with serving(2) as cluster, Peer(cluster, "w0") as peer:
        peer.step()
        assert not asked
        peer.step(1e38)
        assert asked == [1]
        assert cluster.status().version == 2
        assert cluster.servers[0].probe.job.unanswered is None
        assert "would be finite" not in cluster.status().note
