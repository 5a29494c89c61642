"""Replicas under mutual TLS: a server that leads, or serves a part, is killed, and nothing is rolled back."""

from pathlib import Path

import pytest

from tests.cluster.replicated import (
    GATE,
    committed_once,
    end,
    sha256,
    start,
    undisturbed,
    wait_for_the_gate,
)
from tests.security.identities import Identities
from tests.security.processes import ProtectedCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("servers", "lost"), [(3, 0), *(pytest.param(4, lost, marks=pytest.mark.nightly) for lost in (0, 2))]
)
def test_a_server_is_killed(
    tmp_path: Path, identities: Identities, monkeypatch: pytest.MonkeyPatch, servers: int, lost: int
) -> None:
    expected = undisturbed(tmp_path / "alone", 1000, 16)
    monkeypatch.setenv("PS_REPLICAS", "2")
    (tmp_path / "killed").mkdir()
    with ProtectedCluster(tmp_path / "killed", identities) as cluster:
        start(cluster, "sync", servers=servers)
        wait_for_the_gate(cluster, GATE)
        cluster.servers[lost].kill()
        end(cluster, lost=lost)
        assert sha256(cluster) == expected
        committed_once(cluster)
