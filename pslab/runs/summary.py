"""What a run's server writes about it as numbers: its summary, and the lines of its metrics; checked on reading."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pslab.runs.fold import mean_of
from pslab.runs.log import loads
from psserver.table_figures import TableFigures
from pswire.domains import in_range

#: The largest number of anything that a summary counts.
MOST = 2**62


@dataclass(frozen=True, slots=True)
class ContributionCounts:
    """Counts of one worker's contributions; committed = applied + dropped + pending."""

    committed: int = 0
    applied: int = 0
    dropped: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """`summary.json`, checked on reading. `wall_seconds` runs from the first grant to the stop.

    For a run without one (it was killed, or is still running) the same numbers are counted from its log; then `success`
    is false, and `reason` says so. `metrics`: the newest evaluation; "training_loss", of the last version's
    contributions, where no loss was evaluated.
    """

    job: str
    policy: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    servers: int
    workers: int
    versions: int
    samples: int
    wall_seconds: float
    metrics: Mapping[str, float | None]
    contributions: Mapping[str, ContributionCounts]
    staleness: Mapping[str, Mapping[int, int]]
    weights_sha256: str | None
    success: bool
    reason: str
    missing: Mapping[str, Any] = field(default_factory=dict)
    # Name and knobs of the policy before the first change while the job ran; empty if there was none.
    began_with: Mapping[str, Any] = field(default_factory=dict)
    # What each sparse table held at the end, on all servers.
    tables: tuple[TableFigures, ...] = ()
    # Workers whose work did not count, as a sentence; empty if there is none.
    uncounted: str = ""
    # Elements that versions left as they were, as a sentence; empty if there are none.
    kept_back: str = ""

    @property
    def missing_text(self) -> str:
        """The data that was not trained on, as text; empty if all was."""
        batches = self.missing.get("batches", {})
        found = [f"{'some' if n is None else n} batches of {name}" for name, n in batches.items()]
        found += [f"{n} {unit} of the work" for unit, n in self.missing.items() if unit != "batches"]
        return ", ".join(found)

    @property
    def histogram(self) -> Counter[int]:
        """Applied contributions by staleness, over all workers."""
        total: Counter[int] = Counter()
        for counts in self.staleness.values():
            total.update(counts)
        return total

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of applied contributions, in versions; NaN if nothing was applied."""
        return mean_of(self.histogram)

    def metric(self, name: str) -> float:
        """Return a final metric; NaN if the job did not measure it."""
        value = self.metrics.get(name)
        return math.nan if value is None else float(value)

    @property
    def seconds_per_version(self) -> float:
        return self.wall_seconds / self.versions if self.versions else math.nan

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.wall_seconds if self.wall_seconds > 0 else math.nan

    @classmethod
    def read(cls, record: Any) -> Self:
        """Return the summary from parsed JSON. Raises ValueError for anything else."""
        try:
            return cls(
                job=str(record["job"]),
                policy=_named(record["policy"]),
                # A job that ended before its first initial values settled none.
                optimizer={} if record["optimizer"] == {} else _named(record["optimizer"]),
                servers=_count(record["servers"]),
                workers=_count(record["workers"]),
                versions=_count(record["versions"]),
                samples=_count(record["samples"]),
                wall_seconds=float(record["wall_seconds"]),
                metrics=_numbers(record["metrics"]),
                contributions={
                    worker: ContributionCounts(**{fate: _count(n) for fate, n in counts.items()})
                    for worker, counts in record["contributions"].items()
                },
                staleness={
                    worker: {int(tau): _count(n) for tau, n in counts.items()}
                    for worker, counts in record["staleness"].items()
                },
                weights_sha256=record.get("weights_sha256"),
                success=bool(record["success"]),
                reason=str(record["reason"]),
                missing=dict(record.get("missing", {})),
                uncounted=str(record.get("uncounted", "")),
                kept_back=str(record.get("kept_back", "")),
                began_with=dict(record.get("began_with", {})),
                tables=tuple(map(TableFigures.from_json, record.get("tables", ()))),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"is no summary: {_short(error)}") from error


def _named(config: Any) -> dict[str, Any]:
    """Return what a policy or an optimizer is called, and its knobs. Raises ValueError."""
    if not isinstance(config, dict) or not isinstance(config.get("name"), str):
        raise ValueError(f"expected an object with a name, got {str(config)[:40]!r}")
    return config


def _count(value: Any) -> int:
    """Return a whole number. Raises ValueError for what is none, or is out of range."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise ValueError(f"expected a whole number from 0 to {MOST}, got {str(value)[:40]!r}")
    return value


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Return metrics by name; None for one that is not finite. Raises ValueError for what is no number."""
    for name, value in metrics.items():
        if value is not None and not in_range(value):
            raise ValueError(f"expected a number as the metric {name!r}, got {str(value)[:40]!r}")
    return dict(metrics)


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of `metrics.jsonl`. `kind` is "train" (with samples and loss) or "eval" (with metrics)."""

    t: float
    version: int
    kind: str
    samples: int = 0
    loss: float = math.nan
    metrics: Mapping[str, float] = field(default_factory=dict)


def parse_metric(line: str) -> Metric:
    """Parse a line of `metrics.jsonl`. Raises ValueError, which says what is wrong with it."""
    try:
        record = loads(line)
        return Metric(
            t=float(record["t"]),
            version=int(record["version"]),
            kind=str(record.get("kind", "train")),
            samples=int(record.get("samples") or 0),
            loss=_number(record.get("loss")),
            metrics={k: _number(v) for k, v in (record.get("metrics") or {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"is no line of metrics: {_short(error)}") from error


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _short(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
