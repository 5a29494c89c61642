"""The guarantees of a run with replicas alone: one history, whoever led; with `sync` an undisturbed run's bits."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pslab.runs.folder import DECISIONS, Run
from pslab.runs.log import loads
from pswire.decisions import entries as e


def voided(folder: Path) -> Counter[str]:
    """Count, by kind, what a replaced primary wrote and the log has otherwise, or not at all."""
    log, found = _lines(folder / DECISIONS), Counter[str]()
    for file in sorted(folder.glob("decisions.before-epoch-*.jsonl")):
        for number, line in enumerate(_lines(file)):
            if log[number : number + 1] != [line]:
                found[_kind(line)] += 1
    return found


def _lines(path: Path) -> list[bytes]:
    """Return the whole lines; the last one of a process that was killed may not be."""
    return path.read_bytes().split(b"\n")[:-1]


def _kind(line: bytes) -> str:
    try:
        return str(loads(line.decode())["kind"])
    except (ValueError, KeyError, TypeError):
        return "unreadable"


def problems(run: Run, alone: Run | None) -> Iterator[str]:
    """Say what was lost or has counted again. `alone`: the undisturbed run, if there was one."""
    void = voided(run.path)
    if void:
        what = ", ".join(f"{count} {kind}" for kind, count in sorted(void.items()))
        yield f"a replaced server wrote what the log does not have: {what}"
    if any(isinstance(entry.fact, e.Restore) for entry in run.decisions()):
        yield "the job went back to a checkpoint"
    if alone is None:
        return
    for worker, theirs in alone.summary.contributions.items():
        own = run.summary.contributions.get(worker)
        if own is None or own.committed != theirs.committed:
            got = 0 if own is None else own.committed
            yield f"{worker} has {got} contributions, expected {theirs.committed}, as in the undisturbed run"
    if run.summary.policy["name"] == "sync" and not _left_early(run) and not _left_early(alone):
        if run.summary.weights_sha256 != alone.summary.weights_sha256:
            yield (
                f"the weights' digest is {run.summary.weights_sha256}, expected {alone.summary.weights_sha256}, that "
                "of the undisturbed run"
            )


def _left_early(run: Run) -> bool:
    """Whether a worker left before it had no more data: then rounds had other members."""
    done: set[str] = set()
    for entry in run.decisions():
        match entry.fact:
            case e.Done(worker):
                done.add(worker)
            case e.Leave(worker) if worker not in done:
                return True
    return False
