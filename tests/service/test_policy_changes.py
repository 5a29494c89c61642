"""A change of the policy by an operator: from `ps-lab policy` to the log, whoever reads it, and whoever may not."""

import json
from collections.abc import Mapping
from pathlib import Path

import grpc
import numpy as np
import pytest

from pslab.launch.status_client import ChangeRefused, StatusClient
from pslab.runs.folder import Run
from pswire.exits import ExitCode
from pswire.v1 import coordinator_pb2 as pb
from tests.lab.test_cli import ps_lab
from tests.links import connect_link
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, Cluster, refused, serving, step

START = {"w": np.ones(4, np.float32)}


def test_a_change_by_command_stands_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(servers=2, out=tmp_path / "run") as cluster:
        address = cluster.hosts.split(",")[0]
        with connect_link(cluster.hosts, START) as session:
            step(session)
            to = ("--to", "bounded", "--set", "policy.max_staleness=2", "--why", "try it")
            assert ps_lab(monkeypatch, "policy", address, *to) == 0
            step(session)
            assert ps_lab(monkeypatch, "policy", address, "--set", "policy.max_staleness=5") == 0
            step(session)
            status = cluster.coordinator.Status(pb.StatusRequest(), timeout=PATIENCE)
            assert status.policy == "bounded" and json.loads(status.policy_knobs)["max_staleness"] == 5
            # The shards execute both entries, and nothing follows from them.
            assert len(set(cluster.picture().executed)) == 1
            session.done()
        assert [served.ended() for served in cluster.servers] == [ExitCode.OK, ExitCode.OK]
    run = Run(tmp_path / "run")
    changes = [entry for _, entry in run.fold().changes]
    assert [(change.policy["name"], change.policy["max_staleness"]) for change in changes] == [
        ("bounded", 2),
        ("bounded", 5),
    ]
    assert changes[0].why == "try it" and run.summary.policy["max_staleness"] == 5
    assert run.summary.began_with["name"] == changes[0].former["name"]
    for command in ("check", "compare"):
        assert ps_lab(monkeypatch, command, tmp_path / "run") == 0


def change(cluster: Cluster, name: str, knobs: str) -> None:
    request = pb.ChangePolicyRequest(name=name, knobs=knobs)
    cluster.coordinator.ChangePolicy(request, timeout=PATIENCE)


def test_what_cannot_change_is_refused_and_the_job_goes_on(sentences: Recorder) -> None:
    with serving() as cluster:
        with refused(grpc.StatusCode.FAILED_PRECONDITION):
            change(cluster, "async", "{}")  # nobody trains
        with connect_link(cluster.hosts, START) as session:
            step(session)
            given: list[tuple[str, Mapping[str, object]]] = [
                ("bounded", {"max_stale": 2}),
                ("bounded", {"max_staleness": "two"}),
                ("median", {}),
                ("os:system", {}),
            ]
            client = StatusClient(cluster.hosts.split(",")[0])
            for name, knobs in given:
                with pytest.raises(ChangeRefused) as refusal:
                    client.change_policy(name, knobs, "")
                sentences.check(str(refusal.value))
            client.close()
            for knobs in ("[]", "{", "7"):
                with refused(grpc.StatusCode.FAILED_PRECONDITION):
                    change(cluster, "async", knobs)
            with refused(grpc.StatusCode.INVALID_ARGUMENT):
                change(cluster, "x" * 65, "{}")
            step(session)
            session.done()
    assert cluster.servers[0].ended() == ExitCode.OK


def test_usage_is_checked_before_anybody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in ((), ("--set", "run.seed=1"), ("--set", "policy.name=async"), ("--set", "nonsense")):
        assert ps_lab(monkeypatch, "policy", "127.0.0.1:1", *arguments) == ExitCode.USAGE
