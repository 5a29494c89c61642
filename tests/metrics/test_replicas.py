"""/metrics of servers with replicas: who leads, how far the other copy is, and who took over."""

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, wait_until
from tests.cluster.replicated import (
    GATE,
    LATER,
    MORE,
    end,
    killed_and_started_again,
    open_gates,
    start,
    wait_for_the_gate,
    wait_state,
)
from tests.metrics.test_endpoint import fetch, total, values

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

METRICS = ("--metrics-port", "0")


def role(found: dict[str, dict[frozenset[tuple[str, str]], float]]) -> str:
    (name,) = [
        dict(labels)["paramserver_replica_role"]
        for labels, value in found["paramserver_replica_role"].items()
        if value
    ]
    return name


def scraped(cluster: Cluster, server: int) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    return values(fetch(f"http://{cluster.servers[server].wait_event('ready')['metrics']}/metrics"))


def test_roles_takeovers_and_counts_follow_the_one_that_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as cluster:
        start(cluster, "sync", batches=MORE, more=METRICS)
        wait_for_the_gate(cluster, GATE)
        first, second, third = (scraped(cluster, number) for number in range(3))
        assert [role(each) for each in (first, second, third)] == ["leads", "in sync", "votes"]
        assert total(first, "replicas_in_sync") == 2 and total(first, "versions_total") == GATE
        assert set(first["paramserver_replica_lag_items"]) == {frozenset({("server", "1")})}
        # What one copy knows of the job is the other one's to tell.
        assert "paramserver_versions_total" not in second and "paramserver_replicas_in_sync" not in second
        killed_and_started_again(cluster, 0, "sync", *METRICS)
        open_gates(cluster, "gate")
        wait_state(cluster, 1, 0, "in sync")
        # A page may be a second old, and tell of a follower yet.
        wait_until(
            lambda: scraped(cluster, 1).get("paramserver_versions_total") == {frozenset(): LATER},
            "the next gate",
        )
        found = scraped(cluster, 1)
        assert role(found) == "leads" and total(found, "replica_takeovers_total") == 1
        assert total(found, "replica_epoch") > total(first, "replica_epoch")
        # It had a copy from the start, and has counted since.
        assert total(found, "decisions_total", kind="apply") == LATER
        end(cluster)
        left = values((cluster.out / "metrics.prom").read_text())
        assert role(left) == "leads" and total(left, "versions_total") == MORE
