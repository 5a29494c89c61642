"""``ps-lab quickstart``: train one real model under three policies, and check, compare and draw the runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

import pslab
from pslab.check.checker import CheckResult, check_run, result_lines
from pslab.commands.compare import comparison_of, show
from pslab.commands.failure import EPILOG, console, failures
from pslab.display.outcome import outcome_text
from pslab.display.progress import Display, choose
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import FinishedRun, load, run_real
from pslab.runs.folder import Run, RunError
from pswire.command.options import overrides_option
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode

POLICIES = ("sync", "async", "bounded")
PICTURE = "loss.png"


@dataclass(frozen=True)
class TourRun:
    """One of the three runs of the tour."""

    policy: str
    finished: FinishedRun
    # None if there is no log to check.
    verdict: CheckResult | None

    @property
    def code(self) -> int:
        """The run's exit code, or that of the check of its log if the run succeeded."""
        if not self.finished.result.ok:
            return self.finished.result.verdict.code
        return ExitCode.OK if self.verdict is not None and self.verdict.ok else ExitCode.VIOLATIONS


def examples() -> Path:
    """Return the folder of the example experiments, beside the package in a checkout. Raises RunError."""
    folder = Path(pslab.__file__).resolve().parents[1] / "examples"
    if not (folder / "digits-sync.toml").is_file():
        raise RunError(f"{folder}: expected the example experiments here: run this from a checkout")
    return folder


def tour(
    out: Path, overrides: Sequence[str], display: Callable[[str], Display], report: Callable[[TourRun], None]
) -> int:
    """Run the three experiments in turn into folders below `out`, and return an exit code.

    `display` makes the progress display of a policy's run; `report` is called after each run. After a failure the
    other runs still start; after an interruption they do not.
    """
    folder = examples()
    worst: int = ExitCode.OK
    for policy in POLICIES:
        experiment = load(folder / f"digits-{policy}.toml", overrides)
        # Paths of job modules in the examples are relative to the checkout.
        finished = run_real(
            experiment, display(policy), LocalLauncher(folder.parent), out=out / policy, force=True
        )
        stop = TourRun(policy, finished, _check(finished.folder))
        report(stop)
        worst = worst or stop.code
        if finished.result.verdict.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            return finished.result.verdict.code
    return worst


def _check(folder: Path) -> CheckResult | None:
    try:
        return check_run(Run(folder))
    except RunError:
        return None  # There is no log: the run failed and says why.


def finished_runs(out: Path) -> list[Run]:
    """Return the runs that have a summary, in order."""
    folders = [out / policy for policy in POLICIES]
    runs = [Run(folder) for folder in folders if (folder / "decisions.jsonl").is_file()]
    return [run for run in runs if run.stopped]


@click.command(epilog=EPILOG)
@overrides_option("Override a key in all three experiments. Repeatable.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/quickstart"),
    show_default=True,
    help="Folder of the run folders and the picture; earlier ones are replaced.",
)
@click.pass_context
def quickstart(context: click.Context, overrides: tuple[str, ...], out: Path) -> None:
    """Train on handwritten digits under sync, async and bounded, and compare them.

    Makes and checks three runs of 2 servers and 3 workers each, and ends with a table and a picture of the loss.
    Fails if a run or the check of its decision log fails.
    """
    screen = console()

    def display(policy: str) -> Display:
        screen.rule(f"{policy} ({POLICIES.index(policy) + 1} of {len(POLICIES)})", align="left")
        return choose()

    with failures(ExperimentError, RunError):
        comparison = comparison_of(pictures=(("training_loss", out / PICTURE),))
        code = tour(out, overrides, display, lambda stop: _print(screen, stop))
        screen.rule()
        if runs := finished_runs(out):
            show(runs, comparison)
    screen.print(f"run folders: {', '.join(str(out / policy) for policy in POLICIES)}")
    context.exit(int(code))


def _print(screen: Console, stop: TourRun) -> None:
    screen.print(outcome_text(stop.finished))
    if stop.verdict is None:
        screen.print("check: there is no decision log")
    elif stop.verdict.ok:
        screen.print(f"check: all passed ({stop.verdict.entries} log entries)")
    else:
        for line in result_lines(stop.policy, stop.verdict):
            screen.print(line)
