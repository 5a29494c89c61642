"""Counters of the log against the log's other readers, and the limits of what is shown."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric

from pslab.experiment import Experiment
from pslab.runs.folder import Run
from pslab.runs.work import COMPUTING, RECEIVING, SENDING, WASTED, WorkFold
from psserver.metrics import collector
from psserver.metrics.counts import MAX_WORKERS, OTHERS, Counts, worker_numbers
from pswire.extras import how_to_install
from tests.lab.waits import spent
from tests.replay.simulated import document
from tests.simulator.lab import Outcome, simulate

LINKS = {"latency": 0.125, "bandwidth": 4e6}
TIMED = {"problem": "none", "payload_bytes": 1_000_000, "batches": 20, "compute": "exponential(1)"}


def counted(outcome: Outcome) -> Counts:
    counts = Counts()
    for record in outcome.records:
        counts.see(record)
    return counts


def families(outcome: Outcome) -> list[Metric]:
    coordinator, counts = outcome.cluster.coordinator, counted(outcome)
    workers = collector.worker_families(worker_numbers(coordinator, counts))
    return [*collector.job_families(coordinator, counts, outcome.seconds), *workers]


def value(metrics: Iterable[Metric], name: str, **labels: str) -> float:
    """The sum of the samples with these labels."""
    found = [s for m in metrics for s in m.samples if s.name == collector.PREFIX + name]
    assert found, name
    return sum(s.value for s in found if labels.items() <= s.labels.items())


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [("sync", {"backup": 1}), ("async", {}), ("bounded", {"max_staleness": 1}), ("easgd", {})],
)
def test_counters_are_those_of_the_summary_and_seconds_those_of_the_timeline(
    tmp_path: Path, policy: str, knobs: dict[str, Any]
) -> None:
    outcome = simulate(Experiment.parse(document(policy, knobs, simulation=TIMED, links=LINKS)))
    metrics, summary = families(outcome), outcome.summary
    assert value(metrics, "versions_total") == summary["versions"]
    assert value(metrics, "samples_total") == summary["samples"]
    assert value(metrics, "grants_total") == outcome.count("grant")
    for worker, counts in summary["contributions"].items():
        assert value(metrics, "contributions_total", worker=worker, fate="applied") == counts["applied"]
        assert value(metrics, "contributions_total", worker=worker, fate="dropped") == counts["dropped"]
        assert value(metrics, "contributions_pending", worker=worker) == counts["pending"]
        ages = {int(age): n for age, n in summary["staleness"][worker].items()}
        assert value(metrics, "staleness_versions_count", worker=worker) == sum(ages.values())
        assert value(metrics, "staleness_versions_sum", worker=worker) == sum(a * n for a, n in ages.items())
        at_most_one = sum(n for age, n in ages.items() if age <= 1)
        assert value(metrics, "staleness_versions_bucket", worker=worker, le="1.0") == at_most_one

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "decisions.jsonl").write_text("".join(outcome.lines), encoding="utf-8")
    names = {RECEIVING: "pull", SENDING: "send"}
    reader, waited = WorkFold(), dict[str, float]()
    for entry in Run(folder).decisions():
        for work in reader.work(entry.fact, entry.t):
            for stretch in work.before:
                if stretch.kind != COMPUTING:
                    waited[work.worker] = waited.get(work.worker, 0.0) + max(stretch.end - stretch.begin, 0.0)
    seconds = spent(Run(folder))
    for worker in summary["contributions"]:
        for kind, activity in names.items():
            counted = value(metrics, "worker_seconds_total", worker=worker, activity=activity)
            assert counted == pytest.approx(seconds[worker, kind], abs=1e-3)
        # After a cancel the timeline counts it as wasted up to the next grant; the counters call that waiting.
        idle = sum(
            value(metrics, "worker_seconds_total", worker=worker, activity=a) for a in ("wait", "wasted")
        )
        assert idle == pytest.approx(waited.get(worker, 0.0) + seconds[worker, WASTED], abs=1e-3)
        busy = [
            value(metrics, "worker_seconds_total", worker=worker, activity=a) for a in ("compute", "before")
        ]
        assert sum(busy) == pytest.approx(seconds[worker, COMPUTING], abs=1e-3)


def test_many_workers_are_few_series() -> None:
    """The first have their own, all others one together, and nothing is lost."""
    many = {"problem": "none", "batches": 3, "compute": "exponential(1)"}
    given = document("bounded", {"max_staleness": 1}, cluster={"workers": 500}, simulation=many)
    outcome = simulate(Experiment.parse(given))
    workers = worker_numbers(outcome.cluster.coordinator, counted(outcome))
    assert len(workers) == MAX_WORKERS + 1 and OTHERS in workers
    metrics = families(outcome)
    assert sum(len(metric.samples) for metric in metrics) < 2000
    assert value(metrics, "samples_total") == outcome.summary["samples"]
    dropped = sum(counts["dropped"] for counts in outcome.summary["contributions"].values())
    assert value(metrics, "contributions_total", fate="dropped") == dropped > 0


def test_reasons_are_a_closed_set() -> None:
    from psserver.coordinator.outputs import Record
    from psserver.decisions import entries

    counts = Counts()
    for number, reason in enumerate(("stale", "too few", "a policy's own sentence", "another")):
        counts.see(Record(number, 0.0, entries.Drop("w0", number, 0, reason)))
    assert counts.workers["w0"].dropped == {"stale": 1, "too_few": 1, "other": 2}


def options(**given: Any) -> Any:
    from psserver.options import Options
    from psserver.settings import resolve

    return resolve(Options(ps_hosts="127.0.0.1:7070", **given), None)


def test_metrics_are_off_until_a_port_or_the_experiment_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from psserver import settings

    asked = ("cluster.metrics=true",)
    assert options().metrics_port is None
    assert options(metrics_port=9101).metrics_port == 9101
    assert options(overrides=asked).metrics_port == 0
    assert options(overrides=asked, metrics_port=9101).metrics_port == 9101
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    assert options().metrics_port is None
    with pytest.raises(settings.SettingsError, match=re.escape(how_to_install("metrics"))):
        options(metrics_port=0)
