"""The command `scripts/bench`."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console

from benchmarks import loads
from benchmarks.kinds import LABELS
from benchmarks.measures import budget
from benchmarks.measures.rounds import MODES, Mode, TooFewBytes
from benchmarks.peers.child import ROOT, ChildError
from benchmarks.report import chart, tables
from benchmarks.report.results import Results, machine_facts
from benchmarks.sections import checkouts, optimizers, scaling, training, transport
from benchmarks.stage import Stage
from pswire.command.options import CONTEXT

SECTIONS = ("transport", "training", "optimizers", "scaling", "budget")
USUAL = {"short": ("transport",), "full": ("transport", "training")}

# A table in a log file needs no line breaks for the sake of a terminal.
console = Console(width=None if sys.stdout.isatty() else 140)


@click.command(context_settings=CONTEXT)
@click.argument("sections", nargs=-1, type=click.Choice(SECTIONS))
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    default="short",
    show_default=True,
    help="short: under 2 minutes; full: under 15.",
)
@click.option("--load", "wanted", multiple=True, metavar="TEXT", help="Only loads whose name has this in it.")
@click.option(
    "--peer", "peers", multiple=True, type=click.Choice(list(LABELS)), help="Only these peers. Repeatable."
)
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="CHECKOUT",
    help="Transport alone, beside another checkout of this repository instead of TensorFlow; both run with "
    "this one's packages. What counts is the ratio within each round.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Bursts of each peer, instead of the mode's.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/bench-TIME.")
def main(
    sections: tuple[str, ...],
    mode: str,
    wanted: tuple[str, ...],
    peers: tuple[str, ...],
    against: Path | None,
    rounds: int | None,
    out: Path | None,
) -> None:
    """Measure this parameter server beside TensorFlow's ParameterServerStrategy, on one machine.

    \b
    transport   communication only: a step pulls all weights, pushes as large a gradient; over TLS, too, beside
                plain; with it handshakes per second, and 100 workers that join, with and without certificates
    training    real steps: an MLP of 17M parameters, a CNN on digits, 200 small variables
    optimizers  update kernels against the machine's memory bandwidth
    scaling     several workers and servers
    budget      where the time of one step goes, part by part
    Without a name: transport, and in full mode training too. All peers run side by side and take turns.

    "bench swarm" measures how servers serve many workers, "bench checkpoint" what a checkpoint costs beside training.
    They have options of their own: bench swarm --help, bench checkpoint --help.
    """
    if against is not None and sections:
        raise click.UsageError("--against measures the transport; it takes no sections")
    chosen = MODES[mode] if rounds is None else replace(MODES[mode], rounds=rounds)
    folder = out or ROOT / "runs" / f"bench-{datetime.now():%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(mode, machine_facts())
    begin = time.monotonic()
    try:
        if against is not None:
            compare(against.resolve(), chosen, wanted, peers, folder, results)
        else:
            run(sections or USUAL[mode], chosen, wanted, peers, folder, results)
    except (ChildError, TooFewBytes) as error:
        raise click.ClickException(str(error)) from error
    finally:
        results.seconds = time.monotonic() - begin
        console.print(f"all samples: {results.write(folder)}", soft_wrap=True)
    machine = results.machine
    title = f"{machine['processor']}, {machine['cores']} cores, {machine['date'][:10]}, {mode} mode"
    if chart.draw(results.sections, folder / "chart.png", title):
        console.print(f"a picture: {folder / 'chart.png'}", soft_wrap=True)
    console.print(f"{results.seconds:.0f} s")


def run(
    sections: Sequence[str],
    mode: Mode,
    wanted: Sequence[str],
    peers: Sequence[str],
    folder: Path,
    results: Results,
) -> None:
    """Measure `sections` and print each one's table as soon as it is known."""
    processes = [name for name in sections if name != "optimizers"]
    if processes:
        with progress() as say, Stage(mode, folder / "logs", say, peers) as stage:
            for name in processes:
                if name == "budget":
                    budgets = budget.measure(stage, folder / "logs")
                    results.budget = [each.as_json() for each in budgets]
                    console.print(budget.table(budgets))
                else:
                    _section(name, stage, wanted, results)
            results.limits = stage.limits.samples
        console.print(tables.limits(results.limits))
    if "optimizers" in sections:
        with progress() as say:
            rows = optimizers(mode, folder / "logs", say)
        results.optimizers = [row.as_json() for row in rows]
        console.print(tables.kernels(rows))


def compare(
    other: Path, mode: Mode, wanted: Sequence[str], peers: Sequence[str], folder: Path, results: Results
) -> None:
    """Measure this checkout beside `other`, and print the ratios."""
    with progress() as say, Stage(mode, folder / "logs", say, peers, other) as stage:
        results.sections.update(checkouts(stage, _named(wanted)))
        results.limits = stage.limits.samples
    console.print(tables.checkouts(results.sections["against"]))


def _named(wanted: Sequence[str]) -> Callable[[loads.Load], bool]:
    return lambda load: not wanted or any(text in load.name for text in wanted)


def _section(name: str, stage: Stage, wanted: Sequence[str], results: Results) -> None:
    measured = {"transport": transport, "training": training, "scaling": scaling}[name](stage, _named(wanted))
    results.sections.update({title: rows for title, rows in measured.items() if rows})
    for title, rows in measured.items():
        if rows:
            console.print(tables.scaling(title, rows) if name == "scaling" else tables.ratios(title, rows))
    against = tables.encrypted(measured.get("transport", ()))
    if against is not None:
        console.print(against)
    connections = stage.connections() if name == "transport" else None
    if connections is not None:
        results.connections = connections.as_json()
        console.print(tables.connections(connections))


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A moving line on a terminal, plain lines elsewhere; with the seconds since the block began."""
    begin = time.monotonic()

    def timed(text: str) -> str:
        return f"{time.monotonic() - begin:4.0f} s  {text}"

    if not console.is_terminal:
        yield lambda text: console.print(timed(text), soft_wrap=True, highlight=False)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(timed(text))
