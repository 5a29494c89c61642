"""What the other files of a run folder say agrees with its log: summary.json, metrics.jsonl, weights.safetensors."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from pslab.check.ledger import APPLIED, COMMITTED, DROPPED, Ledger
from pslab.check.log_check import LogCheck
from pslab.runs.folder import Metric, RunError, Summary
from psserver.weights_file import Saved, WeightsFileError, load


class SummaryAgrees(LogCheck):
    """The summary's versions, samples, counts and staleness histograms are those of the log."""

    name = "summary"

    def __init__(self, summary: Summary | RunError | None) -> None:
        """`summary`: as read, or why it could not be, or None when there is none."""
        self._summary = summary

    def finish(self, ledger: Ledger) -> Iterator[str]:
        summary = self._summary
        if isinstance(summary, RunError):
            yield str(summary)
        elif summary is not None:
            yield from self._totals(summary, ledger)
            yield from self._workers(summary, ledger)

    def remarks(self, ledger: Ledger) -> Iterator[str]:
        if self._summary is None and ledger.stop is not None:
            yield (
                "the log stops in good order, but summary.json is missing: "
                "server 0 was killed while it ended, or the file was removed"
            )

    def _totals(self, summary: Summary, ledger: Ledger) -> Iterator[str]:
        if ledger.stop is None:
            yield "summary.json exists, but the log has no stop entry"
        elif (summary.success, summary.reason) != (ledger.stop.success, ledger.stop.reason):
            yield (
                f"summary.json says success {summary.success} ({summary.reason}),"
                f" the log says {ledger.stop.success} ({ledger.stop.reason})"
            )
        pairs = [
            ("versions", summary.versions, ledger.version or 0),
            ("samples", summary.samples, ledger.samples),
            # More or fewer than the job was started for may have come.
            ("workers", summary.workers, len(ledger.members)),
        ]
        if ledger.job is not None:
            job = ledger.job
            pairs.append(("servers", summary.servers, job.servers))
            if summary.job != job.job:
                yield f"summary.json is of job {summary.job}, the log of job {job.job}"
            if summary.policy.get("name") != job.policy.get("name"):
                yield f"summary.json names policy {summary.policy.get('name')}, not {job.policy.get('name')}"
        for name, said, found in pairs:
            if said != found:
                yield f"summary.json says {said} {name}, the log {found}"

    def _workers(self, summary: Summary, ledger: Ledger) -> Iterator[str]:
        named = {*summary.contributions, *ledger.contributions, *summary.staleness, *ledger.staleness}
        for worker in sorted(named):
            found = ledger.contributions.get(worker, Counter())
            pending = found[COMMITTED] - found[APPLIED] - found[DROPPED]
            counted = (found[COMMITTED], found[APPLIED], found[DROPPED], pending)
            said = summary.contributions.get(worker)
            stated = (said.committed, said.applied, said.dropped, said.pending) if said else (0, 0, 0, 0)
            if stated != counted:
                yield (
                    f"{worker}: summary.json says committed, applied, dropped, pending"
                    f" = {_listed(stated)}, the log {_listed(counted)}"
                )
            histogram = {tau: n for tau, n in summary.staleness.get(worker, {}).items() if n}
            if histogram != dict(ledger.staleness.get(worker, {})):
                yield (
                    f"{worker}: summary.json has the staleness histogram {_sorted(histogram)},"
                    f" the log {_sorted(ledger.staleness.get(worker, {}))}"
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

    def finish(self, ledger: Ledger) -> Iterator[str]:
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
        if ledger.stop is not None and expected - 1 != (ledger.version or 0):
            yield f"metrics.jsonl ends at version {expected - 1}, the log at version {ledger.version or 0}"


class WeightsAgree(LogCheck):
    """The fingerprint of weights.safetensors is the summary's weights_sha256."""

    name = "final weights"

    def __init__(self, path: Path, recorded: str | None) -> None:
        """`recorded`: None for a job that came to no weights, or looked at time only."""
        self._path, self._recorded = path, recorded
        self._uncertain = False

    def finish(self, ledger: Ledger) -> Iterator[str]:
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
        found = saved.sha256()
        self._uncertain = found is None
        if found is not None and found != recorded:
            yield f"summary.json has the weights_sha256 {recorded}, {self._path.name} has {found}"

    def remarks(self, ledger: Ledger) -> Iterator[str]:
        if self._uncertain:
            yield (
                f"{self._path.name} does not state the order of its variables (an older version wrote it):"
                " it was not compared with weights_sha256"
            )
