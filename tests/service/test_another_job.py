"""Workers and models of another job do not become this one's: a rejoin names its job, and a model counts once it
is installed."""

import grpc
import numpy as np
import pytest

from psserver.options import Options
from pswire.model.plan import VariableSpec, make_plan
from pswire.v1 import coordinator_pb2 as pb
from psworker.errors import Refused
from tests.links import connect_link
from tests.promises import promise
from tests.sentences import Recorder
from tests.service.peer import Peer, Stream, join_request
from tests.service.serving import PATIENCE, VARIABLES, Cluster, Served, granted, refused, serving, wait_until

OTHER = (VariableSpec("other", (3,)),)
FOR_EVER = 3600.0


@promise("A worker of another job changes nothing; a model is the job's once a worker of it has a session.")
def test_a_rejoin_of_another_job_is_refused_before_anything_is_adopted() -> None:
    """Whatever model it names: neither does the job take it for its own, nor does the worker count as arrived."""
    with serving(workers=2) as cluster:
        for variables in (OTHER, VARIABLES):
            request = join_request(make_plan(variables, 1), job="0123456789abcdef")
            with refused(
                grpc.StatusCode.FAILED_PRECONDITION, "job 0123456789abcdef, which is over or was killed"
            ):
                cluster.coordinator.Join(request, timeout=PATIENCE)
        status = cluster.status()
        assert list(status.workers) == [] and "waiting for 2 of 2 workers" in status.note
        assert cluster.servers[0].probe.job.agreement.plan is None


@pytest.mark.parametrize("model", [VARIABLES, OTHER], ids=["same model", "another model"])
def test_workers_of_a_job_that_is_gone_end_with_a_sentence(
    model: tuple[VariableSpec, ...], sentences: Recorder
) -> None:
    """Another job listens where theirs did. They notice at once: waits for a log that is not theirs would outlast this
    test."""
    values = [(spec, np.zeros(spec.shape, np.float32)) for spec in model]
    with serving(workers=1) as cluster:
        session = connect_link(cluster.hosts, values, server_timeout=FOR_EVER)
        grant = granted(session)
        port = cluster.servers[0].address
        # As a kill would: the streams break, and nobody is told of an end.
        cluster.servers[0].probe.stop_listening()
        plan = Options(ps_hosts=port, overrides=["cluster.workers=2", "optimizer.learning_rate=1.0"])
        restarted = Served(plan, patience=FOR_EVER)
        try:
            with sentences.raises(Refused):
                while True:
                    session.commit(grant, samples=1)
                    session.ready()
            session.close()
            newer = Cluster([restarted])
            assert list(newer.status().workers) == []
            with Peer(newer, "new"):
                assert [worker.name for worker in newer.status().workers] == ["new"]
            newer.close()
        finally:
            restarted.interrupt()
            restarted.ended()


@pytest.mark.parametrize("servers", [1, 2])
def test_a_first_join_with_a_wrong_model_does_not_lock_the_job(servers: int) -> None:
    with serving(servers) as cluster:
        stray = join_request(make_plan(OTHER, servers), worker="stray")
        reply = cluster.coordinator.Join(stray, timeout=PATIENCE)
        with Peer(cluster, "honest") as honest:
            # It comes late, when another model has taken the place of its own.
            hello = pb.Hello(job=reply.job, worker="stray", session=stray.session)
            with refused(grpc.StatusCode.FAILED_PRECONDITION, "not a member"):
                list(cluster.coordinator.Session(iter([pb.SessionRequest(hello=hello)]), timeout=PATIENCE))
            assert honest.step().version == 1
            gone = next(worker for worker in cluster.status().workers if worker.name == "stray")
            assert gone.state == "left"
            with refused(grpc.StatusCode.FAILED_PRECONDITION, "this job trains another model"):
                cluster.coordinator.Join(stray, timeout=PATIENCE)


def test_a_model_is_the_jobs_while_a_session_stands_for_it_or_may_come_back() -> None:
    """Of two workers that differ, the one that is there wins. A moment without a session, before the first version: a
    stray Join must not use it."""
    with serving(workers=2) as cluster:
        first, stray = Peer(cluster, "first"), join_request(make_plan(OTHER, 1), worker="stray")
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "this job trains another model"):
            cluster.coordinator.Join(stray, timeout=PATIENCE)
        first.stream.close()
        wait_until(lambda: cluster.status().workers[0].state == "lost", "the loss to be noticed")
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "this job trains another model"):
            cluster.coordinator.Join(stray, timeout=PATIENCE)
        first.stream = Stream(cluster, first.hello())
        first.leave()
