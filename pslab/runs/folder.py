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

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from pslab.experiment import Experiment
from pslab.runs.fold import LogState
from pslab.runs.log import Line, Malformed, loads, printable, read_log
from pslab.runs.summary import ContributionCounts, Metric, Summary, parse_metric
from psserver.decisions.entries import Grant
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


# Bytes of a file's end that are searched for a readable line; four times as many if they have none.
TAIL = 1 << 16


def _is_entry(line: str) -> bool:
    (read,) = read_log([line])
    return isinstance(read, Line)


def _is_metric(line: str) -> bool:
    try:
        parse_metric(line)
    except ValueError:
        return False
    return True


_READABLE: Mapping[str, Callable[[str], bool]] = {DECISIONS: _is_entry, METRICS: _is_metric}


def _end_of(path: Path, readable: Callable[[str], bool]) -> int:
    """Return the bytes up to the end of the last readable line of a file, which may grow or be cut meanwhile."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        length = min(TAIL, size)
        while True:
            file.seek(size - length)
            lines = file.read(length).splitlines(keepends=True)
            # The beginning of the first line may be missing.
            first = 1 if length < size else 0
            for number in range(len(lines) - 1, first - 1, -1):
                line = lines[number]
                if line.endswith(b"\n") and readable(line.decode("utf-8", "replace")):
                    return size - length + sum(map(len, lines[: number + 1]))
            if length == size:
                return 0
            length = min(4 * length, size)


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
        left = file.stat().st_size - self.readable()
        return (
            f"{self.path}: has no {SUMMARY}: the job is still running, or was cut off (killed, for example); read up "
            f"to the last entry that can be read{f', without {left} bytes behind it' if left else ''}"
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
        try:
            return Summary.read(record)
        except ValueError as error:
            raise RunError(f"{file}: {error}") from error

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
            except ValueError as error:
                raise RunError(f"{path}:{number}: {error}") from error

    def readable(self, name: str = DECISIONS) -> int:
        """Return how many bytes of the file are read: in a run without a summary, up to the last readable line."""
        file = self._file(name)
        return file.stat().st_size if self.stopped else _end_of(file, _READABLE[name])

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
