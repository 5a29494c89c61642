"""Replicas under mutual TLS: the server that leads is killed, another one leads, and nothing is rolled back."""

from pathlib import Path

import pytest

from tests.cluster.test_replicas import (
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


def test_the_server_that_leads_is_killed(
    tmp_path: Path, identities: Identities, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(tmp_path / "alone", 1000, 16)
    monkeypatch.setenv("PS_REPLICAS", "2")
    (tmp_path / "killed").mkdir()
    with ProtectedCluster(tmp_path / "killed", identities) as cluster:
        start(cluster, "sync")
        wait_for_the_gate(cluster, GATE)
        cluster.servers[0].kill()
        end(cluster, lost=0)
        assert sha256(cluster) == expected
        committed_once(cluster)
