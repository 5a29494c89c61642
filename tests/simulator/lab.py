"""Verbs for tests: simulate an experiment in memory, look at what came out."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pslab.check.checker import CheckResult, check_log
from pslab.check.conservation import Conservation, conservation
from pslab.experiment import Experiment
from pslab.runs.log import Line as LogEntry
from pslab.runs.log import read_log
from pslab.simulator import Cluster, Folder, TrainerFactory, build
from psserver.coordinator.outputs import Record
from psserver.decisions import entries
from tests.repetitions import SOAK, repetitions


def long(versions: int) -> int:
    """Of a figure that holds of a mean: all in a soak, else a quarter."""
    return versions // repetitions(4, soak=1)


def near(percent: float) -> float:
    """The relative tolerance of such a figure: of a mean over a quarter of the times, twice as much."""
    return (1 if SOAK else 2) * percent / 100


class Kept(Folder):
    """A run folder in memory."""

    def __init__(self) -> None:
        super().__init__(None)
        self.records: list[Record] = []

    def append(self, record: Record) -> None:
        super().append(record)
        self.records.append(record)


@dataclass(frozen=True)
class Outcome:
    cluster: Cluster
    records: list[Record]
    summary: Mapping[str, Any]

    @cached_property
    def lines(self) -> list[str]:
        """decisions.jsonl, as a run folder has it."""
        import json

        return [json.dumps({"i": r.index, "t": r.t, **r.entry.to_json()}) + "\n" for r in self.records]

    @property
    def entries(self) -> list[entries.Entry]:
        return [record.entry for record in self.records]

    def count(self, kind: str) -> int:
        return sum(entry.kind == kind for entry in self.entries)

    @property
    def versions(self) -> int:
        return int(self.summary["versions"])

    @property
    def seconds(self) -> float:
        """From the first grant to the stop."""
        return float(self.summary["wall_seconds"])

    @property
    def seconds_per_version(self) -> float:
        return self.seconds / self.versions

    @property
    def histogram(self) -> Counter[int]:
        """Applied contributions by staleness."""
        total: Counter[int] = Counter()
        for counts in self.summary["staleness"].values():
            total.update({int(tau): n for tau, n in counts.items()})
        return total

    @property
    def mean_staleness(self) -> float:
        histogram = self.histogram
        return sum(tau * n for tau, n in histogram.items()) / histogram.total()

    @property
    def max_staleness(self) -> int:
        return max(self.histogram)

    @property
    def dropped(self) -> int:
        """Contributions that the policy dropped (not those that the stop caught)."""
        return sum(isinstance(e, entries.Drop) and e.reason != "stopped" for e in self.entries)

    @property
    def cancelled(self) -> int:
        """Tickets that the policy cancelled (not those that the stop caught)."""
        return sum(isinstance(e, entries.Cancel) and "job stopped" not in e.reason for e in self.entries)

    @property
    def applied_by(self) -> dict[str, int]:
        return {worker: counts["applied"] for worker, counts in self.summary["contributions"].items()}

    def verdict(self) -> CheckResult:
        return check_log(read_log(self.lines))

    def law(self) -> Conservation:
        return conservation(read_log(self.lines))

    def log(self) -> list[LogEntry]:
        return [entry for entry in read_log(self.lines) if isinstance(entry, LogEntry)]


def experiment(policy: str = "sync", *, workers: int = 4, **sections: Any) -> Experiment:
    """`sections` as in a file; ``policy_knobs`` are the policy's, ``delays`` the workers' by number."""
    knobs = sections.pop("policy_knobs", {})
    document = {
        "cluster": {"workers": workers, **sections.pop("cluster", {})},
        "policy": {"name": policy, **knobs},
        "workers": {str(number): {"delay": text} for number, text in sections.pop("delays", {}).items()},
        **sections,
    }
    return Experiment.parse(document)


def simulate(given: Experiment, trainers: TrainerFactory | None = None) -> Outcome:
    cluster = build(given, None if trainers is None else lambda _: trainers)
    folder = Kept()
    cluster.folder = folder
    cluster.run()
    cluster.conclude()
    return Outcome(cluster, folder.records, folder.summary)


def timed(policy: str, *, workers: int, versions: int, seed: int = 0, **sections: Any) -> Outcome:
    """Timing only, exp(1) steps, cancelled workers stop at once: the setting of most papers."""
    simulation = {"compute": "exponential(1)", "interrupt": True, **sections.pop("simulation", {})}
    return simulate(
        experiment(
            policy,
            workers=workers,
            run={"versions": versions, "seed": seed},
            simulation=simulation,
            **sections,
        )
    )
