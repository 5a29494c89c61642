"""A run, or all runs of a sweep, as pandas frames: three lines of a notebook.

    import pslab.runs
    frames = pslab.runs.load("runs/digits-sweep")
    frames.contributions.groupby("run").staleness.mean()

Needs the extra `frames` (pandas, and pyarrow for Parquet).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pslab.runs.folder import DECISIONS, METRICS, SUMMARY, Run, RunError
from pslab.runs.work import WorkFold
from pswire.decisions import entries as e
from pswire.extras import how_to_install

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]

# The columns of each frame. Times in seconds of the log; staleness in versions.
CONTRIBUTIONS: Final = (
    *(
        "ticket",
        "worker",
        "base",
        "granted",
        "committed",
        "decided",
        "samples",
        "loss",
        "norm",
        "fate",
        "reason",
    ),
    *("staleness", "weight", "version"),
)
VERSIONS: Final = ("version", "t", "contributions", "workers", "mean_staleness", "max_staleness")
WAITS: Final = ("worker", "ticket", "kind", "begin", "end", "seconds")
EVALUATIONS: Final = ("t", "version", "metric", "value")
SETTINGS: Final = ("job", "success", "reason", "versions", "samples", "seconds")


@dataclass(frozen=True, slots=True)
class Frames:
    """One frame for each kind of record; every frame has a column `run`, the name of the run's folder.

    `runs`: one row for each run: how it ended, and its settings by dotted key (`policy.max_staleness`).
    `contributions`: one row for each granted ticket, with its fate: applied, dropped, cancelled,
    abandoned, lost with its worker, or open.
    `versions`: one row for each update. `waits`: what each worker did under each ticket, and for how long, by the
    kinds of `pslab.runs.work`. `evaluations`: one row for each metric of each evaluation.
    """

    runs: "pd.DataFrame"
    contributions: "pd.DataFrame"
    versions: "pd.DataFrame"
    waits: "pd.DataFrame"
    evaluations: "pd.DataFrame"

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


def load(folder: str | Path) -> Frames:
    """Read a run folder, or a folder of run folders such as a sweep's.

    Raises RunError for a folder without a run, and naming file and line where a log cannot be read; ImportError
    without pandas.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(f"frames need pandas: {how_to_install('frames')}") from error
    tables: dict[str, list[Row]] = {each.name: [] for each in fields(Frames)}
    for run in runs_in(Path(folder)):
        for name, rows in _tables(run).items():
            tables[name] += [{"run": run.name, **row} for row in rows]
    columns = {
        "contributions": CONTRIBUTIONS,
        "versions": VERSIONS,
        "waits": WAITS,
        "evaluations": EVALUATIONS,
    }
    return Frames(
        pd.DataFrame(tables.pop("runs")),
        **{name: pd.DataFrame(rows, columns=["run", *columns[name]]) for name, rows in tables.items()},
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


def _tables(run: Run) -> Mapping[str, list[Row]]:
    log = _Log()
    for line in run.decisions():
        log.see(line.fact, line.t)
    return {
        "runs": [_settings(run)],
        "contributions": list(log.contributions.values()),
        "versions": log.versions,
        "waits": log.waits,
        "evaluations": list(_evaluations(run)),
    }


def _settings(run: Run) -> Row:
    summary = run.summary
    found: Row = dict(
        zip(
            SETTINGS,
            (
                summary.job,
                summary.success,
                summary.reason,
                summary.versions,
                summary.samples,
                summary.wall_seconds,
            ),
            strict=True,
        )
    )
    found |= {name: value for name, value in summary.metrics.items() if name not in found}
    return found | run.settings()


def _evaluations(run: Run) -> Iterator[Row]:
    if not (run.path / METRICS).is_file():
        return
    for metric in run.metrics():
        if metric.kind == "eval":
            for name, value in metric.metrics.items():
                yield {"t": metric.t, "version": metric.version, "metric": name, "value": value}


class _Log:
    """Rows of one decision log, filled entry by entry."""

    def __init__(self) -> None:
        self.contributions: dict[int, Row] = {}
        self.versions: list[Row] = []
        self.waits: list[Row] = []
        self._fold = WorkFold()

    def see(self, fact: e.Entry, t: float) -> None:
        for work in self._fold.work(fact, t):
            for stretch in (*work.before, *work.held):
                if stretch.end > stretch.begin:
                    seconds = stretch.end - stretch.begin
                    values = (work.worker, work.ticket, stretch.kind, stretch.begin, stretch.end, seconds)
                    self.waits.append(dict(zip(WAITS, values, strict=True)))
        match fact:
            case e.Grant(worker, ticket, base):
                self.contributions[ticket] = {
                    "ticket": ticket,
                    "worker": worker,
                    "base": base,
                    "granted": t,
                    "fate": "open",
                }
            case e.Commit(_, ticket):
                self._row(ticket).update(
                    committed=t, samples=fact.samples, loss=_loss(fact.loss), norm=_loss(fact.norm)
                )
            case e.Apply():
                self._apply(fact, t)
            case e.Leave(worker):
                for row in self.contributions.values():
                    if row["worker"] == worker and row["fate"] == "open" and "committed" not in row:
                        row.update(fate="lost", decided=t)
            case e.Drop(_, ticket):
                self._row(ticket).update(fate="dropped", decided=t, reason=fact.reason)
            case e.Cancel(_, ticket):
                self._row(ticket).update(fate="cancelled", decided=t)
            case e.Abandon(_, ticket):
                self._row(ticket).update(fate="abandoned", decided=t)

    def _apply(self, fact: e.Apply, t: float) -> None:
        for part in fact.parts:
            self._row(part.ticket).update(
                fate="applied", decided=t, staleness=part.staleness, weight=part.weight, version=fact.version
            )
        staleness = [part.staleness for part in fact.parts]
        self.versions.append(
            {
                "version": fact.version,
                "t": t,
                "contributions": len(staleness),
                "workers": len({part.worker for part in fact.parts}),
                "mean_staleness": sum(staleness) / len(staleness) if staleness else math.nan,
                "max_staleness": max(staleness, default=math.nan),
            }
        )

    def _row(self, ticket: int) -> Row:
        """Return the row of a granted ticket; for the initial values' ticket one that is thrown away."""
        return self.contributions.get(ticket, {})


def _loss(loss: float | None) -> float:
    return math.nan if loss is None else loss
