"""Checks that the other files of a run folder agree with its log: summary, metrics, final weights."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from pslab.check.log_check import LogCheck
from pslab.runs.fold import LogState
from pslab.runs.folder import RunError
from pslab.runs.summary import Metric, Summary
from psserver.weights_file import Saved, WeightsFileError, load


class SummaryAgrees(LogCheck):
    """The summary's versions, samples, counts and staleness histograms are those of the log."""

    name = "summary"

    def __init__(self, summary: Summary | RunError | None) -> None:
        """`summary`: the summary, why it could not be read, or None if there is none."""
        self._summary = summary

    def finish(self, state: LogState) -> Iterator[str]:
        summary = self._summary
        if isinstance(summary, RunError):
            yield str(summary)
        elif summary is not None:
            yield from self._totals(summary, state)
            yield from self._workers(summary, state)

    def remarks(self, state: LogState) -> Iterator[str]:
        if self._summary is None and state.stop is not None:
            yield (
                "the log stops in good order, but summary.json is missing: "
                "server 0 was killed while it ended, or the file was removed"
            )

    def _totals(self, summary: Summary, state: LogState) -> Iterator[str]:
        if state.stop is None:
            yield "summary.json exists, but the log has no stop entry"
        elif (summary.success, summary.reason) != (state.stop.success, state.stop.reason):
            yield (
                f"summary.json says success {summary.success} ({summary.reason}),"
                f" the log says {state.stop.success} ({state.stop.reason})"
            )
        pairs = [
            ("versions", summary.versions, state.versions),
            ("samples", summary.samples, state.samples),
            # Not the number that the job was started for: more or fewer may have joined.
            ("workers", summary.workers, len(state.members)),
        ]
        if state.job is not None:
            job = state.job
            pairs.append(("servers", summary.servers, job.servers))
            if summary.job != job.job:
                yield f"summary.json is of job {summary.job}, the log of job {job.job}"
            if summary.policy.get("name") != state.policy.get("name"):
                yield f"summary.json names policy {summary.policy.get('name')}, not {state.policy.get('name')}"
        for name, stated, found in pairs:
            if stated != found:
                yield f"summary.json says {stated} {name}, the log {found}"

    def _workers(self, summary: Summary, state: LogState) -> Iterator[str]:
        named = {*summary.contributions, *summary.staleness, *state.committed, *state.applied, *state.dropped}
        for worker in sorted(named):
            committed, applied, dropped = (
                state.committed[worker],
                state.applied[worker],
                state.dropped[worker],
            )
            counted = (committed, applied, dropped, committed - applied - dropped)
            counts = summary.contributions.get(worker)
            stated = (
                (counts.committed, counts.applied, counts.dropped, counts.pending) if counts else (0, 0, 0, 0)
            )
            if stated != counted:
                yield (
                    f"{worker}: summary.json says committed, applied, dropped, pending"
                    f" = {_listed(stated)}, the log {_listed(counted)}"
                )
            histogram = {tau: n for tau, n in summary.staleness.get(worker, {}).items() if n}
            if histogram != dict(state.staleness.get(worker, {})):
                yield (
                    f"{worker}: summary.json has the staleness histogram {_sorted(histogram)},"
                    f" the log {_sorted(state.staleness.get(worker, {}))}"
                )


def _listed(counts: tuple[int, ...]) -> str:
    return ", ".join(str(count) for count in counts)


def _sorted(histogram: dict[int, int]) -> dict[int, int]:
    return dict(sorted(histogram.items()))


class MetricsAgree(LogCheck):
    """metrics.jsonl has one train line for each version, in order."""

    name = "metrics"

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def finish(self, state: LogState) -> Iterator[str]:
        expected = 1
        try:
            for metric in self._metrics:
                if metric.kind != "train":
                    continue
                if metric.version != expected:
                    yield f"metrics.jsonl has version {metric.version} where {expected} should follow"
                expected = metric.version + 1
        except RunError as error:
            yield str(error)
            return
        if state.stop is not None and expected - 1 != state.versions:
            yield f"metrics.jsonl ends at version {expected - 1}, the log at version {state.versions}"


class WeightsAgree(LogCheck):
    """The fingerprint of weights.safetensors is the summary's weights_sha256."""

    name = "final weights"

    def __init__(self, path: Path, recorded: str | None) -> None:
        """Check against `recorded`, the summary's fingerprint; None for a job without weights, as a simulation of time
        only."""
        self._path, self._recorded = path, recorded

    def finish(self, state: LogState) -> Iterator[str]:
        if not self._path.is_file():
            if self._recorded is not None:
                yield f"summary.json has the weights_sha256 {self._recorded}, but {self._path.name} is missing"
        elif self._recorded is None:
            yield f"{self._path.name} exists, but summary.json has no weights_sha256"
        else:
            try:
                yield from self._compare(load(self._path), self._recorded)
            except (WeightsFileError, OSError) as error:
                yield f"{self._path.name} cannot be read: {error}"

    def _compare(self, saved: Saved, recorded: str) -> Iterator[str]:
        if (found := saved.sha256()) != recorded:
            yield f"summary.json has the weights_sha256 {recorded}, {self._path.name} has {found}"
