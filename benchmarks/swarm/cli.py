"""The command `scripts/bench swarm`."""

import time
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.report import console, folder_of, progress, write_results
from benchmarks.swarm import report
from benchmarks.swarm.cells import POLICIES, Cell, Measured, Terms, bare_echo, measure
from pswire.command.options import CONTEXT, number_option

SESSIONS = "8,100,250,500,1000,2000"
# Compiled code is made, or loaded, by the first servers of a run: nobody measures them. Seconds.
WARM_UP = 2.0


def _numbers(_: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter(
            f"expected whole numbers of 1 or more, such as {parameter.default}, got {text!r}"
        )
    return found


@click.command(context_settings=CONTEXT)
@click.option(
    "--sessions",
    default=SESSIONS,
    show_default=True,
    callback=_numbers,
    metavar="N,N,...",
    help="Numbers of workers, one after the other.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(list(POLICIES)),
    help="Only these policies. Repeatable. Default: all of them.",
)
@click.option(
    "--servers",
    default="1,2",
    show_default=True,
    callback=_numbers,
    metavar="N,N,...",
    help="Numbers of servers. With one a commit travels with its payload, with more by the session.",
)
@number_option(
    "--seconds", 0.1, 5.0, "Of each burst; a fifth of it, at most a second, comes before and is not counted."
)
@click.option(
    "--bytes",
    "nbytes",
    type=click.IntRange(min=16),
    default=4096,
    show_default=True,
    help="Of the weights, and of each gradient.",
)
@number_option("--patience", 1, 120.0, "Seconds in which all workers must have joined.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/swarm-TIME.")
def main(
    sessions: tuple[int, ...],
    policies: tuple[str, ...],
    servers: tuple[int, ...],
    seconds: float,
    nbytes: int,
    patience: float,
    out: Path | None,
) -> None:
    """Measure how one job serves many workers: what a commit costs, and how long its worker waits for the next grant.

    The workers are light clients in one process: they compute nothing, and one event loop drives all of their
    connections (each has its own: control, payloads, and a socket). They use the protocol as psworker does, with the
    same engine. A bare gRPC echo of the same messages is measured in the
    same run: what the servers' CPU time costs beyond it is the price of deciding. Servers and generator share the
    machine. To compare two checkouts, run this command in both.

    \b
    commits/s         of all workers, each as fast as it can
    server CPU ms     per commit, all servers together
    x echo            that CPU time as a multiple of the bare echo's
    p50, p99 ms       from a commit to the grant that follows it (under a barrier that is the barrier)
    MiB               of all servers, at the end of the burst
    """
    folder = folder_of("swarm", out)
    chosen = policies or tuple(POLICIES)
    settings = {
        "sessions": sessions,
        "policies": chosen,
        "servers": servers,
        "seconds": seconds,
        "bytes": nbytes,
    }
    cells, echoes = list[Measured](), list[Measured]()
    begin = time.monotonic()
    with progress() as say:
        terms = Terms(seconds, nbytes, patience, folder / "logs", say)
        try:
            _measure(cells, echoes, terms, sessions, chosen, servers)
        finally:
            found = {
                name: [each.as_json() for each in made]
                for name, made in (("cells", cells), ("bare_echo", echoes))
            }
            path = write_results(folder, settings=settings, **found)
    console.print(report.table(cells, echoes))
    for sentence in report.failures([*cells, *echoes]):
        console.print(sentence, soft_wrap=True)
    console.print(f"all numbers: {path}", soft_wrap=True)
    console.print(f"{time.monotonic() - begin:.0f} s")
    if not any(made.burst for made in cells):
        raise click.ClickException("nothing could be measured; the sentences above say why")


def _measure(
    cells: list[Measured],
    echoes: list[Measured],
    terms: Terms,
    sessions: tuple[int, ...],
    policies: tuple[str, ...],
    servers: tuple[int, ...],
) -> None:
    measure(Cell(policies[0], 2, 1), replace(terms, seconds=WARM_UP, logs=terms.logs / "warm-up"))
    for many in sessions:
        echoes.append(bare_echo(many, terms))
    for count in servers:
        for policy in policies:
            for many in sessions:
                found = measure(Cell(policy, many, count), terms)
                cells.append(found)
                for sentence in report.failures([found]):
                    terms.say(sentence)
