"""The command `scripts/bench codecs`: what each codec costs in accuracy."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.codecs import speed
from benchmarks.codecs.tasks import TASKS, Task
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import Run, RunError
from pswire.command.options import CONTEXT, number_option

console = Console(width=140)


@click.command(context_settings=CONTEXT)
@click.option("--task", "wanted", multiple=True, metavar="TEXT", help="Only tasks whose name has this in it.")
@number_option("--seeds", 1, 3, "Runs of each row, with seeds from 0 on.")
@click.option("--cpu", is_flag=True, help="Instead: processor time of encoding and decoding.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/codecs"),
    show_default=True,
    help="Finished runs in it are kept.",
)
def main(wanted: tuple[str, ...], seeds: int, cpu: bool, out: Path) -> None:
    """Train three models with each codec on the simulated cluster, and show what they reach.

    Four workers, each seed the same data and initial values for every codec. Nothing is timed. Quarter of an hour on
    two quiet cores.
    """
    if cpu:
        console.print(speed.table(speed.measure(rounds=9)))
        return
    tasks = [task for task in TASKS if not wanted or any(text in task.name for text in wanted)]
    if not tasks:
        raise click.UsageError(f"expected a part of one of {[task.name for task in TASKS]}, got {wanted}")
    for task in tasks:
        found = {row: [reached(task, row, seed, out) for seed in range(seeds)] for row in task.rows}
        console.print(table(task, found))
        (out / f"{folder_name(task.name)}.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def reached(task: Task, row: str, seed: int, out: Path) -> dict[str, float]:
    """Return the final metrics of one run, which is made unless it is there."""
    folder = out / folder_name(task.name) / f"{folder_name(row)}-seed-{seed}"
    try:
        metrics = Run(folder).summary.metrics
    except RunError:
        run = Run(run_simulated(task.experiment(row, seed), out=folder, force=True, quiet=True).folder)
        metrics = run.summary.metrics
    return {name: float(metrics[name] or float("nan")) for name in task.measures}


def folder_name(text: str) -> str:
    """Return `text` as the name of a folder."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def table(task: Task, found: dict[str, list[dict[str, float]]]) -> Table:
    """Return the mean, the standard deviation and all seeds, by row."""
    shown = Table(title=task.name, title_justify="left", header_style="bold")
    shown.add_column("wire_dtype")
    for measure in task.measures:
        for heading in (measure, "deviation", "by seed"):
            shown.add_column(heading, justify="right")
    for row, runs in found.items():
        cells = [row]
        for measure in task.measures:
            cells += _cells([run[measure] for run in runs])
        shown.add_row(*cells)
    return shown


def _cells(values: Sequence[float]) -> list[str]:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return [f"{statistics.fmean(values):.4f}", f"{spread:.4f}", ", ".join(f"{each:.4f}" for each in values)]
