"""The command ``ps-lab explain``."""

from pathlib import Path

import click
from rich.table import Table

from pslab.commands.failure import EPILOG, console, failures
from pslab.display.progress import print_json
from pslab.explain import Explained, Row, bytes_per_second, explain
from pslab.launch.simulated import model_plan
from pslab.simulator import SimulationError
from pswire.command.options import overrides_option
from pswire.config.distributions import DelayError, parse
from pswire.config.experiment import Experiment, ExperimentError, load_experiment
from psworker.job.errors import JobError


def _rate(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else bytes_per_second(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("explain", epilog=EPILOG)
@click.argument("path", metavar="EXPERIMENT", type=click.Path(path_type=Path))
@overrides_option("Override a key of EXPERIMENT: policy.name=diloco. Repeatable.")
@click.option(
    "--link",
    "rate",
    callback=_rate,
    metavar="RATE",
    help="Rate of each server's link in each direction, such as 1Gbit/s or 100Mbit/s [default: links.bandwidth].",
)
@click.option(
    "--compute",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Seconds that a worker computes a batch [default: the mean of simulation.compute].",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def explain_command(
    path: Path, overrides: tuple[str, ...], rate: float | None, compute: float | None, as_json: bool
) -> None:
    """Say what a link and a codec would give: bytes of a contribution, least seconds of a batch, what bounds it.

    Loads the experiment's model, but trains nothing. The times are floors of the link and the computation alone:
    encoding, decoding and updates come on top. Under a barrier all gradients go up before the weights come down;
    otherwise both directions overlap.

    \b
      ps-lab explain examples/digits-sync.toml --link 100Mbit/s --compute 0.01
      ps-lab explain examples/digits-sync.toml --link 1Gbit/s --set policy.name=diloco --set policy.steps=50
    """
    with failures(ExperimentError, SimulationError, DelayError, JobError, ValueError):
        experiment = load_experiment(path, overrides)
        seconds = parse(experiment.simulation.compute).mean if compute is None else compute
        if rate is None and experiment.links.bandwidth:
            rate = experiment.links.bandwidth
        found = explain(experiment, model_plan(experiment), rate, seconds)
    if as_json:
        print_json(_facts(found))
        return
    click.echo(_sentence(experiment, found))
    console().print(_table(found, rate))
    refused = [row for row in found.rows if row.refusal]
    for row in refused:
        click.echo(f"{row.name} is refused: {row.refusal}")


def _sentence(experiment: Experiment, found: Explained) -> str:
    workers, each = experiment.cluster.workers, found.batches
    way = "one direction at a time (a barrier)" if found.barrier else "both directions at once"
    return (
        f"{found.whole / 1e6:.3g} MB of {found.variables} variables; {workers} worker{'s' * (workers > 1)}, "
        f"a contribution every {f'{each} batches' if each > 1 else 'batch'}, {found.compute:g} s of computation "
        f"a batch, {way}"
    )


def _table(found: Explained, rate: float | None) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("wire_dtype")
    plain = next((row.seconds for row in found.rows if row.name == "float32"), None)
    for name in ("MB up", "MB down", *(("s a batch", "computing", "x float32") if rate else ())):
        table.add_column(name, justify="right")
    if rate:
        table.add_column("bound by")
    for row in found.rows:
        if row.refusal:
            continue
        cells = [row.name, f"{row.up / 1e6:.3g}", f"{row.down / 1e6:.3g}"]
        if row.seconds is not None:
            share = found.compute / row.seconds if row.seconds else 1.0
            times = f"{plain / row.seconds:.2g}" if plain and row.seconds else "1"
            cells += [f"{row.seconds:.3g}", f"{share:.0%}", times, row.bound]
        table.add_row(*cells)
    return table


def _facts(found: Explained) -> dict[str, object]:
    return {
        "model_bytes": found.whole,
        "batches": found.batches,
        "barrier": found.barrier,
        "compute": found.compute,
        "codecs": [_codec(row) for row in found.rows],
    }


def _codec(row: Row) -> dict[str, object]:
    if row.refusal:
        return {"wire_dtype": row.name, "refusal": row.refusal}
    return {
        "wire_dtype": row.name,
        "bytes_up": row.up,
        "bytes_down": row.down,
        "seconds": row.seconds,
        "bound": row.bound or None,
    }
