"""A run folder: its files, and how to read them. `pslab.runs.making` makes a new one.

experiment.toml      the resolved experiment
decisions.jsonl      the decision log
metrics.jsonl        loss over time, evaluations
summary.json         counts and final metrics, once the job has stopped
weights.safetensors  the final weights
checkpoints/         the servers' checkpoints, if the run takes any
job-2/, job-3/, ...  later jobs of the same servers, each a run folder
logs/*.log           the output of each process
address              the address of server 0, and the name of the job
secret               the job's secret, while it runs, if it has one and no TLS
observer/            a certificate for who looks at the run, while it runs, if it has made certificates
saved                the name of the newest checkpoint
metrics.prom         the last metrics of server 0, if it has any
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pslab.experiment import Experiment
from pslab.runs.fold import LogState, mean_of
from pslab.runs.growing import Problem, count_lines, end_of
from pslab.runs.log import Line, Malformed, loads, printable, read_log
from psserver.decisions.entries import Grant
from psserver.table_figures import TableFigures
from pswire.domains import in_range
from pswire.security.files import read_file
from pswire.security.names import IdentityError
from pswire.security.proof import FILE
from pswire.security.secret import Secret

EXPERIMENT = "experiment.toml"
DECISIONS = "decisions.jsonl"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
WEIGHTS = "weights.safetensors"
LOGS = "logs"
CHECKPOINTS = "checkpoints"
# Written by server 0; PROMETHEUS only if it has metrics.
ADDRESS = "address"
# The same, for this user's commands, while a job runs that has one; not under TLS.
SECRET = FILE
OBSERVER_FILES = "observer"
SAVED = "saved"
PROMETHEUS = "metrics.prom"
# The prefix of the job names of simulated clusters.
SIMULATED = "simulated-"


class RunError(ValueError):
    """A run folder cannot be read or made. The text names the file, and the line if there is one."""


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
    def read(cls, file: Path, record: Any) -> Self:
        """Return the summary from parsed JSON. Raises RunError, which names `file`."""
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
            raise RunError(f"{file}: is no summary: {_short(error)}") from error


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
    """Parse a line of `metrics.jsonl`. Raises RunError, which says what is wrong with it."""
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
        raise RunError(f"is no line of metrics: {_short(error)}") from error


def _no_entry(line: str) -> str | None:
    (read,) = read_log([line])
    return read.problem if isinstance(read, Malformed) else None


def _no_metric(line: str) -> str | None:
    try:
        parse_metric(line)
    except RunError as error:
        return str(error)
    return None


_PROBLEMS: Mapping[str, Problem] = {DECISIONS: _no_entry, METRICS: _no_metric}


class Run:
    """A run folder, read lazily. Raises RunError if it is none; readers raise RunError with file and line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            raise RunError(f"{path}: no such run folder")
        if not (path / DECISIONS).is_file() and not self.stopped:
            raise RunError(f"{path}: not a run folder, it has no {DECISIONS} (did the run start at all?)")

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)

    @cached_property
    def experiment(self) -> Experiment:
        return Experiment.load(self._file(EXPERIMENT))

    @property
    def stopped(self) -> bool:
        """True if the job has written its summary."""
        return (self.path / SUMMARY).is_file()

    @cached_property
    def unfinished(self) -> str | None:
        """How far a run without a summary, which was killed or is still running, is read, as a sentence. Else None."""
        file = self.path / DECISIONS
        if self.stopped or not file.is_file():
            return None
        end = end_of(file, _PROBLEMS[DECISIONS])
        whole, left = count_lines(file, end.bytes), ""
        if end.unreadable:
            last = f"{whole + 1}" if end.unreadable == 1 else f"{whole + 1} to {whole + end.unreadable}"
            left = f"; line {last} cannot be read and is left out: {end.problem}"
        if end.rest:
            left += f"; the last line is not whole ({end.rest} bytes) and is left out"
        return (
            f"{self.path}: has no {SUMMARY}: the job is still running, or was cut off (killed, for example); "
            f"read up to the last of {whole} entries{left}"
        )

    @cached_property
    def summary(self) -> Summary:
        """The summary; for a run without one, counted from its log. Raises RunError."""
        if not self.stopped:
            return self._counted()
        file = self._file(SUMMARY)
        try:
            record = loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise RunError(f"{file}: is not JSON: {error}") from error
        return Summary.read(file, record)

    def _counted(self) -> Summary:
        evaluated: Mapping[str, float] = {}
        trained: dict[str, float] = {}
        if (self.path / METRICS).is_file():
            for metric in self.metrics():
                if metric.kind == "eval":
                    evaluated = metric.metrics
                else:
                    trained = {"training_loss": metric.loss}
        found = self.fold()
        if found.job is None:
            raise RunError(f"{self.log}: expected a job entry first: the run was cut off before it wrote one")
        joined = sorted(found.members)
        return Summary(
            job=found.job.job,
            policy=found.policy,
            optimizer=found.optimizer,
            servers=found.job.servers,
            workers=len(joined),
            versions=found.versions,
            samples=found.samples,
            wall_seconds=0.0 if found.began is None else found.seconds - found.began,
            metrics=dict(evaluated) if "loss" in evaluated else {**evaluated, **trained},
            contributions={worker: _contribution(found, worker) for worker in joined},
            staleness={worker: found.staleness[worker] for worker in joined},
            weights_sha256=None,
            began_with=found.job.policy if found.changes else {},
            success=False,
            reason="cut off, or still running: there is no summary.json",
        )

    def settings(self) -> dict[str, Any]:
        """Return what the run was made with, by dotted key; knobs of policy and optimizer with their defaults."""
        summary = self.summary
        found: dict[str, Any] = {"cluster.servers": summary.servers, "cluster.workers": summary.workers}
        if (self.path / EXPERIMENT).is_file():
            found |= _dotted("", printable(self.experiment.model_dump()))
        for section, knobs in (("policy", summary.policy), ("optimizer", summary.optimizer)):
            found = {key: value for key, value in found.items() if not key.startswith(f"{section}.")}
            found |= _dotted(section, knobs)
        if summary.began_with:
            found |= {f"policy.began_with.{key}": value for key, value in summary.began_with.items()}
            planned = self.experiment.policy.then if (self.path / EXPERIMENT).is_file() else []
            found["policy.then"] = [change.model_dump() for change in planned]
        if (self.path / EXPERIMENT).is_file() and self.experiment.policy.adapt is not None:
            found |= _dotted("policy.adapt", self.experiment.policy.adapt.model_dump())
        found.pop("run.name", None)
        return found

    @property
    def log(self) -> Path:
        """The path of the decision log. Raises RunError if the run has none."""
        return self._file(DECISIONS)

    def lines(self) -> Iterator[Line | Malformed]:
        """Iterate over the decision log, unreadable lines included.

        In a run without a summary, unreadable lines at the end are left out: see `unfinished`.
        """
        yield from read_log(self._lines(DECISIONS))

    def decisions(self) -> Iterator[Line]:
        """Iterate over the decision log. Raises RunError at the first unreadable line."""
        for entry in self.lines():
            if isinstance(entry, Malformed):
                raise RunError(f"{self.path / DECISIONS}:{entry.line}: {entry.problem}")
            yield entry

    def fold(self) -> LogState:
        """Return the state after the whole log. Raises RunError as `decisions` does."""
        return LogState.of((entry.fact, entry.t) for entry in self.decisions())

    @property
    def began(self) -> float | None:
        """When the first ticket was granted, in seconds of the log; None if none was."""
        return next((entry.t for entry in self.decisions() if isinstance(entry.fact, Grant)), None)

    def first_grant(self) -> float:
        """Return `began`. Raises RunError if no ticket was granted."""
        if (began := self.began) is None:
            raise RunError(f"{self.path}: no ticket was ever granted")
        return began

    def check_whole(self) -> None:
        """Raise RunError if the log of a run that has stopped has no stop entry: it was cut off or edited."""
        file = self.path / DECISIONS
        if not (self.stopped and file.is_file()):
            return
        with file.open("rb") as log:
            if not any(b'"kind":"stop"' in line for line in log):
                raise RunError(f"{file}: expected an entry of the job's stop: the log was cut off or edited")

    def metrics(self) -> Iterator[Metric]:
        """Iterate over `metrics.jsonl` as `lines` does. Raises RunError at the first unreadable line."""
        path = self._file(METRICS)
        for number, line in enumerate(self._lines(METRICS), start=1):
            try:
                yield parse_metric(line)
            except RunError as error:
                raise RunError(f"{path}:{number}: {error}") from error

    def readable(self, name: str = DECISIONS) -> int:
        """Return how many bytes of the file are read: in a run without a summary, up to the last readable line."""
        file = self._file(name)
        return file.stat().st_size if self.stopped else end_of(file, _PROBLEMS[name]).bytes

    def _lines(self, name: str) -> Iterator[str]:
        left = self.readable(name)
        with self._file(name).open("rb") as file:
            while left > 0 and (line := file.readline()):
                left -= len(line)
                # Bytes that are not UTF-8 become an unreadable line, not an exception half-way.
                yield line.decode("utf-8", "replace")

    def _file(self, name: str) -> Path:
        path = self.path / name
        if not path.is_file():
            raise RunError(f"{path}: is missing; {_MEANING[name]}")
        return path


