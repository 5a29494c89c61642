"""/metrics of real servers: asked by hand, checked by promtool, scraped by a real Prometheus."""

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pslab.runs.folder import PROMETHEUS, Run
from tests.cluster.cluster import ROOT, Cluster
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster

BOARD = ROOT / "examples" / "prometheus" / "grafana-dashboard.json"
# Grafana's variable, as it is for a scrape every quarter of a second.
RATE_INTERVAL = "2s"

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no prometheus, no promtool (apt-get install prometheus)",
)


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
    assert done.returncode == 4 and f"--metrics-port {port}: Address already in use" in done.stderr


def test_a_server_without_metrics_does_not_load_the_library() -> None:
    code = "import sys, psserver.cli, psserver.service.server; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# With Prometheus


class Prometheus:
    """A real one, on a port that the system chose."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        config = folder / "prometheus.json"
        job = {"job_name": "paramserver", "static_configs": [{"targets": targets}]}
        settings = {
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"},
            "scrape_configs": [job],
        }
        config.write_text(json.dumps(settings), encoding="utf-8")
        self.log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
             "--web.listen-address=127.0.0.1:0"],
            stdout=self.log, stderr=self.log,
        )  # fmt: skip
        wait_until(self._listening)
        self.url = f"http://127.0.0.1:{self._listening()}/api/v1"

    def _listening(self) -> int:
        assert self._process.poll() is None, Path(self.log.name).read_text(encoding="utf-8")
        found = psutil.Process(self._process.pid).net_connections()
        return next((c.laddr.port for c in found if c.status == psutil.CONN_LISTEN), 0)

    def ask(self, method: str, **parameters: str) -> list[dict[str, Any]]:
        answer = json.loads(fetch(f"{self.url}/{method}?{urlencode(parameters)}"))
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def value(self, expression: str) -> float:
        found = self.ask("query", query=expression)
        return float(found[0]["value"][1]) if found else float("nan")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        self.log.close()


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[Prometheus]:
    running = Prometheus(folder, targets)
    try:
        yield running
    finally:
        running.close()


def wait_until(condition: Callable[[], object]) -> None:
    last: OSError | None = None
    for _ in range(1200):
        try:
            if condition():
                return
            last = None
        except OSError as error:
            # It does not answer yet.
            last = error
        threading.Event().wait(0.05)
    raise AssertionError("it did not come to pass in a minute") from last


def expressions() -> dict[str, list[str]]:
    """Panel -> what it asks."""
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    found = {p["title"]: [t["expr"] for t in p["targets"]] for p in panels if p["type"] != "row"}
    assert len(found) == sum(p["type"] != "row" for p in panels), "two panels have one title"
    return found


@pytest.mark.nightly
@needs_prometheus
def test_prometheus_scrapes_a_job_and_answers_every_panel_of_the_dashboard(cluster: Cluster) -> None:
    start(cluster, batches=100_000)
    workers = list(cluster.workers)
    with prometheus(cluster.folder, metrics_addresses(cluster)) as server:
        wait_until(lambda: server.value("sum(up)") == 2)
        # Everything that the panels' rates are about has happened, over their interval.
        wait_until(
            lambda: server.value('sum(increase(paramserver_contributions_total{fate="dropped"}[2s]))') > 0
        )
        # A worker is lost, and says so in the counters.
        workers[2].kill()
        wait_until(lambda: server.value("paramserver_sessions_lost_total") >= 1)

        def answered() -> bool:
            """Each in its turn: a scrape may be late, and a rate needs two of them."""
            left[:] = [(title, asked) for title, asked in left if not server.ask("query", query=asked)]
            return left == evaluations

        left = [
            (title, expression.replace("$__rate_interval", RATE_INTERVAL))
            for title, asked in expressions().items()
            for expression in asked
        ]
        # No worker of this test evaluates.
        evaluations = [("Loss and evaluation", "paramserver_evaluation")]
        wait_until(answered)
        version = server.value("paramserver_versions_total")
        assert 0 < version <= cluster.status().version


def test_the_dashboard_asks_only_for_metrics_that_exist(cluster: Cluster) -> None:
    """Also where no Prometheus is installed. An exemplary run has all of them."""
    start(cluster)
    cluster.wait_end(worker_codes=[0, 0, 0])
    known = set(values((cluster.out / PROMETHEUS).read_text(encoding="utf-8"))) | {"paramserver_evaluation"}
    for asked in expressions().values():
        for expression in asked:
            names = re.findall(r"(?<![\w{\"])(?:paramserver|process)_\w+", expression)
            assert names and set(names) <= known, expression
