"""A promise about `metrics.jsonl`: one line of training loss per version."""

from collections.abc import Iterable, Iterator

from pslab.check.ledger import Ledger
from pslab.check.promise import LogCheck
from pslab.runs.folder import Metric, RunError


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
