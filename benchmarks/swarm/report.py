"""Many workers: the table of one run."""

from collections.abc import Sequence

from rich.table import Table

from benchmarks.report import headed, number
from benchmarks.swarm.cells import Measured

MIB = 2**20


def table(cells: Sequence[Measured], echoes: Sequence[Measured]) -> Table:
    """One row per cell, bare echoes first; milliseconds from a commit to the grant that follows it.

    "x echo": what the servers' CPU time of a commit is as a multiple of the bare echo's, with as many sessions.
    """
    bare = {made.cell.sessions: made.server_ms for made in echoes}
    made = headed(
        "many workers",
        *("policy", "sessions", "servers", "commits/s", "server CPU ms", "x echo", "p50 ms", "p99 ms"),
        *("MiB", "generator CPU ms"),
    )
    for cell in (*echoes, *cells):
        made.add_row(*_row(cell, bare.get(cell.cell.sessions)))
    return made


def _row(made: Measured, bare: float | None) -> list[str]:
    cell, burst = made.cell, made.burst
    start = [cell.policy, str(cell.sessions), str(cell.servers)]
    if made.failure or not burst:
        return [*start, "failed", *["-"] * 6]
    return [
        *start,
        _shown(made.rate),
        _shown(made.server_ms),
        _shown(made.server_ms / bare if made.server_ms and bare else None),
        _shown(_ms(burst["p50"])),
        _shown(_ms(burst["p99"])),
        _shown(made.rss / MIB),
        _shown(made.generator_ms),
    ]


def failures(cells: Sequence[Measured]) -> list[str]:
    """A sentence per cell that failed, and per cell that lost workers on the way."""
    said = [f"{made.cell.name}: {made.failure}" for made in cells if made.failure]
    for made in cells:
        lost = made.burst.get("lost", 0)
        if lost:
            said.append(f"{made.cell.name}: {lost} workers were lost: {made.burst['losses']}")
    return said


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _shown(value: float | None) -> str:
    return "-" if value is None else number(value)