_MEANING = {
    DECISIONS: "the run was made without a record (simulation.record = false), or the file was removed",
    EXPERIMENT: "the folder was not made by ps-lab run",
    METRICS: "no server wrote metrics here",
    SUMMARY: "the job has not stopped yet, or was cut off",
}


def _dotted(path: str, value: Any) -> dict[str, Any]:
    """Flatten nested tables: the keys that lead to a leaf, joined by dots."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        key: leaf
        for name, inner in value.items()
        for key, leaf in _dotted(f"{path}.{name}" if path else name, inner).items()
    }


def _contribution(found: LogState, worker: str) -> ContributionCounts:
    # A pending contribution does not count as dropped: that was never decided.
    committed, applied, dropped = found.committed[worker], found.applied[worker], found.dropped[worker]
    return ContributionCounts(committed, applied, dropped, committed - applied - dropped)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _short(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def later_jobs(path: Path) -> list[Path]:
    """Return the folders of the jobs that the same servers trained after a run's first one, in order."""
    found = {
        name[4:]: path / name for name in (each.name for each in path.glob("job-*")) if name[4:].isdecimal()
    }
    return [found[number] for number in sorted(found, key=int)]


def job_of(path: Path) -> str:
    """Return the name of a run's newest job: that of its first generation, which its log says, or until the job begins
    that beside the server's address; empty where neither says it."""
    newest = [path, *later_jobs(path)][-1]
    with suppress(OSError), (newest / DECISIONS).open(encoding="utf-8", errors="replace") as log:
        first = next(read_log(log), None)
        if isinstance(first, Line) and first.kind == "job":
            return str(first.record.get("job", ""))
    with suppress(OSError, UnicodeDecodeError, ValueError):
        _, name = (newest / ADDRESS).read_text(encoding="utf-8").split()
        return name
    return ""


