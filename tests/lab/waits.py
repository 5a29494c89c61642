"""Where workers' time went, straight from the stretches of a log."""

from collections import Counter

from pslab.runs.folder import Run
from pslab.runs.work import WorkFold


def spent(run: Run) -> Counter[tuple[str, str]]:
    """Seconds from the first grant on, by worker and kind of stretch."""
    begun, fold = run.first_grant(), WorkFold()
    found: Counter[tuple[str, str]] = Counter()
    for entry in run.decisions():
        for work in fold.work(entry.fact, entry.t):
            for stretch in (*work.before, *work.held):
                found[work.worker, stretch.kind] += max(stretch.end, begun) - max(stretch.begin, begun)
    return found
