"""A run, or all runs of a sweep, as pandas frames: three lines of a notebook.

    import pslab.runs
    frames = pslab.runs.load("runs/digits-sweep")
    frames.contributions.groupby("run").staleness.mean()

Needs the extra `frames` (pandas, and pyarrow for Parquet).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import pandas as pd

from pslab.runs.folder import DECISIONS, METRICS, SUMMARY, Run, RunError
from pslab.runs.log import Line
from pslab.runs.work import WorkFold
from psserver.decisions import entries as e
from pswire.extras import how_to_install

Row = dict[str, Any]

# The columns of frames, besides `run`. Times in seconds of the log; staleness in versions.
CONTRIBUTIONS: Final = (
    *("ticket", "worker", "base", "granted", "committed", "decided", "samples", "loss", "norm", "fate"),
    *("reason", "staleness", "weight", "version"),
)
WAITS: Final = ("worker", "ticket", "kind", "begin", "end", "seconds")
EVALUATIONS: Final = ("t", "version", "metric", "value")


@dataclass(frozen=True, slots=True)
class RunFrames:
    """One frame for each kind of record; every frame has a column `run`, the name of the run's folder.

    `runs`: one row for each run: how it ended, and its settings by dotted key (`policy.max_staleness`).
    `contributions`: one row for each granted ticket, with its fate: applied, dropped, cancelled,
    abandoned, lost with its worker, or open.
    `versions`: one row for each update. `waits`: what each worker did under each ticket, and for how long, by the
    kinds of `pslab.runs.work`. `evaluations`: one row for each metric of each evaluation.
    """

    runs: pd.DataFrame
    contributions: pd.DataFrame
    versions: pd.DataFrame
    waits: pd.DataFrame
    evaluations: pd.DataFrame

    def write(self, folder: Path, form: str) -> list[Path]:
        """Write each frame as `folder`/NAME.`form`, where `form` is "csv" or "parquet"; nothing is overwritten.

        Return the files. Raises RunError when one of them exists, and where Parquet needs pyarrow.
        """
        paths = {each.name: folder / f"{each.name}.{form}" for each in fields(self)}
        existing = next((path for path in paths.values() if path.exists()), None)
        if existing is not None:
            raise RunError(f"{existing}: exists already: choose another folder, or remove it")
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            frame = getattr(self, name)
            if form == "csv":
                frame.to_csv(path, index=False)
                continue
            try:
                frame.to_parquet(path, index=False)
            except ImportError as error:
                raise RunError(f"Parquet needs pyarrow: {how_to_install('frames')}") from error
        return list(paths.values())


def load(folder: str | Path) -> RunFrames:
    """Read a run folder, or a folder of run folders such as a sweep's.

    Raises RunError for a folder without a run, and naming file and line where a log cannot be read.
    """
    rows, settings, evaluations = LogRows(), list[Row](), list[Row]()
    for run in runs_in(Path(folder)):
        rows.read(run.name, run.decisions())
        settings.append({"run": run.name, **_settings(run)})
        evaluations += [{"run": run.name, **row} for row in _evaluations(run)]
    return RunFrames(
        pd.DataFrame(settings),
        rows.contributions(),
        rows.versions(),
        rows.waits(),
        pd.DataFrame(evaluations, columns=["run", *EVALUATIONS]),
    )


def runs_in(folder: Path) -> list[Run]:
    """Return the run of this folder; else those of its sub-folders, by name. Raises RunError where there is none."""
    if _is_run(folder):
        return [Run(folder)]
    found = [Run(each) for each in sorted(folder.glob("*")) if _is_run(each)]
    if not found:
        raise RunError(f"{folder}: expected a run folder, or a folder of some, got none")
    return found


def _is_run(folder: Path) -> bool:
    return (folder / DECISIONS).is_file() or (folder / SUMMARY).is_file()


def _settings(run: Run) -> Row:
    summary = run.summary
    found: Row = {
        "job": summary.job,
        "success": summary.success,
        "reason": summary.reason,
        "versions": summary.versions,
        "samples": summary.samples,
        "seconds": summary.wall_seconds,
    }
    metrics = {name: value for name, value in summary.metrics.items() if name not in found}
    return {**found, **metrics, **run.settings()}


def _evaluations(run: Run) -> Iterator[Row]:
    if not (run.path / METRICS).is_file():
        return
    for metric in run.metrics():
        if metric.kind == "eval":
            for name, value in metric.metrics.items():
                yield {"t": metric.t, "version": metric.version, "metric": name, "value": value}


class LogRows:
    """The records of decision logs, as frames once they are read."""

    def __init__(self) -> None:
        self._contributions: dict[tuple[str, int], Row] = {}
        self._waits: list[tuple[str, str, int, str, float, float, float]] = []

    def read(self, run: str, entries: Iterable[Line]) -> None:
        """Add the entries of a run's log, from its first one on."""
        fold = WorkFold()
        for entry in entries:
            for work in fold.work(entry.fact, entry.t):
                self._waits += [
                    (run, work.worker, work.ticket, each.kind, each.begin, each.end, each.end - each.begin)
                    for each in (*work.before, *work.held)
                    if each.end > each.begin
                ]
            self._see(run, entry.fact, entry.t, fold)

    def _see(self, run: str, fact: e.Entry, t: float, fold: WorkFold) -> None:
        match fact:
            case e.Grant(worker, ticket, base):
                granted = {"run": run, "ticket": ticket, "worker": worker, "base": base, "granted": t}
                self._contributions[run, ticket] = {**granted, "fate": "open"}
            case e.Commit(_, ticket):
                told = {"samples": fact.samples, "loss": fact.loss, "norm": fact.norm}
                self._set(run, ticket, committed=t, **told)
            case e.Apply():
                for part in fact.parts:
                    how = {"staleness": part.staleness, "weight": part.weight, "version": fact.version}
                    self._set(run, part.ticket, fate="applied", decided=t, **how)
            case e.Leave(worker):
                for held in fold.open_of(worker):
                    self._set(run, held.number, fate="lost", decided=t)
            case e.Drop(_, ticket):
                self._set(run, ticket, fate="dropped", decided=t, reason=fact.reason)
            case e.Cancel(_, ticket):
                self._set(run, ticket, fate="cancelled", decided=t)
            case e.Abandon(_, ticket):
                self._set(run, ticket, fate="abandoned", decided=t)

    def _set(self, run: str, ticket: int, **found: Any) -> None:
        """Add to the row of a ticket; the initial values' ticket has none."""
        if (row := self._contributions.get((run, ticket))) is not None:
            row.update(found)

    def contributions(self) -> pd.DataFrame:
        return pd.DataFrame(list(self._contributions.values()), columns=["run", *CONTRIBUTIONS])

    def versions(self) -> pd.DataFrame:
        applied = self.contributions().query("fate == 'applied'").astype({"version": int})
        return applied.groupby(["run", "version"], as_index=False).agg(
            t=("decided", "first"),
            contributions=("ticket", "size"),
            workers=("worker", "nunique"),
            mean_staleness=("staleness", "mean"),
            max_staleness=("staleness", "max"),
        )

    def waits(self) -> pd.DataFrame:
        return pd.DataFrame(self._waits, columns=["run", *WAITS])
