"""Many workers: the tables of one run."""

from collections.abc import Sequence

from rich.table import Table

from benchmarks.report import headed, number
from benchmarks.swarm.cells import Measured

MIB = 2**20


def table(cells: Sequence[Measured], echoes: Sequence[Measured]) -> Table:
    """One row per cell; milliseconds from a commit to the grant that follows it.

    "x echo": what the servers' CPU time of a commit is as a multiple of the bare echo's, with as many sessions.
    """
    bare = {made.cell.sessions: made.server_ms for made in echoes}
    made = headed(
        "many workers",
        *("policy", "sessions", "servers", "commits/s", "server CPU ms", "x echo", "p50 ms", "p99 ms"),
        *("threads", "MiB", "descriptors", "generator CPU ms"),
    )
    for cell in cells:
        made.add_row(*_row(cell, bare.get(cell.cell.sessions)))
    return made


def _row(made: Measured, bare: float | None) -> list[str]:
    cell, cost, burst = made.cell, made.cost, made.burst
    start = [cell.policy, str(cell.sessions), str(cell.servers)]
    if made.failure or cost is None:
        return [*start, "failed", *["-"] * 8]
    return [
        *start,
        _shown(made.rate),
        _shown(made.server_ms),
        _shown(made.server_ms / bare if made.server_ms and bare else None),
        _shown(_ms(burst["p50"])),
        _shown(_ms(burst["p99"])),
        str(cost.threads),
        _shown(cost.rss / MIB),
        str(cost.descriptors),
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


def echoes(cells: Sequence[Measured]) -> Table:
    """A bare gRPC echo of the same messages: what the same workers reach where nothing is decided."""
    made = headed(
        "a bare gRPC echo", "sessions", "commits/s", "generator CPU ms", "echo CPU ms", "p99 ms", left=0
    )
    for cell in cells:
        if cell.failure:
            made.add_row(str(cell.cell.sessions), "failed", "-", "-", "-")
        else:
            shown = (cell.rate, cell.generator_ms, cell.server_ms, _ms(cell.burst["p99"]))
            made.add_row(str(cell.cell.sessions), *map(_shown, shown))
    return made


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _shown(value: float | None) -> str:
    return "-" if value is None else number(value)
