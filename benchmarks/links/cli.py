"""The command `scripts/bench links`."""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.links.bare import NotShaped, Proof
from benchmarks.links.measure import LOADS, TF, LinkRow, LinkStage
from benchmarks.links.network import NetworkError, bits_per_second, reason_against
from benchmarks.peers.child import ROOT, ChildError
from benchmarks.report.results import machine_facts
from benchmarks.report.tables import number
from pswire.command.options import CONTEXT

console = Console(width=140)


def rates_of(context: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Return the rates that an option names. Raises BadParameter."""
    rates = text.split(",")
    for rate in rates:
        try:
            bits_per_second(rate)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return rates


@click.command(context_settings=CONTEXT)
@click.option(
    "--rates", default="10gbit,1gbit,100mbit", show_default=True, callback=rates_of, help="Of the links."
)
@click.option("--load", "loads", multiple=True, metavar="TEXT", help="Only loads whose name has this in it.")
@click.option("--peer", "peers", multiple=True, metavar="TEXT", help="Only peers whose name has this in it.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Bursts of each peer."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Of one burst; 2 steps at least.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/links-TIME.")
def main(
    rates: list[str],
    loads: tuple[str, ...],
    peers: tuple[str, ...],
    rounds: int,
    seconds: float,
    out: Path | None,
) -> None:
    """Measure steps over links of a given rate, beside TensorFlow's strategy and a bare socket.

    A server and each worker live in a network namespace of their own (needs root). Links are shaped in both directions
    with a bucket of 64 KiB, and proven by a bare socket first. The floor of a row is the time that its payloads need on
    the link: of one worker that does not fetch ahead one direction after the other, else both at once. Bytes are
    counted at the server's link, with those of the version with which a burst begins. Our rows run the policy `sync`,
    or `async` where a worker fetches ahead.
    """
    reason = reason_against()
    if reason is not None:
        raise click.ClickException(reason)
    chosen = [load for load in LOADS if not loads or any(text in load.name for text in loads)]
    if not chosen:
        raise click.UsageError(f"expected a part of one of {[load.name for load in LOADS]}, got {loads}")
    folder = out or ROOT / "runs" / f"links-{datetime.now():%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    begin, rows, proofs = time.monotonic(), [], {}

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - begin:4.0f} s  {text}", soft_wrap=True, highlight=False)

    try:
        for rate in rates:
            workers = max(load.workers for load in chosen)
            with LinkStage(rate, workers, folder / "logs", peers) as stage:
                proofs[rate] = stage.prove()
                say(f"{rate}: {_proven(proofs[rate])}")
                for load in chosen:
                    measured = stage.measure(load, seconds, rounds, say)
                    rows += measured
                    console.print(table(f"{load.name}, {rate}", measured))
    except (ChildError, NetworkError, NotShaped) as error:
        raise click.ClickException(str(error)) from error
    finally:
        _write(folder / "links.json", rows, proofs)


def _proven(proof: Proof) -> str:
    return (
        f"a bare socket reaches {proof.up:.2f} of the payload rate up, {proof.down:.2f} down; "
        f"one small message after silence {proof.small:.2f}"
    )


def _write(path: Path, rows: Sequence[LinkRow], proofs: dict[str, Proof]) -> None:
    shares = {rate: {"up": each.up, "down": each.down, "small": each.small} for rate, each in proofs.items()}
    record = {"machine": machine_facts(), "proofs": shares, "rows": [row.as_json() for row in rows]}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    console.print(f"all samples: {path}", soft_wrap=True)


def table(title: str, rows: Sequence[LinkRow]) -> Table:
    """Seconds of a step beside the floor, and as a multiple of TensorFlow's speed."""
    shown = Table(title=title, title_justify="left", header_style="bold")
    shown.add_column("peer")
    for heading in ("s a step", "spread", "floor s", "share of the link", "x TF float32", "MB up", "MB down"):
        shown.add_column(heading, justify="right")
    theirs = next((row.seconds for row in rows if row.peer == TF), None)
    for row in rows:
        up, down = row.megabytes()
        median = row.seconds.median
        shown.add_row(
            row.peer,
            f"{median:.3g}",
            f"±{row.seconds.spread:.0%}",
            f"{row.floor:.3g}",
            f"{row.floor / median:.2f}",
            "" if theirs is None else number(theirs.per(row.seconds).median),
            number(up),
            number(down),
        )
    return shown
