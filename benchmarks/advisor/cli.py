"""The command `scripts/bench advisor`."""

import json
import time
from pathlib import Path

import click
from rich.console import Console

from benchmarks.advisor.measure import ShapeMeasurement
from benchmarks.advisor.report import judged, markdown
from benchmarks.advisor.shapes import SHAPES
from benchmarks.links.network import NetworkError, reason_against
from benchmarks.peers.child import ROOT, ChildError
from benchmarks.report.results import machine_facts
from pswire.command.options import CONTEXT

console = Console(width=140)


@click.command(context_settings=CONTEXT)
@click.option(
    "--shape", "names", multiple=True, type=click.Choice(list(SHAPES)), help="Only these. Repeatable."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=ROOT / "runs" / "advisor",
    help="Where runs, advice and results are kept; what is there is not measured again. Default: runs/advisor.",
)
def main(names: tuple[str, ...], out: Path) -> None:
    """Hold the advisor against real processes: benchmarks/advisor/README.md has the protocol.

    For each shape of a cluster: one run, the advice on it, then the advised policies and baselines for real, under
    five seeds, in turn. About half an hour; the shape `link` needs root. The same command goes on after an
    interruption.
    """
    shapes = [SHAPES[name] for name in names or SHAPES]
    reason = reason_against() if any(shape.link for shape in shapes) else None
    if reason is not None:
        raise click.ClickException(f"{reason}; --shape chooses the others")
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began:4.0f} s  {text}", soft_wrap=True, highlight=False)

    measurements = [ShapeMeasurement(shape, out / shape.name, say) for shape in shapes]
    try:
        for measurement in measurements:
            measurement.measure()
    except (ChildError, NetworkError) as error:
        raise click.ClickException(str(error)) from error
    found = [judged(each.shape.name, each.advice, each.choices(), each.results()) for each in measurements]
    text = markdown(found)
    (out / "report.md").write_text(text, encoding="utf-8")
    facts = {"machine": machine_facts(), "shapes": [each.as_json() for each in found]}
    (out / "results.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    click.echo(text)
    say(f"tables: {out / 'report.md'}")