def secret_of(path: Path) -> Secret:
    """Return the secret of a run's newest job, while that runs; empty if its folder has none.

    Raises IdentityError for a file that this user cannot read, or that others can.
    """
    return secret_in([path, *later_jobs(path)][-1])


def secret_in(folder: Path) -> Secret:
    """Return the secret in the folder of one job. As `secret_of`."""
    file = folder / SECRET
    return Secret(read_file(file, "job's secret", private=True)) if file.is_file() else Secret()


def forget_secret(path: Path, secret: Secret) -> None:
    """Remove files with this secret from a run's folder; another run's may be there."""
    for folder in (path, *later_jobs(path)):
        with suppress(IdentityError, OSError):
            if secret_in(folder) == secret:
                (folder / SECRET).unlink()


def address_of(path: Path) -> str:
    """Return the address of server 0 of a running run, for its newest job; with replicas a list of all servers'.

    Raises RunError for a run that is over, and for a folder without a run.
    """
    newest = [path, *later_jobs(path)][-1]
    if (newest / SUMMARY).is_file():
        raise RunError(f"{path}: this run is over; ps-lab compare {path} says how it went")
    try:
        return (newest / ADDRESS).read_text(encoding="utf-8").split()[0]
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise RunError(
            f"{path}: expected the folder of a running run, got one without a readable file {ADDRESS!r}"
        ) from error
