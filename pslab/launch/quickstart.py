"""The tour: one real model under three policies, checked, compared, and drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pslab
from pslab.check.checker import CheckResult, check_run
from pslab.display.progress import Display
from pslab.launch.experiments import FinishedRun, load, run_local
from pslab.runs.folder import Run, RunError
from pslab.runs.report import draw
from pswire.exits import ExitCode

POLICIES = ("sync", "async", "bounded")
PICTURE = "report.png"


@dataclass(frozen=True)
class Stop:
    """One of the three runs of the tour."""

    policy: str
    finished: FinishedRun
    # None when there is no log to check.
    verdict: CheckResult | None

    @property
    def code(self) -> int:
        """The run's own exit code; when that is 0, whether its log passes all checks."""
        if not self.finished.result.ok:
            return self.finished.result.verdict.code
        return ExitCode.OK if self.verdict is not None and self.verdict.ok else ExitCode.VIOLATIONS


def examples() -> Path:
    """The folder of the example experiments, beside the package in a checkout. Raises RunError."""
    folder = Path(pslab.__file__).resolve().parents[1] / "examples"
    if not (folder / "digits-sync.toml").is_file():
        raise RunError(f"{folder}: the example experiments are not there; run this from a checkout")
    return folder


def tour(
    out: Path, overrides: Sequence[str], display: Callable[[str], Display], report: Callable[[Stop], None]
) -> int:
    """Run the three experiments in turn into folders below `out`; an exit code.

    `display` makes the progress display of a policy's run, `report` is called after each.
    A failure does not keep the others from running; an interruption does.
    """
    folder = examples()
    worst: int = ExitCode.OK
    for policy in POLICIES:
        experiment = load(folder / f"digits-{policy}.toml", overrides)
        # The examples name their job module from the checkout's root.
        finished = run_local(experiment, display(policy), out=out / policy, force=True, cwd=folder.parent)
        stop = Stop(policy, finished, _check(finished.folder))
        report(stop)
        worst = worst or stop.code
        if finished.result.verdict.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            return finished.result.verdict.code
    return worst


def _check(folder: Path) -> CheckResult | None:
    try:
        return check_run(Run(folder))
    except RunError:
        return None  # no log at all: the run itself has failed and says why


def finished_runs(out: Path) -> list[Run]:
    """Those of the three runs that came to a summary, in order."""
    folders = [out / policy for policy in POLICIES]
    runs = [Run(folder) for folder in folders if (folder / "decisions.jsonl").is_file()]
    return [run for run in runs if run.stopped]


def picture(out: Path) -> Path | None:
    """Draw the finished runs into one PNG; None when there are none."""
    runs = finished_runs(out)
    if not runs:
        return None
    path = out / PICTURE
    draw(runs, path, title="Handwritten digits: the same model and data under three policies")
    return path
