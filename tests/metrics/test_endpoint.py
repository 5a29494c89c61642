"""/metrics of real servers: asked by hand, and checked by promtool."""

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pslab.runs.folder import PROMETHEUS, Run
from tests.cluster.cluster import ROOT, Cluster
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster

BOARD = ROOT / "examples" / "prometheus" / "grafana-dashboard.json"


def fetch(url: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as reply:
        text: str = reply.read().decode()
        return text


def values(text: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Sample name -> labels -> value."""
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def total(found: Mapping[str, Mapping[frozenset[tuple[str, str]], float]], name: str, **labels: str) -> float:
    name = f"paramserver_{name}"
    return sum(value for of, value in found[name].items() if labels.items() <= set(of))


def metrics_addresses(cluster: Cluster) -> list[str]:
    return [server.wait_event("ready")["metrics"] for server in cluster.servers]


def start(cluster: Cluster, servers: int = 2, *flags: str, batches: int = 20, seconds: float = 0.002) -> None:
    cluster.start_servers(
        servers, "--policy", "bounded", "--set", "policy.max_staleness=1", "--workers", "3", *flags,
        every=("--metrics-port", "0"),
    )  # fmt: skip
    for index in range(3):
        pace = str(seconds * (1 + 3 * index))
        cluster.start_worker("--task-index", str(index), "--batches", str(batches), "--seconds", pace)


def test_counters_equal_the_summary(cluster: Cluster) -> None:
    start(cluster)
    cluster.wait_end(worker_codes=[0, 0, 0])
    run = Run(cluster.out)
    found = values((run.path / PROMETHEUS).read_text(encoding="utf-8"))
    summary = run.summary
    assert total(found, "versions_total") == summary.versions
    assert total(found, "samples_total") == summary.samples
    assert total(found, "job_phase", paramserver_job_phase="stopped") == 1
    assert total(found, "staleness_versions_count") == summary.histogram.total()
    for worker, counts in summary.contributions.items():
        assert total(found, "contributions_total", worker=worker, fate="applied") == counts.applied
        assert total(found, "contributions_total", worker=worker, fate="dropped") == counts.dropped
        assert total(found, "contributions_pending", worker=worker) == counts.pending
    kinds = {dict(of)["kind"]: n for of, n in found["paramserver_decisions_total"].items()}
    logged = [entry.kind for entry in run.decisions()]
    assert kinds == {kind: logged.count(kind) for kind in set(logged)}
    # A dropped contribution was staged, too; the initial values as well.
    assert total(found, "received_payloads_total") >= sum(c.committed for c in summary.contributions.values())
    assert total(found, "apply_seconds_count") == summary.versions
    if shutil.which("promtool"):
        check = subprocess.run(
            ["promtool", "check", "metrics"],
            input=(run.path / PROMETHEUS).read_bytes(),
            capture_output=True,
            check=False,
        )
        assert check.returncode == 0, check.stdout + check.stderr


def test_every_server_answers_those_who_may_ask(cluster: Cluster) -> None:
    start(cluster, batches=3)
    for number, address in enumerate(metrics_addresses(cluster)):
        text = fetch(f"http://{address}/metrics")
        assert ("paramserver_job_info{" in text) == (number == 0)
        assert "paramserver_executed_entries_total " in text and "process_cpu_seconds_total " in text
        port = address.rpartition(":")[2]
        assert fetch(f"http://{address}/metrics", Host=f"localhost:{port}")
        for path, host, code in [
            ("/metrics", "evil.example", 421),
            ("/", address, 404),
            ("/metrics", "", 421),
        ]:
            with pytest.raises(urllib.error.HTTPError) as refused:
                fetch(f"http://{address}{path}", Host=host)
            assert refused.value.code == code
            refused.value.close()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{address}/metrics", data=b"x", timeout=PATIENCE)
        assert refused.value.code == 501
        refused.value.close()
    cluster.wait_end(worker_codes=[0, 0, 0])


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "psserver", "--ps-hosts", "127.0.0.1:0", "--no-out", "--metrics-port", port],
            cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False,
        )  # fmt: skip
    assert (
        done.returncode == 4
        and f"--metrics-port: cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    )


def test_a_server_without_metrics_does_not_load_the_library() -> None:
    code = "import sys, psserver.cli, psserver.service.server; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def expressions() -> dict[str, list[str]]:
    """Panel -> what it asks."""
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    found = {p["title"]: [t["expr"] for t in p["targets"]] for p in panels if p["type"] != "row"}
    assert len(found) == sum(p["type"] != "row" for p in panels), "two panels have one title"
    return found


def test_the_dashboard_asks_only_for_metrics_that_exist(cluster: Cluster) -> None:
    """Also where no Prometheus is installed. An exemplary run has all of them."""
    start(cluster)
    cluster.wait_end(worker_codes=[0, 0, 0])
    known = set(values((cluster.out / PROMETHEUS).read_text(encoding="utf-8"))) | {"paramserver_evaluation"}
    for asked in expressions().values():
        for expression in asked:
            names = re.findall(r"(?<![\w{\"])(?:paramserver|process)_\w+", expression)
            assert names and set(names) <= known, expression
