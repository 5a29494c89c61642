"""The command `scripts/bench`: steps beside TensorFlow's strategy, another checkout, or over links."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks import kinds, links, loads, report
from benchmarks.loads import Load
from benchmarks.peers.child import ChildError
from benchmarks.report import console
from benchmarks.rounds import Pace, Row, Say, TooFewBytes, check_bytes, measure
from benchmarks.stage import Stage
from pswire.command.options import CONTEXT
from tests.machines.network import Network, NetworkError

USUAL = (kinds.TF, *kinds.OURS, *kinds.OVER_TLS)
# A burst over a link lasts this many times as long as one without.
LINKED_TIMES = 10
WARM_UP = Pace(3.0, 1)


@click.command(context_settings=CONTEXT)
@click.option(
    "--load", "wanted", multiple=True, metavar="TEXT", help="Only loads whose name contains this text."
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    type=click.Choice(list(kinds.LABELS)),
    help="Only these peers. Repeatable. Codecs are measured only where they are named, and on links.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="CHECKOUT",
    help="Compare with another checkout of this repository instead of TensorFlow. It runs its own programs, with "
    "the packages of its own .venv where it has one. What counts is the ratio within each round.",
)
@links.link_option(
    "Put the server and each worker on hosts of their own, joined by links of this rate, such as 1gbit (as root).",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Bursts of each peer."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01),
    default=0.4,
    show_default=True,
    help="Of each burst; ten times as much on a link.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/bench-TIME.")
def main(
    wanted: tuple[str, ...],
    peers: tuple[str, ...],
    against: Path | None,
    link: str | None,
    rounds: int,
    seconds: float,
    out: Path | None,
) -> None:
    """Measure steps of this parameter server beside TensorFlow's ParameterServerStrategy, on one machine.

    A step without computation pulls all weights and pushes a gradient of the same size, plain and over TLS. All peers
    run side by side and take turns. The whole table takes about two minutes.

    "bench fit", "bench swarm", "bench tables" and "bench availability" measure the rest and have options of their own.
    """
    if against is not None and link is not None:
        raise click.UsageError("expected --against or --link, got both")
    if against is not None and kinds.TF in peers:
        raise click.UsageError("--against compares our own peers")
    every = loads.TRANSPORT if link is None else (*loads.TRANSPORT, loads.MATRICES)
    chosen = [load for load in every if not wanted or any(text in load.name for text in wanted)]
    if not chosen:
        raise click.UsageError(
            f"--load: expected a part of one of {[load.name for load in every]}, got {wanted}"
        )
    folder = report.folder_of("bench", out)
    begin, found = time.monotonic(), list[Row]()
    try:
        with report.progress() as say:
            if against is not None:
                _against(against.resolve(), chosen, peers, Pace(seconds, rounds), folder, say, found)
            elif link is not None:
                _linked(
                    link, chosen, peers, Pace(LINKED_TIMES * seconds, rounds, least=2), folder, say, found
                )
            else:
                _beside(chosen, peers, Pace(seconds, rounds), folder, say, found)
    except (ChildError, TooFewBytes, NetworkError, links.NotShaped) as error:
        raise click.ClickException(str(error)) from error
    finally:
        path = report.write_results(folder, rows=list(map(samples_of, found)))
        console.print(f"all samples: {path}", soft_wrap=True)
    console.print(f"{time.monotonic() - begin:.0f} s")


def _beside(
    chosen: Sequence[Load], peers: Sequence[str], pace: Pace, folder: Path, say: Say, found: list[Row]
) -> None:
    with Stage(folder / "logs") as stage:
        for load in chosen:
            row = measure(load, stage.peers(peers or USUAL), pace, say)
            found.append(row)
            check_bytes(row)
    console.print(report.ratios("steps", found))
    over_tls = report.encrypted(found)
    if over_tls is not None:
        console.print(over_tls)


def _against(
    other: Path,
    chosen: Sequence[Load],
    peers: Sequence[str],
    pace: Pace,
    folder: Path,
    say: Say,
    found: list[Row],
) -> None:
    named = []
    with Stage(folder / "logs") as stage:
        pairs = stage.pairs(peers or (*kinds.OURS, *kinds.OVER_TLS), other)
        # The first servers of a checkout compile their loops, which takes seconds.
        measure(chosen[0], pairs[0], WARM_UP, say)
        for load in chosen:
            for here, there in pairs:
                row = measure(load, [here, there], pace, say)
                found.append(row)
                named.append((here.name, there.name, row))
    console.print(report.checkouts(named))


def _linked(
    rate: str,
    chosen: Sequence[Load],
    peers: Sequence[str],
    pace: Pace,
    folder: Path,
    say: Say,
    found: list[Row],
) -> None:
    workers = max(load.workers for load in chosen)
    with ExitStack() as stack:
        network = stack.enter_context(Network(workers + 1, rate))
        stage = stack.enter_context(Stage(folder / "logs", network))
        for load in chosen:
            found.append(measure(load, stage.peers(peers or kinds.LINKED), pace, say))
        console.print(links.table(rate, network.payload_rate, found))


def samples_of(row: Row) -> dict[str, object]:
    """Every burst of a load, as JSON."""
    return {
        "load": row.load.name,
        "bytes": row.load.nbytes,
        "workers": row.load.workers,
        "peers": {name: [asdict(burst) for burst in bursts] for name, bursts in row.bursts.items()},
    }
