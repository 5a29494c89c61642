"""The next job on the same servers: when one makes room for it, and who may take part."""

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGINT
from types import SimpleNamespace
from typing import Any, Unpack

import numpy as np
import pytest

import psworker
from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.options import Options
from psserver.service.errors import RequestRefused
from psserver.service.job import next_job
from psserver.service.job.agreement import NextJob
from psserver.service.job.next_job import make_room, numbered
from psserver.service.life.servers import Servers
from psserver.settings import resolve
from psserver.weights_file import load
from pswire.addresses import Address
from pswire.exits import ExitCode
from psworker.connecting import open_link, specified
from psworker.connection import Connection, Where
from psworker.control.joining import FIRST, Phase
from psworker.link import Link
from tests.links import stepwise
from tests.sentences import Recorder
from tests.service.serving import Cluster, Served, granted

MODEL = {"x": np.zeros(3, np.float32), "y": np.zeros(2, np.float32)}
OTHER = {"z": np.zeros(4, np.float32)}


class AllJobs(Served):
    """One ps-server through all its jobs."""

    def _made(self, options: Options, host: dict[str, Any]) -> Any:
        return Servers(resolve(options, None), lambda: resolve(options, None), self._announce)


@contextmanager
def serving(out: Path | None, servers: int = 1, *overrides: str) -> Iterator[Cluster]:
    """`out`: on a disk that all servers share."""
    chosen = ("policy.name=async", "optimizer.learning_rate=1.0", *overrides)
    addresses, started = ["127.0.0.1:0"] * servers, list[Served]()
    with ExitStack() as ending:
        for index in reversed(range(servers)):
            options = Options(ps_hosts=",".join(addresses), task_index=index, overrides=chosen, out=out)
            server = AllJobs(options)
            ending.callback(server.ended)
            addresses[index] = server.address
            started.insert(0, server)
        cluster = Cluster(started)
        # Ctrl-C after a signal ends a process at once.
        ending.callback(lambda: started[0].code is not None or started[0].interrupt(SIGINT))
        ending.callback(cluster.close)
        yield cluster


def joined(
    hosts: tuple[Address, ...],
    variables: dict[str, np.ndarray],
    phase: Phase = FIRST,
    optimizer: dict[str, str] | None = None,
    **where: Unpack[Where],
) -> Link:
    """A session as `fit` opens it: of one phase of a process."""
    connection = Connection.resolve(hosts, **where)
    link = open_link(connection, specified(variables, None), optimizer=optimizer, phase=phase)
    return stepwise(link)


def train(cluster: Cluster, variables: dict[str, np.ndarray], until: int, phase: Phase = FIRST) -> str:
    """One worker that pushes ones up to batch `until`, and measures the last version. Return its job."""
    with joined(cluster.hosts, variables, phase=phase) as session:
        for batch in range(session.info.next_batch, until):
            grant = granted(session)
            session.push(grant, {name: np.ones_like(value) for name, value in variables.items()})
            session.commit(grant, samples=1, batch=batch)
        assert session.done().success
        session.report({"last": float(session.pull_final()[0][0])})
        return session.info.job


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load(folder / "weights.safetensors").arrays


def checked(folder: Path) -> None:
    found = check_run(Run(folder))
    assert not found.violations, found.violations


def fails(cluster: Cluster, variables: dict[str, np.ndarray], phase: Phase = FIRST) -> None:
    """A worker whose first step raises: version 0 is installed, and nothing is trained."""
    with (
        pytest.raises(ZeroDivisionError),
        joined(cluster.hosts, variables, phase=phase) as session,
    ):
        assert session.ready() is not None
        raise ZeroDivisionError


def test_a_first_try_that_failed_makes_room_for_another_model(tmp_path: Path) -> None:
    """While servers still wait for the failed worker to come back. A folder of that number is passed over."""
    out = tmp_path / "run"
    numbered(out, 2).mkdir(parents=True)
    with serving(out, 2, "cluster.worker_timeout=60") as cluster:
        fails(cluster, MODEL)
        train(cluster, OTHER, until=2)
        assert [server.ended() for server in cluster.servers] == [ExitCode.OK, ExitCode.OK]
    assert (weights(numbered(out, 3))["z"] == -2).all() and not list(numbered(out, 2).iterdir())
    assert "nothing was trained" in json.loads((out / "summary.json").read_text())["reason"]
    checked(out)
    checked(numbered(out, 3))


def test_what_was_trained_makes_room_for_nobody(tmp_path: Path, sentences: Recorder) -> None:
    with serving(tmp_path / "run", 1, "cluster.worker_timeout=60") as cluster:
        with joined(cluster.hosts, MODEL) as session:
            grant = granted(session)
            session.push(grant, {})
            session.commit(grant, samples=1)
            with sentences.raises(psworker.Refused):
                joined(cluster.hosts, OTHER)
        with sentences.raises(psworker.Refused):
            joined(cluster.hosts, OTHER)


def test_servers_with_replicas_serve_one_job(sentences: Recorder) -> None:
    decider: Any = SimpleNamespace(replicated=True)
    with sentences.raises(RequestRefused):
        make_room(decider, NextJob(), "nothing was trained", success=False)


