"""Servers that stay: what becomes of a job that has ended, and which one its successor is."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGINT
from typing import Any

import grpc
import numpy as np
import pytest

import psworker
from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.options import Options
from psserver.service.life.servers import Servers
from psserver.service.life.successor import numbered
from psserver.settings import resolve
from psserver.weights_file import load
from pswire.exits import ExitCode
from pswire.messages import specs_to_wire
from pswire.model.plan import VariableSpec, make_plan
from pswire.transport.codecs import FLOAT32
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb
from psworker.control.joining import Phase
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, Cluster, Served, granted, wait_until

MODEL = {"x": np.zeros(3, np.float32), "y": np.zeros(2, np.float32)}
OTHER = {"z": np.zeros(4, np.float32)}


class Staying(Served):
    """One ps-server through all its jobs."""

    def _made(self, options: Options, host: dict[str, Any]) -> Any:
        return Servers(resolve(options, None), lambda: resolve(options, None), self._announce)


def ended(cluster: Cluster) -> pb.StatusReply:
    """Once the job has ended, and all of it is written."""
    return wait_until(
        lambda: reply if "the servers stay" in (reply := cluster.status()).note else None, "the end"
    )


@contextmanager
def staying(out: Path | None, servers: int = 1, *overrides: str, stays: bool = True) -> Iterator[Cluster]:
    """`out`: on a disk that all servers share."""
    chosen = ("policy.name=async", "optimizer.learning_rate=1.0", *overrides)
    addresses, started = ["127.0.0.1:0"] * servers, list[Served]()
    with ExitStack() as ending:
        for index in reversed(range(servers)):
            stay = stays and index == 0
            options = Options(
                ps_hosts=",".join(addresses), task_index=index, overrides=chosen, out=out, stay=stay
            )
            server = Staying(options)
            ending.callback(server.ended)
            addresses[index] = server.address
            started.insert(0, server)
        cluster = Cluster(started)
        ending.callback(started[0].interrupt, SIGINT)
        ending.callback(cluster.close)
        yield cluster


def train(cluster: Cluster, variables: dict[str, np.ndarray], until: int, **options: Any) -> int:
    """One worker that pushes ones up to batch `until`, and measures the last version. How many it pushed."""
    with psworker.connect(cluster.hosts, variables, **options) as session:
        pushed = 0
        for batch in range(session.next_batch, until):
            grant = granted(session)
            session.push(grant, {name: np.ones_like(value) for name, value in variables.items()})
            session.commit(grant, samples=1, batch=batch)
            pushed += 1
        assert session.done().success
        session.report({"last": float(session.pull_final()[0][0])})
    return pushed


def weights(folder: Path, name: str = "weights.safetensors") -> dict[str, np.ndarray]:
    return load(folder / name).arrays


def checked(folder: Path) -> None:
    found = check_run(Run(folder))
    assert not found.violations, found.violations


@pytest.mark.parametrize("servers", [1, 2])
def test_another_model_is_a_new_job_with_a_folder_of_its_own(tmp_path: Path, servers: int) -> None:
    out = tmp_path / "run"
    with staying(out, servers) as cluster:
        train(cluster, MODEL, until=2)
        first = ended(cluster)
        summary = json.loads((out / "summary.json").read_text())
        assert summary["success"] and summary["metrics"]["last"] == -2.0
        train(cluster, OTHER, until=3)
        assert ended(cluster).job != first.job
        assert (weights(out)["x"] == -2).all() and (weights(numbered(out, 2))["z"] == -3).all()
    assert [server.code for server in cluster.servers] == [ExitCode.OK] * servers
    checked(out)
    checked(numbered(out, 2))


def test_with_a_checkpoint_the_same_model_goes_on(tmp_path: Path) -> None:
    """On two servers, in the same folder and log, behind the batches that it had; what was made is kept."""
    out = tmp_path / "run"
    with staying(out, 2, "run.checkpoint_every='100v'") as cluster:
        assert train(cluster, MODEL, until=2) == 2
        ended(cluster)
        assert train(cluster, MODEL, until=5) == 3
        assert ended(cluster).version == 5
        assert (weights(out)["x"] == -5).all() and (weights(out, "weights-2.safetensors")["x"] == -2).all()
        assert json.loads((out / "summary-2.json").read_text())["versions"] == 2
        # Another one begins anew beside it, and a third time the first model does, too.
        train(cluster, OTHER, until=1)
        ended(cluster)
        train(cluster, MODEL, until=1)
        ended(cluster)
    assert (weights(numbered(out, 3))["x"] == -1).all()
    for number in (1, 2, 3):
        checked(numbered(out, number))


def test_without_a_checkpoint_the_same_model_begins_anew(tmp_path: Path) -> None:
    """A folder of that number that is there already is passed over."""
    out = tmp_path / "run"
    numbered(out, 2).mkdir(parents=True)
    with staying(out) as cluster:
        train(cluster, MODEL, until=2)
        ended(cluster)
        assert train(cluster, MODEL, until=1) == 1
        ended(cluster)
    assert (weights(numbered(out, 3))["x"] == -1).all() and not list(numbered(out, 2).iterdir())


def test_whoever_cannot_take_part_begins_no_job(tmp_path: Path, sentences: Recorder) -> None:
    with staying(tmp_path / "run") as cluster:
        train(cluster, MODEL, until=1)
        first = ended(cluster)
        with sentences.raises(psworker.Refused):
            psworker.connect(cluster.hosts, OTHER, optimizer={"name": "adam", "learning_rate": 0.1})
        with grpc.insecure_channel(cluster.hosts) as channel:
            plan = make_plan([VariableSpec(name, value.shape) for name, value in MODEL.items()], 1)
            late = pb.JoinRequest(
                session="s", servers=1, job=first.job, plan=plan.fingerprint, wire_dtype=FLOAT32.number
            )
            late.variables.extend(specs_to_wire(plan.variables))
            with pytest.raises(grpc.RpcError) as refused:
                stub_of(channel).Join(late, timeout=PATIENCE)
            sentences.check(refused)
        assert refused.value.code() == grpc.StatusCode.OUT_OF_RANGE
        assert cluster.status().job == first.job
    assert not numbered(tmp_path / "run", 2).exists()


def test_a_worker_that_comes_during_the_end_is_one_of_the_next_job() -> None:
    """While the last version is measured, and without any folder."""
    with staying(None) as cluster:
        with psworker.connect(cluster.hosts, MODEL) as session:
            grant = granted(session)
            session.push(grant, {})
            session.commit(grant, samples=1)
            assert session.done().success
            came: list[str] = []

            def join() -> None:
                with psworker.connect(cluster.hosts, OTHER) as other:
                    came.append(other.job)

            thread = threading.Thread(target=join)
            thread.start()
            first = session.job
        thread.join(PATIENCE)
        assert came and came != [first]


def test_a_lost_server_ends_the_others_while_they_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # For so long server 1 waits for server 0 to end as well.
    timeout = "cluster.worker_timeout=3"
    with caplog.at_level(logging.ERROR, "ps-server"), staying(tmp_path / "run", 2, timeout) as cluster:
        train(cluster, MODEL, until=1)
        ended(cluster)
        cluster.servers[1].interrupt(SIGINT)
        assert cluster.servers[0].ended() == ExitCode.UNREACHABLE
    assert "server 1" in caplog.text


def test_a_failed_job_is_followed_by_the_next(tmp_path: Path) -> None:
    """Nothing was trained: that job failed, and its exit code is that of servers which end behind it."""
    with staying(tmp_path / "run") as cluster:
        with psworker.connect(cluster.hosts, MODEL) as session:
            assert not session.done().success
        ended(cluster)
        train(cluster, MODEL, until=1)
        ended(cluster)
    assert cluster.servers[0].code == ExitCode.OK
    assert [e["exit_code"] for n, e in cluster.servers[0].said if n == "stopped"] == [
        ExitCode.JOB_FAILED,
        ExitCode.OK,
    ]


def fails(cluster: Cluster, variables: dict[str, np.ndarray], **options: Any) -> None:
    """A worker whose first step raises: version 0 is installed, and nothing is trained."""
    with (
        pytest.raises(ZeroDivisionError),
        psworker.connect(cluster.hosts, variables, **options) as session,
    ):
        assert session.ready() is not None
        raise ZeroDivisionError


def test_a_first_try_that_failed_makes_room_for_another_model(tmp_path: Path) -> None:
    """Of servers that do not stay, while they still wait for the failed worker to come back."""
    out = tmp_path / "run"
    with staying(out, 2, "cluster.worker_timeout=60", stays=False) as cluster:
        fails(cluster, MODEL)
        train(cluster, OTHER, until=2)
        assert [server.ended() for server in cluster.servers] == [ExitCode.OK, ExitCode.OK]
    assert (weights(numbered(out, 2))["z"] == -2).all()
    assert "nothing was trained" in json.loads((out / "summary.json").read_text())["reason"]
    checked(out)
    checked(numbered(out, 2))


def test_what_was_trained_makes_room_for_nobody(tmp_path: Path, sentences: Recorder) -> None:
    with staying(tmp_path / "run", 1, "cluster.worker_timeout=60", stays=False) as cluster:
        with psworker.connect(cluster.hosts, MODEL) as session:
            grant = granted(session)
            session.push(grant, {})
            session.commit(grant, samples=1)
            with sentences.raises(psworker.Refused):
                psworker.connect(cluster.hosts, OTHER)
        with sentences.raises(psworker.Refused):
            psworker.connect(cluster.hosts, OTHER)


def test_trials_of_a_script_one_behind_the_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a tuner makes them, on two servers that end by themselves: each trial has a folder, and nothing of another."""
    trials, sessions = [MODEL, OTHER, OTHER, MODEL], list[psworker.Session]()
    with staying(tmp_path, 2, stays=False) as cluster:
        for model in trials:
            phase = Phase(stays=True, after=sessions[-1].job if sessions else "")
            sessions.append(psworker.connect(cluster.hosts, model, name="w0", phase=phase))
            for before in sessions[-2:-1]:
                before.close("begins another phase")
            grant = sessions[-1].ready()
            assert grant is not None
            sessions[-1].push(grant, {name: np.ones_like(value) for name, value in model.items()})
            sessions[-1].commit(grant, samples=1)
            assert sessions[-1].done().success
        sessions[-1].close()
        assert [server.ended() for server in cluster.servers] == [ExitCode.OK] * 2
    for number, model in enumerate(trials, 1):
        found = weights(numbered(tmp_path, number))
        assert {name: float(value[0]) for name, value in found.items()} == dict.fromkeys(model, -1.0)
        checked(numbered(tmp_path, number))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_script_that_is_started_again_does_not_join_a_later_job_with_its_first_data(
    sentences: Recorder,
) -> None:
    """Servers that do not stay; the jobs of one script have the same model, as K folds have."""

    def session(phase: Phase) -> psworker.Session:
        return psworker.connect(cluster.hosts, MODEL, phase=phase, name="w0" if phase.stays else "w1")

    def trained(session: psworker.Session) -> None:
        grant = granted(session)
        session.push(grant, {name: np.ones_like(value) for name, value in MODEL.items()})
        session.commit(grant, samples=1)

    with staying(None, stays=False) as cluster:
        first = session(Phase(stays=True))
        trained(first)
        assert first.done().success
        second = session(Phase(stays=True, after=first.job))
        first.close()
        trained(second)
        for phase in (Phase(), Phase(stays=True), Phase(after="another")):
            with sentences.raises(psworker.Refused):
                session(phase)
        assert second.done().success
        second.close()
    assert [server.code for server in cluster.servers] == [ExitCode.OK]
