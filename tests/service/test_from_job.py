"""Whose optimizer it is: the server and a worker agree, or a server without one takes the first request, or refuses."""

import json
from pathlib import Path

import grpc
import numpy as np
import pytest

from psserver.options import Options
from psserver.settings import SettingsError, resolve
from pswire.model.plan import VariableSpec, make_plan
from pswire.v1 import coordinator_pb2 as pb
from psworker import Refused
from tests.links import connect_link
from tests.sentences import Recorder
from tests.service.peer import join_request
from tests.service.serving import PATIENCE, granted, refused, serving

START = {"w": np.zeros(3, np.float32)}
ADAM = {"name": "adam", "learning_rate": 0.25}


def entries(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "decisions.jsonl").read_text().splitlines()]


def test_a_server_takes_the_first_workers_optimizer(tmp_path: Path, sentences: Recorder) -> None:
    """Its numbers move the weights, its name is in the log's `model` entry, and later workers are held to it."""
    with serving(overrides=["optimizer={name='from-job'}"], out=tmp_path / "run", servers=2) as cluster:
        assert cluster.status().optimizer == "from-job"
        with sentences.raises(Refused):
            connect_link(cluster.hosts, START)
        with connect_link(cluster.hosts, START, optimizer=ADAM) as session:
            assert cluster.status().optimizer == "adam"
            # A Join alone decides nothing: a session must stand for it.
            grant = session.ready()
            with sentences.raises(Refused):
                connect_link(cluster.hosts, START, optimizer=ADAM | {"learning_rate": 0.5})
            assert grant is not None
            session.push(grant, {"w": np.ones(3)})
            session.commit(grant, samples=1, ready=True)
            grant = granted(session)
            np.testing.assert_allclose(session.pull(grant)["w"], -0.25, rtol=1e-5)
            session.abandon(grant, "enough")
            assert session.done().success
    log = entries(tmp_path / "run")
    assert [entry["i"] for entry in log] == list(range(len(log)))
    assert log[0]["kind"] == "job" and "optimizer" not in log[0]
    (model,) = (entry for entry in log if entry["kind"] == "model")
    assert model["optimizer"]["name"] == "adam"  # type: ignore[index]
    assert model["optimizer"]["learning_rate"] == 0.25  # type: ignore[index]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["optimizer"] == model["optimizer"]


def test_a_later_worker_is_told_the_rate_that_was_set_and_may_have_any() -> None:
    """A backup, or a callback of a later epoch, has another than the one that the job began with."""
    with serving(overrides=["optimizer={name='from-job'}", "cluster.worker_timeout=3"]) as cluster:
        with connect_link(cluster.hosts, START, optimizer=ADAM) as session:
            assert session.info.learning_rate == 0.25
            grant = granted(session)
            session.push(grant, {"w": np.ones(3)})
            session.commit(grant, samples=1, ready=True, learning_rate=0.125)
            assert session.info.learning_rate == 0.125
            assert session.ready() is not None
            for rate in (0.125, 0.0625, 0.25):
                with connect_link(cluster.hosts, START, optimizer=ADAM | {"learning_rate": rate}) as later:
                    assert later.info.learning_rate == 0.125
            for other, words in (({"beta_1": 0.5}, "beta_1 is"), ({"name": "sgd"}, "name is")):
                with pytest.raises(Refused, match=words):
                    connect_link(cluster.hosts, START, optimizer=ADAM | other)
            assert session.done().success


def test_a_wish_is_held_against_the_servers_own() -> None:
    with serving(overrides=["optimizer={name='adam', learning_rate=0.25}"]) as cluster:
        for requested_optimizer, words in (
            ({"name": "sgd", "learning_rate": 0.25}, 'name is "adam" here and "sgd" there'),
            (ADAM | {"beta_1": 0.5}, "beta_1 is 0.9 here and 0.5 there"),
            (ADAM | {"learning_rate": {"schedule": "cosine"}}, "initial_learning_rate is missing"),
            ({"name": "adm"}, 'did you mean "adam"'),
        ):
            with pytest.raises(Refused, match=words):
                connect_link(cluster.hosts, START, optimizer=requested_optimizer)
        # In float32 it is the same number.
        same = ADAM | {"beta_1": float(np.float32(0.9))}
        with connect_link(cluster.hosts, START, optimizer=same) as session:
            session.done()


def test_nothing_goes_beside_from_job(sentences: Recorder) -> None:
    with sentences.raises(SettingsError):
        resolve(
            Options(
                ps_hosts="127.0.0.1:0", overrides=["optimizer.name=from-job", "optimizer.learning_rate=0.1"]
            ),
            None,
        )


@pytest.mark.parametrize("policy", ["median", "trimmed-mean", "krum"])
def test_no_worker_alone_ends_a_job_of_a_robust_policy_by_its_evaluations(policy: str) -> None:
    overrides = [f"policy.name={policy}", "cluster.workers=5", "job.patience=3"]
    overrides += ["job.module=digits:Digits", "job.evaluate_every=1 epoch"]
    with pytest.raises(
        SettingsError, match=f"job.patience: worker 0 alone evaluates, and {policy} tolerates"
    ):
        resolve(Options(ps_hosts="127.0.0.1:0", overrides=overrides), None)


def test_a_stray_join_does_not_choose_the_optimizer(tmp_path: Path) -> None:
    """Nobody's session stands behind it: the next one that names another is taken, and the log has only that."""
    with serving(overrides=["optimizer={name='from-job'}"], out=tmp_path / "run", servers=2) as cluster:
        plan = make_plan([VariableSpec("w", (3,))], 2)
        stray = {"optimizer": json.dumps({"name": "ftrl", "learning_rate": 7.0}), "session": "stray"}
        cluster.coordinator.Join(join_request(plan, worker="w0", **stray), timeout=PATIENCE)
        assert [entry["kind"] for entry in entries(tmp_path / "run")] == ["job", "join"]
        with connect_link(cluster.hosts, START, optimizer=ADAM, name="w0") as session:
            grant = granted(session)
            # The stray's membership is over, though it has the same name.
            job = cluster.status().job
            hello = pb.Hello(job=job, worker="w0", incarnation=0, session="stray")
            with refused(grpc.StatusCode.FAILED_PRECONDITION, "is not a member of this job"):
                list(cluster.coordinator.Session(iter([pb.SessionRequest(hello=hello)]), timeout=PATIENCE))
            session.push(grant, {"w": np.ones(3)})
            session.commit(grant, samples=1, ready=True)
            grant = granted(session)
            np.testing.assert_allclose(session.pull(grant)["w"], -0.25, rtol=1e-5)
            session.abandon(grant, "enough")
            assert session.done().success
    log = entries(tmp_path / "run")
    assert [entry["i"] for entry in log] == list(range(len(log)))
    assert [entry["kind"] for entry in log[1:4]] == ["join", "leave", "join"]
    assert [entry["optimizer"]["name"] for entry in log if entry["kind"] == "model"] == ["adam"]  # type: ignore[index]