def test_a_process_that_has_trained_before_joins_servers_that_are_started_anew() -> None:
    """They know nothing of the job before, so it is a worker like any other."""
    with serving(None) as cluster:
        first = train(cluster, MODEL, until=1)
    with serving(None) as cluster:
        assert train(cluster, OTHER, until=1, phase=Phase(job=first, begins_next=True)) != first


def test_a_try_that_failed_in_a_later_job_makes_room_for_workers_of_the_same_script(
    sentences: Recorder,
) -> None:
    """The others of that script may still come from the job before; a stranger may not, whatever its model is."""
    with serving(None, 1, "cluster.worker_timeout=60") as cluster:
        first = joined(cluster.hosts, MODEL, phase=Phase(stays=True), name="w0")
        grant = granted(first)
        first.push(grant, {name: np.ones_like(value) for name, value in MODEL.items()})
        first.commit(grant, samples=1)
        assert first.done().success
        begins = Phase(job=first.info.job, begins_next=True)
        second = joined(cluster.hosts, MODEL, phase=begins, name="w0")
        first.close()
        job = second.info.job
        assert second.ready() is not None
        second.close()
        with sentences.raises(psworker.Refused):
            joined(cluster.hosts, OTHER)
        assert cluster.status().job == job
        assert train(cluster, OTHER, until=1, phase=begins) != job
    assert cluster.servers[0].code == ExitCode.OK


def test_who_cannot_take_part_begins_no_job(sentences: Recorder) -> None:
    with serving(None) as cluster:
        first = joined(cluster.hosts, MODEL, phase=Phase(stays=True), name="w0")
        grant = granted(first)
        first.push(grant, {})
        first.commit(grant, samples=1)
        assert first.done().success
        with sentences.raises(psworker.Refused):
            phase = Phase(job=first.info.job, begins_next=True)
            joined(cluster.hosts, OTHER, optimizer={"name": "adam"}, phase=phase, name="w0")
        assert cluster.status().job == first.info.job
        first.close()
    assert cluster.servers[0].code == ExitCode.OK


@pytest.mark.parametrize("what", ["a server", "the log", "a signal"])
def test_no_job_follows_where_something_was_lost_or_a_signal_came(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is that of the loss, or of the job that had ended well; nothing takes its place."""
    timeout = "cluster.worker_timeout=3"
    with serving(tmp_path / "run", 2, timeout) as cluster:
        session = joined(cluster.hosts, MODEL, phase=Phase(stays=True), name="w0")
        grant = granted(session)
        session.push(grant, {})
        session.commit(grant, samples=1)
        assert session.done().success
        decider = cluster.servers[0].server._present.job.decider

        def made_room(*given: Any, **named: Any) -> None:
            make_room(*given, **named)
            if what == "a server":
                decider.routes.followers[0].give_up("planted")
            elif what == "the log":
                decider.fail("planted", ExitCode.STORAGE)
            else:
                cluster.servers[0].interrupt(SIGINT)

        monkeypatch.setattr(next_job, "make_room", made_room)
        with pytest.raises((psworker.Refused, psworker.Unreachable)):
            phase = Phase(job=session.info.job, begins_next=True)
            joined(cluster.hosts, OTHER, phase=phase, name="w0", server_timeout=3)
        session.close()
        expected = {"a server": ExitCode.UNREACHABLE, "the log": ExitCode.STORAGE, "a signal": ExitCode.OK}
        assert cluster.servers[0].ended() == expected[what]
    assert not numbered(tmp_path / "run", 2).exists()


def test_after_a_restart_the_jobs_before_are_known_by_their_folders(tmp_path: Path) -> None:
    for number, (name, success) in enumerate([("a", True), ("b", True), ("c", False)], 1):
        numbered(tmp_path, number).mkdir(parents=True, exist_ok=True)
        summary = json.dumps({"job": name, "success": success})
        (numbered(tmp_path, number) / "summary.json").write_text(summary)
    found = [next_job.predecessors(tmp_path, folder) for folder in (1, 2, 3, 4, 5)]
    assert found == [(), ("a",), ("b",), ("c", "b"), ("c", "b")]


def test_trials_of_a_script_one_behind_the_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a tuner makes them, on two servers that end by themselves: each trial has a folder, and nothing of another."""
    trials, sessions = [MODEL, OTHER, OTHER, MODEL], list[Link]()
    with serving(tmp_path, 2) as cluster:
        for model in trials:
            phase = Phase(True, sessions[-1].info.job, begins_next=True) if sessions else Phase(stays=True)
            sessions.append(joined(cluster.hosts, model, name="w0", phase=phase))
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
    """The jobs of one script have the same model, as K folds have."""

    def session(phase: Phase) -> Link:
        return joined(cluster.hosts, MODEL, phase=phase, name="w0" if phase.stays else "w1")

    def trained(session: Link) -> None:
        grant = granted(session)
        session.push(grant, {name: np.ones_like(value) for name, value in MODEL.items()})
        session.commit(grant, samples=1)

    with serving(None) as cluster:
        first = session(Phase(stays=True))
        trained(first)
        assert first.done().success
        second = session(Phase(stays=True, job=first.info.job, begins_next=True))
        first.close()
        trained(second)
        for phase in (Phase(), Phase(stays=True), Phase(job="another", begins_next=True)):
            with sentences.raises(psworker.Refused):
                session(phase)
        assert second.done().success
        second.close()
    assert [server.code for server in cluster.servers] == [ExitCode.OK]
