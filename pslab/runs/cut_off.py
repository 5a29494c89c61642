"""A run that left no summary: what its log says up to its last whole line, in the form of summary.json."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pslab.runs.log import Line
from pswire.decisions import entries as e

COMMITTED, APPLIED, DROPPED = "committed", "applied", "dropped"


def counted(entries: Iterable[Line], metrics: Mapping[str, float], reason: str) -> dict[str, Any] | None:
    """The counts of a log that ends early; None where it has no first entry. `metrics`: the newest that are known.

    Nothing is counted as dropped that was still pending: nobody decided that.
    """
    job: e.Job | None = None
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    staleness: defaultdict[str, Counter[int]] = defaultdict(Counter)
    joined: set[str] = set()
    versions = samples = 0
    begun: float | None = None
    last, stopped = 0.0, False
    for entry in entries:
        # As a server counts: what follows on the stop is not part of the time.
        last = last if stopped else entry.t
        match entry.fact:
            case e.Job() as job:
                pass
            case e.Join(worker):
                joined.add(worker)
            case e.Grant() if begun is None:
                begun = entry.t
            case e.Commit(worker):
                counts[worker][COMMITTED] += 1
                samples += entry.fact.samples
            case e.Apply(version, _, _, parts):
                versions = version
                for part in parts:
                    counts[part.worker][APPLIED] += 1
                    staleness[part.worker][part.staleness] += 1
            case e.Drop(worker):
                counts[worker][DROPPED] += 1
            case e.Stop():
                stopped = True
            case _:
                pass
    if job is None:
        return None
    return {
        "job": job.job,
        "policy": job.policy,
        "optimizer": job.optimizer,
        "servers": job.servers,
        "workers": len(joined),
        "versions": versions,
        "samples": samples,
        "wall_seconds": 0.0 if begun is None else last - begun,
        "metrics": dict(metrics),
        "contributions": {worker: _contribution(counts[worker]) for worker in sorted(joined)},
        "staleness": {worker: staleness[worker] for worker in sorted(joined)},
        "weights_sha256": None,
        "success": False,
        "reason": reason,
    }


def _contribution(found: Counter[str]) -> dict[str, int]:
    pending = found[COMMITTED] - found[APPLIED] - found[DROPPED]
    return {kind: found[kind] for kind in (COMMITTED, APPLIED, DROPPED)} | {"pending": pending}
